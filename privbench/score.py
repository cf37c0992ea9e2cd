"""Scores of a reconstruction against the truth. Only this module looks into `Truth`.

A victim batch with a non-finite pixel has failed: it is counted, and all its images are scored as the constant grey image,
which is what an attacker who sees NaN would hand in instead. It is never dropped. Each image's PSNR is capped at 100 dB
before any mean, so that one exact image does not make a mean infinite.
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

from privbench.seeds import stream
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
    own, true = (x.clamp(0, 1).flatten(1).double() for x in (image, truth))
    cost = torch.cdist(own, true, compute_mode="donot_use_mm_for_euclid_dist").square()
    rows, columns = linear_sum_assignment(cost.numpy())
    order = torch.empty(len(rows), dtype=torch.int64)
    order[torch.from_numpy(columns)] = torch.from_numpy(rows)
    return order


def aligned(images: Tensor, truth: Truth) -> tuple[Tensor, Tensor]:
    """(images as they are scored, which victims failed): [V, B, C, H, W] float64 and [V] bool.

    A failed victim is grey, and the images of a batch stand in the order that fits the truth best.
    """
    images = images.detach().cpu().double()
    failed = ~images.flatten(1).isfinite().all(1)
    images = torch.where(failed.view(-1, 1, 1, 1, 1), torch.full_like(images, 0.5), images)
    if images.shape[1] > 1:
        images = torch.stack([x[assignment(x, t)] for x, t in zip(images, truth.images, strict=True)])
    return images, failed


def score(found: Reconstruction, truth: Truth) -> Scores:
    """Scores of V victim batches; raises ValueError when the reconstruction has another shape than the truth."""
    if found.images.shape != truth.images.shape or found.labels.shape != truth.labels.shape:
        raise ValueError(f"reconstruction {tuple(found.images.shape)} does not fit truth {tuple(truth.images.shape)}")
    images, failed = aligned(found.images, truth)
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
    """Mean and 95% percentile-bootstrap interval of n values, which are victims pooled over seeds.

    It answers "what if other images had been attacked", not "what if training had been repeated": victims of one seed share
    a network, so with few seeds it is too narrow for the second question. Equal values, or one, are their own interval.
    Raises ValueError for no value or one that is not finite. The resampling is the same for every cell (common random
    numbers), so cells of the same victims stay comparable.
    """
    data = np.asarray(values, dtype=np.float64)
    if not len(data) or not np.isfinite(data).all():
        raise ValueError("an interval needs at least one value, and every value finite")
    mean = float(data.mean())
    if len(data) < 2 or float(np.ptp(data)) == 0:
        return Interval(mean, mean, mean)
    found = bootstrap(
        (data,), np.mean, n_resamples=RESAMPLES, confidence_level=CONFIDENCE, method="percentile",
        rng=np.random.default_rng(stream(0, "bootstrap").initial_seed()),
    ).confidence_interval  # fmt: skip
    return Interval(mean, float(found.low), float(found.high))
