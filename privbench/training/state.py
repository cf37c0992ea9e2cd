"""What a training run holds between two rounds: replicas with their optimiser state, and what is kept of them for later."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from privbench.tensors import Parts


class Moments(NamedTuple):
    """Adam's state of one stage: both [P] over the stage's parameters laid end to end."""

    mean: Tensor
    square: Tensor
    steps: int


@dataclass
class Replica:
    """One client's or server's networks with their optimiser state; values are replaced, never changed in place."""

    params: Parts
    buffers: Parts
    moments: dict[str, Moments] = field(default_factory=dict)


class Prediction(NamedTuple):
    """What a classifier says of labelled images."""

    logits: Tensor  # [N, Y], on the CPU
    labels: Tensor  # [N] int64


@dataclass
class State:
    """One seed's training after `round` complete rounds."""

    round: int
    server: Replica  # the broadcast networks: the method's shared parts
    clients: list[Replica]
    uploads: list[tuple[Parts, Parts]]  # shared parts as each client last sent them
    history: list[dict[str, Any]] = field(default_factory=list)  # one entry per round
    predictions: list[Prediction] = field(default_factory=list)  # each client's, at its best validation round so far


class Snapshot(NamedTuple):
    """The networks after `round` complete rounds, as far as an attack can depend on them."""

    round: int
    server: Replica  # the broadcast
    clients: list[Replica]  # private parts of every client that its gradient depends on
    uploads: list[tuple[Parts, Parts]]  # shared parts that are sent as weights (generators)
