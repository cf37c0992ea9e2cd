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
from torch.func import vjp

from attacks.common import descend, gradient_distance, priors, problem
from attacks.common.problem import InversionProblem
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
    presets: ClassVar[Presets] = {"smoke": {"steps": 5}, "quick": {"steps": 600}}

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """L-BFGS over image and u laid end to end, all victims at once."""
        own = problem.make(artifact, seed)
        names = [name for name in own.observed if name.startswith("extractor/")]
        start = problem.plain_start(artifact, seed)
        shape, feature_shape = start.shape[1:], (artifact.batch_size, *artifact.model.feature_shape)
        size = torch.Size(feature_shape).numel()

        def split(both: Tensor) -> tuple[Tensor, Tensor]:
            x, u = both.split([shape.numel(), size], -1)
            return x.unflatten(-1, shape), u.unflatten(-1, feature_shape)

        def objective(both: Tensor, data: dict[str, Tensor]) -> Tensor:
            x, u = split(both)
            found = pulled_back(own, x, u * data["unit"])
            products = {name: gradient_distance.products_of(found[name], data[name]) for name in names}
            return gradient_distance.layer_scaled_distance(products) + self.weight * priors.total_variation(x)

        data = {name: own.observed[name] for name in names}
        data["unit"] = _unit(data)
        both = torch.cat([start.flatten(1), torch.zeros_like(start[:, :1, 0, 0, 0]).expand(-1, size)], 1)
        end = descend.lbfgs(objective, both, data, steps=self.steps, progress=progress, what="extractor matching")
        return descend.reconstruction(end._replace(x=split(end.x)[0]), 1, own.labels)


def pulled_back(own: InversionProblem, x: Tensor, u: Tensor) -> dict[str, Tensor]:
    """J(x)' u by "extractor/<parameter>": x [B, C, H, W], u [B, c, s, s] = dL/dh."""

    def features(params: dict[str, Tensor]) -> Tensor:
        return own.model.net("extractor").apply(params, own.buffers["extractor"], x, train=own.train)[0]

    pull = vjp(features, own.weights["extractor"])[1]
    (found,) = pull(u)
    return {f"extractor/{name}": t for name, t in found.items()}


def _unit(data: dict[str, Tensor]) -> Tensor:
    """A usual size of u's entries, [V], by the largest bias gradient: a bias sums u times the slope of E's last layer."""
    biases = torch.stack([t.flatten(1).norm(dim=1) for name, t in data.items() if name.endswith(".bias")], 1)
    return biases.amax(1)
