"""What the rows of a steep layer (attacks/crafted/classifiers.py) hold of a batch: the features of single images, and their labels.

Row j of dL/dW over its dL/db is the mean of the features h of those images that lie near its level, weighted by how they answer.
Where it holds one image, that is its h, and so does its neighbour's: a mixture changes from row to row. What one image of
features h and label y would have put into a row says which y it was, and whether it was alone. Of rows of steps
(attacks/crafted/heads.py) the same holds of the difference between a row and the next.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from attacks.crafted import class_sums, heads
from attacks.features import per_image
from privbench.types import Artifact

LIVE = 1e-5  # of the largest dL/db_j: rows below it hold no image
LIVE_BETWEEN = 1e-4  # the same of differences of rows, which keep the rounding of both
SAME = 1e-2  # relative distance below which two rows hold the same image
NONE = -1  # in place of a row where there is none


class BinnedImages(NamedTuple):
    """The images of V batches, as rows hold them."""

    h: Tensor  # [V, B, c, s, s] float64; the mean of the rows where an image is missing
    row: Tensor  # [V, B] int64, the row that contains it; NONE where an image is missing


def features_of(artifact: Artifact) -> BinnedImages:
    """What the rows of every batch hold, those first on which neighbours agree best; of one layer, what its classes hold."""
    kind = heads.kind_of(artifact.model, artifact.weights["classifier"])
    if kind == "single":
        h, row = class_sums.features_of(artifact)
        return BinnedImages(h.unflatten(2, artifact.model.feature_shape), row)
    gradient, first = artifact.gradients["classifier"], artifact.model.classifier.features_layer
    low, high = (limit / (1 - artifact.model.dropout) for limit in artifact.model.feature_range)
    read = _rows if kind == "bumps" else _between_rows
    each = [
        read(weight, bias, artifact.batch_size, (low, high))
        for weight, bias in zip(gradient[f"{first}.weight"].double(), gradient[f"{first}.bias"].double(), strict=True)
    ]
    h, row = (torch.stack(t) for t in zip(*each, strict=True))
    return BinnedImages(h.unflatten(2, artifact.model.feature_shape), row)


def labels_of(artifact: Artifact, binned: BinnedImages) -> Tensor:
    """The label [V, B] of every image that a row holds alone, by the size of the row's dL/db; NONE where there is no such row."""
    kind = heads.kind_of(artifact.model, artifact.weights["classifier"])
    if kind == "single":
        return binned.row
    classes = torch.full_like(binned.row, NONE)
    for v, b in torch.nonzero(binned.row != NONE).tolist():
        label, gap = likeliest_label(artifact, v, binned.h[v, b], binned.row[v, b : b + 1], differences=kind == "steps")
        if gap < SAME:
            classes[v, b] = label
    return classes


def likeliest_label(
    artifact: Artifact, victim: int, h: Tensor, rows: Tensor, *, differences: bool = False
) -> tuple[int, float]:
    """(label, relative gap) with which one image of features h [c, s, s] explains some rows [n] of dL/db of a victim best.

    With `differences` it explains those between them and the next ones.
    """
    name = f"{artifact.model.classifier.features_layer}.bias"

    def answers(bias: Tensor) -> Tensor:
        return (between(bias) if differences else bias)[rows]

    observed = answers(artifact.gradients["classifier"][name][victim].double())
    every = torch.arange(artifact.model.classes, device=h.device)
    each = torch.stack([answers(per_image.gradient_of(artifact, h, y)[name]) for y in every])
    gaps = []
    # A row does not say whose image it holds, so that every weight that an image may have is tried.
    weights = artifact.image_weights
    for size in [artifact.batch_size] if weights is None else (1 / weights[victim].unique()).tolist():
        alone = observed * size
        gaps.append((each - alone).norm(dim=1) / alone.norm().clamp_min(1e-300))
    gap = torch.stack(gaps).amin(0)
    return int(gap.argmin()), float(gap.min())


def completed(identified: Tensor, recovered: Tensor) -> Tensor:
    """Labels [V, B]: those already known, and in place of NONE what is left of the batch's `recovered` ones."""
    whole = identified.clone()
    for v, (batch_labels, every) in enumerate(zip(identified.tolist(), recovered.tolist(), strict=True)):
        remaining = list(every)
        for label in batch_labels:
            if label in remaining:
                remaining.remove(label)
        whole[v, identified[v] == NONE] = identified.new_tensor(remaining[: batch_labels.count(NONE)])
    return whole


def between(rows: Tensor) -> Tensor:
    """What images between the level of each row and that of the next put into it: [m, ...] -> [m - 1, ...] of rows of steps."""
    return rows[:-1] - rows[1:]


def _between_rows(weight: Tensor, bias: Tensor, batch: int, limits: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """`_rows` of rows of steps: the features between the levels of neighbours, the largest dL/db first."""
    inputs, size = between(weight), between(bias)
    live = size.abs() > LIVE_BETWEEN * size.abs().max()
    chosen = torch.nonzero(live)[:, 0]
    chosen = chosen[size[chosen].abs().argsort(descending=True, stable=True)][:batch]
    mean, missing = size @ inputs / size.square().sum().clamp_min(1e-300), batch - len(chosen)
    h = torch.cat([inputs[chosen] / size[chosen, None], mean.expand(missing, -1)]).clamp(*limits)
    return h, torch.cat([chosen, chosen.new_full((missing,), NONE)])


def _rows(weight: Tensor, bias: Tensor, batch: int, limits: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """The features [B, n] within `limits` in the rows of one gradient, dL/dW [m, n] and dL/db [m], and the rows [B]."""
    live = torch.nonzero(bias.abs() > LIVE * bias.abs().max())[:, 0]
    quotient = weight[live] / bias[live, None]
    size = quotient.norm(dim=1).clamp_min(1e-300)
    gap = (quotient[1:] - quotient[:-1]).norm(dim=1) / size[1:]
    adjacent = live[1:] == live[:-1] + 1
    gap = torch.where(adjacent, gap, torch.inf)
    edge = gap.new_full((1,), torch.inf)
    agreement = torch.minimum(torch.cat([gap, edge]), torch.cat([edge, gap]))[: len(live)]  # none where no row is live
    chosen: list[int] = []
    for row in agreement.argsort().tolist():
        one = quotient[row]
        if len(chosen) < batch and all((one - quotient[other]).norm() > SAME * size[row] for other in chosen):
            chosen.append(row)
    mean = bias @ weight / bias.square().sum().clamp_min(1e-300)
    missing = batch - len(chosen)
    h = torch.cat([quotient[chosen], mean.expand(missing, -1)]).clamp(*limits)
    return h, torch.cat([live[chosen], live.new_full((missing,), NONE)])
