"""Scores of a reconstruction against the truth.

PSNR (clipped, and raw), SSIM, label accuracy, identification, and the error of the features where the victim's true networks are
available; LPIPS is in privbench/scoring/learned_distance.py, because its weights are not everywhere.

A victim batch with a non-finite pixel has failed: it is counted, and all its images are scored as the constant grey image,
which is what an attacker who sees NaN would return instead. It is never dropped. Each image's PSNR is capped at 100 dB
before any mean, so that one exact image does not make a mean infinite.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import NamedTuple

import torch
from scipy.optimize import linear_sum_assignment
from skimage.metrics import structural_similarity
from torch import Tensor

from privbench import tensors
from privbench.scoring import learned_distance
from privbench.scoring.statistics import CAP_DB
from privbench.types import Reconstruction, Truth

SSIM_WINDOW = 7

Features = Callable[
    [int, Tensor], Tensor
]  # (victim, images [B, C, H, W]) -> E(images) [B, ...], the victim's own true E


class ImageScores(NamedTuple):
    """One value per victim batch: the mean over its B images."""

    psnr_db: Tensor  # [V] clipped, capped
    psnr_raw_db: Tensor  # [V] of the optimiser's output, unclipped, capped
    ssim: Tensor  # [V]
    label_accuracy: Tensor  # [V] share of labels known or recovered rightly
    identification: Tensor  # [V] share of images nearest to an original of their own batch; 1/V by chance
    feature_error: Tensor | None  # [V] ||E(x~) - E(x)|| / ||E(x)||; None where no true network is given
    lpips: Tensor | None  # [V] learned perceptual distance; None where its weights are not installed
    failed: Tensor  # [V] bool


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

    A gradient does not contain the order of a batch; Hungarian method, scipy. Both [B, C, H, W].
    """
    return assigned(*(x.clamp(0, 1).flatten(1).double() for x in (image, truth)))


def assigned(rows: Tensor, truth: Tensor) -> Tensor:
    """The same of any rows [B, n]."""
    cost = torch.cdist(rows, truth, compute_mode="donot_use_mm_for_euclid_dist").square()
    chosen, columns = linear_sum_assignment(cost.numpy())
    order = torch.empty(len(chosen), dtype=torch.int64)
    order[torch.from_numpy(columns)] = torch.from_numpy(chosen)
    return order


def aligned(images: Tensor, truth: Truth) -> tuple[Tensor, Tensor]:
    """(images as they are scored, which victims failed): [V, B, C, H, W] float64 and [V] bool.

    A failed victim is grey, and the images of a batch are in the order that fits the truth best.
    """
    images = images.detach().cpu().double()
    failed = ~tensors.finite_rows(images)
    images = torch.where(failed.view(-1, 1, 1, 1, 1), torch.full_like(images, 0.5), images)
    if images.shape[1] > 1:
        images = torch.stack([x[assignment(x, t)] for x, t in zip(images, truth.images, strict=True)])
    return images, failed


def score(reconstruction: Reconstruction, truth: Truth, features: Features | None = None) -> ImageScores:
    """Scores of V victim batches; raises ValueError when the reconstruction has another shape than the truth."""
    if reconstruction.images.shape != truth.images.shape or reconstruction.labels.shape != truth.labels.shape:
        raise ValueError(
            f"reconstruction {tuple(reconstruction.images.shape)} does not fit truth {tuple(truth.images.shape)}"
        )
    images, failed = aligned(reconstruction.images, truth)
    return ImageScores(
        psnr_db(images, truth.images).clamp_max(CAP_DB).mean(1),
        psnr_raw_db(images, truth.images).clamp_max(CAP_DB).mean(1),
        ssim(images, truth.images).mean(1),
        label_accuracy(reconstruction.labels.cpu(), truth.labels),
        identification(images, truth.images),
        None if features is None else feature_error(images, truth.images, features),
        learned_distance.lpips(images, truth.images),
        failed,
    )


class FloorScores(NamedTuple):
    """What a floor's images score, one value per victim batch; as in ImageScores."""

    psnr_db: list[float]
    identification: list[float]


def floor_scores(reconstruction: Reconstruction, truth: Truth) -> FloorScores:
    """Those of what a floor returned."""
    images = aligned(reconstruction.images, truth)[0]
    return FloorScores(_mean_psnr_db(images, truth).tolist(), identification(images, truth.images).tolist())


def psnr_of(reconstruction: Reconstruction, truth: Truth) -> Tensor:
    """The clipped, capped PSNR in dB alone: [V]."""
    return _mean_psnr_db(aligned(reconstruction.images, truth)[0], truth)


def _mean_psnr_db(images: Tensor, truth: Truth) -> Tensor:
    return psnr_db(images, truth.images).clamp_max(CAP_DB).mean(1)


def identification(images: Tensor, truth: Tensor) -> Tensor:
    """Is the original nearest to a reconstruction, among those of all V victims, one of its own batch? [V], range [0, 1].

    Nearest in mean squared error of clipped images, both [V, B, C, H, W]; each value is the mean over a batch. Originals at equal
    distance share the hit, so that one and the same image returned for every victim scores 1/V, which is chance.
    """
    victims, batch = images.shape[:2]
    pixels, true = (x.clamp(0, 1).double().flatten(0, 1).flatten(1) for x in (images, truth))
    distance = torch.cdist(pixels, true, compute_mode="donot_use_mm_for_euclid_dist")
    nearest = (distance == distance.min(1, keepdim=True).values).double().view(victims, batch, victims, batch)
    share = nearest.sum(3) / nearest.sum((2, 3))[..., None]  # [V, B, V]
    return share.diagonal(dim1=0, dim2=2).mean(0)


def feature_error(images: Tensor, truth: Tensor, features: Features) -> Tensor:
    """||E(x~) - E(x)|| / ||E(x)|| through the victim's own true extractor, mean over its batch: [V], 0 for equal features.

    Sigmoid features of unlike images have much in common, so values well below 1 still mean little: compare with a floor's.
    """
    errors = []
    with torch.no_grad():
        for v, (image, true) in enumerate(zip(images, truth, strict=True)):
            restored, goal = (features(v, x.clamp(0, 1).float()).double().flatten(1) for x in (image, true))
            errors.append(((restored - goal).norm(dim=1) / goal.norm(dim=1).clamp_min(1e-12)).mean())
    return torch.stack(errors)


def digests(images: Tensor) -> list[str]:
    """A name for the content of each image [N, C, H, W]: 16 hexadecimal digits of the sha256 of its 8-bit pixels.

    Equal pictures have equal names, whatever data set or file they come from.
    """
    pixels = (images.detach().cpu().clamp(0, 1) * 255).round().to(torch.uint8).contiguous()
    shape = str(tuple(pixels.shape[1:])).encode()
    return [hashlib.sha256(shape + x.numpy().tobytes()).hexdigest()[:16] for x in pixels]


def originals(truth: Truth) -> list[list[str]]:
    """The digests of every victim batch's images: [V][B]."""
    return [digests(batch) for batch in truth.images]


def label_accuracy(labels: Tensor, truth: Tensor) -> Tensor:
    """Share of a batch's labels in common, whatever their order: [V]."""
    shares = []
    for labels_of_batch, true in zip(labels.tolist(), truth.tolist(), strict=True):
        remaining = list(true)
        for label in labels_of_batch:
            if label in remaining:
                remaining.remove(label)
        shares.append(1 - len(remaining) / len(true))
    return torch.tensor(shares, dtype=torch.float64)
