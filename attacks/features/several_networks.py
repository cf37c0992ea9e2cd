"""Descents of several images at once, of which each may go through extractors of its own.

A step of a small network is mostly Python, whose time many problems share. So the weights of small networks travel beside each
problem, and all problems descend together. A problem of a large network would have to move all of its weights: only those with the
same networks descend together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from attacks.common import batched, lbfgs
from privbench.tensors import Params
from privbench.types import Progress, no_progress

SMALL = 2**15  # weights of all networks of a problem that travel beside it; LeNet-5's extractor has 2,872
NAME = "networks"  # among the data of a problem


def together(each: Sequence[Sequence[Params]]) -> list[list[int]]:
    """Which of n problems descend together, given the networks of each: lists of rows, every row once."""
    alike: dict[tuple[int, ...], list[int]] = {}
    for row, networks in enumerate(each):
        alike.setdefault(_identity(networks), []).append(row)
    sizes = {len(networks) for networks in each}
    if len(sizes) == 1 and max(_weights(each[rows[0]]) for rows in alike.values()) <= SMALL:
        return [list(range(len(each)))]
    return list(alike.values())


def minimise(
    objective: Callable[[Tensor, batched.Data, list[Params]], Tensor],
    each: Sequence[Sequence[Params]],
    start: Tensor,
    data: batched.Data,
    *,
    steps: int,
    progress: Progress = no_progress,
    what: str,
) -> batched.Descent:
    """attacks/common/lbfgs.py from `start` [n, ...], where an objective is also given the networks of its problem.

    They come in the dtype and on the device of `start`.
    """
    parts = []
    for group in together(each):
        rows = torch.tensor(group, device=start.device)
        beside, networks = _beside([each[row] for row in group], start)

        def of_one(x: Tensor, one: batched.Data, networks: Callable[..., list[Params]] = networks) -> Tensor:
            return objective(x, one, networks(one))

        end = lbfgs.minimise(
            of_one, start[rows], batched.pick(data, rows) | beside, steps=steps, progress=progress, what=what
        )
        parts.append((rows, end))
    return batched.joined(parts)


def _beside(
    each: Sequence[Sequence[Params]], like: Tensor
) -> tuple[batched.Data, Callable[[batched.Data], list[Params]]]:
    """What travels beside problems that descend together, and what makes their networks of it; nothing where all have the same."""
    kinds = {_identity(networks): [{n: t.to(like) for n, t in one.items()} for one in networks] for networks in each}
    first = next(iter(kinds.values()))
    if len(kinds) == 1:
        return {}, lambda _: first
    laid = batched.EndToEnd(*(t.shape for one in first for t in one.values()))
    rows = {key: torch.cat([t.flatten() for one in networks for t in one.values()]) for key, networks in kinds.items()}

    def networks_of(data: batched.Data) -> list[Params]:
        tensors = iter(laid.split(data[NAME]))
        return [{name: next(tensors) for name in one} for one in first]

    return {NAME: torch.stack([rows[_identity(networks)] for networks in each])}, networks_of


def _identity(networks: Sequence[Params]) -> tuple[int, ...]:
    return tuple(id(params) for params in networks)


def _weights(networks: Sequence[Params]) -> int:
    return sum(t.numel() for params in networks for t in params.values())
