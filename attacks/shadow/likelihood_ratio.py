"""How much likelier what networks say of an image is if it trained them: Gaussian, fitted to shadow models.

Carlini, Chien, Nasr, Song, Terzis, Tramer: Membership Inference Attacks From First Principles, IEEE S&P 2022, arXiv 2112.03570.
Of the statistics t of image i, shadows that trained on it give N(mu_i + delta_i, Sigma), all others N(mu_i, Sigma), so that
    log LR_i = (t_i - mu_i - delta_i / 2)^T Sigma^-1 delta_i.
Sigma is common to all images, as Carlini et al. have it where there are few shadows. Ours: the shift delta_i is drawn towards its
mean over images by empirical Bayes, because two or four shadows tell little of a single image's. This is cautious: the spread of
shifts counts as noise, too, so that with n shadows of each kind the share that is kept is too small by 1 / (2n - 1). And the
attacked networks may differ from the shadows in all images alike, as by the number of training images: half of the candidates are
members, so that their mean statistic is moved to mean(mu_i + delta_i / 2).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# Beyond it a log ratio grows as its logarithm, so that single images that are surely members keep their order in probabilities.
LINEAR = 12.0


class Fitted(NamedTuple):
    """The two Gaussians of each image."""

    outside: Tensor  # [N, D] mu
    shift: Tensor  # [N, D] delta
    covariance: Tensor  # [D, D] of a statistic that is predicted, and so a little more than Sigma


def fitted(statistics: Tensor, inside: Tensor, outside: Tensor) -> Fitted:
    """From statistics [M, N, D] of M shadows that trained on an image or not [M, N]; what is neither is left out.

    So is what is not finite, as of a shadow that diverged. An image without a shadow of either kind takes the shift that images
    share; one without any has NaN as mu.
    """
    sound = statistics.isfinite().all(2)
    statistics = statistics.where(sound[..., None], 0.0)
    groups = [(mask & sound).to(statistics) for mask in (inside, outside)]
    counts = [mask.sum(0)[:, None] for mask in groups]
    both = ((counts[0] > 0) & (counts[1] > 0))[:, 0]
    means = [(mask[..., None] * statistics).sum(0) / n.clamp_min(1) for mask, n in zip(groups, counts, strict=True)]
    each, total = means[0] - means[1], counts[0] + counts[1]
    common = each[both].mean(0)
    each = each.where(both[:, None], common)
    centre = (counts[0] * (means[0] - common) + counts[1] * means[1]) / total.clamp_min(1)
    residuals = [
        (mask[..., None] * (statistics - centre - shift)).flatten(0, 1)
        for mask, shift in zip(groups, (common, torch.zeros_like(common)), strict=True)
    ]
    seen = total[:, 0] > 0
    left = (total.sum() - seen.sum() - 1).clamp_min(1)
    covariance = sum(r.T @ r for r in residuals) / left
    noise = covariance.diagonal() * (1 / counts[0] + 1 / counts[1])[both].mean()
    spread = (each - common)[both].square().mean(0)
    share = (1 - noise / spread.clamp_min(torch.finfo(each.dtype).tiny)).clamp(0, 1)
    shift = common + share * (each - common)
    mu = (counts[0] * (means[0] - shift) + counts[1] * means[1]) / total
    return Fitted(mu, shift, covariance * (1 + (1 / total[seen]).mean()))


def probabilities(ratios: Tensor) -> Tensor:
    """LR / (1 + LR) of log LR [N], half of the candidates being members; distinct ratios keep distinct probabilities."""
    size = ratios.abs()
    beyond = LINEAR + (size - LINEAR).clamp_min(0).log1p()
    return (ratios.sign() * torch.where(size > LINEAR, beyond, size)).sigmoid()


def log_ratios(statistics: Tensor, fit: Fitted) -> Tensor:
    """log LR [N] of what the attacked networks say [N, D] of candidates, half of which are members; 0 where that is not finite.

    The mean is moved to that of the candidates of which it is.
    """
    middle = fit.outside + fit.shift / 2
    sound = (statistics.isfinite() & middle.isfinite()).all(1)
    moved = statistics + (middle - statistics)[sound].mean(0)
    # Shadows that say nothing of a shift leave no covariance: its eigenvalues would not converge.
    covariance = fit.covariance.nan_to_num(0.0, 0.0, 0.0)
    weights = fit.shift @ torch.linalg.pinv(covariance, hermitian=True)
    return ((moved - middle) * weights).sum(1).where(sound, 0.0).nan_to_num(0.0, 0.0, 0.0)
