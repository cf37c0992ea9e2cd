"""Validated experiment specifications and presets; a specification hashes to the name of its run.

Presets: `paper` is the published schedule (FedCG section 5: 100 rounds, 20 local epochs, batch 16, Adam 3e-4, weight decay
1e-4, server distillation of 2,000 steps; NFL-CGAN's and FedMD-CG's under their protocols, privbench/data/paper_setup.py). `quick`
is ours: few rounds at a higher learning rate, chosen so that the sigmoid LeNet leaves its initial plateau. `smoke` runs in seconds
and says nothing about accuracy.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
from collections.abc import Collection, Mapping
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

from privbench import data, names, registry
from privbench.data import partition
from privbench.data.paper_setup import OF_METHOD, PROTOCOLS
from privbench.data.paper_setup import Name as ProtocolName
from privbench.errors import UserError
from privbench.networks.model import check_backbone
from privbench.system.file_headers import short

# Raised whenever an unchanged specification gives other numbers, or leaves more on disk; part of every run's name.
# Of training; 4: the history says how every model of a round does, Office and DomainNet are halved per seed.
REVISION = 4
# The same of all attacks and scores: trained networks stay in use. Where one attack alone changes, its class raises its own
# `revision`, so that no other has to be run again. 4: stronger stand-ins, another peeling. 5: attacks draw from a seed of their
# own (seeds.of_attacker), which is not the run's.
ATTACK_REVISION = 5
PRESETS = ("smoke", "quick", "paper")


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
}  # fmt: skip
# The models of a client after a round: its own after local training, the same as it was sent (after the defence of the update), and
# the broadcast of the next round in place of its shared parts.
Measured = Literal["personal", "uploaded", "broadcast"]


class Strict(BaseModel):
    """Frozen; a misspelt field is an error, and so is a number that is not finite, which no file could hold."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    # Fields that are digested in another way, or not at all.
    _apart: ClassVar[frozenset[str]] = frozenset()

    @property
    def id(self) -> str:
        """Twelve hexadecimal digits that name this specification."""
        return self.digest(REVISION)

    def digest(self, revision: object) -> str:
        """The name under a revision: of the class's name and all that is written of it, but for `_apart`."""
        told = {name: value for name, value in self.model_dump(mode="json").items() if name not in self._apart}
        text = json.dumps([revision, type(self).__name__, told], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


class Adam(Strict):
    """Adam with L2 weight decay added to the gradient, as torch.optim.Adam."""

    lr: float = Field(gt=0)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.999, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0)


class SGD(Strict):
    """Plain stochastic gradient descent with L2 weight decay, as torch.optim.SGD without momentum."""

    kind: Literal["sgd"]  # tells it from Adam where a specification is written down
    lr: float = Field(gt=0)
    weight_decay: float = Field(0.0, ge=0)


Optimiser = Adam | SGD


class Schedule(Strict):
    """How long and how fast a method trains."""

    rounds: int = Field(ge=0)
    local_epochs: int = Field(ge=1)
    generator_epochs: int = Field(ge=1)
    client_steps: int | None = Field(None, ge=1)  # mini-batches of each client phase, in place of its epochs
    server_steps: int = Field(ge=0)
    batch: int = Field(ge=1)
    patience: int = Field(ge=1)  # stop after this many rounds without any client improving its validation accuracy
    keep_every: int = Field(ge=1)  # rounds whose networks stay on disk, besides the first, the best and the last
    task: Optimiser
    generator: Optimiser
    server: Optimiser


class TrainSpec(Strict):
    """One training run: one method on one data set with one seed."""

    dataset: DatasetName
    domains: tuple[DomainName, ...] | None = None
    content: Word | None = None  # of a folder of the user's own: changes when its files do
    partition: Literal["iid", "domain", "dirichlet"]
    omega: float | None = Field(None, gt=0, allow_inf_nan=False)  # of "dirichlet" alone
    min_per_client: int | None = Field(None, ge=1)  # of "dirichlet" alone
    clients: int = Field(ge=1)
    per_client: int = Field(ge=1)  # on average, under "dirichlet"
    backbone: Word = "lenet5"
    image_size: int = 32
    method: PluginName
    method_settings: Settings = {}
    defense: DefenseName = "none"
    where: Literal["step", "update"] = "update"
    protocol: ProtocolName = "fedcg"  # whose split, and whose images accuracy is measured on
    flip: bool = (
        True  # whether images are flipped horizontally at random, of the data sets that FedCG's reference code flips
    )
    measured: Measured = "personal"  # whose accuracy counts: it stops training, selects the best round and is reported
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
    observe: Literal["gradient", "update"] = (
        "gradient"  # of the victim batch, or the change of whole local training on it
    )
    local_steps: int | None = Field(None, ge=1)  # of an update; None: the schedule's client steps, or its local epochs
    local_lr: float | None = Field(None, gt=0)  # of an update by plain SGD; None: the schedule's optimiser
    local_batch: int | None = Field(None, ge=1)  # images per step of an update; None: the whole victim batch
    auxiliary: AuxiliaryName = (
        "same"  # which images an attacker with auxiliary images has: privbench/observation/knowledge.py
    )
    wire: Literal["float32", "bf16", "fp16"] = (
        "float32"  # the number format of what clients send: privbench/observation/wire.py
    )
    # Of the attack's class when the cell was specified, so that the name, and what is on disk, tell without importing it.
    attack_revision: int = Field(0, ge=0)  # privbench.registry.revision; part of the name
    active: bool = False  # whether its server crafts what it sends; follows from the attack

    _apart: ClassVar[frozenset[str]] = frozenset({"attack_revision", "active"})

    @model_serializer(mode="wrap")
    def _without_the_usual(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Defaults are not written, so that a cell from before there was a choice keeps its name."""
        usual: dict[str, Any] = {
            "auxiliary": "same", "observe": "gradient", "local_steps": None, "local_lr": None, "local_batch": None,
            "wire": "float32", "attack_revision": 0, "active": False,
        }  # fmt: skip
        return {name: value for name, value in dump(self).items() if name not in usual or value != usual[name]}

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
            or self.auxiliary != "same"
            or self.wire != "float32"
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

    def train_specs(self) -> list[TrainSpec]:
        """One specification per seed."""
        return [self.train.model_copy(update={"seed": seed}) for seed in self.seeds]


T = TypeVar("T", bound=Strict)
OPTIMISERS = ("task", "generator", "server")
# What `changed` takes: every field of a schedule, and every setting of its optimisers.
SCHEDULE_NAMES = (
    *Schedule.model_fields,
    *(f"{field}.{name}" for field in OPTIMISERS for name in ("kind", *Adam.model_fields)),
)

_PAPER_ADAM = Adam(lr=3e-4, weight_decay=1e-4)
_GAN_ADAM = Adam(lr=3e-4, beta1=0.5)
SCHEDULES = {
    "smoke": Schedule(
        rounds=2, local_epochs=1, generator_epochs=1, server_steps=2, batch=16, patience=20, keep_every=1,
        task=Adam(lr=3e-3, weight_decay=1e-4), generator=_GAN_ADAM, server=Adam(lr=3e-4),
    ),
    "quick": Schedule(
        rounds=10, local_epochs=5, generator_epochs=1, server_steps=20, batch=16, patience=20, keep_every=5,
        task=Adam(lr=3e-3, weight_decay=1e-4), generator=_GAN_ADAM, server=Adam(lr=3e-4),
    ),
    "paper": Schedule(
        rounds=100, local_epochs=20, generator_epochs=20, server_steps=2000, batch=16, patience=20, keep_every=10,
        task=_PAPER_ADAM, generator=_GAN_ADAM, server=Adam(lr=3e-4),
    ),
}  # fmt: skip
FIRST_SEED = 100  # of everything that is published; whatever is tuned or tried is tuned on seeds below
SEEDS = {
    preset: tuple(range(FIRST_SEED, FIRST_SEED + count)) for preset, count in (("smoke", 1), ("quick", 2), ("paper", 5))
}
VICTIMS = {"smoke": 2, "quick": 16, "paper": 64}  # per seed
_SMOKE_STAND_IN = {"steps": 5, "exact_steps": 5, "members": 1, "train_steps": 3, "shadow_rounds": 1, "shadow_steps": 3}
# Shorter than an attack's default, by preset; a paper cell is attacked with the defaults.
ATTACK_SETTINGS: dict[str, dict[str, dict[str, int]]] = {
    "smoke": {
        "dlg": {"steps": 5},
        "feature-statistics": {"steps": 5},
        "staged": {"steps": 5, "feature_steps": 5, "peel_iterations": 1},
        "idlg": {"steps": 5},
        "inverting-gradients": {"steps": 5, "restarts": 1},
        "matching": {"steps": 5},
        "extractor-matching": {"steps": 5},
        "grnn": {"steps": 5},
        "unsplit": {"turns": 2, "steps": 5},
        "update-matching": {"steps": 5, "feature_steps": 5, "start_steps": 5},
        "learned-inverse": {"epochs": 2},
        "imprint": _SMOKE_STAND_IN | {"align_steps": 3, "feature_steps": 5, "rehearsal_images": 0},
        "posterior": {"steps": 5, "direction_steps": 5, "starts": 3},
        "analytic-features": {"steps": 5},
        "surrogate": _SMOKE_STAND_IN,
        "aligned-surrogate": _SMOKE_STAND_IN | {"align_steps": 3},
        "initial-surrogate": _SMOKE_STAND_IN | {"align_steps": 3},
        "decoder": _SMOKE_STAND_IN | {"align_steps": 3, "decoder_steps": 3},
        "collusion": _SMOKE_STAND_IN | {"align_steps": 3},
        "feature-hijacking": _SMOKE_STAND_IN | {"pilot_steps": 3, "generator_steps": 3},
        "oracle": {"steps": 5},
        "oracle-decoder": {"decoder_steps": 3},
    },
    "quick": {
        "dlg": {"steps": 150},
        "feature-statistics": {"steps": 150},
        "idlg": {"steps": 150},
        "inverting-gradients": {"steps": 400, "restarts": 1},
        "matching": {"steps": 200},
        "extractor-matching": {"steps": 600},
        "grnn": {"steps": 150},
        "unsplit": {"turns": 10},
        "update-matching": {"steps": 60},
    },
    "paper": {},
}
# NFL-CGAN's and FedMD-CG's published schedules where they are not FedCG's. Neither paper names an early stop, so that all rounds
# are trained; FedMD-CG's ramp ends with the last. FedMD-CG searches the SGD rate over 0.01, 0.05 and 0.08 and does not say which is
# whose: 0.05 unless searched.
PROTOCOL_SCHEDULES: dict[str, dict[str, Any]] = {
    "fedcg": {},
    "nfl-cgan": {"local_epochs": 10, "generator_epochs": 10, "batch": 8, "patience": 100},
    "fedmd-cg": {
        "client_steps": 20, "server_steps": 50, "batch": 64, "patience": 100,
        "task": SGD(kind="sgd", lr=0.05, weight_decay=1e-4).model_dump(),
        "generator": Adam(lr=3e-4, weight_decay=1e-4).model_dump(), "server": Adam(lr=3e-4, weight_decay=1e-4).model_dump(),
    },
}  # fmt: skip
# ResNet-18 is far slower to train and to attack on a CPU, and learns in fewer steps: what its quick preset has otherwise.
RESNET18_QUICK = {"rounds": 5, "local_epochs": 2, "task": _PAPER_ADAM.model_dump()}
RESNET18_QUICK_VICTIMS = 4
RESNET18_QUICK_ATTACKS: dict[str, dict[str, int]] = {
    "dlg": {"steps": 100},
    "feature-statistics": {"steps": 100},
    "staged": {"steps": 150},
    "idlg": {"steps": 100},
    "inverting-gradients": {"steps": 100, "restarts": 1},
    "matching": {"steps": 100},
    "grnn": {"steps": 100},
    "update-matching": {"steps": 20, "start_steps": 50},
}
SMOKE_PER_CLIENT = 32
QUICK_PER_CLIENT = {"digits": 300, "photos": 300, "digits4": 300}  # other data sets: 1,000
QUICK_PER_CLIENT |= {"emnist": 300, "emnist-letters": 300, "emnist-balanced": 300}  # of 20 clients
QUICK_METHOD_SETTINGS: dict[str, dict[str, float]] = {
    "fedprox": {"mu": 0.001},
    "fedcg": {"ramp_rounds": 10},
    "nfl-cgan": {"ramp_rounds": 10},
}


def train_spec(
    preset: str,
    dataset: str,
    method: str,
    *,
    defense: str = "none",
    where: str = "update",
    seed: int = 0,
    backbone: str = "lenet5",
    image_size: int = 32,
    domains: tuple[str, ...] | None = None,
    how: str | None = None,
    omega: float | None = None,
    min_per_client: int | None = None,
    clients: int | None = None,
    per_client: int | None = None,
    method_settings: dict[str, Any] | None = None,
    protocol: str | None = None,
    flip: bool | None = None,
    measured: str = "personal",
    equal_work: bool = False,
    changes: Mapping[str, Any] | None = None,
) -> TrainSpec:
    """The preset's specification for one method and data set; `changes` overrides fields of the schedule (`changed`).

    how         the partition; without one, `omega` or `min_per_client` ask for "dirichlet", else it is the data set's default
    protocol    the paper whose sizes, split and schedule are taken; by default FedCG's, in the paper preset the method's own
    flip        by default as the protocol says
    equal_work  see `schedule_of`
    """
    if preset not in PRESETS:
        raise UserError(f"unknown preset '{preset}'; known: {', '.join(PRESETS)}")
    if protocol is None:
        protocol = OF_METHOD.get(method, "fedcg") if preset == "paper" else "fedcg"
    if protocol not in PROTOCOLS:
        raise UserError(f"unknown protocol '{protocol}'; {nearest(protocol, PROTOCOLS)}")
    check_backbone(backbone, image_size)
    default_how, default_clients, default_per_client = partition.defaults(dataset, protocol)
    dealt = omega is not None or min_per_client is not None
    how = how or ("dirichlet" if dealt else default_how)
    if dealt and how != "dirichlet":
        raise UserError(f"--omega and --min-per-client go with --partition dirichlet, but it is {how}")
    if how == "domain" and domains is not None:
        default_clients = len(domains)
    if default_how == "domain" and how != "domain":
        default_per_client = partition.POOLED_PER_CLIENT.get(dataset, default_per_client)
    limit = {"smoke": SMOKE_PER_CLIENT, "quick": QUICK_PER_CLIENT.get(dataset, 1000), "paper": default_per_client}[
        preset
    ]
    per_client = per_client or min(limit, default_per_client)
    if how == "dirichlet":
        omega = partition.OMEGA if omega is None else omega
        partition.check_omega(omega)
        # A client of few images on average need not have the usual minimum.
        min_per_client = min_per_client or min(partition.MINIMUM, max(1, per_client // 4))
    settings = dict(QUICK_METHOD_SETTINGS.get(method, {})) if preset != "paper" else {}
    return checked(
        TrainSpec,
        {
            "dataset": dataset,
            "domains": domains,
            "content": data.content(dataset),
            "partition": how,
            "omega": omega,
            "min_per_client": min_per_client,
            "clients": clients or default_clients,
            "per_client": per_client,
            "backbone": backbone,
            "image_size": image_size,
            "method": method,
            "method_settings": settings | (method_settings or {}),
            "defense": defense,
            "where": where,
            "protocol": protocol,
            "flip": PROTOCOLS[protocol].flip if flip is None else flip,
            "measured": measured,
            "schedule": changed(
                schedule_of(preset, dataset, method, backbone, protocol, equal_work=equal_work), changes
            ),
            "seed": seed,
        },
    )


def schedule_of(
    preset: str, dataset: str, method: str, backbone: str, protocol: str, *, equal_work: bool = False
) -> dict[str, Any]:
    """The fields of the schedule that a method has in a preset.

    In the paper preset it is the protocol's, but NFL-CGAN and FedMD-CG keep their own under any protocol: FedMD-CG's clients then
    take 20 x 64 = 1,280 images a round where FedCG's take 20 epochs. With `equal_work` every method goes through as many images a
    round as the protocol says, on the clients and on the server; its batch, optimisers and patience stay its own.
    """
    slow = RESNET18_QUICK if (preset, backbone) == ("quick", "resnet18") else {}
    common = SCHEDULES[preset].model_dump() | slow
    if preset != "paper":
        return common
    common |= PROTOCOL_SCHEDULES[protocol]
    if dataset in PROTOCOLS[protocol].rounds:
        common |= dict.fromkeys(("rounds", "patience"), PROTOCOLS[protocol].rounds[dataset])
    own = common | PROTOCOL_SCHEDULES[OF_METHOD.get(method, protocol)]
    if OF_METHOD.get(method, protocol) == protocol:
        return common
    if equal_work:
        ratio = common["batch"] / own["batch"]
        own |= {name: common[name] for name in ("local_epochs", "generator_epochs")}
        own |= {
            name: None if common[name] is None else math.ceil(common[name] * ratio)
            for name in ("client_steps", "server_steps")
        }
    return own


def changed(schedule: Mapping[str, Any], changes: Mapping[str, Any] | None) -> dict[str, Any]:
    """A schedule's fields with some of them changed.

    A name is a field ("rounds"; "task" takes a whole optimiser) or one setting of an optimiser ("task.lr"). "task.kind" is "sgd" or
    "adam": the learning rate and the weight decay stay, Adam's betas go or come as torch has them.
    UserError: an unknown name, with the nearest one; a value that is none for it.
    """
    found = {name: dict(value) if isinstance(value, Mapping) else value for name, value in schedule.items()}
    for name, value in sorted(
        (changes or {}).items(), key=lambda change: (change[0].count("."), "kind" not in change[0])
    ):
        field, dot, setting = name.partition(".")
        if name not in SCHEDULE_NAMES:
            raise UserError(f"a schedule has no '{name}'; {nearest(name, SCHEDULE_NAMES)}")
        if not dot:
            found[field] = dict(value) if isinstance(value, Mapping) else value
            continue
        optimiser: dict[str, Any] = found[field]
        if setting == "kind":
            if value not in ("sgd", "adam"):
                raise UserError(f"schedule.{name} should be 'sgd' or 'adam', but {value!r} was given")
            kept = {each: optimiser[each] for each in ("lr", "weight_decay") if each in optimiser}
            found[field] = kept | ({"kind": "sgd"} if value == "sgd" else {})
        elif setting not in (SGD if "kind" in optimiser else Adam).model_fields:
            raise UserError(f"schedule.{name} is Adam's, but schedule.{field} is SGD; set {field}.kind=adam as well")
        else:
            optimiser[setting] = value
    for field in OPTIMISERS:
        if isinstance(found[field], dict):
            kind = SGD if "kind" in found[field] else Adam
            found[field] = checked(kind, found[field], f"schedule.{field}.").model_dump()
    return found


def seeds_of(preset: str, count: int | None = None, first: int | None = None) -> tuple[int, ...]:
    """`count` seeds from `first` on; by default as many as the preset has, from 100 on."""
    if preset not in PRESETS:
        raise UserError(f"unknown preset '{preset}'; known: {', '.join(PRESETS)}")
    start = FIRST_SEED if first is None else first
    return tuple(range(start, start + (len(SEEDS[preset]) if count is None else count)))


def attacked_round(text: str, rounds: int) -> str:
    """A round as a specification writes it, of a training of at most that many rounds; UserError for one that is none."""
    if text in ("best", "last"):
        return text
    if not (text.isascii() and text.isdigit()):
        raise UserError(f"--round takes 0, a number, 'last' or 'best', but '{text}' was given")
    if int(text) > rounds:
        raise UserError(f"--round {text} was asked for, but training ends after {rounds} rounds at the latest")
    return str(int(text))


def nearest(name: str, known: Collection[str]) -> str:
    """The end of an error's line: the known name that is nearest to a wrong one, or all of them."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known)}"


def cell_spec(
    preset: str,
    train: TrainSpec,
    attack: str | None,
    *,
    seeds: int | None = None,
    first_seed: int | None = None,
    round_: str = "best",
    victims: int | None = None,
    batch_size: int = 1,
    labels_known: bool = False,
    auxiliary: str = "same",
    observe: str = "gradient",
    local_steps: int | None = None,
    local_lr: float | None = None,
    local_batch: int | None = None,
    wire: str = "float32",
    attack_settings: dict[str, Any] | None = None,
) -> CellSpec:
    """The preset's cell for one training specification and attack, or None; `seeds` and `first_seed` as `seeds_of` takes them."""
    if observe == "gradient" and (local_steps or local_lr or local_batch):
        raise UserError("--local-steps, --local-lr and --local-batch go with --observe update")
    slow = (preset, train.backbone) == ("quick", "resnet18")
    defaults = (RESNET18_QUICK_ATTACKS if slow else ATTACK_SETTINGS[preset]).get(attack or "", {})
    every = seeds_of(preset, seeds, first_seed)
    usual = (RESNET18_QUICK_VICTIMS if slow else VICTIMS[preset]) if attack is not None else 0
    return checked(
        CellSpec,
        {
            "preset": preset,
            "train": train.model_copy(update={"seed": every[0]}).model_dump(),
            "seeds": every,
            "attack": attack,
            "attack_settings": defaults | (attack_settings or {}),
            "round": attacked_round(round_, train.schedule.rounds),
            "victims": victims or usual,
            "batch_size": batch_size,
            "labels_known": labels_known,
            "auxiliary": auxiliary,
            "observe": observe,
            "local_steps": local_steps,
            "local_lr": local_lr,
            "local_batch": local_batch,
            "wire": wire,
            "attack_revision": 0 if attack is None else registry.revision(attack, train.method),
            "active": attack is not None and registry.is_active(attack),
        },
    )


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
