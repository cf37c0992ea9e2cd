"""Images from features: the most probable image under a Gaussian prior, given an extractor that may be wrong by so much.

    min over z of  sum over M extractors ||E_m(x) - h||^2 / (M (tau^2 + nu)) + ||z||^2,   2x - 1 = mu + Sigma^(1/2) z
tau is the standard deviation of E_m(x) - h that the attacker expects of his surrogates, nu the variance of h itself where the
gradient was noised (attacks/common/closed_form.py); features that dropout took away are left out of the sum. With tau = inf the
answer is mu, the best guess without any feature: a hopeless inversion ends there. In z the prior is perfectly conditioned, which
is why a few dozen steps of L-BFGS suffice.
An exact extractor is inverted through the logit of the last sigmoid, as attacks/staged.py does, with a small tau in its units.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from attacks.common import batched, priors, training_cache
from attacks.features import several_networks
from privbench.networks.model import Model
from privbench.tensors import Params
from privbench.types import Batch, Progress, no_progress

STEP = 0.1  # a usual difference of neighbouring pixels, in 2x - 1
USUAL_WORTH = 50.0  # how many auxiliary images the usual variances are worth
CLASS_WORTH = 5.0  # and the mean of all images, in the mean of a class
LOGIT_EDGE = 1e-7  # features within single precision of 0 or 1 have no logit

Extractors = dict[
    int, list[Params]
]  # victim, by its number among the artifact's -> surrogates for its client's extractor


class ClassPrior(NamedTuple):
    """What the attacker thinks of an image before seeing its features: u = 2x - 1 ~ N(mean of its class, Sigma)."""

    means: Tensor  # [Y, D] of u
    gaussian: priors.GaussianPrior


def usual(shape: tuple[int, int, int], classes: int, like: Tensor) -> ClassPrior:
    """Smooth images around grey, for an attacker without images."""
    gaussian = priors.natural(*priors.square(shape), STEP, priors.CHROMA, like)
    return ClassPrior(like.new_zeros(classes, gaussian.variance.numel()), gaussian)


# Those of the attacker's images and of the shadow's, in either precision.
PRIORS: training_cache.Remembered[ClassPrior] = training_cache.Remembered("class-prior", most=8)


def learned(images: Batch, classes: int, like: Tensor) -> ClassPrior:
    """Class means and variances of the attacker's own images, in the precision and on the device of `like`."""
    settings = {"classes": classes, "dtype": str(like.dtype)}
    return PRIORS.of(settings, images, lambda: _learned(images, classes, like), like.device)


def _learned(images: Batch, classes: int, like: Tensor) -> ClassPrior:
    u, y = 2 * images.images.to(like) - 1, images.labels
    every = u.mean(0)
    means = torch.stack(
        [(u[y == c].sum(0) + CLASS_WORTH * every) / ((y == c).sum() + CLASS_WORTH) for c in range(classes)]
    )
    shape = (int(u.shape[1]), int(u.shape[2]), int(u.shape[3]))
    gaussian = priors.measured(u - means[y], usual(shape, classes, like).gaussian, USUAL_WORTH)
    return ClassPrior(means.flatten(1), gaussian)


def logit(h: Tensor) -> Tensor:
    """The inverse of the extractor's last sigmoid; features within single precision of 0 or 1 are kept finite."""
    return torch.logit(h.clamp(LOGIT_EDGE, 1 - LOGIT_EDGE))


def undone(model: Model, features: Tensor) -> Tensor:
    """What entered the extractor's last sigmoid; features as they are where it ends otherwise."""
    return logit(features) if model.has_sigmoid_features else features


def invert(  # noqa: PLR0913 (the terms of one objective)
    model: Model,
    extractors: Sequence[Sequence[Params]],
    prior: ClassPrior,
    h: Tensor,
    labels: Tensor,
    variance: Tensor,
    *,
    exact: bool,
    steps: int,
    mask: Tensor | None = None,
    progress: Progress = no_progress,
) -> batched.Descent:
    """The most probable image of each h [n, c, s, s] given its extractors [n][M], label [n] and error variance [n].

    Where the variance is infinite, that is the class mean. `mask` [n, c, s, s] bool says which features are used, by default all.
    Returns x [n, 1, C, H, W]. With `exact` the variance is that of the logit of h, relative to the logit's spread over features.
    """
    net = model.net("extractor")
    through = partial(undone, model) if exact else torch.nn.Identity()
    side = prior.gaussian.variance.shape

    def objective(z: Tensor, data: batched.Data, networks: list[Params]) -> Tensor:
        x = image(prior, z, data["mean"]).view(1, *side)
        each = [(through(net.apply(params, {}, x, train=False)[0][0]) - data["h"]).square() for params in networks]
        gaps = [(gap if mask is None else gap * data["mask"]).sum() for gap in each]
        return torch.stack(gaps).mean() * data["precision"] + z.square().sum()

    target = through(h)
    if exact:
        variance = variance * (target.flatten(1).var(1) if mask is None else spread(target, mask))
    data = {"h": target, "mean": prior.means[labels], "precision": 1 / variance}
    data |= {} if mask is None else {"mask": mask}
    start = torch.zeros_like(data["mean"])
    end = several_networks.minimise(
        objective, extractors, start, data, steps=steps, progress=progress, what="feature inversion"
    )
    return end._replace(x=images_of(prior, end.x, labels))


def spread(features: Tensor, mask: Tensor) -> Tensor:
    """The variance [n] of each image's known features, [n, c, s, s] both."""
    values, seen = features.flatten(1), mask.flatten(1)
    count = seen.sum(1)
    mean = (values * seen).sum(1) / count.clamp_min(1)
    return ((values - mean[:, None]).square() * seen).sum(1) / (count - 1).clamp_min(1)


def image(prior: ClassPrior, z: Tensor, mean: Tensor) -> Tensor:
    """x [D] of one z [D]."""
    return (mean + prior.gaussian.root(z[None])[0] + 1) / 2


def images_of(prior: ClassPrior, z: Tensor, labels: Tensor) -> Tensor:
    """x [n, 1, C, H, W] of z [n, D]."""
    u = prior.means[labels] + prior.gaussian.root(z)
    return ((u + 1) / 2).view(len(z), 1, *prior.gaussian.variance.shape)
