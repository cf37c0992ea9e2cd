"""The most probable image given a noisy gradient, by an attacker who knows the noise and has images of the same kind.

    min over z of  F(z) = ||g(x) - G||^2 / sigma^2 + ||z||^2,   2x - 1 = mu + Sigma^(1/2) z
sigma^2 is the variance of the defence's noise, mu and Sigma are those of auxiliary images (attacks/inversion.py); mu is the mean of
the classes, each with its probability given the noisy gradient (attacks/labels.py). Where the noise leaves nothing to be read, the
answer stays at mu: the best guess without an image.

F has many minima where sigma is small. Two ways lead down from mu: at once, and through sigma^2 times COOLING, which smooths F at
first; of each victim's two ends the one with the lower F counts. Closed-form features first, as attacks/staged.py has it, led
astray here (docs/tuning_attacks.md). Without noise there is nothing to weigh, and the attack is `staged`.

Balunovic et al.: Bayesian Framework for Gradient Leakage, ICLR 2022, arXiv 2111.04706, derive the objective; there the prior is a
handcrafted one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attacks import case, descend, inversion, labels, match, staged
from attacks.case import Case
from attacks.inversion import Belief
from privbench.settings import Count
from privbench.types import Artifact, Knowledge, Reconstruction, Report, no_report

COOLING = (1000.0, 100.0, 10.0, 1.0)

Distance = Callable[[Tensor, dict[str, Tensor]], Tensor]  # (x [B, C, H, W], one victim's data) -> ||g(x) - G||^2


@dataclass(frozen=True)
class Posterior:
    """Noise-aware likelihood and a prior learned from auxiliary images."""

    steps: Count = 200  # of the direct way
    cooling_steps: Count = 60  # of each of the other's four legs

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier", "gradient:extractor", "auxiliary"})
    knowledge: ClassVar[str] = "gradient + auxiliary"
    rung: ClassVar[str] = "L4"

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, report: Report = no_report
    ) -> Reconstruction:
        """All victims both ways."""
        if not labels.noise_variance(artifact):
            return staged.once(artifact, knowledge, seed, report)
        assert knowledge.auxiliary is not None, "the needs of this attack name auxiliary images"
        own = case.make(artifact, seed)
        belief = inversion.learned(knowledge.auxiliary, artifact.model.classes, next(iter(own.observed.values())))
        mean = labels.probabilities(artifact).to(belief.means) @ belief.means  # [V, B, D]

        def distance(x: Tensor, data: dict[str, Tensor]) -> Tensor:
            return match.squared_distance(match.gradient_products(own, x, data["labels"], case.observed_of(own, data)))

        end = most_probable(distance, own, belief, mean, self.steps, self.cooling_steps, report)
        return descend.reconstruction(end, 1, own.labels)


def most_probable(
    distance: Distance, own: Case, belief: Belief, mean: Tensor, steps: int, cooling_steps: int, report: Report
) -> descend.Descent:
    """All victims of a noised case both ways from the images `mean` [V, B, D] of u, each end where F is lower.

    Returns x [V, B, C, H, W]. `distance` is that of F: how far the gradient of an image is from the observed one.
    """
    data = case.data(own) | {"mean": mean}

    def image(z: Tensor, mean: Tensor) -> Tensor:
        return ((mean + belief.gaussian.root(z) + 1) / 2).unflatten(1, belief.gaussian.variance.shape)

    def surprise(z: Tensor, data: dict[str, Tensor]) -> Tensor:
        return distance(image(z, data["mean"]), data) / (own.variance * data["factor"]) + z.square().sum()

    def descent(start: Tensor, factor: float, steps: int) -> descend.Descent:
        all_ = data | {"factor": torch.full_like(start[:, 0, 0], factor)}
        return descend.lbfgs(surprise, start, all_, steps=steps, report=report, what="noisy gradient")

    start = torch.zeros_like(mean)
    direct = descent(start, 1.0, steps)
    legs: list[descend.Descent] = []
    for factor in COOLING:
        legs.append(descent(legs[-1].x if legs else start, factor, cooling_steps))
    end = descend.lower(direct, legs[-1])
    x = torch.stack([image(z, one) for z, one in zip(end.x, mean, strict=True)])
    spent = direct.evaluations + sum(leg.evaluations for leg in legs)
    return end._replace(x=x, evaluations=spent)
