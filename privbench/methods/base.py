"""The form every federated method is written in: parts, what is shared, and stages with their losses.

A loss is a pure function of the networks, ONE mini-batch and the clock, for ONE client (or the one server); the harness
owns mini-batches, optimisers, ragged clients, checkpoints, and the leading axes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from privbench.data.tasks import TaskShape
from privbench.errors import UserError
from privbench.hyperparameters import Share
from privbench.networks.base import Discriminator
from privbench.networks.bottleneck import Bottleneck
from privbench.networks.model import Model
from privbench.tensors import Parts
from privbench.types import CLASSIFICATION


class ClassifierDraws(NamedTuple):
    """What one pass through a classifier under training draws (`classifier_draws`); None where a stage does not draw it."""

    mask: Tensor | None = None  # [B, c, s, s] bool, which features dropout keeps; [B, 0] without dropout
    eps: Tensor | None = None  # [B, k] the noise of its bottleneck; [B, 0] without one


class MiniBatch(NamedTuple):
    """One step's data and draws. Server stages see no labels (all 0), and images only where the phase is on public ones."""

    images: Tensor  # [B, C, H, W] in [0, 1], or empty
    labels: Tensor  # [B] int64
    noise: Mapping[str, Tensor]  # the stage's declared draws, each [B, ...]
    features: Tensor | None = None  # [B, c, s, s], E(x) in place of the images, in phases that say so
    frozen: Mapping[str, Tensor] = MappingProxyType({})  # what frozen passes returned, by their names, each [B, ...]

    @property
    def h(self) -> Tensor:
        """E(x) by the frozen extractor: [B, c, s, s], in phases with `features`."""
        assert self.features is not None, "only phases with `features` hold them"
        return self.features

    def passed(self, through: FrozenPass, nets: Nets) -> Tensor:
        """What a frozen pass returns of these samples: [B, ...], brought by the mini-batch (`Stage.frozen`), else computed now."""
        brought = self.frozen.get(through.__name__)
        if brought is not None:
            return brought
        with torch.no_grad():
            return through(nets, self)

    def drawn(self, name: str = "kept") -> ClassifierDraws:
        """The draws of one pass through the classifier, by the name that `classifier_draws` was given."""
        return ClassifierDraws(self.noise.get(name), self.noise.get(f"{name} eps"))


class RoundClock(NamedTuple):
    """Where in training a loss is evaluated."""

    round: int  # r = 1 .. rounds
    rounds: int


NOT_DRAWN = ClassifierDraws()


class Nets:
    """Networks ready to be called in an equation: `nets.classifier(nets.extractor(x))`.

    Trained parts run in train mode and all others in eval mode, as in FedCG's reference implementation; changed
    batch-norm and spectral-norm state is collected in `after`. `received` are the networks of the last broadcast
    (subscript g), `clients` the uploads of those that took part (server stages only), `weights` w_i = |X_i| / sum |X_j|,
    `counts` n_i^y.
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
        counts: Tensor | None = None,
    ) -> None:
        self.model, self.params, self.buffers, self.trains = model, params, buffers, trains
        self.after: Parts = {}
        self._divergences: list[Tensor] = []
        self._received, self.clients, self._weights, self._counts = received, clients, weights, counts

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

    @property
    def counts(self) -> Tensor:
        """n_i^y, how many training images of class y client i has: [K, Y]."""
        assert self._counts is not None, "only server stages of a method that uploads label counts know them"
        return self._counts

    def _call(self, part: str, *inputs: Tensor | None) -> Tensor:
        train = part in self.trains
        state = self.after.get(part, self.buffers.get(part, {}))
        output, after = self.model.net(part).apply(self.params[part], state, *inputs, train=train)
        if train and after:
            self.after[part] = after
        return output

    def extractor(self, images: Tensor) -> Tensor:
        """h = E(x): [B, C, H, W] -> [B, c, s, s]."""
        return self._call("extractor", images)

    def classifier(self, features: Tensor, drawn: ClassifierDraws = NOT_DRAWN) -> Tensor:
        """Logits C(h): [B, c, s, s] -> [B, Y].

        In training `drawn` has what is random. Of dropout, C sees h / (1 - p) where `mask` is true and 0 elsewhere, p =
        model.dropout. Its bottleneck samples by `eps`, and the pass counts in `penalised`; it takes the mean without.
        UserError: C is trained and does not get a draw that it needs, so that the setting would do nothing.
        """
        rate, trained = self.model.dropout, "classifier" in self.trains
        if rate and drawn.mask is None and trained:
            raise UserError(
                f"dropout={rate:g} needs a loss that draws which features are kept (privbench.methods.base.classifier_draws), but "
                "this method's does not; leave dropout at 0"
            )
        entering = features * drawn.mask / (1 - rate) if rate and drawn.mask is not None else features
        if not self.model.bottleneck:
            return self._call("classifier", entering)
        if drawn.eps is None and trained:
            raise UserError(
                "a bottleneck needs a loss that draws its noise (privbench.methods.base.classifier_draws), but this method's does "
                "not; leave out the defence that asks for one"
            )
        if drawn.eps is not None:
            bottleneck = cast("Bottleneck", self.model.classifier)
            self._divergences.append(bottleneck.divergence(self.params["classifier"], entering).mean())
        return self._call("classifier", entering, drawn.eps)

    def in_eval_mode(self) -> Nets:
        """The same networks, none of which is trained: with running statistics where they normalise."""
        return Nets(
            self.model, self.params, self.buffers, received=self._received, clients=self.clients, weights=self._weights,
            counts=self._counts,
        )  # fmt: skip

    def penalised(self, loss: Tensor) -> Tensor:
        """A stage's loss + beta KL of the bottleneck, the mean over the loss's sampled passes; the loss itself without any."""
        if not self._divergences:
            return loss
        return loss + self.model.kl_weight * torch.stack(self._divergences).mean()

    def generator(self, noise: Tensor, labels: Tensor) -> Tensor:
        """G(z, y): [B, z], [B] -> [B, c, s, s]."""
        return self._call("generator", noise, labels)

    def discriminator(self, features: Tensor, labels: Tensor) -> Tensor:
        """The logit of D(h, y): [B, c, s, s], [B] -> [B]."""
        return self._call("discriminator", features, labels)

    def discriminator_in_turn(self, batches: Sequence[Tensor], labels: Tensor) -> tuple[Tensor, ...]:
        """The same of several batches of features [B, c, s, s] with the same labels, as from one call after another."""
        net = cast("Discriminator", self.model.net("discriminator"))
        part, train = "discriminator", "discriminator" in self.trains
        state = self.after.get(part, self.buffers.get(part, {}))
        logits, after = net.apply_in_turn(self.params[part], state, batches, labels, train=train)
        if train and after:
            self.after[part] = after
        return logits


Loss = Callable[[Nets, MiniBatch, RoundClock], Tensor]


class FrozenPass(Protocol):
    """A named function through networks that nobody trains (`nets.received`, `nets.clients`), of every sample by itself."""

    __name__: str

    def __call__(self, nets: Nets, batch: MiniBatch, /) -> Tensor:
        """[B, ...] of a mini-batch of B samples, or of several mini-batches in a row."""
        ...


class SamplingContext(NamedTuple):
    """What a distribution may depend on."""

    model: Model
    counts: Tensor | None  # n_i^y: [K, Y], of methods that upload them


class Draw(Protocol):
    """A distribution of one mini-batch's noise."""

    def sample(self, shape: tuple[int, ...], context: SamplingContext, rng: torch.Generator) -> Tensor:
        """Draws with leading axes `shape`."""
        ...


@dataclass(frozen=True)
class Normal:
    """z ~ N(0, I), by default of the dimension that the generator takes."""

    dim: int | None = None

    def sample(self, shape: tuple[int, ...], context: SamplingContext, rng: torch.Generator) -> Tensor:
        """[*shape, dim]."""
        return torch.randn(*shape, context.model.noise_dim if self.dim is None else self.dim, generator=rng)


@dataclass(frozen=True)
class UniformClass:
    """y ~ Uniform{classes}."""

    def sample(self, shape: tuple[int, ...], context: SamplingContext, rng: torch.Generator) -> Tensor:
        """[*shape] int64."""
        return torch.randint(context.model.classes, shape, generator=rng)


@dataclass(frozen=True)
class ClassByCount:
    """y ~ p(y), p(y) proportional to sum_i n_i^y; for methods that upload label counts."""

    def sample(self, shape: tuple[int, ...], context: SamplingContext, rng: torch.Generator) -> Tensor:
        """[*shape] int64."""
        assert context.counts is not None, "p(y) needs a method with `uploads_counts`"
        p = context.counts.sum(0).double().cpu()
        return torch.multinomial(p, math.prod(shape), replacement=True, generator=rng).view(shape)


@dataclass(frozen=True)
class DropoutMask:
    """Which features dropout keeps: each with probability 1 - p, p = model.dropout."""

    def sample(self, shape: tuple[int, ...], context: SamplingContext, rng: torch.Generator) -> Tensor:
        """[*shape, c, s, s] bool; [*shape, 0] without dropout, where nothing is drawn."""
        if not context.model.dropout:
            return torch.empty(*shape, 0, dtype=torch.bool)
        whole = torch.empty(*shape, *context.model.feature_shape, dtype=torch.bool)
        return whole.bernoulli_(1 - context.model.dropout, generator=rng)


@dataclass(frozen=True)
class BottleneckNoise:
    """eps ~ N(0, I), by which a bottleneck samples."""

    def sample(self, shape: tuple[int, ...], context: SamplingContext, rng: torch.Generator) -> Tensor:
        """[*shape, k]; [*shape, 0] without a bottleneck, where nothing is drawn."""
        return torch.randn(*shape, context.model.bottleneck, generator=rng)


@dataclass(frozen=True)
class Stage:
    """One loss descended over some parts; `optimiser` names an entry of the schedule ("task", "generator", "server")."""

    name: str
    trains: tuple[str, ...]
    loss: Loss
    optimiser: str
    draws: Mapping[str, Draw] = field(default_factory=dict)
    # What of a client's data the loss reads: images (and their labels), or labels alone.
    reads: Literal["images", "labels"] = "images"
    # What the loss takes by `MiniBatch.passed`, so that it can be computed of many mini-batches at once.
    frozen: tuple[FrozenPass, ...] = ()


@dataclass(frozen=True)
class Phase:
    """Stages that take one step each per mini-batch; `length` names a count of epochs (client) or steps (server)."""

    stages: tuple[Stage, ...]
    length: str
    public: bool = False  # server phases: mini-batches of the federation's public images, without their labels
    # Client phases that train no extractor and see images through it alone: their mini-batches hold features, which are
    # computed once in a phase.
    features: bool = False


@dataclass(frozen=True)
class Method(ABC):
    """A federated method: a frozen dataclass whose fields are its own hyper-parameters, beside the dropout that all can have.

    Down go all of `shared_parts` and `serves`; a client overwrites its copy of `shared_parts` with them, except of `keeps`, and
    reaches all of them as `nets.received`.
    """

    # p, before the classifier while it is trained; None: `usual_dropout`
    dropout: Share | None = field(default=None, kw_only=True)

    # Authors, venue and year, as documents name it; "" where there is none.
    paper: ClassVar[str] = ""
    parts: ClassVar[tuple[str, ...]]  # networks a client holds
    shared_parts: ClassVar[tuple[str, ...]]  # those of them that leave the client, every round; no other ever does
    serves: ClassVar[tuple[str, ...]] = ()  # networks of the server alone, which clients receive and never train
    # Whether its classifier sees real images; else accuracy is that of one trained on what it generates.
    trains_on_images: ClassVar[bool] = True
    keeps: ClassVar[tuple[str, ...]] = ()  # shared parts whose copy at the client survives the broadcast
    # Of the method's own paper, by backbone; none where it is not named.
    usual_dropout: ClassVar[Mapping[str, float]] = {}

    @property
    def private_parts(self) -> tuple[str, ...]:
        """Networks that a client holds and that never leave it."""
        return tuple(part for part in self.parts if part not in self.shared_parts)

    @property
    def uploads_counts(self) -> bool:
        """Whether clients send n_i^y with their networks."""
        return False

    @property
    def broadcasts_counts(self) -> bool:
        """Whether the server sends sum_i n_i^y with its networks: where a client stage draws y ~ p(y)."""
        draws = [draw for phase in self.client() for stage in phase.stages for draw in stage.draws.values()]
        return any(isinstance(draw, ClassByCount) for draw in draws)

    def networks(self, backbone: str) -> dict[str, Any]:
        """Which variants of the networks the method asks for on a backbone: fields of `Model` by name."""
        return {"dropout": self.usual_dropout.get(backbone, 0.0) if self.dropout is None else self.dropout}

    @abstractmethod
    def client(self) -> tuple[Phase, ...]:
        """What a client does in one round, after it overwrote its shared parts with the broadcast."""

    @property
    def client_tasks(self) -> TaskShape | None:
        """The few-shot tasks on which clients train, one in each round; None where they train on all their images."""
        return None

    @property
    def test_tasks(self) -> TaskShape | None:
        """The tasks by which a meta-learner is validated and tested; None where every client's own network is."""
        return None

    def counts_for(self, images: int) -> int:
        """What a client with so many training images counts for in the server's mean."""
        return images

    def server_rate(self, clock: RoundClock) -> float:
        """How far the server's networks go from the broadcast towards the mean of the uploads: all the way."""
        return 1.0

    def notes(self) -> tuple[str, ...]:
        """What a reader of its numbers must know of a choice that its name and settings do not show; part of every record."""
        return ()

    def server(self) -> tuple[Phase, ...]:
        """What the server does after the weighted average of the uploads: by default nothing."""
        return ()

    def participants(self, round_: int, clients: int) -> tuple[int, ...]:
        """Which of K clients take part in round r = 1, 2, ..., ascending: by default all of them.

        A client that does not take part receives, trains and sends nothing in that round.
        """
        return tuple(range(clients))

    def measuring(self) -> tuple[Phase, ...]:
        """What every client trains after a round for its accuracy alone, on what the server then holds (`nets.received`).

        Nothing of it is sent, so that it reads no images. By default nothing: the networks of the clients are measured as they are.
        """
        return ()

    def observed(self) -> Stage:
        """The loss whose gradient over a victim batch the server is taken to see: what the client trains E and C on."""
        stages = (stage for phase in self.client() for stage in phase.stages)
        return next(stage for stage in stages if {*CLASSIFICATION} & {*stage.trains})

    @property
    def proximal(self) -> float:
        """mu of a proximal term mu/2 ||theta - theta_received||^2 that the observed loss holds; 0 without one."""
        return 0.0

    def imitated(self, clock: RoundClock) -> int:
        """How many imitated features per image the observed gradient over C is made of, beside the image's own."""
        return 0


# Of a method whose clients also train C on imitated features: which of its losses the observed gradient is taken of.
ObservedLoss = Literal["classification", "task"]


def at_least(least: float, **settings: float) -> None:
    """ValueError for the first of some settings that is below `least`, or nan."""
    for name, value in settings.items():
        if not value >= least:
            raise ValueError(f"{name} should be at least {least}, but {value} was given")


def classifier_draws(*names: str) -> dict[str, Draw]:
    """The draws of a stage that trains a classifier, for dropout and for a bottleneck: one of each per pass through it.

    By default there is one pass, "kept". A draw's name is part of its random stream's (privbench/seeds.py).
    """
    passes = names or ("kept",)
    return {name: DropoutMask() for name in passes} | {f"{name} eps": BottleneckNoise() for name in passes}


def cross_entropy_stage(parts: tuple[str, ...] = ("extractor", "classifier")) -> Phase:
    """Local training of E and C on L_cls (Eq. 1), shared by all methods without an extra term."""
    return Phase((Stage("task", parts, classification_loss, "task", classifier_draws()),), "local_epochs")


def proximal_term(theta: Parts, received: Parts, mu: float) -> Tensor | float:
    """mu/2 ||theta - theta_received||^2, theta = (E_i, C_i) (FedProx Eq. 2)."""
    return mu / 2 * sum((theta[p][n] - t).square().sum() for p in CLASSIFICATION for n, t in received[p].items())


def classification_loss(nets: Nets, batch: MiniBatch, clock: RoundClock) -> Tensor:
    """L_cls = CE(C_i(E_i(x)), y) (FedCG Eq. 1)."""
    logits = nets.classifier(nets.extractor(batch.images), batch.drawn())
    return torch.nn.functional.cross_entropy(logits, batch.labels)
