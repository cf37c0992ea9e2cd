"""A client's private extractor, fitted to images whose features are known: the most probable one, and how wrong it still is.

    min over theta, e of  sum_i ||phi E_theta(x_i + s e_i) - phi h_i||^2 / (tau^2 + nu_i) + ||(theta - theta_0) / rho||^2 + ||e||^2
phi is the logit of the last sigmoid where h is exact, and h itself where the gradient was noised, with the variance nu. s is the
standard deviation of the error of the known pixels; without one there is no e. rho is `scale` times each tensor's root mean square
at theta_0. Every image gives as many equations as it has features (LeNet-5: 400, for 2,572 or 2,872 numbers), so a few images leave
theta open, and the prior decides.

How wrong theta is, is measured on known images that are left out: each of FOLDS fits predicts those that it was not given. With one
image the fit without it is theta_0 itself, so that little is trusted (held_out.py).

Where nothing says which features are whose, they go, within a label (and within an upload, where that is known), to the images
whose features they are nearest to, by the Hungarian method (Kuhn, Naval Research Logistics 2, 1955).

The fit of all clients and folds is one batch. Gaussian priors on weights: MacKay, Neural Computation 4, 1992. The rest is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from attacks.common import batched, lbfgs
from attacks.features import inversion
from privbench.networks.model import Model
from privbench.tensors import Params
from privbench.types import Progress, no_progress

TAU = 0.01  # of what a fitted extractor says of an image, relative to the spread of its features
FOLDS = 4  # at most
SMALLEST = 1e-6  # root mean square of a tensor, e.g. of biases that start at zero
LEAST_ERROR = 0.003  # a held-out error below which nothing is gained by trusting the fit more


class Pairs(NamedTuple):
    """Images of one client with their features, in any order."""

    images: Tensor  # [n, C, H, W]
    target: Tensor  # [n, c, s, s], phi h
    precision: Tensor  # [n, c, s, s], 1 / (spread^2) or 1 / nu in the units of TAU; 0 where a feature is not known


class Fit(NamedTuple):
    """One client's extractor."""

    params: Params
    error: float  # tau of the inversion, of phi E(x) relative to the spread; inf: it is worth nothing


class HeldOut(NamedTuple):
    """What fits without some images of a client say of those."""

    fits: tuple[Params, ...]
    rows: tuple[int, ...]  # of each fit one image that it was not given
    error: float  # root mean square error of phi E(x) on all of them, relative as TAU is; inf: there is no image


class Calibration(NamedTuple):
    """How extractors are fitted."""

    model: Model
    exact: bool  # phi is the logit, and errors are relative to the spread of an image's
    scale: float  # of the prior, relative to a tensor's root mean square
    steps: int
    pixel_error: float = 0.0  # s


def pairs(
    images: Tensor, h: Tensor, mask: Tensor | None, noise: Tensor | None, model: Model, tau: float = TAU
) -> Pairs:
    """Images [n, C, H, W] and their features [n, c, s, s]; those that are not finite count for nothing."""
    sound = h.flatten(1).isfinite().all(1)
    h = h.where(sound[:, None, None, None], 0.5)
    target = inversion.undone(model, h) if noise is None else h
    if noise is None:
        every = torch.ones_like(target, dtype=torch.bool) if mask is None else mask
        precision = 1 / inversion.spread(target, every).clamp_min(1e-12) / tau**2
    else:
        precision = 1 / (tau**2 + noise)
    whole = precision[:, None, None, None].expand_as(target) * sound[:, None, None, None]
    return Pairs(images.to(h), target, whole if mask is None else whole * mask)


def fitted(
    calibration: Calibration, starts: list[Params], each: list[Pairs], progress: Progress = no_progress
) -> list[Params]:
    """The most probable extractor of every client, from a start that is the mean of its prior; all have as many pairs."""
    return _descended(calibration, starts, each, progress)


def held_out(
    calibration: Calibration, starts: list[Params], each: list[Pairs], progress: Progress = no_progress
) -> list[HeldOut]:
    """Fits of every client to all but some of its images, and how they do on those."""
    count = len(each[0].images)
    if not count:
        return [HeldOut((), (), torch.inf) for _ in each]
    folds = torch.arange(count) % min(FOLDS, count)
    outs = [folds == fold for fold in range(int(folds.max()) + 1)]
    parts = [
        one._replace(precision=one.precision * ~out.to(one.target.device)[:, None, None, None])
        for one in each
        for out in outs
    ]
    ends = _descended(calibration, [start for start in starts for _ in outs], parts, progress)
    of_clients = []
    for client, one in enumerate(each):
        fits = ends[client * len(outs) : (client + 1) * len(outs)]
        total, features_seen = 0.0, 0
        for params, out in zip(fits, outs, strict=True):
            gap = (features(calibration, params, one.images[out]) - one.target[out]).square()
            weight = one.precision[out] * TAU**2 if calibration.exact else (one.precision[out] > 0).to(gap)
            total += float((gap * weight).sum())
            features_seen += int((weight > 0).sum())
        error = max((total / features_seen) ** 0.5, LEAST_ERROR) if features_seen else torch.inf
        of_clients.append(HeldOut(tuple(fits), tuple(int(out.nonzero()[0]) for out in outs), error))
    return of_clients


def features(calibration: Calibration, params: Params, images: Tensor) -> Tensor:
    """phi E(x) [n, c, s, s], without gradients."""
    with torch.no_grad():
        h = calibration.model.net("extractor").apply(
            {n: t.to(images) for n, t in params.items()}, {}, images, train=False
        )[0]
    return phi(calibration)(h)


def phi(calibration: Calibration) -> Callable[[Tensor], Tensor]:
    """What features are compared by: the logit of the last sigmoid, or noised features as they are."""
    model = calibration.model
    return (lambda h: inversion.undone(model, h)) if calibration.exact else torch.nn.Identity()


def _descended(calibration: Calibration, starts: list[Params], each: list[Pairs], progress: Progress) -> list[Params]:
    net, through, names = calibration.model.net("extractor"), phi(calibration), list(starts[0])
    like, error = each[0].images, calibration.pixel_error
    weights, mean, rho = prior_of(calibration, starts, like)
    laid = batched.EndToEnd(*weights.shapes, *([like.shape] if error else []))
    data = {"mean": mean, "rho": rho} | {
        name: torch.stack([getattr(one, name) for one in each]) for name in Pairs._fields
    }

    def objective(v: Tensor, one: batched.Data) -> Tensor:
        parts = laid.split(v)
        unit = torch.cat([t.flatten() for t in parts[: len(names)]])
        params = dict(zip(names, weights.split(one["mean"] + one["rho"] * unit), strict=True))
        x = one["images"] + error * parts[-1] if error else one["images"]
        gap = (through(net.apply(params, {}, x, train=False)[0]) - one["target"]).square() * one["precision"]
        return gap.sum() + v.square().sum()

    start = like.new_zeros(len(each), sum(shape.numel() for shape in laid.shapes))
    end = lbfgs.minimise(
        objective, start, data, steps=calibration.steps, progress=progress, what="calibration of extractors"
    )
    return networks(names, weights, mean + rho * end.x[:, : mean.shape[1]])


def prior_of(
    calibration: Calibration, starts: Sequence[Params], like: Tensor
) -> tuple[batched.EndToEnd, Tensor, Tensor]:
    """How the weights of N extractors lie in a row, their mean theta_0 [N, P], and rho [N, P]."""
    weights = batched.EndToEnd(*(t.shape for t in starts[0].values()))
    mean = weights.joined(*(torch.stack([start[name].to(like) for start in starts]) for name in starts[0]))
    sizes = []
    for name, t in starts[0].items():
        size = torch.stack([start[name].to(like).square().mean().sqrt() for start in starts]).clamp_min(SMALLEST)
        sizes.append(torch.stack([one.expand(t.shape) for one in size]))
    return weights, mean, calibration.scale * weights.joined(*sizes)


def networks(names: Sequence[str], weights: batched.EndToEnd, rows: Tensor) -> list[Params]:
    """The extractors that lie in rows [N, P]."""
    tensors = [t.unbind(0) for t in weights.split(rows)]
    return [dict(zip(names, one, strict=True)) for one in zip(*tensors, strict=True)]


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
    """Which of n images are the only one of their group, [n] bool: of these the pair is sure."""
    return (groups[:, None] == groups).sum(1) == 1
