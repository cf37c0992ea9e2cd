"""What an epoch of a phase is run on: its mini-batches and draws, the optimisers, and what a loss may see besides the replica."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from privbench.methods.base import MiniBatch, Phase, RoundClock, Stage
from privbench.networks.model import Model
from privbench.spec import Optimiser
from privbench.tensors import Parts


class LocalDefense(NamedTuple):
    """A defence bound to one replica's random stream, at its places in local training; None where it has none there."""

    step: Callable[[Parts], Parts] | None = None  # of the gradient over the shared parts
    example: Callable[[Parts, Tensor, float], Parts] | None = None  # privbench.defense.Defense.example
    representation: Callable[[Parts, Model, tuple[Parts, Parts], Tensor], Parts] | None = (
        None  # the same, representation
    )


UNDEFENDED = LocalDefense()


class StageContext(NamedTuple):
    """What a loss may see in addition to the replica."""

    received: tuple[Parts, Parts] | None  # (parameters, buffers) of the broadcast; client stages
    clients: tuple[tuple[Parts, Parts], ...]  # the uploads; server stages
    weights: Tensor | None  # [K]; server stages
    counts: Tensor | None = None  # [K, Y]; server stages of methods that upload label counts


class PrivateSample(NamedTuple):
    """Which rows of a plan's mini-batches were drawn, for a defence that acts on every image."""

    included: Tensor  # [steps, B] bool
    expected: float  # images per mini-batch
    labels: Tensor  # [steps, L] drawn uniformly, for stages that read labels alone: they are to learn nothing of the client's


class Plan(NamedTuple):
    """One replica's mini-batches of one epoch, all drawn beforehand."""

    images: Callable[[int], Tensor]  # step -> [B, C, H, W] in [0, 1]
    labels: Tensor  # [steps, B]
    noise: Mapping[str, Mapping[str, Tensor]]  # stage -> draw -> [steps, B, ...]
    # step -> [B, c, s, s] in place of the images, in phases with `features`
    features: Callable[[int], Tensor] | None = None
    # Of mini-batches that are Poisson samples, whose rows are padded.
    sample: PrivateSample | None = None

    @property
    def steps(self) -> int:
        """How many mini-batches."""
        return len(self.labels)

    @property
    def rows(self) -> int:
        """B, padding included."""
        return self.labels.shape[1]

    def included(self, step: int) -> Tensor:
        """Which rows of a Poisson sample are images of the mini-batch: [B] bool."""
        assert self.sample is not None, "only Poisson samples are padded"
        return self.sample.included[step]

    def reads_images(self, stage: Stage) -> bool:
        """Whether the stage's gradients are taken image by image."""
        return self.sample is not None and stage.reads == "images"

    def batch(self, stage: Stage, step: int, seen: tuple[Tensor, Tensor | None]) -> MiniBatch:
        """One mini-batch as the stage sees it, of what `seen` gave.

        With Poisson samples a stage that reads labels alone gets uniform ones, and neither images nor features.
        """
        noise = {name: t[step] for name, t in self.noise[stage.name].items()}
        if self.sample is not None and stage.reads == "labels":
            return MiniBatch(self.labels.new_zeros(0, dtype=torch.float32), self.sample.labels[step], noise, None)
        images, features = seen
        return MiniBatch(images, self.labels[step], noise, features)

    def seen(self, step: int) -> tuple[Tensor, Tensor | None]:
        """(images, features) of one mini-batch, of which the phase sees one kind."""
        if self.features is None:
            return self.images(step), None
        features = self.features(step)
        return features.new_zeros(0), features


class PhaseRun(NamedTuple):
    """A phase to run: everything that is the same for all replicas."""

    model: Model
    phase: Phase
    clock: RoundClock
    optimisers: Mapping[str, Optimiser]  # by stage
