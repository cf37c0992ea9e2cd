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

from attacks.common import labels
from attacks.crafted import class_sums, clip_scale, heads
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
    """The label [V, B] of every image that a row holds alone, by the size of the row's dL/db; NONE where there is no such row.

    Where messages were clipped, sizes are those times a number of each message (clip_scale.py).
    """
    kind = heads.kind_of(artifact.model, artifact.weights["classifier"])
    if kind == "single":
        return binned.row
    classes = torch.full_like(binned.row, NONE)
    differences = kind == "steps"
    for v, there in enumerate(binned.row != NONE):
        scale = _scale(artifact, v, binned, differences=differences) if clip_scale.is_unknown(artifact) else 1.0
        for b in torch.nonzero(there)[:, 0].tolist():
            row = binned.row[v, b : b + 1]
            label, gap = likeliest_label(artifact, v, binned.h[v, b], row, scale, differences=differences)
            if gap < SAME:
                classes[v, b] = label
    return classes


def _scale(artifact: Artifact, victim: int, binned: BinnedImages, *, differences: bool) -> float:
    """By how much a clip has shortened a victim's message, as far as its last bias or its rows say."""
    h, rows = binned.h[victim], binned.row[victim]
    y = labels.recover(artifact.select(torch.tensor([victim], device=h.device)))[0]
    scale = clip_scale.of_last_bias(artifact, victim, per_image.probabilities(artifact, h), y)
    if scale is not None:
        return scale
    each = [
        _answers(artifact, victim, h[b], rows[b : b + 1], differences=differences)
        for b in torch.nonzero(rows != NONE)[:, 0].tolist()
    ]
    if not each:
        return 1.0
    expected = torch.stack([answers[:, 0] / (observed[0] * artifact.batch_size) for observed, answers in each])
    return clip_scale.of_rows(expected, SAME, alone=artifact.batch_size == 1)


def _answers(artifact: Artifact, victim: int, h: Tensor, rows: Tensor, *, differences: bool) -> tuple[Tensor, Tensor]:
    """(what some rows [n] of dL/db of a victim hold, what one image of features h [c, s, s] would put there by label [Y, n])."""
    name = f"{artifact.model.classifier.features_layer}.bias"

    def answers(bias: Tensor) -> Tensor:
        return (between(bias) if differences else bias)[rows]

    every = torch.arange(artifact.model.classes, device=h.device)
    each = torch.stack([answers(per_image.gradient_of(artifact, h, y)[name]) for y in every])
    return answers(artifact.gradients["classifier"][name][victim].double()), each


def likeliest_label(
    artifact: Artifact, victim: int, h: Tensor, rows: Tensor, scale: float = 1.0, *, differences: bool = False
) -> tuple[int, float]:
    """(label, relative gap) with which one image of features h [c, s, s] explains some rows [n] of dL/db of a victim best.

    With `differences` it explains those between them and the next ones; `scale`, by how much a clip has shortened the message.
    """
    observed, each = _answers(artifact, victim, h, rows, differences=differences)
    observed, gaps = observed / scale, []
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
    # Two neighbours share one gap: ties are the rule.
    for row in agreement.argsort(stable=True).tolist():
        one = quotient[row]
        if len(chosen) < batch and all((one - quotient[other]).norm() > SAME * size[row] for other in chosen):
            chosen.append(row)
    mean = bias @ weight / bias.square().sum().clamp_min(1e-300)
    missing = batch - len(chosen)
    h = torch.cat([quotient[chosen], mean.expand(missing, -1)]).clamp(*limits)
    return h, torch.cat([live[chosen], live.new_full((missing,), NONE)])
