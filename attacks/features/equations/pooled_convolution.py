"""LeNet-5's convolutions with 2x2 average pooling as linear maps; layerwise inversion (layerwise.py) is made of them."""

from __future__ import annotations

from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor


def sigmoid_slope(a: Tensor) -> Tensor:
    """The sigmoid's slope where its value is a."""
    return a * (1 - a)


def pool(t: Tensor) -> Tensor:
    """2x2 average pooling with stride 1, [..., s, s] -> [..., s - 1, s - 1]; faster in double precision than avg_pool2d."""
    down = t[..., 1:, :] + t[..., :-1, :]
    return (down[..., 1:] + down[..., :-1]).mul_(0.25)


def unpool(t: Tensor) -> Tensor:
    """The adjoint of 2x2 average pooling with stride 1: [..., s, s] -> [..., s + 1, s + 1]."""
    padded = F.pad(t, (1, 1, 1, 1))
    return (padded[..., 1:, 1:] + padded[..., 1:, :-1] + padded[..., :-1, 1:] + padded[..., :-1, :-1]) / 4


def strided_matrix(window: Tensor, side: int) -> Tensor:
    """A window [c, C, k, k] that moves by 2 over a square, as a matrix: [c s s, C side side]."""
    size = window.shape[-1]
    ends = (side - size) // 2 + 1
    matrix = window.new_zeros(len(window), ends, ends, window.shape[1], side, side)
    for i, j in product(range(ends), repeat=2):
        matrix[:, i, j, :, 2 * i : 2 * i + size, 2 * j : 2 * j + size] = window
    return matrix.flatten(3).flatten(0, 2)


def correlation(delta: Tensor, side: int) -> Tensor:
    """The weight gradient of a convolution with 2x2 average pooling, as a matrix on one input channel.

    delta [..., c, s, s] is the gradient of the pooled output; -> [..., c k k, side side], k = side - 2 s + 1.
    """
    return unpool(pooled_correlation(delta, side - 1)).flatten(-2).flatten(-4, -2)


def pooled_correlation(delta: Tensor, side: int) -> Tensor:
    """The same on an input channel that was pooled before the convolution, with stride 1: [..., c, k, k, side, side]."""
    n = 2 * delta.shape[-1]
    k = side - n + 2
    matrix = delta.new_zeros(*delta.shape[:-2], k, k, side, side)
    for i, j in product(range(k), repeat=2):
        matrix[..., i, j, i : i + n : 2, j : j + n : 2] = delta
    return matrix


def response_rows(t: Tensor, block: Tensor) -> Tensor:
    """K1 on images [n, H, W] of one colour, -> [n, n1], as one product for each row of z1; block is Layers.rows of it."""
    height = block.shape[0] // t.shape[-1]
    each = [t[:, y : y + height].flatten(1) @ block for y in range(0, t.shape[1] - height + 1, 2)]
    return torch.stack([row.unflatten(1, (-1, len(each))) for row in each], 2).flatten(1)
