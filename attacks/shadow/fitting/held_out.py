"""How far a calibrated extractor is trusted: as far as serves best on images of the client that it was not fitted to.

A fit without some images predicts their features with an error (calibration.py). The errors of an image's features
are no independent draws, so that the error alone would trust too much. The attacker holds these images: they are inverted through
the fit with tau at FACTORS times the error, and the factor that brings them nearest is taken, inf, the class mean, among them.
"""

from __future__ import annotations

import math

import torch

from attacks.features import inversion
from attacks.features.inversion import ClassPrior
from attacks.shadow.fitting import calibration
from attacks.shadow.fitting.calibration import Calibration, Fit, HeldOut, Pairs
from privbench.tensors import Params
from privbench.types import Progress

FACTORS = (1.0, 3.0, 10.0)  # and inf
STEPS = 40  # of each inversion


def trusted(
    how: Calibration, prior: ClassPrior, extractors: list[Params], starts: list[Params], each: list[Pairs],
    labels: list[torch.Tensor], progress: Progress,
) -> list[Fit]:  # fmt: skip
    """The fits of some clients with the tau that each is worth; `labels` [n] are those of their images."""
    without = calibration.held_out(how, starts, each, progress)
    return [
        Fit(params, one.error * _factor(how, prior, one, pairs, y, progress))
        for params, one, pairs, y in zip(extractors, without, each, labels, strict=True)
    ]


def _factor(
    how: Calibration, prior: ClassPrior, one: HeldOut, pairs: Pairs, labels: torch.Tensor, progress: Progress
) -> float:
    """The factor with the least squared error of images that were left out, inf where that is the class mean's."""
    if math.isinf(one.error):
        return 1.0
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
    return (*FACTORS, math.inf)[int(total.argmin())]
