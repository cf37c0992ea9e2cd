"""Matching of the extractor's gradient where the classifier is private (FedPer): dL/dh is descended on beside the image.

Whatever C and the label are, they reach the extractor's gradient only through u = dL/dh at the features h = E(x):
    dL/dtheta = J(x)' u    with J the Jacobian of E(x) by its parameters theta, linear in u.
So   min over x and u of  mean over parameters l of ||(J(x)' u)_l - G_l||^2 / ||G_l||^2  +  lambda TV(x)
needs neither: no surrogate C~ that would be wrong. On a colour image of 32x32, 2,872 numbers of LeNet-5's gradient face 3,072
pixels and 400 entries of u, which is why the prior matters. u starts at zero, x grey. Labels stay unknown (-1).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attacks.common import batched, gradient_distance, lbfgs, priors, problem
from attacks.common.batched import EndToEnd
from attacks.common.data_fit import CLIP
from privbench.hyperparameters import Count, Weight
from privbench.types import Artifact, Knowledge, Presets, Progress, Reconstruction, no_progress


@dataclass(frozen=True)
class ExtractorMatching:
    """Image and dL/dh descend together until they explain the extractor's gradient, for a private classifier (this suite)."""

    steps: Count = 1200
    weight: Weight = 3.0  # lambda (docs/appendix/tuning.md)

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:extractor"})
    uses: ClassVar[frozenset[str]] = frozenset({"gradient:classifier"})
    knowledge: ClassVar[str] = "gradient"
    rung: ClassVar[str] = "L2"
    knows: ClassVar[frozenset[str]] = CLIP
    presets: ClassVar[Presets] = {"smoke": {"steps": 5}, "quick": {"steps": 600}}

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """L-BFGS over image and u laid end to end, all victims at once."""
        posed = problem.make(artifact, seed, needs_labels=False)
        data = {name: t for name, t in posed.observed.items() if name.startswith("extractor/")}
        names, start = tuple(data), problem.plain_start(artifact, seed)
        u = torch.zeros(artifact.victims, artifact.batch_size, *artifact.model.feature_shape).to(start)
        both = EndToEnd(start.shape[1:], u.shape[1:])

        def objective(joined: Tensor, data: dict[str, Tensor]) -> Tensor:
            x, u = both.split(joined)
            gradient = gradient_distance.pulled_back(posed, x, u * data["unit"])
            products = {name: gradient_distance.products_of(gradient[name], data[name]) for name in names}
            return gradient_distance.layer_scaled_distance(products) + self.weight * priors.total_variation(x)

        data["unit"] = usual_size(data)
        end = lbfgs.minimise(
            objective, both.joined(start, u), data, steps=self.steps, progress=progress, what="extractor matching"
        )
        return batched.reconstruction(end._replace(x=both.split(end.x)[0]), 1, posed.labels)


def usual_size(gradients: dict[str, Tensor]) -> Tensor:
    """A usual size of u's entries, [V], by the largest bias gradient: a bias sums u times the slope of E's last layer.

    Of an extractor without biases, by the largest gradient of its weights.
    """
    biases = {name: t for name, t in gradients.items() if name.rpartition(".")[2].startswith("bias")}
    return torch.stack([t.flatten(1).norm(dim=1) for t in (biases or gradients).values()], 1).amax(1)
