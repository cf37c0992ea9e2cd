"""Validated experiment specifications; a specification hashes to the name of its run."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from privbench import names
from privbench.data.paper_setup import Name as ProtocolName
from privbench.errors import UserError
from privbench.system.file_headers import short

# Raised whenever an unchanged specification gives other numbers, or leaves more on disk; part of every run's name.
# Of training; 4: the history says how every model of a round does, Office and DomainNet are halved per seed.
REVISION = 4
# The same of all attacks and scores: trained networks stay in use. Where one attack alone changes, its class raises its own
# `revision`, so that no other has to be run again. 4: stronger surrogates, another layerwise inversion. 5: attacks draw from a
# seed of their own (seeds.of_attacker), which is not the run's.
ATTACK_REVISION = 5


# Names as they may be spelt, since a specification may come from a file of somebody else's (privbench/names.py).
PluginName = Annotated[str, AfterValidator(names.plugin)]
DatasetName = Annotated[str, AfterValidator(names.dataset)]
AuxiliaryName = Annotated[str, AfterValidator(names.auxiliary)]
DefenseName = Annotated[str, AfterValidator(names.defense)]
RoundName = Annotated[str, AfterValidator(names.round_)]
DomainName = Annotated[str, AfterValidator(names.folder)]
Word = Annotated[str, AfterValidator(names.word)]
Settings = dict[
    Annotated[str, AfterValidator(names.setting)], float | int | Annotated[str, AfterValidator(names.printed)] | bool
]

# Fields of a training run that are not written where they have these values.
USUAL = {
    "content": None, "omega": None, "min_per_client": None, "protocol": "fedcg", "flip": True, "measured": "personal",
    "initialisation": "shared",
}  # fmt: skip
# The models of a client after a round: its own after local training, the same as it was sent (after the defence of the update), and
# the broadcast of the next round in place of its shared parts.
Measured = Literal["personal", "uploaded", "broadcast"]
# From what clients start: all from the same networks, or each from a draw of its own of what it keeps. What they share is alike.
Initialisation = Literal["shared", "per-client"]


class Strict(BaseModel):
    """Frozen; a misspelt field is an error, and so is a number that is not finite, which no file could hold."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    # Fields that are digested in another way, or not at all.
    _not_hashed: ClassVar[frozenset[str]] = frozenset()

    @property
    def id(self) -> str:
        """Twelve hexadecimal digits that name this specification."""
        return self.digest(REVISION)

    def digest(self, revision: object) -> str:
        """The name under a revision: of the class's name and all that is written of it, but for `_not_hashed`."""
        fields = {name: value for name, value in self.model_dump(mode="json").items() if name not in self._not_hashed}
        text = json.dumps([revision, type(self).__name__, fields], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


class Adam(Strict):
    """Adam with L2 weight decay added to the gradient, as torch.optim.Adam."""

    lr: float = Field(gt=0)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.999, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0)
    # Without it the moments are taken as they are, which begin at 0 (dp-adam as it is printed). Not written where it is usual.
    bias_correction: bool = Field(True, exclude_if=bool)


class SGD(Strict):
    """Plain stochastic gradient descent with L2 weight decay, as torch.optim.SGD without momentum."""

    kind: Literal["sgd"]  # distinguishes it from Adam in a written specification
    lr: float = Field(gt=0)
    weight_decay: float = Field(0.0, ge=0)


Optimiser = Adam | SGD


def optimiser(written: Mapping[str, Any]) -> Optimiser:
    """An optimiser that was written out."""
    setting = dict(written)
    return SGD(**setting) if "kind" in setting else Adam(**setting)


# After which a long run keeps its whole state, besides that of the best round and the last.
FULL_ROUNDS = (0, 1, 2, 5, 10, 20, 50)


class Schedule(Strict):
    """How long and how fast a method trains."""

    rounds: int = Field(ge=0, le=10**6)
    local_epochs: int = Field(ge=1)
    generator_epochs: int = Field(ge=1)
    client_steps: int | None = Field(None, ge=1)  # mini-batches of each client phase, in place of its epochs
    server_steps: int = Field(ge=0)
    batch: int = Field(ge=1)
    patience: int = Field(ge=1)  # stop after this many rounds without any client improving its validation accuracy
    keep_every: int = Field(ge=1)  # rounds whose networks stay on disk, in addition to the first, the best and the last
    task: Optimiser
    generator: Optimiser
    server: Optimiser


class TrainSpec(Strict):
    """One training run: one method on one data set with one seed."""

    dataset: DatasetName
    domains: tuple[DomainName, ...] | None = None
    content: Word | None = None  # of a folder of the user's own: changes when its files do
    partition: Literal["iid", "domain", "dirichlet", "classes"]
    omega: float | None = Field(None, gt=0, allow_inf_nan=False)  # of "dirichlet" alone
    min_per_client: int | None = Field(None, ge=1)  # of "dirichlet" alone
    clients: int = Field(ge=1)
    per_client: int = Field(ge=1)  # on average, under "dirichlet"
    backbone: PluginName = "lenet5"  # or package.module:Name of the user's own
    image_size: int = 32
    method: PluginName
    method_settings: Settings = {}
    defense: DefenseName = "none"
    where: Literal["step", "update"] = "update"
    protocol: ProtocolName = "fedcg"  # whose split, and whose images accuracy is measured on
    # Whether images are flipped horizontally at random, of the data sets that FedCG's reference code flips.
    flip: bool = True
    measured: Measured = "personal"  # whose accuracy counts: it stops training, selects the best round and is reported
    initialisation: Initialisation = "shared"
    schedule: Schedule
    seed: int = Field(ge=0)

    @model_serializer(mode="wrap")
    def _without_what_does_not_apply(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Absent and usual settings are not written: they are no part of the name of a run that they do not concern."""
        return {name: value for name, value in dump(self).items() if name not in USUAL or value != USUAL[name]}


class CellSpec(Strict):
    """One cell of a table: one method, defended or not, attacked one way or not at all, over several seeds."""

    preset: Word
    train: TrainSpec  # with the first seed; the others differ in the seed alone
    seeds: tuple[int, ...] = Field(min_length=1)
    attack: PluginName | None  # None: an accuracy cell, which is trained and measured only
    attack_settings: Settings = {}
    round: RoundName = "best"  # "0", "N", "last" or "best"
    victims: int = Field(ge=0)  # per seed; 0 in an accuracy cell alone
    batch_size: int = Field(1, ge=1)
    labels_known: bool = False
    # Of the victim batch, or the change of whole local training on it.
    observe: Literal["gradient", "update"] = "gradient"
    # Of an update; None: the schedule's client steps, or else those of its local epochs over the victim batch.
    local_steps: int | None = Field(None, ge=1)
    local_lr: float | None = Field(None, gt=0)  # of an update by plain SGD; None: the schedule's optimiser
    local_batch: int | None = Field(None, ge=1)  # images per step of an update; None: the whole victim batch
    # Which images an attacker with auxiliary images has: privbench/observation/knowledge.py.
    auxiliary: AuxiliaryName = "same"
    auxiliary_content: Word | None = None  # of them, where they are a folder of the user's own, as `TrainSpec.content`
    # Of an attack that needs them (privbench/observation/other_images.py): images of each attacked client that the attacker knows,
    # at which PSNR in dB (None: exactly); rounds whose uploads the server kept (None: 0, 1, 2, 4, ...), and how many of a client.
    known_images: int | None = Field(None, ge=0, le=1000)
    known_quality_db: float | None = Field(None, gt=0, le=100)
    observed_rounds: tuple[Annotated[int, Field(ge=0, le=10**9)], ...] | None = Field(None, min_length=1)
    uploads_per_round: int | None = Field(None, ge=1, le=1000)
    # The number format of what clients send: privbench/observation/wire.py.
    wire: Literal["float32", "bf16", "fp16"] = "float32"
    # Canaries that measure its epsilon: privbench/execution/audit.py; 0: none.
    audit: int = Field(0, ge=0, le=100_000)
    # Samples by which its generators of images are scored: privbench/execution/generator_scores.py; 0: they are not.
    generated: int = Field(0, ge=0, le=1_000_000)
    # Of the attack's class when the cell was specified, so that the name and the files show it without importing the class.
    attack_revision: int = Field(0, ge=0)  # privbench.presets.revision_of; part of the name
    active: bool = False  # whether its server crafts what it sends; follows from the attack

    _not_hashed: ClassVar[frozenset[str]] = frozenset({"attack_revision", "active"})

    @model_serializer(mode="wrap")
    def _without_the_usual(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Defaults are not written, so that a cell from before there was a choice keeps its name."""
        usual: dict[str, Any] = {
            "auxiliary": "same", "observe": "gradient", "local_steps": None, "local_lr": None, "local_batch": None,
            "wire": "float32", "audit": 0, "generated": 0, "attack_revision": 0, "active": False, "known_images": None,
            "known_quality_db": None, "observed_rounds": None, "uploads_per_round": None, "auxiliary_content": None,
        }  # fmt: skip
        return {name: value for name, value in dump(self).items() if name not in usual or value != usual[name]}

    @property
    def able_rounds(self) -> Sequence[int]:
        """The rounds after which the attacked networks may be: the one that is named, of "best" and "last" any of the training."""
        last = self.train.schedule.rounds
        return [int(self.round)] if self.round.isdigit() else range(min(1, last), last + 1)

    @model_validator(mode="after")
    def _attacked_or_not(self) -> CellSpec:
        """An accuracy cell has no settings of an attack, so that there is one name for it."""
        if self.attack is not None and self.victims < 1:
            raise ValueError("an attack needs at least one victim")
        if self.attack is None and (
            self.attack_settings
            or self.victims
            or self.batch_size > 1
            or self.labels_known
            or self.round != "best"
            or self.observe != "gradient"
            or self.local_steps is not None
            or self.local_lr is not None
            or self.local_batch is not None
            or self.auxiliary != "same"
            or self.auxiliary_content is not None
            or self.wire != "float32"
            or self.known_images is not None
            or self.known_quality_db is not None
            or self.observed_rounds is not None
            or self.uploads_per_round is not None
            or self.attack_revision
            or self.active
        ):
            raise ValueError("a cell without an attack has no settings of one")
        return self

    @property
    def id(self) -> str:
        """Twelve hexadecimal digits that name this cell."""
        if self.attack is None:
            return self.digest(REVISION)
        return self.digest([REVISION, ATTACK_REVISION, *([self.attack_revision] if self.attack_revision else [])])

    def with_seeds(self, seeds: Sequence[int]) -> CellSpec:
        """The same cell on other seeds."""
        return self.model_copy(
            update={"seeds": tuple(seeds), "train": self.train.model_copy(update={"seed": seeds[0]})}
        )

    @property
    def id_but_for_seeds(self) -> str:
        """A name that the same cell has on whatever seeds."""
        return self.with_seeds([0]).id

    def train_specs(self) -> list[TrainSpec]:
        """One specification per seed."""
        return [self.train.model_copy(update={"seed": seed}) for seed in self.seeds]


T = TypeVar("T", bound=Strict)


def nearest(name: str, names: Collection[str]) -> str:
    """The end of an error's line: the known name that is nearest to a wrong one, or all of them."""
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean '{near[0]}'?" if near else f"known: {', '.join(names)}"


def checked(kind: type[T], values: dict[str, Any], prefix: str = "") -> T:
    """A validated specification; the first fault becomes a UserError of one line, its field's name after `prefix`."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        place, rule, value = first_fault(error)
        raise UserError(f"{prefix}{place}: {rule}, but {short(repr(value))} was given") from error


def first_fault(error: ValidationError) -> tuple[str, str, Any]:
    """(the field, the rule that it breaks, its value) of the first fault that pydantic found."""
    fault = error.errors()[0]
    place = ".".join(str(part) for part in fault["loc"])
    return short(place), short(fault["msg"].removeprefix("Value error, ")), fault["input"]
