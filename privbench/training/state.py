"""What a training run is made of: what is fixed for it, and what it holds between two rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from privbench.defense import Defense
from privbench.methods import participation
from privbench.methods.base import Method
from privbench.networks.model import Model
from privbench.seeds import Name, stream
from privbench.spec import TrainSpec
from privbench.tensors import Parts
from privbench.types import Federation


@dataclass(frozen=True)
class Setup:
    """What is fixed for one seed's run."""

    spec: TrainSpec
    model: Model
    method: Method
    defense: Defense
    federation: Federation
    images: tuple[Tensor, ...]  # every client's training images on the device, [N, C, H, W] uint8
    labels: tuple[Tensor, ...]
    public: Tensor | None  # public images on the device where the server trains on them, [N, C, H, W] uint8
    weights: Tensor  # w_i: [K]
    counts: Tensor | None  # n_i^y: [K, Y], where the method uploads them
    device: torch.device

    def taking_part(self, round_: int) -> tuple[int, ...]:
        """The clients that take part in round r = 1, 2, ..."""
        return participation.of_round(self.method, round_, len(self.federation.clients))


class Moments(NamedTuple):
    """Adam's state of one stage: both [P] over the stage's parameters laid end to end."""

    mean: Tensor
    square: Tensor
    steps: int


@dataclass
class Replica:
    """One client's or server's networks with their optimiser state; networks are replaced, never changed in place."""

    params: Parts
    buffers: Parts
    moments: dict[str, Moments] = field(default_factory=dict)

    def take(self, other: Replica) -> None:
        """Has the values of another one."""
        self.params, self.buffers, self.moments = other.params, other.buffers, other.moments


def networks_of(replica: Replica, parts: Sequence[str]) -> tuple[Parts, Parts]:
    """(parameters, buffers) of some parts alone, such as those that may leave a client."""
    return {p: replica.params[p] for p in parts}, {p: replica.buffers[p] for p in parts}


def drawn(model: Model, parts: Sequence[str], seed: int, *whose: Name) -> tuple[Parts, Parts]:
    """(parameters, buffers) that training starts from: of everybody, or of the one that the names `whose` name."""
    each = {part: model.net(part).init(stream(seed, "init", part, *whose)) for part in parts}
    return {part: pair[0] for part, pair in each.items()}, {part: pair[1] for part, pair in each.items()}


class Prediction(NamedTuple):
    """What a classifier says of labelled images."""

    logits: Tensor  # [N, Y], on the CPU
    labels: Tensor  # [N] int64


@dataclass
class State:
    """One seed's training after `round` complete rounds."""

    round: int
    server: Replica  # the broadcast networks: the method's shared parts, and those that it serves
    clients: list[Replica]
    uploads: list[tuple[Parts, Parts]]  # shared parts as each client last sent them
    history: list[dict[str, Any]] = field(default_factory=list)  # one entry per round
    predictions: list[Prediction] = field(default_factory=list)  # each client's, at its best validation round so far


class Isolated(NamedTuple):
    """What an active server sends to all clients but one, to have that one's message stand alone in the sum of all."""

    target: int
    others: Replica  # what the other clients receive in place of the broadcast


class Snapshot(NamedTuple):
    """The networks after `round` complete rounds, as far as an attack can depend on them."""

    round: int
    server: Replica  # the broadcast
    clients: list[Replica]  # private parts of every client (privbench/training/training_files.py: SNAPSHOT_PARTS)
    uploads: list[tuple[Parts, Parts]]  # shared parts that are sent as weights (generators)
    isolated: Isolated | None = None
    divided: list[Replica] | None = None  # what an active server sent to each client in place of one broadcast

    def received(self, client: int) -> Replica:
        """What a client was sent."""
        if self.divided is not None:
            return self.divided[client]
        return self.server if self.isolated is None or self.isolated.target == client else self.isolated.others

    def networks(self, client: int) -> tuple[Parts, Parts]:
        """(parameters, buffers) with which a client starts the next round: its private parts and those that it was sent."""
        state, server = self.clients[client], self.received(client)
        return state.params | server.params, state.buffers | server.buffers
