"""The form every federated method is written in: parts, what is shared, and stages with their losses.

A loss is a pure function of the networks, ONE mini-batch and the clock, for ONE client (or the one server); the harness
owns mini-batches, optimisers, ragged clients, checkpoints, and the leading axes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from privbench.nets import Model
from privbench.types import Parts


class MiniBatch(NamedTuple):
    """One step's data and draws; server stages without public data have empty images."""

    images: Tensor  # [B, C, H, W] in [0, 1]
    labels: Tensor  # [B] int64
    noise: Mapping[str, Tensor]  # the stage's declared draws, each [B, ...]


class Clock(NamedTuple):
    """Where in training a loss is evaluated."""

    round: int  # r = 1 .. rounds
    rounds: int


class Nets:
    """Networks ready to be called in an equation: `nets.classifier(nets.extractor(x))`.

    Trained parts run in train mode and all others in eval mode, as in FedCG's reference implementation; changed
    batch-norm and spectral-norm state is collected in `after`. `received` are the networks of the last broadcast
    (subscript g), `clients` the uploads (server stages only), `weights` w_i = |X_i| / sum |X_j|.
    """

    def __init__(
        self,
        model: Model,
        params: Parts,
        buffers: Parts,
        trains: tuple[str, ...] = (),
        *,
        received: Nets | None = None,
        clients: tuple[Nets, ...] = (),
        weights: Tensor | None = None,
    ) -> None:
        self.model, self.params, self.buffers, self.trains = model, params, buffers, trains
        self.after: Parts = {}
        self._received, self.clients, self._weights = received, clients, weights

    @property
    def received(self) -> Nets:
        """The broadcast networks, frozen."""
        assert self._received is not None, "only client stages receive a broadcast"
        return self._received

    @property
    def weights(self) -> Tensor:
        """w_i: [K]."""
        assert self._weights is not None, "only server stages know the clients' weights"
        return self._weights

    def _call(self, part: str, *inputs: Tensor) -> Tensor:
        train = part in self.trains
        state = self.after.get(part, self.buffers.get(part, {}))
        output, after = self.model.net(part).apply(self.params[part], state, *inputs, train=train)
        if train and after:
            self.after[part] = after
        return output

    def extractor(self, images: Tensor) -> Tensor:
        """h = E(x): [B, C, H, W] -> [B, c, s, s]."""
        return self._call("extractor", images)

    def classifier(self, features: Tensor) -> Tensor:
        """Logits C(h): [B, c, s, s] -> [B, Y]."""
        return self._call("classifier", features)

    def generator(self, noise: Tensor, labels: Tensor) -> Tensor:
        """G(z, y): [B, z], [B] -> [B, c, s, s]."""
        return self._call("generator", noise, labels)

    def discriminator(self, features: Tensor, labels: Tensor) -> Tensor:
        """The logit of D(h, y): [B, c, s, s], [B] -> [B]."""
        return self._call("discriminator", features, labels)


Loss = Callable[[Nets, MiniBatch, Clock], Tensor]


class Draw(Protocol):
    """A distribution of one mini-batch's noise."""

    def sample(self, shape: tuple[int, ...], classes: int, rng: torch.Generator) -> Tensor:
        """Draws with leading axes `shape`."""
        ...


@dataclass(frozen=True)
class Normal:
    """z ~ N(0, I) of the given dimension."""

    dim: int

    def sample(self, shape: tuple[int, ...], classes: int, rng: torch.Generator) -> Tensor:
        """[*shape, dim]."""
        return torch.randn(*shape, self.dim, generator=rng)


@dataclass(frozen=True)
class UniformClass:
    """y ~ Uniform{classes}."""

    def sample(self, shape: tuple[int, ...], classes: int, rng: torch.Generator) -> Tensor:
        """[*shape] int64."""
        return torch.randint(classes, shape, generator=rng)


@dataclass(frozen=True)
class Stage:
    """One loss descended over some parts; `optimiser` names an entry of the schedule ("task", "generator", "server")."""

    name: str
    trains: tuple[str, ...]
    loss: Loss
    optimiser: str
    draws: Mapping[str, Draw] = field(default_factory=dict)


@dataclass(frozen=True)
class Phase:
    """Stages that take one step each per mini-batch; `length` names a count of epochs (client) or steps (server)."""

    stages: tuple[Stage, ...]
    length: str


class Method(Protocol):
    """A federated method. A frozen dataclass whose fields are its own hyper-parameters."""

    parts: ClassVar[tuple[str, ...]]  # networks a client holds
    shares: ClassVar[tuple[str, ...]]  # what leaves the client, every round; nothing else ever does

    def client(self) -> tuple[Phase, ...]:
        """What a client does in one round, after it overwrote its shared parts with the broadcast."""
        ...

    def server(self) -> tuple[Phase, ...]:
        """What the server does after the weighted average of the uploads."""
        ...


def cross_entropy_stage(parts: tuple[str, ...] = ("extractor", "classifier")) -> Phase:
    """Local training of E and C on L_cls (Eq. 1), shared by all methods without an extra term."""
    return Phase((Stage("task", parts, classification_loss, "task"),), "local_epochs")


def classification_loss(nets: Nets, batch: MiniBatch, clock: Clock) -> Tensor:
    """L_cls = CE(C_i(E_i(x)), y) (FedCG Eq. 1)."""
    return torch.nn.functional.cross_entropy(nets.classifier(nets.extractor(batch.images)), batch.labels)
