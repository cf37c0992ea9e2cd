"""FedCG: a conditional GAN of features is shared in place of the extractor.

Wu, Kang, Luo, He, Yang: FedCG: Leverage Conditional GAN for Protecting Privacy and Maintaining Competitive Performance in
Federated Learning, IJCAI 2022, doi 10.24963/ijcai.2022/324, arXiv 2111.08211. Equations 1-6, Algorithms 1 and 2.

Where the paper is silent or its sign is odd, this follows the authors' code (yankang18/FedCG):
- Eq. 2 is the element-wise MEAN squared error; gamma(r) = 2 / (1 + exp(-10 p)) - 1 with p = min(r / 50, 1).
- Eq. 4 as printed, minimised over D, drives D(E(x)) to 1; it is trained in the usual non-saturating form:
  D: BCE(D(E(x), y), 1) + BCE(D(G(z, y), y), 0);  G: BCE(D(G(z, y), y), 1).
- The mode-seeking term (Mao et al., CVPR 2019) is added to the generator's loss with weight `diversity`. One released
  variant weighs it 0.2, the other leaves it out; the default here is 0.2.
- In the r-th round gamma takes r - 1 completed rounds, so that the first round, in which G_g is untrained, has gamma 0.
- Frozen networks run in eval mode, trained ones in train mode; optimiser states persist across rounds.
- `ramp_rounds` scales the 50 rounds of gamma for presets shorter than the paper's.

Settings from later papers: `aggregator` (FedMD-CG compares ave, kd, kdc; kdc makes clients upload label counts), `gan`
("dense": FedMD-CG's fully connected generator, and as discriminator a classifier with one output, which does not receive y).
Dropout (NFL-CGAN) acts wherever C is trained: in L_cls, and on the student of Eq. 6.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor

from privbench.methods import aggregators
from privbench.methods.base import (
    Draw,
    Method,
    MiniBatch,
    Nets,
    Normal,
    Phase,
    RoundClock,
    Stage,
    at_least,
    classifier_draws,
)

EPS = 1e-5


@dataclass(frozen=True)
class FedCG(Method):
    """Shares C and G, averaged, then distilled; E and D never leave the client (Wu et al., IJCAI 2022)."""

    diversity: float = 0.2
    ramp_rounds: int = 50
    aggregator: str = "kd"  # or "ave", "kdc"
    gan: str = "conv"  # or "dense"

    paper: ClassVar[str] = "Wu et al., IJCAI 2022, arXiv 2111.08211"
    parts: ClassVar[tuple[str, ...]] = ("extractor", "classifier", "generator", "discriminator")
    shared_parts: ClassVar[tuple[str, ...]] = ("classifier", "generator")

    def __post_init__(self) -> None:
        """UserError or ValueError for a setting out of its range."""
        aggregators.checked(self.aggregator)
        at_least(0, diversity=self.diversity)
        at_least(1, ramp_rounds=self.ramp_rounds)

    @property
    def uploads_counts(self) -> bool:
        """Crossed distillation weighs the clients by their label counts."""
        return self.aggregator == "kdc"

    def networks(self, backbone: str) -> dict[str, Any]:
        """The kind of G and D, and the dropout."""
        return super().networks(backbone) | {"gan": self.gan}

    def client(self) -> tuple[Phase, ...]:
        """Algorithm 1: the classification network, then the generative network with the extractor frozen."""
        z: dict[str, Draw] = {"z": Normal()}
        task = Stage(
            "task",
            ("extractor", "classifier"),
            self.task_loss,
            "task",
            z | classifier_draws(),
            frozen=(received_features,),
        )
        disc = Stage("discriminator", ("discriminator",), self.discriminator_loss, "generator", z)
        gen = Stage("generator", ("generator",), self.generator_loss, "generator", z, reads="labels")
        return Phase((task,), "local_epochs"), Phase((disc, gen), "generator_epochs", features=True)

    def server(self) -> tuple[Phase, ...]:
        """Algorithm 2: distil the clients' ensemble into the averaged (G_g, C_g)."""
        return aggregators.phases(self.aggregator)

    def gamma(self, clock: RoundClock) -> float:
        """The weight of Eq. 2, rising from 0 to 1 over `ramp_rounds` rounds."""
        p = min((clock.round - 1) / self.ramp_rounds, 1.0)
        return 2 / (1 + math.exp(-10 * p)) - 1

    def task_loss(self, nets: Nets, batch: MiniBatch, clock: RoundClock) -> Tensor:
        """L_task = L_cls + gamma L_mse (Eq. 1-3)."""
        h = nets.extractor(batch.images)
        l_cls = F.cross_entropy(nets.classifier(h, batch.drawn()), batch.labels)  # (1)
        gamma = self.gamma(clock)
        if gamma == 0:
            return l_cls
        l_mse = F.mse_loss(h, batch.passed(received_features, nets))  # (2)
        return l_cls + gamma * l_mse  # (3)

    def discriminator_loss(self, nets: Nets, batch: MiniBatch, clock: RoundClock) -> Tensor:
        """L_disc (Eq. 4): real features to 1, imitated ones to 0."""
        features = batch.h, nets.generator(batch.noise["z"], batch.labels)
        real, fake = nets.discriminator_in_turn(features, batch.labels)
        return -F.logsigmoid(real).mean() - F.logsigmoid(-fake).mean()

    def generator_loss(self, nets: Nets, batch: MiniBatch, clock: RoundClock) -> Tensor:
        """L_gen (Eq. 4), and the mode-seeking term over the two halves of the batch."""
        z = batch.noise["z"]
        imitated = nets.generator(z, batch.labels)
        l_gen = -F.logsigmoid(nets.discriminator(imitated, batch.labels)).mean()
        return l_gen + self.diversity * mode_seeking(z, imitated)


def received_features(nets: Nets, batch: MiniBatch) -> Tensor:
    """G_g(z, y) of the broadcast, y the labels of the mini-batch: [B, c, s, s]."""
    return nets.received.generator(batch.noise["z"], batch.labels)


def mode_seeking(z: Tensor, imitated: Tensor) -> Tensor:
    """L_div = mean|z1 - z2| / (mean|G(z1) - G(z2)| + eps), z1 and z2 the two halves of the batch; 0 of a single image."""
    half = len(z) // 2
    if not half:
        return imitated.new_zeros(())
    z_gap = (z[:half] - z[half : 2 * half]).abs().mean()
    feature_gap = (imitated[:half] - imitated[half : 2 * half]).abs().mean()
    return z_gap / (feature_gap + EPS)
