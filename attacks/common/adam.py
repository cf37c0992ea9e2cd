"""Adam on many problems at once: Kingma and Ba 2015, without weight decay."""

from __future__ import annotations

import torch
from torch import Tensor

from attacks.common import batched
from attacks.common.batched import Data, Descent, Objective
from privbench.types import Progress, no_progress


def minimise(  # noqa: PLR0913 (an optimiser's settings)
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
    """Adam on N problems, whose rate falls by 10 at 3/8, 5/8 and 7/8; with `sign` each gradient is replaced by its sign.

    That decay is the one of Geiping et al. 2020, as is the projection onto a `box` (lowest, highest; one for all numbers, or for
    each) after every step. The point with the lowest own objective is returned.
    """

    def run(x: Tensor, part: Data, inner: Progress) -> Descent:
        evaluate = batched.gradients(objective)
        x = x.clone()
        mean, square = torch.zeros_like(x), torch.zeros_like(x)
        best_x, best_loss, trace = x.clone(), torch.full((len(x),), torch.inf, dtype=x.dtype, device=x.device), []
        wide = (-1,) + (1,) * (x.ndim - 1)
        for step in range(steps + 1):
            if step % 10 == 0:
                inner(step, steps, "")
            gradient, loss = evaluate(x, part)
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

    return batched.in_chunks(run, start, data, progress, what)
