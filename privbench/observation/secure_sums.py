"""What a server gets of several clients where a defence adds their messages up: sums of uploads, of networks and of counts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from privbench.defense import Defense
from privbench.seeds import stream
from privbench.tensors import Parts
from privbench.training import aggregation


def of_messages(
    defense: Defense, sent: Sequence[tuple[Parts, Parts]], weights: Sequence[int], seed: int
) -> list[tuple[Parts, Parts]]:
    """The V sums of V K messages, those of clients 1 to K in a row: each the mean by the clients' numbers of training images."""
    clients = len(weights)
    return [
        aggregation.sum_of(defense, sent[start : start + clients], weights, stream(seed, "victims", v, "aggregate"))[:2]
        for v, start in enumerate(range(0, len(sent), clients))
    ]


def of_networks(
    defense: Defense, uploads: Sequence[tuple[Parts, Parts]], weights: Sequence[int], seed: int
) -> list[tuple[Parts, Parts]]:
    """The one sum of the networks that clients send as weights; all K, of no parts, where they send none."""
    if not uploads[0][0]:
        return list(uploads)
    params, buffers, _ = aggregation.sum_of(defense, uploads, weights, stream(seed, "victims", "networks", "aggregate"))
    return [(params, buffers)]


def of_counts(defense: Defense, counts: Tensor, seed: int) -> Tensor:
    """The sum of n_i^y over clients, [1, Y] int64, from [K, Y]."""
    mean = aggregation.sum_of_counts(defense, counts, stream(seed, "victims", "counts", "aggregate")).tensors
    return (len(counts) * mean[aggregation.COUNTS]["n"]).round().long()[None]


def shares(weights: Sequence[int], messages: int) -> Tensor:
    """The weight of each client in each sum, [V, K] float64."""
    each = torch.tensor(weights, dtype=torch.float64)
    return (each / each.sum()).expand(messages, -1).clone()
