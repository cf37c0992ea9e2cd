"""Scores of a reconstruction against the truth. Only this module looks into `Truth`.

A reconstruction with a non-finite pixel is a failed victim: counted, and scored as the constant grey image, which is what
an attacker who sees NaN would hand in instead. It is never dropped. Means cap a PSNR at 100 dB, so that one exact image
does not make a mean infinite.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from scipy.stats import bootstrap
from skimage.metrics import structural_similarity
from torch import Tensor

from privbench.types import Reconstruction, Truth

CAP_DB = 100.0
RESAMPLES = 2000
CONFIDENCE = 0.95
SSIM_WINDOW = 7


class Scores(NamedTuple):
    """One value per victim batch: the mean over its B images."""

    psnr_db: Tensor  # [V] clipped, capped
    psnr_raw_db: Tensor  # [V] of the optimiser's output, unclipped, capped
    ssim: Tensor  # [V]
    label_accuracy: Tensor  # [V] share of labels known or recovered rightly
    failed: Tensor  # [V] bool


class Interval(NamedTuple):
    """A mean with its 95% bootstrap interval."""

    mean: float
    low: float
    high: float


def psnr_db(image: Tensor, truth: Tensor) -> Tensor:
    """Peak signal-to-noise ratio in dB of each image, peak 1: [..., C, H, W] -> [...].

    PSNR = 10 log10(1 / mean over C,H,W of (image - truth)^2), both clipped to [0, 1]. Equal images give inf.
    """
    return psnr_raw_db(image.clamp(0, 1), truth.clamp(0, 1))


def psnr_raw_db(image: Tensor, truth: Tensor) -> Tensor:
    """The same without clipping."""
    return -10 * torch.log10((image.double() - truth.double()).square().flatten(-3).mean(-1))


def ssim(image: Tensor, truth: Tensor) -> Tensor:
    """Structural similarity of each image, clipped to [0, 1], by scikit-image: [..., C, H, W] -> [...], range [-1, 1]."""
    pairs = zip(image.clamp(0, 1).flatten(0, -4), truth.clamp(0, 1).flatten(0, -4), strict=True)
    values = [
        structural_similarity(
            a.double().numpy(), b.double().numpy(), win_size=SSIM_WINDOW, data_range=1.0, channel_axis=0
        )
        for a, b in pairs
    ]
    return torch.tensor(values, dtype=torch.float64).view(image.shape[:-3])


def assignment(image: Tensor, truth: Tensor) -> Tensor:
    """The order of one batch's reconstructions that fits the truth best in mean squared error: [B] int64.

    A gradient does not tell the order of a batch; Hungarian method, scipy. Both [B, C, H, W].
    """
    cost = torch.cdist(image.clamp(0, 1).flatten(1).double(), truth.flatten(1).double()).square()
    rows, columns = linear_sum_assignment(cost.numpy())
    order = torch.empty(len(rows), dtype=torch.int64)
    order[torch.from_numpy(columns)] = torch.from_numpy(rows)
    return order


def score(found: Reconstruction, truth: Truth) -> Scores:
    """Scores of V victim batches."""
    images = found.images.detach().cpu().double()
    failed = ~images.flatten(1).isfinite().all(1)
    images = torch.where(failed.view(-1, 1, 1, 1, 1), torch.full_like(images, 0.5), images)
    if images.shape[1] > 1:
        images = torch.stack([x[assignment(x, t)] for x, t in zip(images, truth.images, strict=True)])
    return Scores(
        psnr_db(images, truth.images).clamp_max(CAP_DB).mean(1),
        psnr_raw_db(images, truth.images).clamp_max(CAP_DB).mean(1),
        ssim(images, truth.images).mean(1),
        _label_accuracy(found.labels.cpu(), truth.labels),
        failed,
    )


def _label_accuracy(found: Tensor, truth: Tensor) -> Tensor:
    """Share of a batch's labels in common, whatever their order: [V]."""
    shares = []
    for own, true in zip(found.tolist(), truth.tolist(), strict=True):
        left = list(true)
        for label in own:
            if label in left:
                left.remove(label)
        shares.append(1 - len(left) / len(true))
    return torch.tensor(shares, dtype=torch.float64)


def interval(values: Sequence[float]) -> Interval:
    """Mean and 95% percentile-bootstrap interval over victims, pooled over seeds; one value is its own interval."""
    data = np.asarray(values, dtype=np.float64)
    mean = float(data.mean())
    if len(data) < 2 or float(np.ptp(data)) == 0:
        return Interval(mean, mean, mean)
    found = bootstrap(
        (data,), np.mean, n_resamples=RESAMPLES, confidence_level=CONFIDENCE, method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval  # fmt: skip
    return Interval(mean, float(found.low), float(found.high))
