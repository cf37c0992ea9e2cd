"""Gradient matching with what can be added to Eq. 7: a prior, double precision, a grey start, other conditioning.

    min over x of  ||g(x) - G||^2 / ||G||^2  +  lambda TV(x)
over all parameters together, in double precision by L-BFGS from grey. Divided by ||G||^2, lambda means the same for a gradient
of any size. Every part can be taken back to its plain form (scale="none" is Eq. 7, weight=0 has no prior, start="random",
precision="single", optimiser="adam"), so that docs/appendix/attacks.md can say what each contributes; scale="layer" divides each
parameter's squared error by its own ||G_l||^2 and averages over parameters. `staged` puts closed forms before such a descent.

Batches are matched as they are, for any size. Where E is private, x goes through a random surrogate E~.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from attacks.common import batched, bottleneck, gradient_distance, optimisers, priors, problem
from attacks.common.data_fit import CLIP, INTERVALS, REPRESENTATION
from privbench.hyperparameters import Count, Positive, Weight
from privbench.types import Artifact, Knowledge, Presets, Progress, Reconstruction, no_progress

DISTANCES = {
    "total": gradient_distance.relative_distance,
    "layer": gradient_distance.layer_scaled_distance,
    "none": gradient_distance.squared_distance,
}


@dataclass(frozen=True)
class Matching:
    """Squared distance relative to the gradient's norm + total variation, by L-BFGS from grey (this suite, after Eq. 7)."""

    steps: Count = 400
    restarts: Count = 1
    weight: Weight = 1e-8  # lambda, in units of the distance that `scale` names
    scale: Literal["total", "layer", "none"] = "total"
    # Single ends early: the distance cancels (attacks/common/gradient_distance.py).
    precision: Literal["double", "single"] = "double"
    optimiser: optimisers.Optimiser = "lbfgs"
    lr: Positive = 0.05  # of Adam
    start: Literal["random", "grey"] = "grey"

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier"})
    uses: ClassVar[frozenset[str]] = frozenset({"gradient:extractor"})
    knowledge: ClassVar[str] = "gradient"
    rung: ClassVar[str] = "L2"
    knows: ClassVar[frozenset[str]] = CLIP | INTERVALS | REPRESENTATION
    presets: ClassVar[Presets] = {"smoke": {"steps": 5}, "quick": {"steps": 200}, "quick-slow": {"steps": 100}}
    revision: ClassVar[int] = 1  # 1: relative to the whole gradient, where each layer's error was relative to its own

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """All victims and restarts at once; grey images have one start."""
        dtype = torch.float64 if self.precision == "double" else torch.float32
        posed = problem.make(artifact, seed, dtype)
        # Signs come with a scale for each tensor, and say nothing of how tensors compare.
        distance = DISTANCES["layer" if posed.fit.signs else self.scale]

        def objective(x: Tensor, data: dict[str, Tensor]) -> Tensor:
            products = gradient_distance.fitted_products(posed, x, data)
            return distance(products) + self.weight * priors.total_variation(x)

        if self.start == "grey":
            restarts, start = 1, problem.plain_start(artifact, seed, dtype)
        else:
            restarts, start = self.restarts, problem.random_start(artifact, self.restarts, seed, dtype)
        descend = partial(
            optimisers.minimise, self.optimiser, steps=self.steps, lr=self.lr, progress=progress, what="matching"
        )
        end = bottleneck.minimise(posed.model, objective, start, problem.data(posed, restarts), descend)
        return batched.reconstruction(end, restarts, posed.labels)
