"""The values that walk through the suite, and the protocols that plug-ins follow.

Shape letters used in every docstring:
    S seeds   K clients   V victims (attacked uploads)   B images in a victim batch or mini-batch
    C,H,W channels, height, width      c,s,s feature channels and side      Y classes      N samples

Images are float in [0, 1] wherever a model, an attack or a score sees them; data sets store them as uint8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from privbench.networks.model import Model
from privbench.tensors import Params, Parts, alone, parts_alone

# The parts that L_cls has gradients of; other shared parts are sent as weights.
CLASSIFICATION = ("extractor", "classifier")
# Any of these offers reveals the victims' classes.
TELL_CLASSES = frozenset({"labels", "gradient:classifier", "update:classifier"})
# preset -> settings of an attack that differ from its defaults; "quick-resnet18" is quick on that backbone.
Presets = Mapping[str, Mapping[str, int]]
Progress = Callable[[int, int, str], None]  # progress: (steps done, steps in all, what)


def no_progress(done: int, total: int, what: str) -> None:
    """The silent progress report."""


class Batch(NamedTuple):
    """Images with their labels."""

    images: Tensor  # [B, C, H, W] in [0, 1]
    labels: Tensor  # [B] int64


class Images(NamedTuple):
    """A stored set of labelled images."""

    images: (
        Tensor  # [N, C, 32, 32] uint8; larger where larger originals were asked for (privbench/data/readers/resize.py)
    )
    labels: Tensor  # [N] int64


class Client(NamedTuple):
    """One client's data; the three sets are disjoint."""

    domain: str
    train: Images
    validation: Images
    test: Images


class Federation(NamedTuple):
    """A data set laid out over K clients."""

    clients: tuple[Client, ...]
    public: Images | None  # held-out images of no client (FedDF's distillation data), or None
    classes: tuple[str, ...]
    flip: bool  # whether training flips images horizontally at random

    def label_counts(self) -> Tensor:
        """n_i^y, how many training images of class y client i has: [K, Y] int64."""
        return torch.stack([torch.bincount(c.train.labels, minlength=len(self.classes)) for c in self.clients])


class LocalSteps(NamedTuple):
    """How a client came from the broadcast networks to those that it sends."""

    steps: int  # K
    optimiser: Mapping[str, Any]  # privbench.spec.SGD or Adam, written out
    batch: int | None = (
        None  # images per step, drawn from one secret shuffle of the victim batch after another; None: all of them
    )


class LocalTraining(NamedTuple):
    """How a server has its clients train on the task, which it therefore knows."""

    optimiser: Mapping[str, Any]  # privbench.spec.SGD or Adam, written out
    batch: int  # images per mini-batch
    steps: int  # mini-batches a client takes in a round; the median over clients


@dataclass(frozen=True)
class Artifact:
    """Exactly what the curious server holds about V attacked uploads; nothing in it comes from outside the wire.

    round          how many rounds were complete when the clients received `weights` (0 = the untrained model)
    gradients      part -> parameter -> [V, ...]: gradient of the mean cross-entropy of the victim batch, after the defence;
                   empty where whole local updates are attacked
    weights        part -> parameter -> [...]: the broadcast networks, at which those gradients were taken: the shared parts,
                   and networks that the server alone trains (FedGen's generator)
    buffers        part -> buffer -> [...]: batch-norm statistics of the broadcast networks
    uploads        part -> parameter -> [K, ...]: shared parts that are sent as weights, as each client last sent them (generator)
    upload_buffers the buffers of `uploads`
    client         [V] int64: which client sent upload v
    batch_size     B, known to the server
    labels         [V, B] int64 when they are declared known, else None
    label_counts   [K, Y] int64 where the method uploads them, else None: each client's training images per class
    defense        name and parameters of the defence, and the number format of the uploads where that is not single precision
                   (privbench/observation/wire.py); the attacker knows both
    updates        part -> parameter -> [V, ...]: networks after the client's local steps minus before, after the defence; empty
                   where gradients are attacked
    local          the client's local steps behind `updates`
    imitated       how many features of the broadcast generator each gradient over C is made of beside those of its B images: of
                   methods that train C on both, where they are observed (FedGen, FedMD-CG); the server knows it from the protocol
    training       how the clients train between the rounds; None where the artifact does not say
    """

    method: str
    dataset: str
    model: Model
    round: int
    shared_parts: tuple[str, ...]
    gradients: Parts
    weights: Parts
    buffers: Parts
    uploads: Parts
    upload_buffers: Parts
    client: Tensor
    batch_size: int
    image_shape: tuple[int, int, int]
    labels: Tensor | None
    defense: Mapping[str, Any]
    label_counts: Tensor | None = None
    updates: Parts = field(default_factory=dict)
    local: LocalSteps | None = None
    imitated: int = 0
    training: LocalTraining | None = None

    def to(self, device: torch.device) -> Artifact:
        """The same artifact with its tensors on `device`, each in a storage of its own."""
        return replace(
            self,
            gradients=parts_alone(self.gradients, device),
            updates=parts_alone(self.updates, device),
            weights=parts_alone(self.weights, device),
            buffers=parts_alone(self.buffers, device),
            uploads=parts_alone(self.uploads, device),
            upload_buffers=parts_alone(self.upload_buffers, device),
            client=alone(self.client, device),
            labels=None if self.labels is None else alone(self.labels, device),
            label_counts=None if self.label_counts is None else alone(self.label_counts, device),
        )

    def select(self, rows: Tensor) -> Artifact:
        """The same artifact with the uploads in `rows` [n] alone."""

        def of(parts: Parts) -> Parts:
            return {part: {name: t[rows] for name, t in net.items()} for part, net in parts.items()}

        return replace(
            self,
            gradients=of(self.gradients),
            updates=of(self.updates),
            client=self.client[rows],
            labels=None if self.labels is None else self.labels[rows],
        )

    @property
    def victims(self) -> int:
        """V."""
        return int(self.client.shape[0])

    def offers(self) -> frozenset[str]:
        """What an attack may ask for in `needs`.

        "gradient:<part>" or "update:<part>", "broadcast:<part>", "upload:<part>", "labels", "label_counts"; "gradient" is that of
        any part, "classes" whatever reveals the victims' classes: their labels, or C's gradient or update.
        """
        groups = {"gradient": self.gradients, "update": self.updates, "broadcast": self.weights, "upload": self.uploads}
        found = {f"{group}:{part}" for group, parts in groups.items() for part in parts}
        single = {"labels": self.labels, "label_counts": self.label_counts, "gradient": self.gradients or None}
        found |= {name for name, value in single.items() if value is not None}
        return frozenset(found | ({"classes"} if found & TELL_CLASSES else set()))


class Truth(NamedTuple):
    """The ground truth of an artifact. Only privbench/scoring/image_scores.py may open it."""

    images: Tensor  # [V, B, C, H, W] in [0, 1]
    labels: Tensor  # [V, B] int64


class Networks(NamedTuple):
    """The extractor and the classifier of one client."""

    params: Parts
    buffers: Parts

    def to(self, device: torch.device) -> Networks:
        """The same networks on `device`, each tensor in a storage of its own."""
        return Networks(*(parts_alone(parts, device) for parts in self))


class Colluder(NamedTuple):
    """What a colluding client gives to the server: its extractor and classifier, and its training images."""

    params: Parts
    buffers: Parts
    images: Batch

    def to(self, device: torch.device) -> Colluder:
        """The same on `device`, each tensor in a storage of its own."""
        images = Batch(*(alone(t, device) for t in self.images))
        return Colluder(parts_alone(self.params, device), parts_alone(self.buffers, device), images)


class ExpectedUpload(NamedTuple):
    """What a server knows of the uploads before they come."""

    batch_size: int  # B
    defense: Defense  # what every upload goes through
    wire: str = "float32"  # the number format in which uploads are sent (privbench/observation/wire.py)
    local: LocalSteps | None = None  # behind uploads that are whole updates


@dataclass(frozen=True)
class Knowledge:
    """What an attacker has beyond the artifact. An attack receives only what its `needs` name; the rest is None.

    auxiliary   images disjoint from every client's training images
    initial     the networks that every client started with
    colluder    attacked client -> another client: its networks at the attacked round, and its training images
    oracle      attacked client -> its own networks at the attacked round
    broadcast   what the server would have sent at the attacked round: for active attacks, which `craft` from it; not in `needs`
    expected    what is known of the expected uploads: for active attacks, to `craft` by; not in `needs`
    cache       a folder for what an attack trains on auxiliary images (attacks/common/training_cache.py); no knowledge, and
    not in `needs`
    """

    auxiliary: Batch | None = None
    initial: Networks | None = None
    colluder: Mapping[int, Colluder] | None = None
    oracle: Mapping[int, Networks] | None = None
    broadcast: Networks | None = None
    expected: ExpectedUpload | None = None
    cache: Path | None = None

    def to(self, device: torch.device) -> Knowledge:
        """The same knowledge with its tensors on `device`, each in a storage of its own."""
        return Knowledge(
            auxiliary=None if self.auxiliary is None else Batch(*(alone(t, device) for t in self.auxiliary)),
            initial=None if self.initial is None else self.initial.to(device),
            colluder=None if self.colluder is None else {k: own.to(device) for k, own in self.colluder.items()},
            oracle=None if self.oracle is None else {k: own.to(device) for k, own in self.oracle.items()},
            broadcast=None if self.broadcast is None else self.broadcast.to(device),
            expected=self.expected,
            cache=self.cache,
        )


class Outcome(IntEnum):
    """How an attack on one victim ended; a record holds the name in words, e.g. "gave up"."""

    RECONSTRUCTED = 0
    GAVE_UP = 1  # it returned a floor, e.g. the class mean, in place of a reconstruction
    NOT_APPLICABLE = 2  # there was nothing to attack, or the attack does not apply to this method
    DIVERGED = 3  # a number that is not finite

    @property
    def word(self) -> str:
        """As records and tables write it."""
        return self.name.lower().replace("_", " ")


class Reconstruction(NamedTuple):
    """What an attack returns for V victims."""

    images: Tensor  # [V, B, C, H, W], as the optimiser left them, not clipped
    labels: Tensor  # [V, B] int64, known or recovered
    loss: Tensor  # [V] the attacker's own final objective
    trace: Tensor  # [V, T] the objective of the chosen restart over the iterations; where a victim alone was not
    # descended on, NaN after the first, and where none was, T = 1
    restart: Tensor  # [V] int64, which restart was chosen, by the attacker's own loss
    gradient_evaluations: int  # objective gradients of one victim, summed over victims and restarts
    notes: tuple[str, ...] = ()  # sentences that a reader of the numbers must know; printed under every table
    outcome: Tensor | None = (
        None  # [V] int64, of Outcome; None: reconstructed, unless privbench/records/victims.py sees otherwise
    )


class Attack(Protocol):
    """A frozen dataclass of hyper-parameters with one method.

    A class attribute `uses`, where it has one, names further entries of Artifact.offers(): read where the artifact has them.
    """

    needs: ClassVar[frozenset[str]]  # entries of Artifact.offers(), or fields of Knowledge
    knowledge: ClassVar[
        str
    ]  # the tag in tables, e.g. "gradient + auxiliary"; what it `uses` is added (privbench/observation/knowledge.py)
    rung: ClassVar[str]  # of the attack ladder, "L0" (nothing) to "L8" (oracle): docs/reading_results.md
    # A class may also say `pools: ClassVar[bool]`, whether what it makes of one upload depends on the other attacked uploads
    # where the extractor is private (privbench/observation/knowledge.py); `revision: ClassVar[int]`, raised whenever it returns
    # other numbers; and `limits: ClassVar[Limits]`, what it can be made on besides its needs (privbench/applicability.py).

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """Reconstruct all victims of the artifact from it and `knowledge` alone."""
        ...


class ActiveAttack(Attack, Protocol):
    """An attack whose server sends crafted networks; its field `active_rounds` says since when (observation/active_server.py)."""

    active: ClassVar[bool]  # True

    def craft(self, model: Model, broadcast: Networks, knowledge: Knowledge, seed: int) -> Networks:
        """What to send in place of some of the `broadcast` networks, nothing to be honest; UserError where that cannot be made."""
        ...


class Defense(Protocol):
    """A frozen dataclass of hyper-parameters; acts on what one client sends."""

    where: str  # "never" | "step" (each local gradient of the shared parts) | "update" (the round's change of them)

    def protect(self, tensors: Params, rng: Any) -> Params:
        """The protected form of one part (e.g. the classifier) of one client's gradient or update, of the same names and shapes.

        A client that shares several parts calls it once per part, so a norm over `tensors` is that of the part alone. `rng` is
        a torch.Generator, the only source of noise. Also applied to every attacked gradient.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """Name and parameters, as recorded and as the attacker knows them."""
        ...
