"""Which features are whose: uploads of a client paired with images of it, within what is known to belong together.

Nothing says in which order images came up, but their labels do in part: within a label (and within an upload, where that is known),
features go to the images whose features they are nearest to, by the Hungarian method (Kuhn, Naval Research Logistics 2, 1955).
"""

from __future__ import annotations

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor


def assigned(predicted: Tensor, observed: Tensor, groups: Tensor, observed_groups: Tensor) -> Tensor:
    """For each of n images the row of `observed` that is its own: [n] int64, -1 where its group has too few.

    predicted, observed   [n, D] and [m, D], features as the images' extractor is thought to make them, and as they were seen
    groups                [n] and [m] int64: a pair is of one group
    """
    rows = torch.full((len(predicted),), -1, dtype=torch.int64)
    for group in sorted(set(groups.tolist())):
        own, theirs = (torch.nonzero(t == group)[:, 0].cpu() for t in (groups, observed_groups))
        if not len(theirs):
            continue
        cost = torch.cdist(predicted[own].double(), observed[theirs].double()).square().nan_to_num(1e300, 1e300, 1e300)
        first, second = linear_sum_assignment(cost.cpu().numpy())
        rows[own[torch.as_tensor(first)]] = theirs[torch.as_tensor(second)]
    return rows.to(predicted.device)


def alone(groups: Tensor) -> Tensor:
    """Which of n images are the only one of their group, [n] bool: of these the pair is sure."""
    return (groups[:, None] == groups).sum(1) == 1
