"""Batched optimisers: every victim and restart descends its own objective, all in one batch.

The only vmap over victims. An objective is written for ONE victim, `objective(x, data) -> scalar`, where `data` is a dict
of that victim's tensors; here it runs over N = V x restarts problems. Problems never see each other: each has its own
L-BFGS history, line search and end, ended ones are taken out of the batch, and the batch is cut into chunks that bound
the memory. None of this changes a result beyond rounding.

L-BFGS: Nocedal and Wright, Numerical Optimization, 2nd ed., Algorithm 7.4 in its compact form (Byrd, Nocedal, Schnabel
1994), with backtracking on Armijo's condition (quadratic interpolation) and pairs of negative curvature left out. Adam:
Kingma and Ba 2015, without weight decay.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from privbench.types import Progress, Reconstruction, no_progress

Data = dict[str, Tensor]
Objective = Callable[[Tensor, Data], Tensor]
Optimiser = Literal["lbfgs", "adam"]

CHUNK = 32  # problems descended at once, at most: LeNet-5's take about 6 MB each, and this is the best size for a CPU's caches
CHUNK_BYTES = (
    2**28
)  # of data (observed gradients) in a chunk, which its graph takes a few times: ResNet-18's are 90 MB each
EVERYONE = slice(None)  # rows of all problems under way
ARMIJO = 1e-4
MOST_BACKTRACKS = 12
SMALLEST_CURVATURE = 1e-12  # relative to |y|^2


class Descent(NamedTuple):
    """Where N problems ended."""

    x: Tensor  # [N, ...]
    loss: Tensor  # [N]
    trace: Tensor  # [N, steps + 1], the loss after every step; an ended problem repeats its last
    evaluations: int  # objective gradients, summed over problems


def gradients(objective: Objective) -> Callable[[Tensor, Data], tuple[Tensor, Tensor]]:
    """(gradient [N, ...], loss [N]) of N problems at once."""
    return vmap(grad_and_value(objective))


def each_of(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of one problem's tensors, over the leading axis of N problems."""
    return vmap(function)


def pick(data: Data, rows: Tensor | slice) -> Data:
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


def lbfgs(
    objective: Objective,
    start: Tensor,
    data: Data,
    *,
    steps: int,
    history: int = 20,
    tolerance: float = 1e-12,
    progress: Progress = no_progress,
    what: str = "L-BFGS",
) -> Descent:
    """Minimises N problems from `start` [N, ...]; a problem ends after `steps`, or when a step gains less than `tolerance`.

    The gain is relative to the loss. A problem that meets no finite value stays at its last finite point.
    """

    def run(x: Tensor, own: Data, inner: Progress) -> Descent:
        return _Lbfgs(objective, x, own, steps, history, tolerance, inner).run()

    return in_chunks(run, start, data, progress, what)


class _Pairs:
    """The last m steps s and gradient changes y of n problems, and what they say of the inverse Hessian.

    The compact form of the two-loop recursion: the same direction, but the pairs are read in a few products instead of one
    by one. With S, Y [m, D] in order of time, R the upper triangle of S Y', E its diagonal and c = s'y / y'y of the last pair,
        H g = c g + S' (R^-T (E + c Y Y') R^-1 S g - c R^-T Y g) - c Y' R^-1 S g.
    A pair left out is zero in S and Y and 1 on R's diagonal. Slots are filled from the first on; empty ones are never read.
    """

    def __init__(self, problems: int, most: int, like: Tensor) -> None:
        self.most, self.order = most, list[int]()  # slots from the oldest pair to the newest
        self.s, self.y = (like.new_zeros(problems, most, like.shape[1]) for _ in range(2))
        self.sy, self.yy = (like.new_zeros(problems, most, most) for _ in range(2))

    def keep(self, rows: Tensor) -> None:
        """Forgets the problems that have ended."""
        self.s, self.y, self.sy, self.yy = self.s[rows], self.y[rows], self.sy[rows], self.yy[rows]

    def push(self, s: Tensor, y: Tensor) -> None:
        """Takes one more pair of every problem, [n, D] each; the oldest goes when there are more than m."""
        curvature = (s * y).sum(1)
        sound = curvature > SMALLEST_CURVATURE * (y * y).sum(1)
        if not bool(sound.all()):
            s, y = s.where(sound[:, None], 0.0), y.where(sound[:, None], 0.0)
        slot = len(self.order) if len(self.order) < self.most else self.order.pop(0)
        self.order.append(slot)
        self.s[:, slot], self.y[:, slot] = s, y
        filled = len(self.order)
        self.sy[:, :filled, slot] = _times(self.s[:, :filled], y)
        self.yy[:, slot, :filled] = self.yy[:, :filled, slot] = _times(self.y[:, :filled], y)

    def direction(self, gradient: Tensor) -> Tensor:
        """-H gradient, [n, D]."""
        if not self.order:
            return -gradient
        used = torch.tensor(self.order, device=gradient.device)
        diagonal = self.sy.diagonal(dim1=1, dim2=2)[:, used]
        sound = diagonal > 0
        r = self.sy[:, used][:, :, used].triu() + torch.diag_embed((~sound).to(gradient))
        yy = self.yy[:, used][:, :, used]
        c = torch.where(sound[:, -1], diagonal[:, -1] / yy[:, -1, -1].clamp_min(1e-300), 1.0)[:, None]
        all_s, all_y = self.s[:, : len(used)], self.y[:, : len(used)]
        s_g, y_g = _times(all_s, gradient)[:, used], _times(all_y, gradient)[:, used]
        upper = torch.linalg.solve_triangular(r, s_g[:, :, None], upper=True)[..., 0]
        middle = diagonal * upper + c * (_times(yy, upper) - y_g)
        lower = torch.linalg.solve_triangular(r.mT, middle[:, :, None], upper=False)[..., 0]
        along_s, along_y = torch.empty_like(lower), torch.empty_like(upper)
        along_s[:, used], along_y[:, used] = lower, -c * upper
        return -(c * gradient + _times(all_s.mT, along_s) + _times(all_y.mT, along_y))


def _finite(gradient: Tensor, loss: Tensor) -> Tensor:
    """Which problems have numbers alone, [n] bool, for a gradient [n, D] and a loss [n]; the largest size in one pass."""
    return loss.isfinite() & gradient.abs().amax(1).isfinite()


def _written(old: Tensor, rows: Tensor | slice, new: Tensor, good: Tensor) -> Tensor:
    """`old` [n, ...] with those of `rows` that are `good` taken from `new`; without a copy where that is everyone."""
    if isinstance(rows, slice):
        return new if bool(good.all()) else torch.where(good.view(-1, *(1,) * (new.ndim - 1)), new, old)
    old[rows[good]] = new[good]
    return old


def _times(matrices: Tensor, vectors: Tensor) -> Tensor:
    """[n, a, b] times [n, b] -> [n, a]; as a row from the left, which a CPU does five times faster than as a column."""
    return torch.bmm(vectors[:, None], matrices.mT)[:, 0]


@dataclass
class _Lbfgs:
    """One chunk of problems; rows of all tensors are the problems still under way."""

    objective: Objective
    start: Tensor
    data: Data
    steps: int
    history: int
    tolerance: float
    progress: Progress

    def run(self) -> Descent:
        self.evaluate = gradients(self.objective)
        self.shape, self.evaluations = self.start.shape[1:], 0
        everyone = torch.arange(len(self.start), device=self.start.device)
        x = self.start.flatten(1).clone()
        gradient, loss = self.at(x)
        end_x, end_loss = x.clone(), loss.clone()
        trace = [loss]
        alive = everyone[_finite(gradient, loss)]
        x, gradient, loss, self.data = x[alive], gradient[alive], loss[alive], pick(self.data, alive)
        self.pairs = _Pairs(len(alive), self.history, x)
        for step in range(self.steps):
            if not len(alive):
                break
            if step % 10 == 0:
                self.progress(step, self.steps, f"({len(alive)} of {len(everyone)} under way)")
            x, gradient, loss, moving = self.one_step(x, gradient, loss)
            end_loss[alive] = loss
            trace.append(end_loss.clone())
            if not bool(moving.all()):
                end_x[alive] = x
                alive, x, gradient, loss = alive[moving], x[moving], gradient[moving], loss[moving]
                self.data = pick(self.data, moving)
                self.pairs.keep(moving)
        end_x[alive] = x
        trace += [end_loss] * (self.steps + 1 - len(trace))
        return Descent(end_x.unflatten(1, self.shape), end_loss, torch.stack(trace, 1), self.evaluations)

    def at(self, x: Tensor, rows: Tensor | slice = EVERYONE) -> tuple[Tensor, Tensor]:
        """(gradient [n, D], loss [n]) of the problems under way, or of some `rows` of them."""
        self.evaluations += len(x)
        gradient, loss = self.evaluate(x.unflatten(1, self.shape), pick(self.data, rows))
        return gradient.flatten(1), loss

    def one_step(self, x: Tensor, gradient: Tensor, loss: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """One line search of every problem: (x, gradient, loss, whether it goes on)."""
        d = self.pairs.direction(gradient)
        slope = (d * gradient).sum(1)
        uphill = ~(slope < 0)
        d[uphill], slope[uphill] = -gradient[uphill], -gradient[uphill].square().sum(1)
        size = torch.ones_like(loss)
        if not self.pairs.order:
            size = (1 / gradient.norm(dim=1).clamp_min(1e-300)).clamp_max(1.0)
        ends: tuple[Tensor, ...] = x, gradient, loss
        open_: Tensor | slice = EVERYONE
        for _ in range(MOST_BACKTRACKS):
            trial = x[open_] + size[open_, None] * d[open_]
            g, f = self.at(trial, open_)
            good = _finite(g, f) & (f <= loss[open_] + ARMIJO * size[open_] * slope[open_])
            ends = tuple(_written(end, open_, new, good) for end, new in zip(ends, (trial, g, f), strict=True))
            if bool(good.all()):
                break
            bad, f = torch.arange(len(x), device=x.device)[open_][~good], f[~good]
            # The parabola through f(0), f'(0) and f(size) has its minimum here; kept between a tenth and a half.
            gap = f - loss[bad] - size[bad] * slope[bad]
            ratio = torch.where(gap.isfinite() & (gap > 0), -slope[bad] * size[bad] / (2 * gap), torch.zeros_like(gap))
            size[bad] = size[bad] * ratio.clamp(0.1, 0.5)
            open_ = bad
        new_x, new_gradient, new_loss = ends
        self.pairs.push(new_x - x, new_gradient - gradient)
        moving = loss - new_loss > self.tolerance * loss.abs()
        return new_x, new_gradient, new_loss, moving


def adam(  # noqa: PLR0913 (an optimiser's settings)
    objective: Objective,
    start: Tensor,
    data: Data,
    *,
    steps: int,
    lr: float,
    sign: bool = False,
    box: tuple[float, float] | tuple[Tensor, Tensor] | None = None,
    progress: Progress = no_progress,
    what: str = "Adam",
) -> Descent:
    """Adam on N problems; with `sign` each gradient is replaced by its sign, and the rate falls by 10 at 3/8, 5/8 and 7/8.

    That decay is the one of Geiping et al. 2020, as is the projection onto a `box` (lowest, highest; one for all numbers, or for
    each) after every step. The point with the lowest own objective is returned.
    """

    def run(x: Tensor, own: Data, inner: Progress) -> Descent:
        evaluate = gradients(objective)
        x = x.clone()
        mean, square = torch.zeros_like(x), torch.zeros_like(x)
        best_x, best_loss, trace = x.clone(), torch.full((len(x),), torch.inf, dtype=x.dtype, device=x.device), []
        wide = (-1,) + (1,) * (x.ndim - 1)
        for step in range(steps + 1):
            if step % 10 == 0:
                inner(step, steps, "")
            gradient, loss = evaluate(x, own)
            better = loss < best_loss
            best_x = torch.where(better.view(wide), x, best_x)
            best_loss = torch.where(better, loss, best_loss)
            trace.append(best_loss)
            gradient = gradient.sign() if sign else gradient
            mean, square = mean.lerp(gradient, 0.1), square.lerp(gradient.square(), 0.001)
            corrected = (square / (1 - 0.999 ** (step + 1))).sqrt() + 1e-8
            rate = lr * 0.1 ** sum(step >= steps * part / 8 for part in (3, 5, 7))
            x = x - rate * (mean / (1 - 0.9 ** (step + 1))) / corrected
            x = x if box is None else x.clamp(*box)
        return Descent(best_x, best_loss, torch.stack(trace, 1), len(x) * (steps + 1))

    return in_chunks(run, start, data, progress, what)


def by(
    optimiser: Optimiser,
    objective: Objective,
    start: Tensor,
    data: Data,
    *,
    steps: int,
    lr: float,
    progress: Progress = no_progress,
    what: str,
) -> Descent:
    """`lbfgs`, or `adam` at the rate `lr`, which L-BFGS ignores."""
    if optimiser == "adam":
        return adam(objective, start, data, steps=steps, lr=lr, progress=progress, what=what)
    return lbfgs(objective, start, data, steps=steps, progress=progress, what=what)


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
    better = second.loss < first.loss
    traces = of_one_length([first.trace, second.trace])
    wide = better.view(-1, *(1,) * (first.x.ndim - 1))
    x, loss = torch.where(wide, second.x, first.x), torch.where(better, second.loss, first.loss)
    return Descent(x, loss, torch.where(better[:, None], traces[1], traces[0]), first.evaluations + second.evaluations)


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
