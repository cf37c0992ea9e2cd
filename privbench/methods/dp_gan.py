"""DP-GAN: every client trains a conditional GAN of images, whose discriminator alone sees them (SecureGAN).

Client i holds a generator G_i (Adam) and a discriminator D_i (DP-Adam: `--defense dp-adam:...`). G_i learns through D_i and reads
labels alone, which are drawn uniformly under such a defence: it inherits D_i's guarantee by post-processing. Nothing is shared;
what a client would publish is G_i.

    L_D = BCE(D(x, y), 1) + BCE(D(G(z, y), y), 0)        L_G = BCE(D(G(z, y), y), 1)
The usual non-saturating form (Goodfellow et al., NeurIPS 2014); the paper does not print its losses.
To say what the generator is worth, a classifier C(E(x)) is trained on its images alone and tested on real ones: that is the
accuracy of every round. E and C see no real image, so that they too follow from G_i.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor

from privbench.methods.base import Draw, Method, MiniBatch, Nets, Normal, Phase, RoundClock, Stage, classifier_draws

NOISE: Mapping[str, Draw] = {"z": Normal()}


@dataclass(frozen=True)
class DPGAN(Method):
    """Each client trains a GAN of images; a classifier is trained on generated images alone (SecureGAN, phase without a server)."""

    paper: ClassVar[str] = "SecureGAN, its DP-GAN of one client"
    parts: ClassVar[tuple[str, ...]] = ("extractor", "classifier", "generator", "discriminator")
    shared_parts: ClassVar[tuple[str, ...]] = ()
    trains_on_images: ClassVar[bool] = False

    def networks(self, backbone: str) -> dict[str, Any]:
        """A GAN of images."""
        return super().networks(backbone) | {"gan": "image"}

    def client(self) -> tuple[Phase, ...]:
        """The GAN, then the classifier on its images."""
        return self.gan(), self.task()

    def gan(self) -> Phase:
        """One step of D_i, then one of G_i, for each mini-batch."""
        disc = Stage("discriminator", ("discriminator",), self.discriminator_loss, "generator", NOISE)
        gen = Stage("generator", ("generator",), self.generator_loss, "generator", NOISE, reads="labels")
        return Phase((disc, gen), "generator_epochs")

    def task(self) -> Phase:
        """Local training of C(E(x)) on generated images."""
        draws = {**NOISE, **classifier_draws()}
        task = Stage("task", ("extractor", "classifier"), self.task_loss, "task", draws, reads="labels")
        return Phase((task,), "local_epochs")

    def notes(self) -> tuple[str, ...]:
        """What the accuracy is of."""
        return ("dp-gan: accuracy is that of a classifier trained on generated images alone and tested on real ones",)

    def discriminator_loss(self, nets: Nets, batch: MiniBatch, clock: RoundClock) -> Tensor:
        """L_D: real images to 1, generated ones to 0."""
        images = batch.images, nets.generator(batch.noise["z"], batch.labels)
        real, fake = nets.discriminator_in_turn(images, batch.labels)
        return -F.logsigmoid(real).mean() - F.logsigmoid(-fake).mean()

    def generator_loss(self, nets: Nets, batch: MiniBatch, clock: RoundClock) -> Tensor:
        """L_G."""
        generated = nets.generator(batch.noise["z"], batch.labels)
        return -F.logsigmoid(nets.discriminator(generated, batch.labels)).mean()

    def task_loss(self, nets: Nets, batch: MiniBatch, clock: RoundClock) -> Tensor:
        """L_cls = CE(C(E(G(z, y))), y)."""
        generated = nets.generator(batch.noise["z"], batch.labels)
        logits = nets.classifier(nets.extractor(generated), batch.drawn())
        return F.cross_entropy(logits, batch.labels)
