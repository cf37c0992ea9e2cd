"""Scores of reconstructed vectors, feature by feature, where pictures have PSNR: a vector of D numbers is an image [D, 1, 1].

    error = mean over features j of |x~_j - x_j| / s_j                    in standard deviations s_j of the feature
    R^2   = 1 - sum_j ((x~_j - x_j) / s_j)^2 / sum_j ((x_j - m_j) / s_j)^2    m_j its mean: 0 for one who returns the means
Of features whose s_j is more than the rounding of its values: one that is constant has no unit, and counts nowhere.
A victim with a number that is not finite has failed, and is scored as the means.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from privbench import tensors
from privbench.scoring.image_scores import assigned
from privbench.types import Reconstruction, Truth

SMALLEST = 1e-12  # of a sum of squares that divides, and of a standard deviation
ROUNDING = 1e-6  # of a mean of single precision


class FeatureScale(NamedTuple):
    """The mean and the standard deviation of every feature, where inputs are from 0 to 1."""

    mean: Tensor  # [D]
    std: Tensor  # [D]

    @property
    def varying(self) -> Tensor:
        """[D] bool: which features are not constant up to rounding."""
        return self.std > (ROUNDING * self.mean.abs()).clamp_min(SMALLEST)


class FeatureScores(NamedTuple):
    """One value per victim: the mean over its B vectors."""

    error: Tensor  # [V] in standard deviations
    r2: Tensor  # [V]
    failed: Tensor  # [V] bool


def score(reconstruction: Reconstruction, truth: Truth, scale: FeatureScale) -> FeatureScores:
    """Scores of V victims, [V, B, D, 1, 1], over the features that vary; the order of a batch is the one that fits best.

    A victim has failed where any of its features is not finite.
    """
    mean, std, varying = scale.mean.double(), scale.std.double(), scale.varying

    def units(x: Tensor) -> Tensor:
        return (x.detach().cpu().double().flatten(2)[..., varying] - mean[varying]) / std[varying]

    vectors, true = units(reconstruction.images), units(truth.images)
    failed = ~tensors.finite_rows(reconstruction.images)
    vectors = torch.where(failed[:, None, None], torch.zeros_like(vectors), vectors)
    vectors = torch.stack([x[assigned(x, t)] for x, t in zip(vectors, true, strict=True)])
    gap = vectors - true
    r2 = 1 - gap.square().sum(2) / true.square().sum(2).clamp_min(SMALLEST)
    return FeatureScores(gap.abs().mean(2).mean(1), r2.mean(1), failed)


def scale_of(rows: Tensor) -> FeatureScale | None:
    """That of rows [N, D, 1, 1]; None for fewer than two, and where all are alike."""
    flat = rows.detach().cpu().double().flatten(1)
    if len(flat) < 2:
        return None
    scale = FeatureScale(flat.mean(0), flat.std(0))
    return scale if bool(scale.varying.any()) else None


def scale_of_truth(truth: Truth) -> FeatureScale | None:
    """That of the victims themselves; None for one vector alone, and where all are alike."""
    return scale_of(truth.images.flatten(0, 1))
