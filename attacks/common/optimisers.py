"""The optimisers by the names that settings have for them."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from attacks.common import adam, lbfgs
from attacks.common.batched import Data, Descent, Objective
from privbench.types import Progress, no_progress

Optimiser = Literal["lbfgs", "adam"]


def minimise(
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
    """`lbfgs`, or `adam` from the rate `lr` on, which L-BFGS ignores."""
    if optimiser == "adam":
        return adam.minimise(objective, start, data, steps=steps, lr=lr, progress=progress, what=what)
    return lbfgs.minimise(objective, start, data, steps=steps, progress=progress, what=what)
