"""A learned denoiser in place of a share of the Gaussian prior: the most probable image by plug-and-play.

    alternate, while sigma falls through LEVELS:   v = D(u, sigma)
        u = argmin of  L(u) + (1 - w) (u - mu)' Sigma^-1 (u - mu) + w ||u - v||^2 / sigma^2
L is the data term of the attack, D the denoiser of denoiser.py, u = 2x - 1. Half-quadratic splitting (Geman, Yang, IEEE TIP 1995)
with a denoiser as the prior's step: Venkatakrishnan, Bouman, Wohlberg, GlobalSIP 2013; Zhang et al., IEEE TPAMI 2021, for learned
denoisers and falling noise. There the Gaussian prior is absent, w = 1; here w = 0 leaves the former objective as it is.

Both quadratic terms together are a Gaussian prior again, so that every step is the attack's own descent under another prior:
    variance s' = 1 / ((1 - w) / s + w / sigma^2)   and   mean mu' = mu + s' w / sigma^2 (v - mu)   of every cosine coefficient.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from torch import Tensor

from attacks.common.priors import GaussianPrior
from attacks.features import inversion
from attacks.features.learned_prior import denoiser
from privbench.tensors import Params
from privbench.types import Knowledge

Prior = Literal["gaussian", "denoiser"]
LEVELS = (0.4, 0.2, 0.1)  # of 2x - 1


class Pulled(NamedTuple):
    """The Gaussian prior of n images together with what draws them to their denoised selves."""

    mean: Tensor  # [n, D]
    gaussian: GaussianPrior


class PluggedIn(NamedTuple):
    """A denoiser and its share of the prior."""

    denoiser: Params
    weight: float  # 0 <= w < 1


def of(prior: Prior, weight: float, knowledge: Knowledge, classes: int, seed: int) -> PluggedIn | None:
    """A denoiser of the attacker's images; None where the Gaussian prior stays alone."""
    if prior == "gaussian":
        return None
    assert knowledge.auxiliary is not None, "attacks with this setting name auxiliary images in their needs"
    learned = inversion.learned(knowledge.auxiliary, classes, knowledge.auxiliary.images.double())
    return PluggedIn(denoiser.trained(knowledge.auxiliary, learned, seed, knowledge.cache), weight)


def pulled(plugged: PluggedIn, prior: Pulled, u: Tensor, sigma: float) -> Pulled:
    """The prior whose mean is drawn to D(u, sigma)."""
    usual, share = prior.gaussian.variance, plugged.weight / sigma**2
    variance = 1 / ((1 - plugged.weight) / usual + share)
    v = denoiser.denoised(plugged.denoiser, prior.gaussian, prior.mean, u, u.new_full((len(u),), sigma))
    drawn = prior.gaussian._replace(variance=variance * share).covariance(v - prior.mean)
    return Pulled(prior.mean + drawn, prior.gaussian._replace(variance=variance))
