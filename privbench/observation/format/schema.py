"""The index of an observation: typed, bounded, and consistent in itself.

Numbers are checked as JSON has them: 1.0 and true are no whole numbers, NaN and infinities are none at all. Fields that are not
here are refused. What the tensors of a round hold is another matter: a client may well send NaN, and a server sees it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from privbench import names
from privbench.defending import described
from privbench.networks.model import BACKBONES
from privbench.observation.format import limits
from privbench.spec import SGD, Adam

FORMAT = "observation"
VERSION = 1
DOWN = "broadcast"  # what begins the names of the tensors that the server sent
COUNTS = "label_counts"
FLOATS = ("float16", "bfloat16", "float32", "float64")
WEIGHT_ROUNDING = 1e-9  # of the sum of a message's weights
ITEM_BYTES = {"bool": 1, "uint8": 1, "float16": 2, "bfloat16": 2, "float32": 4, "int64": 8, "float64": 8}

Text = Annotated[str, StringConstraints(min_length=1, max_length=limits.NAME, pattern=r"^[^\x00-\x1f\x7f]+$")]
# A part, a parameter or a table: what tensor names are made of.
Word = Annotated[str, StringConstraints(max_length=limits.NAME, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.\-]*$")]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=1)]
Scalar = bool | int | float | str | None
Size = Annotated[int, Field(ge=0, le=2**40)]


def _backbone(name: str) -> str:
    # Whether code may be imported is said by privbench/trust.py.
    if name not in BACKBONES and (len(name) > limits.NAME or not re.fullmatch(names.CODE, name)):
        raise ValueError(f"should be one of {', '.join(BACKBONES)}, or package.module:Name")
    return name


Backbone = Annotated[str, AfterValidator(_backbone)]


def is_zero(number: float) -> bool:
    """Whether a number says that there is nothing."""
    return not number


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class NetworksEntry(_Strict):
    """The networks by name and size; nothing where they are an auditor's own module, which no file ever names."""

    backbone: Backbone
    channels: Annotated[int, Field(ge=1, le=limits.CHANNELS)]
    classes: Annotated[int, Field(ge=1, le=limits.CLASSES)]
    image_size: Annotated[int, Field(ge=1, le=limits.SIDE)]
    gan: Literal["conv", "dense", "image"]
    dropout: Annotated[float, Field(ge=0, lt=1)]
    norm: Literal["batch", "group"] = "batch"
    # Not written where there is none, so that the digests of earlier observations stay.
    bottleneck: Annotated[int, Field(ge=0, le=limits.BOTTLENECK, exclude_if=is_zero)] = 0
    kl_weight: Annotated[float, Field(ge=0, exclude_if=is_zero)] = 0.0


class TrainingEntry(_Strict):
    """How clients train between the rounds, as the server has them do."""

    optimiser: Adam | SGD
    batch: Annotated[int, Field(ge=1, le=limits.BATCH_SIZE)]
    steps: Annotated[int, Field(ge=0, le=limits.STEPS)]


class LocalStepsEntry(_Strict):
    """The steps between the broadcast networks and those whose change is sent."""

    steps: Annotated[int, Field(ge=1, le=limits.STEPS)]
    optimiser: Adam | SGD
    batch: Annotated[int, Field(ge=1, le=limits.BATCH_SIZE)] | None  # images per step; null: all of the message's
    proximal: Annotated[float, Field(ge=0, le=limits.PROXIMAL)] = 0.0  # mu of a proximal term in the loss


class DefenseEntry(BaseModel):
    """A defence as the attacker knows it: its name, and settings of its own."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)
    __pydantic_extra__: dict[Word, Scalar]

    name: Text
    where: Literal["never", "step", "update"] | None = None
    variance: Annotated[float, Field(ge=0)] | None = None
    wire: Literal["bf16", "fp16"] | None = None

    @model_validator(mode="after")
    def _bounded(self) -> DefenseEntry:
        settings = self.__pydantic_extra__
        if len(settings) > limits.SETTINGS:
            raise ValueError(f"a defence has {len(settings)} settings, more than {limits.SETTINGS}")
        if any(isinstance(value, str) and len(value) > limits.NAME for value in settings.values()):
            raise ValueError(f"a setting of a defence has more than {limits.NAME} letters")
        self._check_settings_of_attackers()
        return self

    def _check_settings_of_attackers(self) -> None:
        """What attackers read as numbers, where the kinds of this defence say that they do (attacks/common/data_fit.py)."""
        settings = self.model_dump(exclude_unset=True)
        if null := [name for name in ("variance", "wire") if name in settings and settings[name] is None]:
            raise ValueError(f"{null[0]} of a defence should not be null; leave it out where there is none")
        # Of a composition each by itself, and what its whole says it does.
        for one in (settings, *described.single(settings)):
            kinds = described.kinds(one)
            if kinds & {"clip", described.CLIPS_IMAGES} and not (one.get("clip") and _is_amount(one["clip"])):
                raise ValueError(f"the defence {one['name']} should have a clip above 0")
            if "quantize" in kinds and not _is_bits(one.get("bits")):
                raise ValueError(f"the defence {one['name']} should have {limits.LEAST_BITS} to {limits.BITS} bits")
            if not _is_amount(one.get("variance", 0)):
                raise ValueError(f"the defence {one['name']} should have a variance of 0 or more")


def _is_amount(value: object) -> bool:
    """Whether it is a finite number of 0 or more."""
    return isinstance(value, int | float) and type(value) is not bool and 0 <= value < math.inf


def _is_bits(value: object) -> bool:
    return isinstance(value, int) and type(value) is not bool and limits.LEAST_BITS <= value <= limits.BITS


class SetupEntry(_Strict):
    """What is the same in every round."""

    method: Text
    dataset: Text
    networks: NetworksEntry | None
    image_shape: Annotated[list[Count], Field(min_length=3, max_length=3)]  # channels, height, width
    classes: Annotated[int, Field(ge=1, le=limits.CLASSES)]
    shared_parts: Annotated[list[Word], Field(max_length=limits.TABLES)]
    defense: DefenseEntry
    training: TrainingEntry | None

    @model_validator(mode="after")
    def _consistent(self) -> SetupEntry:
        channels, height, width = self.image_shape
        if channels > limits.CHANNELS or max(height, width) > limits.SIDE:
            raise ValueError(f"images of {channels}x{height}x{width} are larger than {limits.CHANNELS}x{limits.SIDE}^2")
        _different("shared_parts", self.shared_parts)
        networks = self.networks
        if networks is not None and (networks.channels, networks.image_size, networks.image_size) != (
            channels,
            height,
            width,
        ):
            raise ValueError(f"the networks do not take images of {channels}x{height}x{width}")
        if networks is not None and networks.classes != self.classes:
            raise ValueError(f"the networks know {networks.classes} classes, the set-up {self.classes}")
        return self


class Messages(_Strict):
    """Messages of one kind that came about alike: message m is row m of each of the table's tensors."""

    name: Word
    kind: Literal["gradient", "update", "weights"]
    # Whose data each message holds: numbers of clients, ascending; several where messages were summed.
    members: Annotated[
        list[Annotated[list[Annotated[int, Field(ge=0, lt=limits.CLIENTS)]], Field(min_length=1)]],
        Field(min_length=1, max_length=limits.MESSAGES),
    ]
    # Images behind a message; null where the server does not know.
    batch_size: Annotated[int, Field(ge=1, le=limits.BATCH_SIZE)] | None
    local: LocalStepsEntry | None  # of updates
    imitated: Annotated[int, Field(ge=0, le=limits.IMITATED)]  # features of a generator beside those of the images
    # What each member counts for in its message, in the order of `members`; null, or absent, where a message is one client's.
    weights: list[list[Annotated[float, Field(gt=0, le=1)]]] | None = None
    # The one member of every sum whose images are attacked, where the others received another broadcast; null, or absent: all.
    target: Annotated[int, Field(ge=0, lt=limits.CLIENTS)] | None = None
    # Of weights that are attacked themselves: for each scored victim the message that holds it; absent otherwise.
    victims: (
        Annotated[
            list[Annotated[int, Field(ge=0, lt=limits.MESSAGES)]], Field(min_length=1, max_length=limits.MESSAGES)
        ]
        | None
    ) = None

    @model_validator(mode="after")
    def _consistent(self) -> Messages:
        if self.name in (DOWN, COUNTS) or "/" in self.name:
            raise ValueError(f"no table of messages is called '{self.name}'")
        for each in self.members:
            if any(a >= b for a, b in pairwise(each)):
                raise ValueError(f"the members of a message should ascend, but {each[:8]} were given")
        if self.weights is not None:
            if [len(each) for each in self.weights] != [len(each) for each in self.members]:
                raise ValueError("there should be a weight for each member of each message")
            if any(abs(math.fsum(each) - 1) > WEIGHT_ROUNDING for each in self.weights):
                raise ValueError("the weights of a message's members should add up to 1")
        if self.target is not None:
            self._check_target()
        if self.local is not None and self.kind != "update":
            raise ValueError(f"local steps belong to updates, but these messages are of kind '{self.kind}'")
        if self.kind == "weights" and (self.batch_size is not None or self.imitated) and self.victims is None:
            raise ValueError("weights have no batch of images")
        return self

    def _check_target(self) -> None:
        if self.weights is None or any(self.target not in each or len(each) < 2 for each in self.members):
            raise ValueError(f"a target is a member of every sum, but {self.target} is none of these")
        if len({len(each) for each in self.members}) > 1 or (self.batch_size or 0) % len(self.members[0]):
            raise ValueError("sums with a target should have as many images of each member")

    @model_validator(mode="after")
    def _of_messages(self) -> Messages:
        """`victims` against the messages."""
        if self.victims is not None:
            if self.kind != "weights" or self.batch_size is None or self.imitated or self.target is not None:
                raise ValueError("victims are named of weights alone, with the number of images of each")
            if max(self.victims) >= len(self.members):
                raise ValueError(f"there are {len(self.members)} messages, and a victim of message {max(self.victims)}")
        return self

    @property
    def attacked_images(self) -> int | None:
        """Images of each message that are attacked; None where nothing is known of its images."""
        if self.batch_size is None or self.target is None:
            return self.batch_size
        return self.batch_size // len(self.members[0])

    @property
    def scored(self) -> int:
        """How many victims there are: one a message, unless `victims` says otherwise."""
        return len(self.members if self.victims is None else self.victims)


class Tensor(_Strict):
    """A tensor of a round's file."""

    dtype: Literal["bool", "uint8", "float16", "bfloat16", "float32", "int64", "float64"]
    shape: Annotated[list[Size], Field(max_length=8)]

    @property
    def nbytes(self) -> int:
        """How much it takes."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


class Broadcast(_Strict):
    """What some clients received in place of the broadcast of all: tensors under its name, of the same parts and shapes."""

    name: Word
    clients: Annotated[
        list[Annotated[int, Field(ge=0, lt=limits.CLIENTS)]], Field(min_length=1, max_length=limits.CLIENTS)
    ]

    @model_validator(mode="after")
    def _consistent(self) -> Broadcast:
        if any(a >= b for a, b in pairwise(self.clients)):
            raise ValueError(f"the clients of a broadcast should ascend, but {self.clients[:8]} were given")
        return self


class RoundEntry(_Strict):
    """One round: what went down, what came up, and in which file."""

    round: Annotated[int, Field(ge=0, le=limits.ROUND)]  # how many were complete when the broadcast went out
    file: Word
    bytes: Annotated[int, Field(ge=1, le=limits.ROUND_BYTES)]
    sha256: Digest
    messages: Annotated[list[Messages], Field(max_length=limits.TABLES)]
    tensors: Annotated[dict[Annotated[str, StringConstraints(max_length=4 * limits.NAME)], Tensor], Field()]
    # Where an active server did not send the same to all; null, or absent, where it did.
    broadcasts: Annotated[list[Broadcast], Field(min_length=1, max_length=limits.TABLES)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> RoundEntry:
        if self.file != file_name(self.round):
            raise ValueError(f"the file of round {self.round} is {file_name(self.round)}, but {self.file} was given")
        named = self.broadcasts or []
        if reserved := {DOWN, COUNTS} & {each.name for each in named}:
            raise ValueError(f"no broadcast to some clients is called '{min(reserved)}'")
        _different("broadcasts and tables of messages", [*(b.name for b in named), *(t.name for t in self.messages)])
        _different("clients of several broadcasts", [str(client) for each in named for client in each.clients])
        if len(self.tensors) > limits.TENSORS:
            raise ValueError(f"a round has {len(self.tensors)} tensors, more than {limits.TENSORS}")
        if (total := sum(t.nbytes for t in self.tensors.values())) > self.bytes:
            raise ValueError(f"its tensors take {total} bytes, the file {self.bytes}")
        return self


class Origin(_Strict):
    """Whose observation it is. No attack gets it; an export leaves it out, as the run's seed reveals the defence's noise."""

    run: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{12}$")]  # TrainSpec.id
    seed: Annotated[int, Field(ge=0)]
    dataset: Annotated[str, StringConstraints(min_length=1, max_length=4_096)]  # as specifications name it
    # Its name in privbench/records/store.py: run, round, victims, batch size, local steps, number format, known labels,
    # what was crafted.
    artifact: Text


class Index(_Strict):
    """The content of index.json, but for its own digests."""

    setup: SetupEntry
    rounds: Annotated[list[RoundEntry], Field(min_length=1, max_length=limits.ROUNDS)]
    origin: Origin | None
    # Of what it was made in, e.g. "smoke", of which no score is shown; unlike the origin, an export keeps it.
    preset: Word | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Index:
        numbers = [each.round for each in self.rounds]
        if any(a >= b for a, b in pairwise(numbers)):
            raise ValueError("the rounds should ascend")
        pixels = math.prod(self.setup.image_shape)
        expected = sum(t.scored * (t.batch_size or 0) * pixels for r in self.rounds for t in r.messages)
        if expected > limits.PIXELS:
            raise ValueError(f"its messages stand for {expected} numbers of images, more than {limits.PIXELS}")
        return self


FILES = "round-*.safetensors"  # of all rounds, as `file_name` names them


def file_name(round_: int) -> str:
    """Of one round."""
    return f"round-{round_:04d}.safetensors"


def split(name: str) -> tuple[str, str, str, str] | None:
    """(table, "parameters" or "buffers", part, entry) of a tensor's name; None of a name of another form."""
    match = re.fullmatch(r"([\w.\-]+)/(parameters|buffers)/([\w.\-]+)/([\w.\-]+)", name, re.ASCII)
    return None if match is None else (match[1], match[2], match[3], match[4])


def under(tensors: dict[str, Tensor], table: str, group: str) -> Iterator[tuple[str, str, Tensor]]:
    """(part, entry, tensor) of one table's parameters or buffers."""
    for name, tensor in tensors.items():
        parts = split(name)
        if parts is not None and parts[:2] == (table, group):
            yield parts[2], parts[3], tensor


def _different(what: str, names: list[str]) -> None:
    if len(set(names)) < len(names):
        raise ValueError(f"{what} should differ, but one is there twice")
