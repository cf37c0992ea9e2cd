"""Which fit of a client's extractor is taken, and how far it is trusted: as serves best on images that it was not fitted to.

A fit without some images predicts their features with an error (calibration.py). The errors of an image's features
are no independent draws, so that the error alone would trust too much. The attacker holds these images: they are inverted through
the fit with tau at FACTORS times the error, and the fit and factor that bring them nearest are taken, inf, the class mean, among
them. Of equals the first is taken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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
    return [
        _best(how, prior, kinds, pairs, y, progress)
        for kinds, pairs, y in zip(zip(*candidates, strict=True), each, labels, strict=True)
    ]


def _best(
    how: Calibration, prior: ClassPrior, kinds: Sequence[Candidate], pairs: Pairs, labels: Tensor, progress: Progress
) -> Fit:
    worth = [one for one in kinds if math.isfinite(one.without.error)]
    if not worth:
        return Fit(kinds[0].params, math.inf)
    errors = torch.stack([_errors(how, prior, one.without, pairs, labels, progress) for one in worth])
    kind, factor = divmod(int(errors.argmin()), errors.shape[1])
    return Fit(worth[kind].params, worth[kind].without.error * (*FACTORS, math.inf)[factor])


def _errors(
    how: Calibration, prior: ClassPrior, one: HeldOut, pairs: Pairs, labels: Tensor, progress: Progress
) -> Tensor:
    """The squared error of images that were left out, summed, under every factor and inf: [F + 1]."""
    total = torch.zeros(len(FACTORS) + 1, dtype=torch.float64)
    for params, row in zip(one.fits, one.rows, strict=True):
        pick = torch.full((len(FACTORS) + 1,), row, device=pairs.images.device)
        mask = pairs.precision[pick] > 0
        if not bool(mask.any()):
            continue
        factors = torch.tensor([*FACTORS, math.inf]).to(pairs.target)
        target = pairs.target[pick]
        h = torch.sigmoid(target) if how.exact and how.model.has_sigmoid_features else target
        end = inversion.invert(
            how.model, [params], prior, h, labels[pick], (factors * one.error).square(),
            exact=how.exact, steps=STEPS, mask=mask, progress=progress,
        )  # fmt: skip
        gap = (end.x[:, 0].clamp(0, 1) - pairs.images[row].clamp(0, 1)).square().flatten(1).mean(1)
        total += gap.double().cpu()
    return total
