"""The most probable private extractors, given features of images that are known and of images that are not.

    min over theta, e, z of
        sum over known images i     ||phi E_theta(x_i + s e_i) - phi h_i||^2 / (tau_i^2 + nu_i)  +  ||e_i||^2
        sum over unknown images j   ||phi E_theta(x(z_j)) - phi h_j||^2 / (tau_j^2 + nu_j)  +  ||z_j||^2
        +  ||(theta - theta_0) / rho||^2
phi is the logit of the last sigmoid where h is exact, and h itself where the gradient was noised, with the variance nu. s is the
standard deviation of the error of known pixels; without one there is no e. x(z) and its prior are those of
attacks/features/inversion.py. rho is `scale` times each tensor's root mean square at theta_0. This is twice the negative logarithm
of the posterior of theta, e and z.

With known images alone it is a calibration (calibration.py), with unknown ones alone the blind problem (joint_refinement.py), with
both a calibration that the client's other uploads refine (refinement.py).

The descents of all clients and starts are one batch. Gaussian priors on weights: MacKay, Neural Computation 4, 1992.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attacks.common import batched, lbfgs
from attacks.features import inversion
from attacks.features.inversion import ClassPrior
from privbench.networks.model import Model
from privbench.tensors import Params
from privbench.types import Progress, no_progress

SMALLEST = 1e-6  # root mean square of a tensor, e.g. of biases that start at zero


class Pairs(NamedTuple):
    """Images of one client with their features, in any order."""

    images: Tensor  # [n, C, H, W]
    target: Tensor  # [n, c, s, s], phi h
    precision: Tensor  # [n, c, s, s], 1 / (tau^2 spread^2) or 1 / (tau^2 + nu); 0 where a feature is not known
    noise: Tensor  # [n], nu; 0 where the gradient was exact


class Uploads(NamedTuple):
    """What one client sent, in the order in which it came."""

    pairs: Pairs  # its images are not known
    labels: Tensor  # [n]


class Unknown(NamedTuple):
    """Uploads of every problem's client, of images that nobody knows; their numbers may differ."""

    prior: ClassPrior
    each: Sequence[Uploads]


class Calibration(NamedTuple):
    """How extractors are fitted."""

    model: Model
    exact: bool  # phi is the logit, and errors are relative to the spread of an image's
    scale: float  # of the prior, relative to a tensor's root mean square
    steps: int
    pixel_error: float = 0.0  # s


def phi(how: Calibration) -> Callable[[Tensor], Tensor]:
    """What features are compared by: the logit of the last sigmoid, or noised features as they are."""
    model = how.model
    return (lambda h: inversion.undone(model, h)) if how.exact else torch.nn.Identity()


def most_probable(
    how: Calibration,
    starts: Sequence[Params],
    known: Sequence[Pairs],
    unknown: Unknown | None = None,
    progress: Progress = no_progress,
    what: str = "calibration of extractors",
) -> list[Params]:
    """The extractor of each problem, from its start theta_0, its `known` pairs (as many in each, maybe none) and `unknown` ones."""
    net, through, names = how.model.net("extractor"), phi(how), list(starts[0])
    like, error, count = known[0].images, how.pixel_error, len(known[0].images)
    weights, mean, rho = prior_of(how, starts, like)
    of_known = [like.shape] if error and count else []
    padded = [] if unknown is None else _padded(unknown.each)
    of_unknown = [] if unknown is None else [(len(padded[0].labels), unknown.prior.means.shape[1])]
    laid = batched.EndToEnd(mean.shape[1:], *of_known, *of_unknown)
    data = {"theta": mean, "rho": rho} | {
        name: torch.stack([getattr(one, name) for one in known]) for name in Pairs._fields
    }
    if unknown is not None:
        data |= {
            "means": torch.stack([unknown.prior.means[one.labels] for one in padded]),
            "other_target": torch.stack([one.pairs.target for one in padded]),
            "other_precision": torch.stack([one.pairs.precision for one in padded]),
        }

    def objective(v: Tensor, one: batched.Data) -> Tensor:
        parts = laid.split(v)
        params = dict(zip(names, weights.split(one["theta"] + one["rho"] * parts[0]), strict=True))
        terms = []
        if count:
            x = one["images"] + error * parts[1] if of_known else one["images"]
            gap = through(net.apply(params, {}, x, train=False)[0]) - one["target"]
            terms.append((gap.square() * one["precision"]).sum())
        if unknown is not None:
            u = one["means"] + unknown.prior.gaussian.root(parts[-1])
            x = ((u + 1) / 2).view(-1, *unknown.prior.gaussian.variance.shape)
            gap = through(net.apply(params, {}, x, train=False)[0]) - one["other_target"]
            terms.append((gap.square() * one["other_precision"]).sum())
        return sum(terms, v.square().sum())

    start = like.new_zeros(len(starts), sum(shape.numel() for shape in laid.shapes))
    end = lbfgs.minimise(objective, start, data, steps=how.steps, progress=progress, what=what)
    return networks(names, weights, mean + rho * end.x[:, : mean.shape[1]])


def prior_of(how: Calibration, starts: Sequence[Params], like: Tensor) -> tuple[batched.EndToEnd, Tensor, Tensor]:
    """How the weights of N extractors lie in a row, their mean theta_0 [N, P], and rho [N, P]."""
    weights = batched.EndToEnd(*(t.shape for t in starts[0].values()))
    mean = weights.joined(*(torch.stack([start[name].to(like) for start in starts]) for name in starts[0]))
    sizes = []
    for name, t in starts[0].items():
        size = torch.stack([start[name].to(like).square().mean().sqrt() for start in starts]).clamp_min(SMALLEST)
        sizes.append(torch.stack([one.expand(t.shape) for one in size]))
    return weights, mean, how.scale * weights.joined(*sizes)


def networks(names: Sequence[str], weights: batched.EndToEnd, rows: Tensor) -> list[Params]:
    """The extractors that lie in rows [N, P]."""
    tensors = [t.unbind(0) for t in weights.split(rows)]
    return [dict(zip(names, one, strict=True)) for one in zip(*tensors, strict=True)]


def nothing_known(like: Pairs) -> Pairs:
    """Pairs without an image, of the shapes of others."""
    return Pairs(*(t[:0] for t in like))


def _padded(each: Sequence[Uploads]) -> list[Uploads]:
    """All with as many uploads as the one that has most; those that are added say nothing."""
    most = max(len(one.labels) for one in each)

    def more(t: Tensor) -> Tensor:
        return torch.cat([t, t.new_zeros(most - len(t), *t.shape[1:])])

    return [Uploads(Pairs(*map(more, one.pairs)), more(one.labels)) for one in each]
