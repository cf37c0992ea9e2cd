"""The feature space in which generated images are compared with real ones: a small classifier's, trained on real images.

No network pretrained on photographs is at hand, and none fits handwritten digits. So a classifier is trained on the labelled images
that validate the federation, which no client trains on and against which nothing is scored. Its last convolution is the space.
Compared on `digits`, `mnist`, `fmnist` and `cifar10` with pixels, their principal components (as they are and whitened) and an
untrained network of the same layers: it alone lowers precision for overlays of two images, which are of no class, on the first
three; on `cifar10` it takes overlays for as good as real images;
pixels and principal components take blurred digits for better than real ones, principal components noise for images, and in the
untrained network's space noise has full recall (tests/privbench/scoring/test_real_features.py holds the first).

    Conv(c,32) LeakyReLU  Conv(32,64) GroupNorm LeakyReLU  Conv(64,128) GroupNorm LeakyReLU  f = Flatten  Linear(2048, Y)
Convolutions of kernel 4, stride 2, padding 1; slope 0.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from privbench.networks.normalisation import GROUPS
from privbench.seeds import stream
from privbench.types import Batch

WIDTHS = (32, 64, 128)
SLOPE = 0.2
STEPS, BATCH, RATE = 150, 64, 1e-3
PIECE = 512  # images at once
Features = Callable[[Tensor], Tensor]


def trained_on(real: Batch, classes: int, seed: int) -> Features:
    """A function of images [N, C, H, W] in [0, 1]: features [N, d] of a classifier trained on these real ones.

    ValueError: there are none.
    """
    if len(real.labels) == 0:
        raise ValueError("features are trained on real images, but there are none")
    rng = stream(seed, "generator scores", "features")
    kernels = _kernels(real.images.shape[1], rng)
    width = _last(real.images[:1], kernels).shape[1]
    weights = [*kernels, torch.zeros(classes, width)]
    for weight in weights:
        weight.requires_grad_()
    optimiser = torch.optim.Adam(weights, RATE)
    for _ in range(STEPS):
        rows = torch.randint(len(real.labels), (BATCH,), generator=rng)
        logits = F.linear(_last(real.images[rows], kernels), weights[-1])
        optimiser.zero_grad()
        F.cross_entropy(logits, real.labels[rows]).backward()
        optimiser.step()

    def features(images: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.cat([_last(piece, kernels) for piece in images.split(PIECE)])

    return features


def _kernels(channels: int, rng: torch.Generator) -> list[Tensor]:
    """He's initial weights (arXiv 1502.01852)."""
    return [
        torch.randn(after, before, 4, 4, generator=rng) * math.sqrt(2 / (before * 16))
        for before, after in pairwise((channels, *WIDTHS))
    ]


def _last(images: Tensor, kernels: list[Tensor]) -> Tensor:
    """f, [N, d]."""
    x = 2 * images - 1
    for i, kernel in enumerate(kernels):
        x = F.conv2d(x, kernel, stride=2, padding=1)
        x = F.leaky_relu(F.group_norm(x, GROUPS) if i else x, SLOPE)
    return x.flatten(1)
