"""The values that walk through the suite, and the protocols that plug-ins follow.

Shape letters used in every docstring:
    S seeds   K clients   V victims (attacked uploads)   B images in a victim batch or mini-batch
    C,H,W channels, height, width      c,s,s feature channels and side      Y classes      N samples

Images are float in [0, 1] wherever a model, an attack or a score sees them; data sets store them as uint8.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from privbench.defense import Defense
from privbench.networks.model import Model
from privbench.tensors import Parts, alone, parts_alone

# The parts that L_cls has gradients of; other shared parts are sent as weights.
CLASSIFICATION = ("extractor", "classifier")
# Any of these offers reveals the victims' classes.
CLASS_EVIDENCE = frozenset({"labels", "gradient:classifier", "update:classifier"})
# preset -> settings of an attack that differ from its defaults; "quick-slow" is quick on a slow backbone.
Presets = Mapping[str, Mapping[str, Any]]
Progress = Callable[[int, int, str], None]  # progress: (steps done, steps in all, what)


def no_progress(done: int, total: int, what: str) -> None:
    """The silent progress report."""


class Batch(NamedTuple):
    """Images with their labels."""

    images: Tensor  # [B, C, H, W] in [0, 1]
    labels: Tensor  # [B] int64


class Images(NamedTuple):
    """A stored set of labelled images."""

    # [N, C, 32, 32] uint8; larger where larger originals were asked for (privbench/data/readers/resize.py).
    images: Tensor
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
    by_class: bool = False  # whether its training, validation and test images are of different classes
    test_alike: bool = True  # as privbench.data.dataset.Dataset says it

    def label_counts(self) -> Tensor:
        """n_i^y, how many training images of class y client i has: [K, Y] int64."""
        return torch.stack([torch.bincount(c.train.labels, minlength=len(self.classes)) for c in self.clients])


class LocalSteps(NamedTuple):
    """How a client came from the broadcast networks to those that it sends."""

    steps: int  # K
    optimiser: Mapping[str, Any]  # privbench.spec.SGD or Adam, written out
    # Images per step, drawn from one secret shuffle of the victim batch after another; None: all of them.
    batch: int | None = None
    # mu of a proximal term mu/2 ||theta - theta_received||^2 in the loss of every step, as of FedProx.
    proximal: float = 0.0


class LocalTraining(NamedTuple):
    """How a server has its clients train on the task, which it therefore knows."""

    optimiser: Mapping[str, Any]  # privbench.spec.SGD or Adam, written out
    batch: int  # images per mini-batch
    steps: int  # mini-batches a client takes in a round; the median over clients


@dataclass(frozen=True)
class Artifact:
    """Exactly what the curious server holds about V attacked uploads; nothing in it comes from outside the wire.

    Where clients send weights alone (a generator), an upload may hold several victims: V batches of training images are scored.

    An upload is one client's, or the sum that a secure aggregation opened: the weighted mean of what all clients sent. Of a sum the
    B images are those of all its clients, the same number of each, client after client.

    round          how many rounds were complete when the clients received `weights` (0 = the untrained model)
    gradients      part -> parameter -> [V, ...]: gradient of the mean cross-entropy of the victim batch, after the defence;
                   empty where whole local updates are attacked, or weights
    weights        part -> parameter -> [...]: the broadcast networks, at which those gradients were taken: the shared parts,
                   and networks that the server alone trains (FedGen's generator)
    buffers        part -> buffer -> [...]: batch-norm statistics of the broadcast networks
    uploads        part -> parameter -> [K, ...]: shared parts that are sent as weights, as each client last sent them (generator)
    upload_buffers the buffers of `uploads`
    client         [V] int64: which client sent upload v; 0 where all of them did
    batch_size     B, known to the server
    labels         [V, B] int64 when they are declared known, else None
    label_counts   [K, Y] int64 where the method uploads them, else None: each client's training images per class
    defense        name and parameters of the defence, and the number format of the uploads where that is not single precision
                   (privbench/observation/wire.py); the attacker knows both
    updates        part -> parameter -> [V, ...]: networks after the client's local steps minus before, after the defence; empty
                   where gradients are attacked
    local          the client's local steps behind `updates`
    update_buffers part -> buffer -> [V, ...]: running statistics after these steps minus before, on which no defence acts; empty
                   where no step moves them
    imitated       how many features of the broadcast generator each gradient over C is made of beside those of its B images: of
                   methods that train C on both, where they are observed (FedGen, FedMD-CG); the server knows it from the protocol
    training       how the clients train between the rounds; None where the artifact does not say
    member_weights [V, K] float64, where uploads are sums: the weight of each client in each, n_k / sum of n_k; None where an upload
                   is one client's. `uploads` and `label_counts` are then those of the sum, [1, ...]
    target         of sums, the one client whose images are attacked, where an active server sent others than `weights` to all other
                   clients, so that they add little; `client` is that one, and B, `labels` and the truth are of its images alone.
                   None where all clients' are attacked
    others         the networks that the other clients received then
    divided        of sums, the networks that each client received, in turn, where an active server sent every client others;
                   `weights` are those of client 0
    upload_client  [M] int64, where clients send weights alone: which of them sent each of the M `uploads` of the round; None where
                   client k sent row k, and of a sum
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
    update_buffers: Parts = field(default_factory=dict)
    imitated: int = 0
    training: LocalTraining | None = None
    member_weights: Tensor | None = None
    target: int | None = None
    others: Networks | None = None
    divided: tuple[Networks, ...] | None = None
    upload_client: Tensor | None = None

    def to(self, device: torch.device) -> Artifact:
        """The same artifact with its tensors on `device`, each in a storage of its own."""
        return replace(
            self,
            gradients=parts_alone(self.gradients, device),
            updates=parts_alone(self.updates, device),
            update_buffers=parts_alone(self.update_buffers, device),
            weights=parts_alone(self.weights, device),
            buffers=parts_alone(self.buffers, device),
            uploads=parts_alone(self.uploads, device),
            upload_buffers=parts_alone(self.upload_buffers, device),
            client=alone(self.client, device),
            labels=None if self.labels is None else alone(self.labels, device),
            label_counts=None if self.label_counts is None else alone(self.label_counts, device),
            member_weights=None if self.member_weights is None else alone(self.member_weights, device),
            others=None if self.others is None else self.others.to(device),
            divided=None if self.divided is None else tuple(each.to(device) for each in self.divided),
            upload_client=None if self.upload_client is None else alone(self.upload_client, device),
        )

    def select(self, rows: Tensor) -> Artifact:
        """The same artifact with the uploads in `rows` [n] alone."""

        def of(parts: Parts) -> Parts:
            return {part: {name: t[rows] for name, t in net.items()} for part, net in parts.items()}

        return replace(
            self,
            gradients=of(self.gradients),
            updates=of(self.updates),
            update_buffers=of(self.update_buffers),
            client=self.client[rows],
            labels=None if self.labels is None else self.labels[rows],
            member_weights=None if self.member_weights is None else self.member_weights[rows],
        )

    @property
    def victims(self) -> int:
        """V."""
        return int(self.client.shape[0])

    @property
    def members(self) -> Tensor:
        """Whose images are attacked in each upload, [V, K] bool; K as far as uploads name clients."""
        if self.member_weights is not None and self.target is None:
            return self.member_weights > 0
        every = torch.arange(int(self.client.max()) + 1, device=self.client.device)
        return self.client[:, None] == every

    @property
    def upload_of(self) -> Tensor:
        """Which of `uploads` holds what the client of each victim sent: [V] int64."""
        if self.upload_client is None:
            return self.client
        return (self.client[:, None] == self.upload_client).int().argmax(1)

    @property
    def senders(self) -> int:
        """How many clients' images are attacked in each upload."""
        return 1 if self.member_weights is None or self.target is not None else int(self.member_weights.shape[1])

    @property
    def images_per_client(self) -> int:
        """How many images of an upload are of one client."""
        return self.batch_size // self.senders

    @property
    def image_weights(self) -> Tensor | None:
        """What each image counts for in an upload, [V, B] with sum 1; None where all of them count alike."""
        shares = self.member_weights
        if shares is None or self.target is not None or bool((shares == shares[:, :1]).all()):
            return None
        return (shares / self.images_per_client).repeat_interleave(self.images_per_client, 1)

    def offers(self) -> frozenset[str]:
        """What an attack may ask for in `needs`.

        "gradient:<part>" or "update:<part>", "broadcast:<part>", "upload:<part>", "labels", "label_counts"; "gradient" is that of
        any part, "classes" whatever reveals the victims' classes: their labels, or C's gradient or update; "aggregate" that uploads
        are sums over clients.
        """
        groups = {"gradient": self.gradients, "update": self.updates, "broadcast": self.weights, "upload": self.uploads}
        offers = {f"{group}:{part}" for group, parts in groups.items() for part in parts}
        single = {
            "labels": self.labels,
            "label_counts": self.label_counts,
            "gradient": self.gradients or None,
            "aggregate": self.member_weights,
        }
        offers |= {name for name, value in single.items() if value is not None}
        return frozenset(offers | ({"classes"} if offers & CLASS_EVIDENCE else set()))


class Truth(NamedTuple):
    """The ground truth of an artifact. Scores and what writes, checks or draws it may open it; no attack gets it."""

    images: Tensor  # [V, B, C, H, W] in [0, 1]
    labels: Tensor  # [V, B] int64


class Networks(NamedTuple):
    """Some networks by part, e.g. the extractor and the classifier of one client."""

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
    # The number format in which uploads are sent (privbench/observation/wire.py).
    wire: Literal["float32", "bf16", "fp16"] = "float32"
    local: LocalSteps | None = None  # behind uploads that are whole updates
    # By which the server gets the sum of several clients' messages, of B / len(weights) images each; None where every message
    # arrives by itself.
    weights: tuple[int, ...] | None = None
    # How much more noise arrives with a message than it has itself: more than 1 where others of a sum bring their noise alone.
    noise_factor: float = 1.0
    # Larger entries of a message are lost, beside those that the server finds by itself: messages of others take room in a sum.
    largest: float = math.inf
    labels_known: bool = False  # whether the server is told the labels of an upload's images

    @property
    def shares(self) -> tuple[float, ...]:
        """The weights with sum 1; of a message that arrives by itself 1."""
        weights = self.weights or (1,)
        return tuple(weight / sum(weights) for weight in weights)

    @property
    def images_per_client(self) -> int:
        """How many images of an upload are of one client."""
        return self.batch_size // len(self.shares)


class KnownImages(NamedTuple):
    """Images of the attacked clients that the attacker knows, none of them a victim's, with what the server saw of them.

    The attacker knows which upload is of which images, as a server does that planted them or chose when a client used them. Within
    an upload of several it knows their labels, and not which part of the gradient is of which image.
    An upload that was not finite, or that shows no features, stands among them as it came.
    """

    images: Tensor  # [N, B, C, H, W] as they are known
    # N uploads of the attacked round, the n-th of images[n]; their labels [N, B] are known, and whose they are.
    seen: Artifact
    error: float  # standard deviation of the Gaussian error of each known pixel; 0: they are known exactly

    def to(self, device: torch.device) -> KnownImages:
        """The same on `device`, each tensor in a storage of its own."""
        return KnownImages(alone(self.images, device), self.seen.to(device), self.error)


class Candidates(NamedTuple):
    """Images of which is asked whether the attacked clients trained on them: of each client half of them are members."""

    images: Tensor  # [K', N, C, H, W], of the attacked clients in ascending order, members and others in random order
    labels: Tensor  # [K', N] int64

    def to(self, device: torch.device) -> Candidates:
        """The same on `device`, each tensor in a storage of its own."""
        return Candidates(*(alone(t, device) for t in self))


@dataclass(frozen=True)
class Knowledge:
    """What an attacker has beyond the artifact. An attack receives only what its `needs` name; the rest is None.

    auxiliary   images disjoint from every client's training images
    initial     the networks that every client started with
    known       images of the attacked clients, and which uploads of the attacked round are theirs
    rounds      what the server kept: of each observed round, the attacked one last, uploads of the same images, none of them a
                victim's, in an order that tells nothing
    colluder    attacked client -> another client: its networks at the attacked round, and its training images
    oracle      attacked client -> its own networks at the attacked round
    sent        attacked client -> the shared parts of its extractor and classifier as it last sent them, after its local
                training and the defence
    candidates  images of which half are training images of an attacked client and the others nobody's, without the answer
    domains     which of the candidate domains each auxiliary image is of, in an order that tells nothing: [N] int64, 0 to D - 1
    specification  of the training run, which the server prescribes: a TrainSpec written out, without its seed
    broadcast   what the server would have sent at the attacked round: for active attacks, which `craft` from it; not in `needs`
    expected    what is known of the expected uploads: for active attacks, to `craft` by; not in `needs`
    cache       a folder for what an attack trains on auxiliary images (attacks/common/training_cache.py); no knowledge, and
    not in `needs`
    """

    auxiliary: Batch | None = None
    initial: Networks | None = None
    known: KnownImages | None = None
    rounds: tuple[Artifact, ...] | None = None
    colluder: Mapping[int, Colluder] | None = None
    oracle: Mapping[int, Networks] | None = None
    sent: Mapping[int, Networks] | None = None
    candidates: Candidates | None = None
    domains: Tensor | None = None
    specification: Mapping[str, Any] | None = None
    broadcast: Networks | None = None
    expected: ExpectedUpload | None = None
    cache: Path | None = None

    def to(self, device: torch.device) -> Knowledge:
        """The same knowledge with its tensors on `device`, each in a storage of its own."""
        return Knowledge(
            auxiliary=None if self.auxiliary is None else Batch(*(alone(t, device) for t in self.auxiliary)),
            initial=None if self.initial is None else self.initial.to(device),
            known=None if self.known is None else self.known.to(device),
            rounds=None if self.rounds is None else tuple(each.to(device) for each in self.rounds),
            colluder=None if self.colluder is None else {k: each.to(device) for k, each in self.colluder.items()},
            oracle=None if self.oracle is None else {k: each.to(device) for k, each in self.oracle.items()},
            sent=None if self.sent is None else {k: each.to(device) for k, each in self.sent.items()},
            candidates=None if self.candidates is None else self.candidates.to(device),
            domains=None if self.domains is None else alone(self.domains, device),
            specification=self.specification,
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
    # [V] int64, of Outcome; None: reconstructed, unless privbench/records/victims.py sees otherwise.
    outcome: Tensor | None = None


class Statements(NamedTuple):
    """What an inference says of the attacked clients, in ascending order of their numbers."""

    # [K', A], a distribution over the answers of the question in every row; of a question on candidates the probability of each.
    answers: Tensor
    notes: tuple[str, ...] = ()  # sentences that a reader of the numbers must know; printed under every table


class Inference(Protocol):
    """An attack whose answer is no image but a statement on each attacked client; a frozen dataclass as an `Attack` is.

    It declares `needs`, `knowledge` and `rung`, and may declare what else an `Attack` may. A class may also say
    `pools_clients: ClassVar[bool]`, whether what it states of one client depends on the other attacked clients
    (privbench/observation/knowledge.py).
    """

    needs: ClassVar[frozenset[str]]
    knowledge: ClassVar[str]
    rung: ClassVar[str]
    question: ClassVar[str]  # what is stated, of privbench.scoring.statement_scores.QUESTIONS

    def infer(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Statements:
        """State the answer for each attacked client from the artifact and `knowledge` alone."""
        ...


class Attack(Protocol):
    """A frozen dataclass of hyper-parameters with one method.

    A class attribute `uses`, where it has one, names further entries of Artifact.offers(): read where the artifact has them.
    """

    needs: ClassVar[frozenset[str]]  # entries of Artifact.offers(), or fields of Knowledge
    # The tag in tables, e.g. "gradient + auxiliary"; what it `uses` is added (privbench/observation/knowledge.py).
    knowledge: ClassVar[str]
    rung: ClassVar[str]  # of the attack ladder, "L0" (nothing) to "L8" (oracle): docs/reading_results.md
    # A class may also say `pools: ClassVar[bool]`, whether what it makes of one upload depends on the other attacked uploads
    # where the extractor is private (privbench/observation/knowledge.py); `revision: ClassVar[int]`, raised whenever it returns
    # other numbers; `limits: ClassVar[Limits]`, what it can be made on besides its needs
    # (privbench/execution/applicability.py); and `knows: ClassVar[frozenset[str]]`, what of a defence it has a form for, of
    # privbench.defending.described.EVERY_KIND, and `knows_private`, what of it where the extractor is private, if that is less
    # (privbench/observation/knowledge.py). What settings change is declared as a privbench.hyperparameters.BySetting.

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


@runtime_checkable
class CheckedAttack(Attack, Protocol):
    """An attack that, by its settings or its work, does not fit every federation."""

    def check(self, model: Model, clients: int) -> None:
        """UserError where it does not fit these networks and so many clients; asked before anything is trained."""
        ...


@runtime_checkable
class IsolatingAttack(ActiveAttack, Protocol):
    """An active attack on sums over clients whose server sends something else to all clients but one."""

    @property
    def target(self) -> int:
        """That one client's number, from 0: what `craft` makes is sent to it alone."""
        ...

    def craft_others(self, model: Model, broadcast: Networks) -> Networks:
        """What to send to all others in place of some of the `broadcast` networks."""
        ...


@runtime_checkable
class DividingAttack(ActiveAttack, Protocol):
    """An active attack on sums over clients whose server sends every client networks of its own."""

    def craft_each(self, model: Model, broadcast: Networks, knowledge: Knowledge, seed: int) -> tuple[Networks, ...]:
        """What to send to each client in place of some of the `broadcast` networks; nothing to be honest."""
        ...
