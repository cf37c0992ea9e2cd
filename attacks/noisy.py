"""The most probable image given a noised gradient, by an attacker who knows the noise and has no images.

    min over z of  F(z) = ||g(x) - G||^2 / sigma^2 + ||z||^2,   2x - 1 = Sigma^(1/2) z
as attacks/posterior.py, with what is true of photographs in general in the place of auxiliary images (prior.photographed): mu is
grey, Sigma falls with the square of the spatial frequency.

F has many minima, for the length of g hangs on the image as steeply as its direction does. So the direction is matched first,
    D(z) = min over a >= 0 of ||a g(x) - G||^2 / sigma^2 + ||z||^2,  the first term being (||G||^2 - <g, G>^2 / ||g||^2) / sigma^2,
and F from where D ended. A noise of N coordinates has a squared length of N sigma^2, give or take sqrt(2 N) sigma^2: an image that
leaves more than that by far does not explain G, and the attacker knows it without the truth. So every victim is descended on from
EVERYONE of the starts, and from the others only while nothing explains its gradient; the end with the lowest F counts.

Balunovic et al.: Bayesian Framework for Gradient Leakage, ICLR 2022, arXiv 2111.04706, derive F. D and the starts are ours
(docs/tuning_attacks.md).
"""

from __future__ import annotations

import torch
from torch import Tensor

from attacks import case, descend, match, prior
from attacks.case import Case
from privbench.types import Artifact, Reconstruction, Report, no_report

STRENGTH = 0.8  # of the prior: the variance of a cosine pattern of brightness times its squared frequency, in 2x - 1
CHROMA = (15.0, 50.0)  # as in attacks/staged.py
FLAT = (0.5, 0.2, 0.8)  # brightness of flat images to start from, number 1 to 3; behind them come draws from the prior
EVERYONE = 3  # number 0 is F at once from grey, then D first from grey and from dark
UNEXPLAINED = 5.0  # standard deviations of the noise's squared length
TOLERANCE = 1e-7  # of F in one step: less than a hundredth in 62,006
NUDGE = 0.2  # of a draw from the prior, for networks with kinks, which grey enters as zero


def most_probable(
    own: Case, artifact: Artifact, seed: int, direction_steps: int, steps: int, most: int, report: Report = no_report
) -> Reconstruction:
    """All victims of a noised case with a known extractor, [V, B, C, H, W], from `most` starts or fewer.

    `restart` is the number of the start, loss and trace are those of F.
    """
    gaussian = prior.photographed(*artifact.image_shape[:2], STRENGTH, CHROMA, _like(own))
    found = _Descents(own, gaussian, direction_steps, steps, report)
    noise = sum(t[0].numel() for t in own.observed.values())
    enough = noise + UNEXPLAINED * (2 * noise) ** 0.5
    rows = torch.arange(len(own.labels), device=own.labels.device)
    z = starts(artifact, gaussian, 0, seed)
    best, which = found.at_once(z, rows), torch.zeros_like(rows)
    for number in range(1, most):
        if number >= EVERYONE:
            rows = torch.nonzero(~(best.loss - best.x.square().sum((1, 2)) <= enough))[:, 0]
            if not len(rows):
                break
        other = found.by_direction(starts(artifact, gaussian, number, seed)[rows], rows)
        which[rows[other.loss < best.loss[rows]]] = number
        best = _put(best, rows, descend.lower(best._replace(**_rows(best, rows), evaluations=0), other))
    x = torch.stack([image(gaussian, z) for z in best.x])
    return Reconstruction(x, own.labels, best.loss, best.trace, which, best.evaluations)


def starts(artifact: Artifact, gaussian: prior.Gaussian, number: int, seed: int) -> Tensor:
    """z [V, B, D] of the start with this number."""
    shape, like = (artifact.batch_size, gaussian.variance.numel()), gaussian.variance
    flat = max(number - 1, 0)
    random = flat >= len(FLAT)
    drawn = random or artifact.model.backbone != "lenet5"
    z = like.new_zeros(artifact.victims, *shape)
    if drawn:
        z = (1.0 if random else NUDGE) * case.draws(artifact, shape, 1, seed, f"image {number}").to(like)
    if not random:
        z = z + gaussian.whitened(torch.full((1, shape[1]), 2 * FLAT[flat] - 1).to(like))
    return z


def image(gaussian: prior.Gaussian, z: Tensor) -> Tensor:
    """x [B, C, H, W] of one victim's z [B, D]."""
    return ((gaussian.root(z) + 1) / 2).unflatten(1, gaussian.variance.shape)


class _Descents:
    """Descents of some victims of a case by D and F."""

    def __init__(self, own: Case, gaussian: prior.Gaussian, direction_steps: int, steps: int, report: Report) -> None:
        self.own, self.gaussian, self.report = own, gaussian, report
        self.direction_steps, self.steps, self.data = direction_steps, steps, case.data(own)

    def at_once(self, z: Tensor, rows: Tensor) -> descend.Descent:
        """F from z [n, B, D] of the victims `rows`."""
        return self._descent(self._surprise, z, rows, self.steps)

    def by_direction(self, z: Tensor, rows: Tensor) -> descend.Descent:
        """D from z, and F from where that ended."""
        first = self._descent(self._of_direction, z, rows, self.direction_steps)
        end = self.at_once(first.x, rows)
        return end._replace(evaluations=first.evaluations + end.evaluations)

    def _descent(self, objective: descend.Objective, z: Tensor, rows: Tensor, steps: int) -> descend.Descent:
        return descend.lbfgs(
            objective, z, descend.pick(self.data, rows), steps=steps, tolerance=TOLERANCE, report=self.report,
            what="noised gradient",
        )  # fmt: skip

    def _products(self, z: Tensor, data: descend.Data) -> dict[str, match.Products]:
        x, observed = image(self.gaussian, z), case.observed_of(self.own, data)
        return match.gradient_products(self.own, x, data["labels"], observed)

    def _surprise(self, z: Tensor, data: descend.Data) -> Tensor:
        return match.squared_distance(self._products(z, data)) / self.own.variance + z.square().sum()

    def _of_direction(self, z: Tensor, data: descend.Data) -> Tensor:
        return match.direction_distance(self._products(z, data)) / self.own.variance + z.square().sum()


def _like(own: Case) -> Tensor:
    return next(iter(own.observed.values()))


def _rows(end: descend.Descent, rows: Tensor) -> dict[str, Tensor]:
    return {"x": end.x[rows], "loss": end.loss[rows], "trace": end.trace[rows]}


def _put(whole: descend.Descent, rows: Tensor, some: descend.Descent) -> descend.Descent:
    """`whole` with the problems in `rows` taken from `some`, whose work comes on top."""
    trace, theirs = descend.of_one_length([whole.trace, some.trace])
    x, loss, trace = whole.x.clone(), whole.loss.clone(), trace.clone()
    x[rows], loss[rows], trace[rows] = some.x, some.loss, theirs
    return descend.Descent(x, loss, trace, whole.evaluations + some.evaluations)
