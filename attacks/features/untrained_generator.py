"""An untrained generator R(z; w) as a prior of images: a network that has to draw the image cannot draw arbitrary noise.

Linear(z, 32 x 4 x 4), then three times bilinear upsampling, convolution and leaky ReLU to 24, 16, 8 channels of 32 x 32,
convolution to C, sigmoid; images of other sides are resized. After Ren, Deng, Xie, ACM TIST 2022, arXiv 2105.00529, with fewer
channels.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

NOISE, SIDE = 64, 4
WIDTHS = (32, 24, 16, 8)
SLOPE = 0.2


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


def deviations(shapes: list[tuple[int, ...]]) -> Tensor:
    """The standard deviations of the initial weights, laid end to end [P]: by the number of inputs (He et al., ICCV 2015)."""
    return torch.cat([torch.full((math.prod(shape),), math.sqrt(2 / (shape[-1] - 1))) for shape in shapes])
