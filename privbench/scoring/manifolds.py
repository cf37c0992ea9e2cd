"""Improved precision and recall of generated images against real ones, by nearest-neighbour manifolds in a feature space.

Kynkäänniemi, Karras, Laine, Lehtinen, Aila, Improved Precision and Recall Metric for Assessing Generative Models, NeurIPS 2019
(arXiv 1904.06991), Eq. 1 and 2. The manifold of a set is the union of balls around its points, each as far as the point's k-th
nearest neighbour within the set (k = 3, as there). Precision is the share of generated points in the manifold of the real ones,
recall the share of real points in the manifold of the generated ones. Both depend on how many points there are. So sets of equal
size are compared, and other real images stand beside the generated ones.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

NEIGHBOURS = 3  # k


class Coverage(NamedTuple):
    """Which points lie in the manifold of the other set."""

    precise: Tensor  # [M] bool, generated points in the manifold of the real ones
    recalled: Tensor  # [N] bool, real points in the manifold of the generated ones


def coverage(real: Tensor, generated: Tensor, neighbours: int = NEIGHBOURS) -> Coverage:
    """Of real features [N, d] and generated ones [M, d]; a point on the edge of a ball lies in it.

    ValueError: a set that has not more than `neighbours` points. Features that are not finite lie in no manifold, and their
    balls hold nothing.
    """
    real_radii, generated_radii = radii(real, neighbours), radii(generated, neighbours)
    distances = _distances(generated, real)
    return Coverage((distances <= real_radii).any(1), (distances <= generated_radii[:, None]).any(0))


def radii(points: Tensor, neighbours: int) -> Tensor:
    """The distance of each point of [N, d] to its k-th nearest neighbour among the others, [N]; nan where it is not finite."""
    if len(points) <= neighbours:
        raise ValueError(f"{len(points)} points have no {neighbours} neighbours each")
    distances = _distances(points, points).fill_diagonal_(-1)
    return distances.kthvalue(neighbours + 1, 1).values.where(points.isfinite().all(1), torch.nan)


def _distances(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean, by differences: the usual expansion loses the digits of those that are small."""
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
