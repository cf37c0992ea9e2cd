"""A client's private extractor, fitted to images whose features are known: the most probable one, and how wrong it still is.

The objective stands in extractor_descent.py. Every known image gives as many equations as it has features (LeNet-5: 400, for 2,572
or 2,872 numbers), so a few images leave theta open, and the prior decides.

How wrong theta is, is measured on known images that are left out: each of FOLDS fits predicts those that it was not given. With one
image the fit without it is theta_0 itself, so that little is trusted (held_out.py).

Where nothing says which features are whose, they go, within a label (and within an upload, where that is known), to the images
whose features they are nearest to, by the Hungarian method (Kuhn, Naval Research Logistics 2, 1955).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from attacks.features import inversion
from attacks.shadow import shadow_federation
from attacks.shadow.fitting import extractor_descent
from attacks.shadow.fitting.extractor_descent import Calibration, Pairs, Uploads
from attacks.shadow.shadow_federation import ServerView
from privbench.networks.model import Model
from privbench.tensors import Params
from privbench.types import Progress, no_progress

TAU = 0.01  # of what a fitted extractor says of an image, relative to the spread of its features
# Of what an extractor says of an image that nobody knows, whose prior is not quite its distribution (docs/appendix/tuning.md).
TAU_OF_UNKNOWN = 0.1
FOLDS = 4  # at most
UNLIKE_ERROR = 0.01  # of a squared feature in (0, 1), about what a fit to few noised images has
LEAST_ERROR = 0.003  # a held-out error below which nothing is gained by trusting the fit more
LEAST_SPREAD = 1e-12  # a variance of an image's features: an upload of zeros has one and the same number throughout


class Fit(NamedTuple):
    """One client's extractor."""

    params: Params
    error: float  # tau of the inversion, of phi E(x) relative to the spread (of noised features absolute); inf: worth nothing


class HeldOut(NamedTuple):
    """What fits without some images of a client say of those."""

    fits: tuple[Params, ...]
    rows: tuple[int, ...]  # of each fit one image that it was not given, one whose features are known if there is any
    error: float  # root mean square error of phi E(x) on all of them, relative as TAU is; inf: there is no image


class Candidate(NamedTuple):
    """One client's extractor as one kind of fit has it, and what that kind is worth."""

    params: Params
    without: HeldOut


def pairs(
    images: Tensor, h: Tensor, mask: Tensor | None, noise: Tensor | None, model: Model, tau: float = TAU
) -> Pairs:
    """Images [n, C, H, W] and their features [n, c, s, s]; those that are not finite, or all alike, count for nothing."""
    sound = h.flatten(1).isfinite().all(1)
    h = h.where(sound[:, None, None, None], 0.5)
    target = inversion.undone(model, h) if noise is None else h
    spread = inversion.spread(target, torch.ones_like(target, dtype=torch.bool) if mask is None else mask)
    sound = sound & (spread > LEAST_SPREAD)
    if noise is None:
        precision = 1 / spread.clamp_min(LEAST_SPREAD) / tau**2
    else:
        precision = 1 / (tau**2 + noise)
    whole = precision.where(sound, 0.0)[:, None, None, None].expand_as(target)
    nu = torch.zeros_like(precision) if noise is None else noise.where(sound, 0.0)
    return Pairs(images.to(h), target, whole if mask is None else whole * mask, nu)


def weights(one: Pairs, error: float, *, exact: bool) -> Tensor:
    """By what the precision of each pair [n] has to be multiplied where the error of the extractor is not TAU."""
    if exact:
        return torch.full_like(one.noise, (TAU / error) ** 2)
    return (TAU**2 + one.noise) / (error**2 + one.noise)


def uploads_of(view: ServerView, rows: Tensor) -> Uploads:
    """Some rows of what a server sees, as features of images that nobody knows."""
    one = shadow_federation.select(view, rows)
    nothing = one.h.new_zeros(len(rows), *view.auxiliary.images.shape[1:])
    return Uploads(pairs(nothing, one.h, one.known, one.noise, view.model, TAU_OF_UNKNOWN), one.labels)


def calibrated(
    how: Calibration, starts: Sequence[Params], each: Sequence[Pairs], progress: Progress = no_progress
) -> list[Candidate]:
    """The most probable extractor of every client, from a start that is the mean of its prior; all have as many pairs."""
    fits = extractor_descent.most_probable(how, starts, each, progress=progress)
    return [Candidate(*one) for one in zip(fits, held_out(how, starts, each, progress), strict=True)]


def held_out(
    how: Calibration, starts: Sequence[Params], each: Sequence[Pairs], progress: Progress = no_progress
) -> list[HeldOut]:
    """Fits of every client to all but some of its images, and how they do on those."""
    outs = folds(len(each[0].images))
    if not outs:
        return [HeldOut((), (), torch.inf) for _ in each]
    parts = [without(one, out) for one in each for out in outs]
    ends = extractor_descent.most_probable(how, [start for start in starts for _ in outs], parts, progress=progress)
    return [judged(how, one, ends[len(outs) * k : len(outs) * (k + 1)]) for k, one in enumerate(each)]


def folds(count: int) -> list[Tensor]:
    """Of `count` images those that each fit goes without, [n] bool."""
    numbers = torch.arange(count) % FOLDS
    return [numbers == fold for fold in range(min(FOLDS, count))]


def without(one: Pairs, out: Tensor) -> Pairs:
    """A client's pairs, those of some images [n] bool counting for nothing."""
    return one._replace(precision=one.precision * ~out.to(one.target.device)[:, None, None, None])


def judged(how: Calibration, one: Pairs, fits: Sequence[Params]) -> HeldOut:
    """What a client's fits, one a fold, say of the images that they were not given.

    Under noise the squared gap of a feature is expected to be error^2 + nu, with a variance of 2 (error^2 + nu)^2. What noise hides
    of the error is added as its standard error: where all is noise nothing is known of the extractor.
    """
    outs = folds(len(one.images))
    total, weight_seen, squares = 0.0, 0.0, 0.0
    for params, out in zip(fits, outs, strict=True):
        gap = (features(how, params, one.images[out]) - one.target[out]).square()
        seen = (one.precision[out] > 0).to(gap)
        nu = one.noise[out][:, None, None, None]
        weight = one.precision[out] * TAU**2 if how.exact else seen / (UNLIKE_ERROR + nu).square()
        total += float(((gap - nu) * weight).sum())
        weight_seen += float((seen if how.exact else weight).sum())
        squares += 0.0 if how.exact else 2 * float((weight * (UNLIKE_ERROR + nu)).square().sum())
    square = max(total / weight_seen, 0.0) + squares**0.5 / weight_seen if weight_seen else torch.inf
    error = max(square**0.5, LEAST_ERROR)
    return HeldOut(tuple(fits), tuple(_first_known(one, out) for out in outs), error)


def _first_known(one: Pairs, out: Tensor) -> int:
    """The first of some images [n] bool whose features are known; the first of all where none is."""
    known = out & (one.precision > 0).flatten(1).any(1).cpu()
    return int((known if bool(known.any()) else out).nonzero()[0])


def features(how: Calibration, params: Params, images: Tensor) -> Tensor:
    """phi E(x) [n, c, s, s], without gradients."""
    with torch.no_grad():
        networks = {n: t.to(images) for n, t in params.items()}
        h = how.model.net("extractor").apply(networks, {}, images, train=False)[0]
    return extractor_descent.phi(how)(h)


def assigned(predicted: Tensor, observed: Tensor, groups: Tensor, observed_groups: Tensor) -> Tensor:
    """For each of n images the row of `observed` that is its own: [n] int64, -1 where its group has too few.

    predicted, observed   [n, D] and [m, D], features as the images' extractor is thought to make them, and as they were seen
    groups                [n] and [m] int64: a pair is of one group
    """
    rows = torch.full((len(predicted),), -1, dtype=torch.int64)
    for group in sorted(set(groups.tolist())):
        ours, theirs = (torch.nonzero(t == group)[:, 0].cpu() for t in (groups, observed_groups))
        if not len(theirs):
            continue
        cost = torch.cdist(predicted[ours].double(), observed[theirs].double()).square().nan_to_num(1e300, 1e300, 1e300)
        first, second = linear_sum_assignment(cost.cpu().numpy())
        rows[ours[torch.as_tensor(first)]] = theirs[torch.as_tensor(second)]
    return rows.to(predicted.device)


def alone(groups: Tensor) -> Tensor:
    """Which of n images are the only one of their group, [n] bool: of these the pair is unambiguous."""
    return (groups[:, None] == groups).sum(1) == 1
