"""Which fit of a client's extractor is taken, and how far it is trusted: as serves best on images that it was not fitted to.

A fit without some images predicts their features with an error (calibration.py). The errors of an image's features
are no independent draws, so that the error alone would trust too much. The attacker holds these images: one of each fold is
inverted through the fit with tau at FACTORS times the error, and the fit and factor that bring these nearest are taken, inf, the
class mean, among them. Of equals the first is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from attacks.features import inversion
from attacks.features.inversion import ClassPrior
from attacks.shadow.fitting.calibration import Candidate, Fit, HeldOut
from attacks.shadow.fitting.extractor_descent import Calibration, Pairs
from privbench.types import Progress

FACTORS = (1.0, 3.0, 10.0)  # and inf
STEPS = 40  # of each inversion


def trusted(
    how: Calibration, prior: ClassPrior, candidates: Sequence[Sequence[Candidate]], each: Sequence[Pairs],
    labels: Sequence[Tensor], progress: Progress,
) -> list[Fit]:  # fmt: skip
    """The fit of every client, of several kinds of `candidates`, with its tau; `labels` [n] are those of its images."""
    every = list(zip(*candidates, strict=True))
    by_client = [[one for one in kinds if math.isfinite(one.without.error)] for kinds in every]
    worth = [(one.without, pairs, y) for kinds, pairs, y in zip(by_client, each, labels, strict=True) for one in kinds]
    errors = iter(_errors(how, prior, worth, progress))
    return [
        _best(kinds, [next(errors) for _ in kinds]) if kinds else Fit(first.params, math.inf)
        for kinds, (first, *_) in zip(by_client, every, strict=True)
    ]


def _best(kinds: Sequence[Candidate], errors: list[Tensor]) -> Fit:
    table = torch.stack(errors)
    kind, factor = divmod(int(table.argmin()), table.shape[1])
    return Fit(kinds[kind].params, kinds[kind].without.error * (*FACTORS, math.inf)[factor])


def _errors(
    how: Calibration, prior: ClassPrior, worth: Sequence[tuple[HeldOut, Pairs, Tensor]], progress: Progress
) -> Tensor:
    """The squared error of images that were left out, summed, under every factor and inf, of each of several fits: [K, F + 1]."""
    total = torch.zeros(len(worth), len(FACTORS) + 1, dtype=torch.float64)
    asked = [
        (number, params, row)
        for number, (one, pairs, _) in enumerate(worth)
        for params, row in zip(one.fits, one.rows, strict=True)
        if bool((pairs.precision[row] > 0).any())
    ]
    if not asked:
        return total
    count = total.shape[1]

    def of_all(what: Callable[[Pairs, Tensor, int], Tensor]) -> Tensor:
        """One tensor of every asked image, repeated for the factors."""
        return torch.stack([what(*worth[number][1:], row) for number, _, row in asked]).repeat_interleave(count, 0)

    target, mask = (
        of_all(lambda pairs, _, row: pairs.target[row]),
        of_all(lambda pairs, _, row: pairs.precision[row] > 0),
    )
    images = of_all(lambda pairs, _, row: pairs.images[row].clamp(0, 1))
    factors = torch.tensor([*FACTORS, math.inf]).to(target)
    tau = torch.cat([factors * worth[number][0].error for number, *_ in asked])
    noise = of_all(lambda pairs, _, row: pairs.noise[row]).to(tau)
    end = inversion.invert(
        how.model, [[params] for _, params, _ in asked for _ in range(count)], prior,
        torch.sigmoid(target) if how.exact and how.model.has_sigmoid_features else target,
        of_all(lambda _, labels, row: labels[row]), tau.square() + noise,
        exact=how.exact, steps=STEPS, mask=mask, progress=progress,
    )  # fmt: skip
    gap = (end.x[:, 0].clamp(0, 1) - images).square().flatten(1).mean(1).double().cpu().view(-1, count)
    for (number, *_), errors in zip(asked, gap, strict=True):
        total[number] += errors
    return total
