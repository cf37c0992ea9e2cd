"""The most probable image given a noised gradient, by an attacker who knows the noise and believes something about images.

    min over z of  F(z) = ||g(x) - G||^2 / sigma^2 + ||z||^2,   2x - 1 = mu + Sigma^(1/2) z
sigma^2 is the variance of the defence's noise. mu and Sigma are those of photographs in general (`of_photographs`, mu is grey), or
of the attacker's own images (`mixture`).

F has many minima, for the length of g depends on the image as steeply as its direction does. So the direction is matched first,
    D(z) = min over a >= 0 of ||a g(x) - G||^2 / sigma^2 + ||z||^2,  the first term being (||G||^2 - <g, G>^2 / ||g||^2) / sigma^2,
and F from where D ended. A noise of N coordinates has a squared length of N sigma^2, give or take sqrt(2 N) sigma^2: an image that
leaves more than that by far does not explain G, and the attacker knows it without the truth. So every victim is descended on from
EVERYONE of the starts, and from the others only while nothing explains its gradient; the end with the lowest F counts.

Balunovic et al.: Bayesian Framework for Gradient Leakage, ICLR 2022, arXiv 2111.04706, derive F. D and the starts are ours
(docs/appendix/tuning.md).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from attacks.common import batched, gradient_distance, lbfgs, priors, problem
from attacks.common.problem import InversionProblem
from attacks.features.inversion import ClassPrior
from privbench.types import Artifact, Progress, Reconstruction, no_progress

EVERYONE = 3  # number 0 is F at once from mu, then D first from mu and from the first of FLAT
FIRST_FLAT = 2
FLAT = (0.2, 0.8)  # brightness of flat images to start from; behind them come draws from the prior
UNEXPLAINED = 5.0  # standard deviations of the noise's squared length
TOLERANCE = 1e-7  # of F in one step: less than a hundredth in 62,006
NUDGE = 0.2  # of a draw from the prior, for networks with kinks, which grey enters as zero


class Steps(NamedTuple):
    """Of L-BFGS."""

    direction: int  # on D
    whole: int  # on F


class ImagePrior(NamedTuple):
    """u = 2x - 1 of every image of the victims before their gradients are seen: N(mean, Sigma)."""

    gaussian: priors.GaussianPrior
    mean: Tensor  # [V, B, D]
    variance: Tensor | None = None  # [V, B, C, s, s] of each image, where it is not that of `gaussian` for all

    def variances(self) -> Tensor:
        """The variances [V, B, C, s, s] of all images."""
        of_all = self.gaussian.variance
        return of_all.expand(*self.mean.shape[:2], *of_all.shape) if self.variance is None else self.variance

    def each(self) -> list[priors.GaussianPrior]:
        """The prior of each victim's images about their mean."""
        return [self.gaussian._replace(variance=variance) for variance in self.variances()]

    def images(self, z: Tensor) -> Tensor:
        """x [V, B, C, H, W] of z [V, B, D]."""
        return torch.stack([image(*one) for one in zip(self.each(), z, self.mean, strict=True)])

    def whitened(self, u: Tensor) -> Tensor:
        """The way back: z [V, B, D] of u = 2x - 1, which broadcasts to [V, B, D]."""
        return torch.stack([one.whitened(t) for one, t in zip(self.each(), u - self.mean, strict=True)])


def of_photographs(artifact: Artifact, like: Tensor) -> ImagePrior:
    """What an attacker without images believes of every victim's; `like` gives dtype and device."""
    gaussian = priors.photographed(*priors.square(artifact.image_shape), priors.STRENGTH, priors.CHROMA, like)
    return ImagePrior(gaussian, like.new_zeros(artifact.victims, artifact.batch_size, gaussian.variance.numel()))


def mixture(learned: ClassPrior, probability: Tensor) -> ImagePrior:
    """What is believed of images whose class has some `probability` [V, B, Y], normal again.

    The mean is sum_c p_c mu_c, the variance of every coefficient sum_c p_c (sigma^2 + (mu_c - mu)^2).
    """
    p = probability.to(learned.means)
    mean = p @ learned.means  # [V, B, D]
    of_class = learned.gaussian.coefficients(learned.means)  # [Y, C, s, s]
    middle = torch.einsum("vby,ychw->vbchw", p, of_class)
    between = torch.einsum("vby,vbychw->vbchw", p, (of_class - middle[:, :, None]).square())
    return ImagePrior(learned.gaussian, mean, learned.gaussian.variance + between)


def most_probable(
    posed: InversionProblem,
    artifact: Artifact,
    prior: ImagePrior,
    seed: int,
    steps: Steps,
    most: int,
    progress: Progress = no_progress,
) -> Reconstruction:
    """All victims of a noised problem with a known extractor, [V, B, C, H, W], from `most` starts or fewer.

    `restart` is the number of the start, loss and trace are those of F.
    """
    descents = Descents(posed, prior, steps, progress)
    noise = sum(t[0].numel() for t in posed.observed.values())
    enough = noise + UNEXPLAINED * (2 * noise) ** 0.5
    rows = torch.arange(len(posed.labels), device=posed.labels.device)
    z = starts(artifact, prior, 0, seed)
    best, which = descents.at_once(z, rows), torch.zeros_like(rows)
    for number in range(1, most):
        if number >= EVERYONE:
            rows = torch.nonzero(~(best.loss - best.x.square().sum((1, 2)) <= enough))[:, 0]
            if not len(rows):
                break
        other = descents.by_direction(starts(artifact, prior, number, seed)[rows], rows)
        which[rows[other.loss < best.loss[rows]]] = number
        best = _put(best, rows, batched.lower(best._replace(**_rows(best, rows), evaluations=0), other))
    return Reconstruction(prior.images(best.x), posed.labels, best.loss, best.trace, which, best.evaluations)


def starts(artifact: Artifact, prior: ImagePrior, number: int, seed: int) -> Tensor:
    """z [V, B, D] of the start with this number."""
    z, flat = torch.zeros_like(prior.mean), number - FIRST_FLAT
    drawn = flat >= len(FLAT)
    if drawn or not artifact.model.is_smooth:
        draws = problem.draws(artifact, z.shape[1:], 1, seed, f"image {number}").to(z)
        z = z + (1.0 if drawn else NUDGE) * draws
    if 0 <= flat < len(FLAT):
        z = z + prior.whitened(z.new_tensor(2 * FLAT[flat] - 1))
    return z


def image(gaussian: priors.GaussianPrior, z: Tensor, mean: Tensor) -> Tensor:
    """x [B, C, H, W] of one victim's z and mean [B, D]."""
    return ((mean + gaussian.root(z) + 1) / 2).unflatten(1, gaussian.variance.shape[-3:])


class Descents:
    """Descents of some victims of a problem by D and F."""

    def __init__(self, posed: InversionProblem, prior: ImagePrior, steps: Steps, progress: Progress) -> None:
        self.posed, self.gaussian, self.steps, self.progress = posed, prior.gaussian, steps, progress
        self.data = problem.data(posed) | {"mean": prior.mean, "variance": prior.variances()}

    def at_once(self, z: Tensor, rows: Tensor) -> batched.Descent:
        """F from z [n, B, D] of the victims `rows`."""
        return self._descent(self._neg_log_posterior, z, rows, self.steps.whole)

    def by_direction(self, z: Tensor, rows: Tensor) -> batched.Descent:
        """D from z, and F from where that ended; the trace is that of F, from z on."""
        before = self._descent(self._neg_log_posterior, z, rows, 0)
        first = self._descent(self._of_direction, z, rows, self.steps.direction)
        end = self.at_once(first.x, rows)
        spent = before.evaluations + first.evaluations + end.evaluations
        return end._replace(trace=torch.cat([before.loss[:, None], end.trace], 1), evaluations=spent)

    def _descent(self, objective: batched.Objective, z: Tensor, rows: Tensor, steps: int) -> batched.Descent:
        return lbfgs.minimise(
            objective, z, batched.pick(self.data, rows), steps=steps, tolerance=TOLERANCE, progress=self.progress,
            what="noised gradient",
        )  # fmt: skip

    def _products(self, z: Tensor, data: batched.Data) -> dict[str, gradient_distance.Products]:
        gaussian = self.gaussian._replace(variance=data["variance"])
        return gradient_distance.fitted_products(self.posed, image(gaussian, z, data["mean"]), data)

    def _neg_log_posterior(self, z: Tensor, data: batched.Data) -> Tensor:
        return gradient_distance.squared_distance(self._products(z, data)) / self.posed.variance + z.square().sum()

    def _of_direction(self, z: Tensor, data: batched.Data) -> Tensor:
        return gradient_distance.direction_distance(self._products(z, data)) / self.posed.variance + z.square().sum()


def _rows(end: batched.Descent, rows: Tensor) -> dict[str, Tensor]:
    return {"x": end.x[rows], "loss": end.loss[rows], "trace": end.trace[rows]}


def _put(whole: batched.Descent, rows: Tensor, part: batched.Descent) -> batched.Descent:
    """`whole` with the problems in `rows` taken from `part`, whose work comes on top."""
    trace, part_trace = batched.of_one_length([whole.trace, part.trace])
    x, loss, trace = whole.x.clone(), whole.loss.clone(), trace.clone()
    x[rows], loss[rows], trace[rows] = part.x, part.loss, part_trace
    return batched.Descent(x, loss, trace, whole.evaluations + part.evaluations)
