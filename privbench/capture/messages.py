"""What a server and its clients send each other, as plain frozen values: what a capture is made of, written and read alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.optim import Optimizer

from privbench.errors import UserError
from privbench.tensors import Params

Kind = Literal["gradient", "update", "weights"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Setting = bool | int | float | str | None | tuple[bool | int | float | None, ...]


@dataclass(frozen=True)
class LocalWork:
    """How a client came from the weights that it received to what it sent, as far as the server knows it."""

    steps: int | None = None
    batch_size: int | None = None  # training examples per step
    optimizer: str | None = None  # the name of its class, e.g. "SGD"; a word, never imported
    settings: Mapping[str, Setting] = field(default_factory=dict)  # of the optimiser: "lr", "momentum", "betas", ...

    @classmethod
    def of(cls, optimizer: Optimizer, *, steps: int | None = None, batch_size: int | None = None) -> LocalWork:
        """Of one of torch's optimisers: its name and settings; where groups of parameters differ in one, all values in a row."""
        if steps is not None and steps < 1:
            raise UserError(f"a client takes at least one local step, but steps={steps} was given")
        # A rate may be a tensor.
        first, *others = ({name: _plain(value) for name, value in group.items()} for group in optimizer.param_groups)
        settings: dict[str, Setting] = {}
        for name, value in first.items():
            if name == "params" or not _is_setting(value):
                continue
            each = [group.get(name) for group in others]
            if all(other == value for other in each):
                settings[name] = tuple(value) if isinstance(value, list | tuple) else value
            elif all(_is_setting(other) and not isinstance(other, str) for other in (value, *each)):
                settings[name] = tuple(n for v in (value, *each) for n in (v if isinstance(v, list | tuple) else (v,)))
        return cls(steps, batch_size, type(optimizer).__name__, settings)


def _plain(value: Any) -> Any:
    """A tensor of one number as that number; anything else as it is."""
    return value.item() if isinstance(value, Tensor) and value.ndim == 0 else value


@dataclass(frozen=True)
class MessageFacts:
    """What is known of one message beside its tensors.

    kind        "gradient": of one mini-batch's loss, at the weights of the broadcast
                "update":   weights after local steps minus the broadcast, where that difference is what was sent
                "weights":  the weights after local steps themselves, as most systems send them
    clients     whose data the message holds, ascending; empty where nobody said
    of          how many clients' data it holds: above 1, it is an aggregate; never below the number of `clients`
    examples    training examples behind it: the mini-batch of a gradient, the client's training set otherwise; None: unknown
    broadcast   which of the round's broadcasts it answers; None where its clients received several, or it is not known
    training    whether the model was in training mode; None: unknown, or some of its layers were and others were not
    local       the local steps of an update or of weights; None: unknown, or a gradient
    metrics     numbers that the message carried beside its tensors, by name, such as a loss
    """

    kind: Kind
    clients: tuple[int, ...] = ()
    of: int = 1
    examples: int | None = None
    broadcast: int | None = 0
    training: bool | None = None
    local: LocalWork | None = None
    metrics: Mapping[str, float | tuple[float, ...]] = field(default_factory=dict)

    @property
    def aggregate(self) -> bool:
        """Whether it holds the data of several clients."""
        return self.of > 1

    def with_tensors(self, parameters: Params, buffers: Params, labels: Tensor | None) -> Message:
        """The message of these facts."""
        facts = {name: getattr(self, name) for name in MessageFacts.__dataclass_fields__}
        return Message(**facts, parameters=parameters, buffers=buffers, labels=labels)


@dataclass(frozen=True)
class Message(MessageFacts):
    """One message of a client, or of an aggregation, to the server; tensors exactly as sent, NaN and infinities included.

    parameters  by the name that the model has for them; a client may send some of the model's, in other shapes and types too
    buffers     running statistics and the like, by name; what a message does not hold was not sent
    labels      targets of its examples [n, ...], only where the client declared them to the server
    """

    parameters: Params = field(default_factory=dict)
    buffers: Params = field(default_factory=dict)
    labels: Tensor | None = None

    @property
    def facts(self) -> MessageFacts:
        """The message without its tensors."""
        return MessageFacts(*(getattr(self, name) for name in MessageFacts.__dataclass_fields__))


@dataclass(frozen=True)
class BroadcastModel:
    """What a server sent: parameters and buffers by name. `clients` received it; None: all that are not in another's `clients`."""

    parameters: Params
    buffers: Params = field(default_factory=dict)
    clients: tuple[int, ...] | None = None


@dataclass(frozen=True)
class CapturedRound:
    """One round: what went down, and what came up in answer."""

    number: int
    broadcasts: tuple[BroadcastModel, ...]
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class TruthOfMessage:
    """The training examples behind a message: inputs [n, ...] as the model took them, and their targets [n, ...]."""

    inputs: Tensor
    targets: Tensor


def copied(tensors: Mapping[str, Tensor]) -> Params:
    """Tensors as they are now, on the CPU, dense, each in a storage of its own."""
    return {name: _copied(t) for name, t in tensors.items()}


def _copied(t: Tensor) -> Tensor:
    whole = t.detach()
    whole = whole.to_dense() if whole.layout != torch.strided else whole
    return whole.to("cpu", copy=True).contiguous()


def _is_setting(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(isinstance(each, bool | int | float | None) for each in value)
    return isinstance(value, bool | int | float | str | None)
