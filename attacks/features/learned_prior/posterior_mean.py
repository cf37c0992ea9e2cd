"""What comes behind the most probable image under noise: a denoiser's share of the prior, and means over draws of the posterior.

The denoiser: plug_and_play.py, where L is the first term of F in attacks/features/map_estimate.py.

A draw (randomise, then optimise: Bardsley, Solonen, Haario, Laine, SIAM J. Sci. Comput. 2014) is the most probable image of another
gradient and another prior mean, each with noise of its own covariance added:
    u_j = argmin of ||g(x) - G - n_j||^2 / sigma^2 + (u - mu - e_j)' Sigma^-1 (u - mu - e_j)
with n_j ~ N(0, sigma^2) and e_j ~ N(0, Sigma).
Where g is linear in x these are draws of the posterior; elsewhere they are about it, from the minimum where the descent begins. The
mean of draws has the least expected squared error; a single draw has twice that, if the posterior is right. Behind a
denoiser mu and Sigma are those of its last level, which hold v fast: draws are then too near to one another.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from attacks.common import batched, problem
from attacks.common.problem import InversionProblem
from attacks.features import map_estimate
from attacks.features.learned_prior import plug_and_play
from attacks.features.learned_prior.plug_and_play import PluggedIn, Pulled
from attacks.features.map_estimate import ImagePrior
from privbench.types import Artifact, Progress, Reconstruction


class Further(NamedTuple):
    """What follows the most probable image."""

    plugged: PluggedIn | None  # None: the Gaussian prior stays alone
    steps: int  # of each descent
    samples: int  # draws that are averaged; 0: the most probable image


def further(
    posed: InversionProblem,
    artifact: Artifact,
    prior: ImagePrior,
    end: Reconstruction,
    how: Further,
    seed: int,
    progress: Progress,
) -> Reconstruction:
    """All victims from where `most_probable` ended; loss and trace are F there, under the Gaussian prior alone, as before."""
    u, usual, ends = 2 * end.images.flatten(2).flatten(0, 1) - 1, _each(prior), list[batched.Descent]()
    each = usual

    def descent(under: Pulled, start: Tensor, of: InversionProblem, steps: int) -> Tensor:
        z = _like(under.gaussian.whitened(start - under.mean), prior)
        descents = map_estimate.Descents(of, _of_each(under, prior), map_estimate.Steps(0, steps), progress)
        ends.append(descents.at_once(z, torch.arange(len(z), device=z.device)))
        return under.mean + under.gaussian.root(ends[-1].x.flatten(0, 1))

    if how.plugged is not None:
        for sigma in plug_and_play.LEVELS:
            each = plug_and_play.pulled(how.plugged, usual, u, sigma)
            u = descent(each, u, posed, how.steps)
    if how.samples:
        draws = [
            descent(_moved(each, artifact, prior, seed, j), u, _noised(posed, artifact, seed, j), how.steps)
            for j in range(how.samples)
        ]
        u = torch.stack(draws).mean(0)
    # F of what is returned, where no descent ended that has just this prior and data.
    descent(usual, u, posed, 0)
    loss, spent = ends[-1].loss, sum(one.evaluations for one in ends)
    trace = torch.cat([end.trace, loss[:, None]], 1)
    return end._replace(
        images=((u + 1) / 2).view_as(end.images),
        loss=loss,
        trace=trace,
        gradient_evaluations=end.gradient_evaluations + spent,
    )


def _each(prior: ImagePrior) -> Pulled:
    """The prior of every image of every victim, [V B, D]."""
    return Pulled(prior.mean.flatten(0, 1), prior.gaussian._replace(variance=prior.variances().flatten(0, 1)))


def _of_each(under: Pulled, like: ImagePrior) -> ImagePrior:
    return ImagePrior(like.gaussian, _like(under.mean, like), _like(under.gaussian.variance, like))


def _like(t: Tensor, prior: ImagePrior) -> Tensor:
    """[V B, ...] -> [V, B, ...]."""
    return t.unflatten(0, prior.mean.shape[:2])


def _moved(under: Pulled, artifact: Artifact, prior: ImagePrior, seed: int, number: int) -> Pulled:
    """The prior about another mean, drawn from it; a stream per victim."""
    e = problem.draws(artifact, prior.mean.shape[1:], 1, seed, f"mean of draw {number}").to(under.mean)
    return under._replace(mean=under.mean + under.gaussian.root(e.flatten(0, 1)))


def _noised(posed: InversionProblem, artifact: Artifact, seed: int, number: int) -> InversionProblem:
    """The problem with noise of the defence's variance added once more to what was observed; a stream per victim and parameter."""
    std = posed.variance**0.5
    observed = {
        name: t
        if name in problem.BESIDES
        else t + std * problem.draws(artifact, t.shape[1:], 1, seed, f"{name} of draw {number}").to(t)
        for name, t in posed.observed.items()
    }
    return posed._replace(observed=observed)
