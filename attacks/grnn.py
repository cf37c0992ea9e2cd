"""GRNN: the weights of an untrained generator are descended on, and its output's gradient matches.

    min over w of  mean over parameters l of ||g_l(x) - G_l||^2 / ||G_l||^2 + lambda TV(x),   x = R(z; w)
with z drawn once per image and one set of weights for the images of a batch. A network that has to draw the image cannot draw
arbitrary noise: the architecture is the prior.

Ren, Deng, Xie: GRNN: Generative Regression Neural Network, ACM TIST 2022, arXiv 2105.00529. R stands in
attacks/features/untrained_generator.py. Deviations: labels are recovered in closed form (there a second branch makes them), the
distance is layer-scaled (there plain plus a Wasserstein term, which only sorts the entries), Adam in place of RMSprop, fewer
channels. In single precision, as Adam's steps are far coarser than its rounding.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attacks.common import adam, batched, gradient_distance, priors, problem
from attacks.common.batched import each_of
from attacks.features.untrained_generator import NOISE, deviations, draw, weight_shapes
from privbench.hyperparameters import Count, Positive, Weight
from privbench.types import Artifact, Knowledge, Presets, Progress, Reconstruction, no_progress


@dataclass(frozen=True)
class GRNN:
    """Fits an untrained generator until its image's gradient matches the observed one (Ren et al., ACM TIST 2022)."""

    steps: Count = 600
    restarts: Count = 1
    weight: Weight = 1e-4  # lambda
    lr: Positive = 3e-3

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier"})
    uses: ClassVar[frozenset[str]] = frozenset({"gradient:extractor"})
    knowledge: ClassVar[str] = "gradient"
    rung: ClassVar[str] = "L2"
    presets: ClassVar[Presets] = {"smoke": {"steps": 5}, "quick": {"steps": 150}, "quick-slow": {"steps": 100}}

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """Adam on the weights [V x restarts, P]; of several restarts the one with the lowest objective."""
        posed = problem.make(artifact, seed, torch.float32)
        channels, side = priors.square(artifact.image_shape)
        shapes = weight_shapes(channels)

        def objective(w: Tensor, data: dict[str, Tensor]) -> Tensor:
            x = draw(w, data["z"], shapes, side)
            products = gradient_distance.candidate_products(posed, x, data)
            return gradient_distance.layer_scaled_distance(products) + self.weight * priors.total_variation(x)

        scale = deviations(shapes)
        start = problem.draws(artifact, scale.shape, self.restarts, seed, "generator weights").float()
        z = problem.draws(artifact, (artifact.batch_size, NOISE), self.restarts, seed, "generator noise").float()
        data = problem.data(posed, self.restarts) | {"z": z}
        end = adam.minimise(
            objective, start * scale.to(start), data, steps=self.steps, lr=self.lr, progress=progress, what="GRNN"
        )
        w, loss, trace, restart = batched.best_restart(end, self.restarts)
        chosen = torch.arange(len(restart), device=restart.device) * self.restarts + restart
        with torch.no_grad():
            x = each_of(lambda w, z: draw(w, z, shapes, side))(w, data["z"][chosen])
        return Reconstruction(x, posed.labels, loss, trace, restart, end.evaluations)
