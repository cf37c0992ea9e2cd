"""DP-SGD: every image's gradient is clipped, the sum over a Poisson sample noised (Abadi et al., CCS 2016, arXiv 1607.00133).

    g = (1/L) ( sum_{b in sample} g_b / max(1, ||g_b||_2 / C) + N(0, sigma^2 C^2 I) )
Each image is drawn with probability L / n, independently at every step, as the accountant assumes; L is the schedule's batch. One
norm runs over all parts that a stage trains, a private extractor included: noise on C alone would guarantee nothing while E carries
the data. A stage that reads labels alone (FedCG's generator) gets uniform ones instead, so that what it makes follows from networks
that are private already. Batch norm has no gradient of one image: networks under training take group norm.
The step is plain SGD at a rate of the defence's own, because rates chosen for Adam are too small for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from defenses.common import clipping, mechanisms
from defenses.common.accounting import Releases
from defenses.common.gaussian_mechanism import GaussianMechanism
from privbench.defense import Facts, Guarantee, Place
from privbench.networks.model import Model
from privbench.tensors import Parts


@dataclass(frozen=True)
class DPSGD(GaussianMechanism):
    """Clips every image's gradient, noises their sum, samples by Poisson, for a guarantee per image (Abadi et al., CCS 2016)."""

    name: ClassVar[str] = "dp-sgd"

    # Of 0.5, 1 and 2 the best at epsilon 8 on `digits` (FedAvg, quick preset, seed 0): 63, 33 and 16%.
    lr: float = 0.5

    def __post_init__(self) -> None:
        """Refuses a learning rate that is none, too."""
        super().__post_init__()
        mechanisms.check_rate(self.name, self.lr)

    @property
    def places(self) -> frozenset[Place]:
        """In every local step, and in the networks."""
        return frozenset({"example", "network"})

    def example(self, gradients: Parts, included: Tensor, expected: float, rng: torch.Generator) -> Parts:
        """(sum of clipped gradients + N(0, sigma^2 C^2)) / L."""
        total = clipping.noised(clipping.clipped_sum(gradients, included, self.clip), self.sigma * self.clip, rng)
        return {part: {name: t / expected for name, t in params.items()} for part, params in total.items()}

    def network(self, model: Model) -> Model:
        """Group norm in the place of batch norm."""
        return replace(model, norm="group")

    def optimiser(self, setting: Mapping[str, Any]) -> Mapping[str, Any]:
        """Plain SGD with the schedule's weight decay, which reads no data."""
        return {"kind": "sgd", "lr": self.lr, "weight_decay": setting["weight_decay"]}

    def releases(self, facts: Facts, noise: float) -> tuple[Releases, ...]:
        """One a step of every stage that reads images, over a Poisson sample."""
        return mechanisms.by_steps(facts, noise)

    def guarantee(self, facts: Facts) -> Guarantee | None:
        """For one training image, over what was really done."""
        return mechanisms.of_examples(facts, self.sigma, self.delta)

    def noise_variance(self, batch_size: int) -> float:
        """(sigma C / B)^2."""
        return (self.sigma * self.clip / batch_size) ** 2

    def describe(self) -> dict[str, Any]:
        """The attacker knows the clip and the noise."""
        return {"name": self.name, "noise": self.sigma, "clip": self.clip, "clips": "example", "where": "step"}
