"""What the rows of an imprinted layer (attacks/imprint.py) hold of a batch: the features of single images.

Row j of dL/dW over its dL/db is the mean of the features h of those images that lie near its level, weighted by how they answer.
Where it holds one image, that is its h, and so does its neighbour's: a mixture changes from row to row.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from privbench.types import Artifact

LIVE = 1e-5  # of the largest dL/db_j: rows below it hold no image
SAME = 1e-2  # relative distance below which two rows hold the same image
CLEAR = 5.0  # standard deviations of the noise: rows whose dL/db_j is below hold no image


def features_of(artifact: Artifact) -> Tensor:
    """h [V, B, c, s, s] of every batch, as the rows of its imprinted layer hold them; the mean where a row is missing."""
    found = [_rows(weight, bias, artifact.batch_size) for weight, bias in _layers(artifact)]
    return torch.stack(found).unflatten(2, artifact.model.feature_shape)


def noisy_features_of(artifact: Artifact, variance: float) -> tuple[Tensor, Tensor]:
    """The same under noise of some variance, and the variance of their error [V, B]: inf, and h 0, where a row is missing."""
    found = [_noisy_rows(weight, bias, artifact.batch_size, variance) for weight, bias in _layers(artifact)]
    h, error = (torch.stack(each) for each in zip(*found, strict=True))
    return h.unflatten(2, artifact.model.feature_shape), error


def _layers(artifact: Artifact) -> Iterator[tuple[Tensor, Tensor]]:
    """dL/dW [m, n] and dL/db [m] of each victim's imprinted layer."""
    gradient = artifact.gradients["classifier"]
    return zip(gradient["fc1.weight"].double(), gradient["fc1.bias"].double(), strict=True)


def _rows(weight: Tensor, bias: Tensor, batch: int) -> Tensor:
    """The features [B, n] that the rows of one gradient hold, those first on which neighbours agree best."""
    live = torch.nonzero(bias.abs() > LIVE * bias.abs().max())[:, 0]
    quotient = weight[live] / bias[live, None]
    size = quotient.norm(dim=1).clamp_min(1e-300)
    gap = (quotient[1:] - quotient[:-1]).norm(dim=1) / size[1:]
    adjacent = live[1:] == live[:-1] + 1
    gap = torch.where(adjacent, gap, torch.inf)
    edge = gap.new_full((1,), torch.inf)
    agreement = torch.minimum(torch.cat([gap, edge]), torch.cat([edge, gap]))[: len(live)]  # none where no row is live
    chosen: list[Tensor] = []
    for row in agreement.argsort().tolist():
        one = quotient[row]
        if len(chosen) < batch and all((one - other).norm() > SAME * size[row] for other in chosen):
            chosen.append(one)
    mean = bias @ weight / bias.square().sum().clamp_min(1e-300)
    return torch.stack(chosen + [mean] * (batch - len(chosen))).clamp(0, 1)


def _noisy_rows(weight: Tensor, bias: Tensor, batch: int, variance: float) -> tuple[Tensor, Tensor]:
    """(features [B, n], error variance [B]) of rows that stand out of the noise and agree with a neighbour, loudest first.

    A quotient's error is variance (1 + h^2) / dL/db_j^2, here with the mean h^2; rows whose quotients differ by no more than
    theirs agree.
    """
    quotient = weight / bias[:, None]
    error = variance * (1 + quotient.square().mean(1)) / bias.square()
    live = bias.abs() > CLEAR * variance**0.5
    n = weight.shape[1]

    def alike(one: int, other: int) -> bool:
        gap = float((quotient[one] - quotient[other]).square().sum() / (error[one] + error[other]))
        return gap < n + CLEAR * (2 * n) ** 0.5

    chosen: list[int] = []
    for row in bias.abs().argsort(descending=True)[: int(live.sum())].tolist():
        beside = [other for other in (row - 1, row + 1) if 0 <= other < len(bias) and bool(live[other])]
        sure = any(alike(row, other) for other in beside)
        if sure and len(chosen) < batch and not any(alike(row, other) for other in chosen):
            chosen.append(row)
    missing = batch - len(chosen)
    h = torch.cat([quotient[chosen], quotient.new_zeros(missing, n)])
    return h, torch.cat([error[chosen], error.new_full((missing,), torch.inf)])
