"""Batched optimisers: every victim and restart descends its own objective, all in one batch.

The only vmap over victims. An objective is written for ONE victim, `objective(x, data) -> scalar`, where `data` is a dict
of that victim's tensors; here it runs over N = V x restarts problems. Problems never see each other: each has its own
L-BFGS history, line search and end, ended ones are taken out of the batch, and the batch is cut into chunks that bound
the memory. None of this changes a result beyond rounding.

L-BFGS: Nocedal and Wright, Numerical Optimization, 2nd ed., Algorithm 7.4, with backtracking on Armijo's condition
(quadratic interpolation) and pairs of negative curvature left out. Adam: Kingma and Ba 2015, without weight decay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from privbench.types import Report, no_report

Data = dict[str, Tensor]
Objective = Callable[[Tensor, Data], Tensor]

CHUNK = 64  # problems descended at once: about 6 MB each with history and graph, and the best size for a CPU's caches
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


def pick(data: Data, rows: Tensor | slice) -> Data:
    """Some problems' data."""
    return {name: t[rows] for name, t in data.items()}


def in_chunks(
    run: Callable[[Tensor, Data, Report], Descent], start: Tensor, data: Data, report: Report, what: str
) -> Descent:
    """Runs N problems CHUNK at a time and joins the ends."""
    ends = []
    chunks = range(0, len(start), CHUNK)
    for number, first in enumerate(chunks):

        def chunk_report(done: int, total: int, detail: str, number: int = number) -> None:
            report(number * total + done, len(chunks) * total, f"{what} {detail}".strip())

        rows = slice(first, first + CHUNK)
        ends.append(run(start[rows], pick(data, rows), chunk_report))
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
    report: Report = no_report,
    what: str = "L-BFGS",
) -> Descent:
    """Minimises N problems from `start` [N, ...]; a problem ends after `steps`, or when a step gains less than `tolerance`.

    The gain is relative to the loss. A problem that meets no finite value stays at its last finite point.
    """

    def run(x: Tensor, own: Data, inner: Report) -> Descent:
        return _Lbfgs(objective, x, own, steps, history, tolerance, inner).run()

    return in_chunks(run, start, data, report, what)


@dataclass
class _Lbfgs:
    """One chunk of problems; rows of all tensors are the problems still under way."""

    objective: Objective
    start: Tensor
    data: Data
    steps: int
    history: int
    tolerance: float
    report: Report
    pairs: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)  # (s [n, D], y [n, D], 1/s'y or 0 [n])

    def run(self) -> Descent:
        self.evaluate = gradients(self.objective)
        self.shape, self.evaluations = self.start.shape[1:], 0
        everyone = torch.arange(len(self.start), device=self.start.device)
        x = self.start.flatten(1).clone()
        gradient, loss = self.at(x, everyone)
        end_x, end_loss = x.clone(), loss.clone()
        trace = [loss]
        alive = everyone[loss.isfinite() & gradient.isfinite().all(1)]
        x, gradient, loss = x[alive], gradient[alive], loss[alive]
        for step in range(self.steps):
            if not len(alive):
                break
            if step % 10 == 0:
                self.report(step, self.steps, f"({len(alive)} of {len(everyone)} under way)")
            x, gradient, loss, moving = self.one_step(x, gradient, loss, alive)
            end_x[alive], end_loss[alive] = x, loss
            trace.append(end_loss.clone())
            if not bool(moving.all()):
                alive, x, gradient, loss = alive[moving], x[moving], gradient[moving], loss[moving]
                self.pairs = [(s[moving], y[moving], r[moving]) for s, y, r in self.pairs]
        trace += [end_loss] * (self.steps + 1 - len(trace))
        return Descent(end_x.unflatten(1, self.shape), end_loss, torch.stack(trace, 1), self.evaluations)

    def at(self, x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(gradient [n, D], loss [n]) of the problems in `rows`."""
        self.evaluations += len(rows)
        gradient, loss = self.evaluate(x.unflatten(1, self.shape), pick(self.data, rows))
        return gradient.flatten(1), loss

    def direction(self, gradient: Tensor) -> Tensor:
        """-H gradient by the two-loop recursion, [n, D]."""
        q, alphas = gradient.clone(), []
        for s, y, r in reversed(self.pairs):
            alpha = r * (s * q).sum(1)
            q -= alpha[:, None] * y
            alphas.append(alpha)
        if self.pairs:
            s, y, r = self.pairs[-1]
            scale = torch.where(r > 0, 1 / (r * (y * y).sum(1)).clamp_min(1e-300), torch.ones_like(r))
            q *= scale[:, None]
        for (s, y, r), alpha in zip(self.pairs, reversed(alphas), strict=True):
            beta = r * (y * q).sum(1)
            q += (alpha - beta)[:, None] * s
        return -q

    def one_step(
        self, x: Tensor, gradient: Tensor, loss: Tensor, alive: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """One line search of every problem: (x, gradient, loss, whether it goes on)."""
        d = self.direction(gradient)
        slope = (d * gradient).sum(1)
        uphill = ~(slope < 0)
        d[uphill], slope[uphill] = -gradient[uphill], -gradient[uphill].square().sum(1)
        size = torch.ones_like(loss)
        if not self.pairs:
            size = (1 / gradient.norm(dim=1).clamp_min(1e-300)).clamp_max(1.0)
        new_x, new_gradient, new_loss = x.clone(), gradient.clone(), loss.clone()
        open_ = torch.arange(len(alive), device=x.device)
        for _ in range(MOST_BACKTRACKS):
            trial = x[open_] + size[open_, None] * d[open_]
            g, f = self.at(trial, alive[open_])
            good = f.isfinite() & g.isfinite().all(1) & (f <= loss[open_] + ARMIJO * size[open_] * slope[open_])
            taken = open_[good]
            new_x[taken], new_gradient[taken], new_loss[taken] = trial[good], g[good], f[good]
            bad, f = open_[~good], f[~good]
            if not len(bad):
                open_ = bad
                break
            # The parabola through f(0), f'(0) and f(size) has its minimum here; kept between a tenth and a half.
            gap = f - loss[bad] - size[bad] * slope[bad]
            ratio = torch.where(gap.isfinite() & (gap > 0), -slope[bad] * size[bad] / (2 * gap), torch.zeros_like(gap))
            size[bad] = size[bad] * ratio.clamp(0.1, 0.5)
            open_ = bad
        s, y = new_x - x, new_gradient - gradient
        curvature = (s * y).sum(1)
        sound = curvature > SMALLEST_CURVATURE * (y * y).sum(1)
        self.pairs.append(
            (s, y, torch.where(sound, 1 / curvature.where(sound, torch.ones_like(curvature)), 0 * curvature))
        )
        del self.pairs[: -self.history]
        moving = loss - new_loss > self.tolerance * loss.abs()
        return new_x, new_gradient, new_loss, moving


def adam(
    objective: Objective,
    start: Tensor,
    data: Data,
    *,
    steps: int,
    lr: float,
    sign: bool = False,
    report: Report = no_report,
    what: str = "Adam",
) -> Descent:
    """Adam on N problems; with `sign` each gradient is replaced by its sign, and the rate falls by 10 at 3/8, 5/8 and 7/8.

    That decay is the one of Geiping et al. 2020. The point with the lowest own objective is returned.
    """

    def run(x: Tensor, own: Data, inner: Report) -> Descent:
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
        return Descent(best_x, best_loss, torch.stack(trace, 1), len(x) * (steps + 1))

    return in_chunks(run, start, data, report, what)


def best_restart(end: Descent, restarts: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of `restarts` descents per victim (victim-major), the one with the lowest own loss.

    (x, loss, trace, index), each [V, ...].
    """
    loss = end.loss.unflatten(0, (-1, restarts))
    index = loss.nan_to_num(nan=torch.inf).argmin(1)
    rows = torch.arange(len(index), device=index.device) * restarts + index
    return end.x[rows], end.loss[rows], end.trace[rows], index
