"""Inverting Gradients: the direction of the gradient instead of its length, and a prior of smooth images.

    min over x in [0, 1] of  1 - <g(x), G> / (||g(x)|| ||G||)  +  lambda TV(x)
by Adam on the signs of the objective's gradient, at a rate that falls tenfold after 3/8, 5/8 and 7/8 of the steps, each step
projected onto the box; of several restarts the one with the lowest objective.

Geiping, Bauermeister, Droege, Moeller: Inverting Gradients - How easy is it to break privacy in federated learning?, NeurIPS 2020,
arXiv 2003.14053, Eq. 4. The rate 0.1 is theirs for pixels of unit variance, 0.025 here; they take 24,000 steps and choose lambda
by network. Deviations: uniform start; labels recovered where they are not known.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from torch import Tensor

from attacks.common import adam, batched, bottleneck, gradient_distance, priors, problem
from attacks.common.data_fit import CLIP, INTERVALS, REPRESENTATION
from privbench.hyperparameters import Count, Positive, Weight
from privbench.types import Artifact, Knowledge, Presets, Progress, Reconstruction, no_progress


@dataclass(frozen=True)
class InvertingGradients:
    """Cosine distance of gradients + total variation, by Adam on signs (Geiping et al., NeurIPS 2020)."""

    steps: Count = 2400
    restarts: Count = 2
    weight: Weight = 1.0  # lambda
    lr: Positive = 0.025

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier"})
    uses: ClassVar[frozenset[str]] = frozenset({"gradient:extractor"})
    knowledge: ClassVar[str] = "gradient"
    rung: ClassVar[str] = "L2"
    knows: ClassVar[frozenset[str]] = CLIP | INTERVALS | REPRESENTATION
    presets: ClassVar[Presets] = {
        "smoke": {"steps": 5, "restarts": 1},
        "quick": {"steps": 400, "restarts": 1},
        "quick-slow": {"steps": 100, "restarts": 1},
    }

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """All victims and restarts at once."""
        posed = problem.make(artifact, seed)

        def objective(x: Tensor, data: dict[str, Tensor]) -> Tensor:
            products = gradient_distance.fitted_products(posed, x, data)
            return gradient_distance.cosine_distance(products) + self.weight * priors.absolute_variation(x)

        descend = partial(
            adam.minimise, steps=self.steps, lr=self.lr, sign=True, box=(0.0, 1.0), progress=progress,
            what="inverting gradients",
        )  # fmt: skip
        start, data = problem.random_start(artifact, self.restarts, seed), problem.data(posed, self.restarts)
        end = bottleneck.minimise(posed.model, objective, start, data, descend)
        return batched.reconstruction(end, self.restarts, posed.labels)
