"""L-BFGS on many problems at once, each with its own history, line search and end; ended ones are taken out of the batch.

Nocedal and Wright, Numerical Optimization, 2nd ed., Algorithm 7.4 in its compact form (Byrd, Nocedal, Schnabel 1994), with
backtracking on Armijo's condition (quadratic interpolation) and pairs of negative curvature left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.common import batched
from attacks.common.batched import Data, Descent, Objective
from privbench.types import Progress, no_progress

EVERYONE = slice(None)  # rows of all problems under way
ARMIJO = 1e-4
MOST_BACKTRACKS = 12
SMALLEST_CURVATURE = 1e-12  # relative to |y|^2


def minimise(
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

    def run(x: Tensor, part: Data, inner: Progress) -> Descent:
        return _Lbfgs(objective, x, part, steps, history, tolerance, inner).run()

    return batched.in_chunks(run, start, data, progress, what)


class _Pairs:
    """The last m steps s and gradient changes y of n problems, and what they say of the inverse Hessian.

    The compact form of the two-loop recursion: the same direction, but the pairs are read in a few products instead of one
    by one. With S, Y [m, D] in order of time, R the upper triangle of S Y', E its diagonal and c = s'y / y'y of the last pair (1
    where it was left out),
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
        self.evaluate = batched.gradients(self.objective)
        self.shape, self.evaluations = self.start.shape[1:], 0
        everyone = torch.arange(len(self.start), device=self.start.device)
        x = self.start.flatten(1).clone()
        gradient, loss = self.at(x)
        end_x, end_loss = x.clone(), loss.clone()
        trace = [loss]
        alive = everyone[_finite(gradient, loss)]
        x, gradient, loss, self.data = x[alive], gradient[alive], loss[alive], batched.pick(self.data, alive)
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
                self.data = batched.pick(self.data, moving)
                self.pairs.keep(moving)
        end_x[alive] = x
        trace += [end_loss] * (self.steps + 1 - len(trace))
        return Descent(end_x.unflatten(1, self.shape), end_loss, torch.stack(trace, 1), self.evaluations)

    def at(self, x: Tensor, rows: Tensor | slice = EVERYONE) -> tuple[Tensor, Tensor]:
        """(gradient [n, D], loss [n]) of the problems under way, or of some `rows` of them."""
        self.evaluations += len(x)
        gradient, loss = self.evaluate(x.unflatten(1, self.shape), batched.pick(self.data, rows))
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
