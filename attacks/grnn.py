"""GRNN: the weights of an untrained generator are descended on, and its output's gradient matches.

    min over w of  mean over parameters l of ||g_l(x) - G_l||^2 / ||G_l||^2 + lambda TV(x),   x = R(z; w)
with z drawn once per image and one set of weights for the images of a batch. A network that has to draw the image cannot draw
arbitrary noise: the architecture is the prior.

Ren, Deng, Xie: GRNN: Generative Regression Neural Network, ACM TIST 2022, arXiv 2105.00529. R here: Linear(z, 32 x 4 x 4), then
three times bilinear upsampling, convolution and leaky ReLU to 24, 16, 8 channels of 32 x 32, convolution to C, sigmoid; images of
other sides are resized. Deviations: labels are recovered in closed form (there a second branch makes them), the distance is
layer-scaled (there plain plus a Wasserstein term, which only sorts the entries), Adam in place of RMSprop, fewer channels.
In single precision, as Adam's steps are far coarser than its rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.common import descend, gradient_distance, priors, problem
from attacks.common.descend import each_of
from privbench.hyperparameters import Count, Positive, Weight
from privbench.types import Artifact, Knowledge, Presets, Progress, Reconstruction, no_progress

NOISE, SIDE = 64, 4
WIDTHS = (32, 24, 16, 8)
SLOPE = 0.2


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
    presets: ClassVar[Presets] = {"smoke": {"steps": 5}, "quick": {"steps": 150}, "quick-resnet18": {"steps": 100}}

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """Adam on the weights [V x restarts, P]; of several restarts the one with the lowest objective."""
        own, side = problem.make(artifact, seed, torch.float32), artifact.image_shape[1]
        shapes = weight_shapes(artifact.image_shape[0])

        def objective(w: Tensor, data: dict[str, Tensor]) -> Tensor:
            x = draw(w, data["z"], shapes, side)
            products = gradient_distance.gradient_products(own, x, data["labels"], problem.observed_of(own, data))
            return gradient_distance.layer_scaled_distance(products) + self.weight * priors.total_variation(x)

        sizes = [math.prod(shape) for shape in shapes]
        start = problem.draws(artifact, (sum(sizes),), self.restarts, seed, "generator weights").float()
        scale = torch.cat([start.new_full((n,), _deviation(s)) for n, s in zip(sizes, shapes, strict=True)])
        z = problem.draws(artifact, (artifact.batch_size, NOISE), self.restarts, seed, "generator noise").float()
        data = problem.data(own, self.restarts) | {"z": z}
        end = descend.adam(objective, start * scale, data, steps=self.steps, lr=self.lr, progress=progress, what="GRNN")
        w, loss, trace, restart = descend.best_restart(end, self.restarts)
        chosen = torch.arange(len(restart), device=restart.device) * self.restarts + restart
        with torch.no_grad():
            x = each_of(lambda w, z: draw(w, z, shapes, side))(w, data["z"][chosen])
        return Reconstruction(x, own.labels, loss, trace, restart, end.evaluations)


def weight_shapes(channels: int) -> list[tuple[int, ...]]:
    """The generator's weights in order; every layer has its bias as one more input."""
    widths = (*WIDTHS, channels)
    dense = (WIDTHS[0] * SIDE * SIDE, NOISE + 1)
    return [dense, *((after, 9 * before + 1) for before, after in pairwise(widths))]


def draw(w: Tensor, z: Tensor, shapes: list[tuple[int, ...]], side: int) -> Tensor:
    """Images [B, C, side, side] in (0, 1) that the weights w [P] make of z [B, NOISE]."""
    matrices = [t.unflatten(0, shape) for t, shape in zip(w.split([math.prod(s) for s in shapes]), shapes, strict=True)]
    x = F.leaky_relu(z @ matrices[0][:, :-1].T + matrices[0][:, -1], SLOPE).unflatten(1, (WIDTHS[0], SIDE, SIDE))
    for matrix in matrices[1:-1]:
        x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        x = F.leaky_relu(_convolution(x, matrix), SLOPE)
    x = torch.sigmoid(_convolution(x, matrices[-1]))
    return x if x.shape[-1] == side else F.interpolate(x, size=(side, side), mode="bilinear", align_corners=False)


def _convolution(x: Tensor, matrix: Tensor) -> Tensor:
    """A padded 3x3 convolution as a matrix product: stacked weights would make it a grouped one, slow on a CPU."""
    patches = F.unfold(x, 3, padding=1)
    return (matrix[:, :-1] @ patches + matrix[:, -1:]).unflatten(2, x.shape[-2:])


def _deviation(shape: tuple[int, ...]) -> float:
    return math.sqrt(2 / (shape[-1] - 1))
