"""By how much a clip has shortened a message that a crafted classifier brought back: s of s g, 0 < s <= 1.

Crafted gradients are larger than honest ones, so that a clip acts on nearly all of them. The size of an image's gradient, which
reveals its label (classifiers.py), is known up to s then. Two equations have s alone in them:
    last bias    s (mean of p - n / B), n how often each class is in the batch: of messages that nothing but a clip has changed
    rows         every row that holds one image of a message has s times one of the sizes that a label gives it: where the last
                 bias holds more than that, several rows have to agree on s
"""

from __future__ import annotations

import torch
from torch import Tensor

from attacks.common import labels
from privbench.defending import described
from privbench.types import Artifact

FINEST = 1e-6  # to which rows agree in single precision
SMALLEST = 1e-300


def is_unknown(artifact: Artifact) -> bool:
    """Whether whole messages were clipped, and uploads are messages of one client each, or show one client's rows."""
    clipped = any("clip" in described.kinds(one) for one in described.single(artifact.defense))
    return clipped and artifact.member_weights is None


def of_last_bias(artifact: Artifact, victim: int, p: Tensor, y: Tensor) -> float | None:
    """s by the last bias of images with probabilities p [..., Y] and labels y [B]; None where more than a clip may be in it."""
    if not labels.is_clipped_alone(artifact):
        return None
    bias = artifact.gradients["classifier"][f"{artifact.model.classifier.logits_layer}.bias"][victim].double()
    error = p.double().reshape(-1, p.shape[-1]).mean(0) - torch.bincount(y, minlength=p.shape[-1]).to(bias) / len(y)
    s = float(bias @ error / error.square().sum().clamp_min(SMALLEST))
    return min(s, 1.0) if s > 0 else None


def of_rows(expected: Tensor, same: float, *, alone: bool) -> float:
    """s by rows that may hold one image each, from what one image of each label would have put into them.

    expected: [n, Y], relative to what was observed, so that the label of a row has expected = 1 / s up to `same`. Every such number
    is tried for s, and s is that with the largest
        sum over the other rows that agree of log(same / d)
    where d is how far their number nearest to it is from it: by chance, d is anywhere below `same`. It is 1 where no other row
    agrees. With few rows chance may decide, and labels are wrong then. Of messages of one image (`alone`), whose rows are all its
    own and say no more than one, it is the largest s.
    """
    every = 1 / expected
    rows, _ = torch.nonzero((every > 0) & (every < 1 + same), as_tuple=True)
    tried = every[(every > 0) & (every < 1 + same)].clamp_max(1)
    if not len(tried):
        return 1.0
    if alone:
        return float(tried.max())
    gap = (torch.cat([tried, tried.new_ones(1)])[:, None, None] * expected - 1).abs().amin(2)  # [s, n]
    agreed = (same / gap.clamp_min(FINEST)).log().clamp_min(0)
    agreed[torch.arange(len(tried)), rows] = 0
    score = agreed.sum(1)
    best = int(score[:-1].argmax())
    return float(tried[best]) if score[best] > score[-1] else 1.0
