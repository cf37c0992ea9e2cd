"""Every victim and restart descends its own objective, all in one batch: the only vmap over victims.

An objective is written for ONE victim, `objective(x, data) -> scalar`, where `data` is a dict of that victim's tensors; here it
runs over N = V x restarts problems. The batch is cut into chunks that bound the memory. None of this changes a result beyond
rounding. The optimisers stand in attacks/common/lbfgs.py and attacks/common/adam.py.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from privbench.types import Progress, Reconstruction

LOG = logging.getLogger("privbench")
Data = dict[str, Tensor]
Objective = Callable[[Tensor, Data], Tensor]

# Problems descended at once, at most: LeNet-5's take about 6 MB each, and this is the best size for a CPU's caches.
CHUNK = 32
# Of data (observed gradients) in a chunk, which its graph takes a few times: ResNet-18's are 90 MB each.
CHUNK_BYTES = 2**28


class Descent(NamedTuple):
    """Where N problems ended."""

    x: Tensor  # [N, ...]
    loss: Tensor  # [N]
    # [N, steps + 1], the loss after every step (Adam: the lowest so far); an ended problem repeats its last
    trace: Tensor
    evaluations: int  # objective gradients, summed over problems


def gradients(objective: Objective) -> Callable[[Tensor, Data], tuple[Tensor, Tensor]]:
    """(gradient [N, ...], loss [N]) of N problems at once."""
    return over_problems(grad_and_value(objective))


def over_problems(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of one problem's tensors, over the leading axis of N problems: all at once by vmap.

    One problem after another, with the same numbers, where the networks are a user's and do what vmap cannot batch; it is logged.
    An error that has another cause is raised by the first problem.
    """
    at_once, refused = vmap(function), threading.Event()

    def call(*arguments: Tensor | Data) -> Any:
        if not refused.is_set():
            try:
                return at_once(*arguments)
            except RuntimeError as error:
                answers = one_by_one(*arguments)
                # torch has no error of its own for what it cannot batch: it is one that a single problem does not meet.
                refused.set()
                LOG.warning(
                    "victims are attacked one after another, because they cannot be batched: %s", _message(error)
                )
                return answers
        return one_by_one(*arguments)

    def one_by_one(*arguments: Tensor | Data) -> Any:
        first = arguments[0]
        count = len(next(iter(first.values())) if isinstance(first, dict) else first)
        each = [function(*(pick(a, n) if isinstance(a, dict) else a[n] for a in arguments)) for n in range(count)]
        if isinstance(each[0], tuple):
            return tuple(torch.stack(parts) for parts in zip(*each, strict=True))
        return torch.stack(each)

    return call


def _message(error: Exception) -> str:
    """The first sentence of an error."""
    return " ".join(str(error).split()).partition(". ")[0]


class EndToEnd:
    """Several tensors of a problem, laid end to end so that they descend as one."""

    def __init__(self, *shapes: Sequence[int]) -> None:
        self.shapes = [torch.Size(shape) for shape in shapes]

    def joined(self, *tensors: Tensor) -> Tensor:
        """Tensors [N, *shape] of N problems, in order -> [N, D]."""
        return torch.cat([t.flatten(1) for t in tensors], 1)

    def split(self, joined: Tensor) -> list[Tensor]:
        """[..., D] -> the tensors [..., *shape]."""
        pieces = joined.split([shape.numel() for shape in self.shapes], -1)
        return [t.unflatten(-1, shape) for t, shape in zip(pieces, self.shapes, strict=True)]


def each_of(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of one problem's tensors, over the leading axis of N problems."""
    return over_problems(function)


def pick(data: Data, rows: Tensor | slice | int) -> Data:
    """Some problems' data."""
    return {name: t[rows] for name, t in data.items()}


def threads_for(start: Tensor, chunks: int) -> int:
    """How many chunks to descend at a time: one per thread on a CPU, one at all on a GPU."""
    return min(torch.get_num_threads(), max(chunks, 1)) if start.device.type == "cpu" else 1


def chunk_size(start: Tensor, data: Data) -> int:
    """How many of N problems to descend at once: CHUNK, fewer where their data are large."""
    each = sum(t[0].numel() * t.element_size() for t in data.values()) if len(start) else 0
    return max(1, min(CHUNK, CHUNK_BYTES // max(each, 1)))


def in_chunks(
    run: Callable[[Tensor, Data, Progress], Descent], start: Tensor, data: Data, progress: Progress, what: str
) -> Descent:
    """Runs N problems in chunks, one chunk per thread, and joins the ends.

    The chunks are the same however many threads there are, and so are the numbers.
    """
    size = chunk_size(start, data)
    chunks = [slice(first, first + size) for first in range(0, len(start), size)]
    done_by_chunk = [0] * len(chunks)

    def one(number: int) -> Descent:
        def chunk_report(done: int, total: int, detail: str) -> None:
            done_by_chunk[number] = done
            progress(sum(done_by_chunk), len(chunks) * total, f"{what} {detail}".strip())

        return run(start[chunks[number]], pick(data, chunks[number]), chunk_report)

    with ThreadPoolExecutor(threads_for(start, len(chunks)), initializer=partial(torch.set_num_threads, 1)) as executor:
        ends = list(executor.map(one, range(len(chunks))))
    x, loss, trace = (torch.cat([getattr(end, name) for end in ends]) for name in ("x", "loss", "trace"))
    return Descent(x, loss, trace, sum(end.evaluations for end in ends))


def of_one_length(traces: list[Tensor]) -> list[Tensor]:
    """Traces [N, T], where shorter ones repeat their last value."""
    length = max(t.shape[1] for t in traces)
    return [torch.cat([t, t[:, -1:].expand(-1, length - t.shape[1])], 1) for t in traces]


def joined(parts: list[tuple[Tensor, Descent]]) -> Descent:
    """Descents of some problems each, put back in the order of all problems; shorter traces repeat their last value."""
    back = torch.cat([rows for rows, _ in parts]).argsort()
    traces = of_one_length([end.trace for _, end in parts])
    x, loss = (torch.cat([getattr(end, name) for _, end in parts])[back] for name in ("x", "loss"))
    return Descent(x, loss, torch.cat(traces)[back], sum(end.evaluations for _, end in parts))


def lower(first: Descent, second: Descent) -> Descent:
    """Of each problem the end with the lower objective, which both share; the first where they are alike."""
    return either(second.loss < first.loss, second, first)


def either(which: Tensor, one: Descent, other: Descent) -> Descent:
    """`one` for the problems of `which` [N] bool, `other` for the rest."""
    traces = of_one_length([one.trace, other.trace])
    wide = which.view(-1, *(1,) * (one.x.ndim - 1))
    x, loss = torch.where(wide, one.x, other.x), torch.where(which, one.loss, other.loss)
    return Descent(x, loss, torch.where(which[:, None], traces[0], traces[1]), one.evaluations + other.evaluations)


def best_restart(end: Descent, restarts: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of `restarts` descents per victim (victim-major), the one with the lowest own loss.

    (x, loss, trace, index), each [V, ...].
    """
    loss = end.loss.unflatten(0, (-1, restarts))
    index = loss.nan_to_num(nan=torch.inf).argmin(1)
    rows = torch.arange(len(index), device=index.device) * restarts + index
    return end.x[rows], end.loss[rows], end.trace[rows], index


def reconstruction(end: Descent, restarts: int, labels: Tensor) -> Reconstruction:
    """The best restart of descents on images, with the labels [V, B] that they were made for."""
    x, loss, trace, restart = best_restart(end, restarts)
    return Reconstruction(x, labels, loss, trace, restart, end.evaluations)
