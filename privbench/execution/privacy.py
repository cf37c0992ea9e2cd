"""What a run's defence guarantees for what its clients sent, as results hold it and as tables say it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from privbench.records.entries import Privacy
from privbench.scoring import epsilon_bounds
from privbench.spec import TrainSpec
from privbench.training import defended, harness
from privbench.types import Federation

NO_GUARANTEE = "no (epsilon, delta) guarantee"
UNITS = {"example": "image", "client": "client"}


def of_run(spec: TrainSpec, federation: Federation, rounds: int) -> list[dict[str, Any]] | None:
    """For each client after so many rounds, as `Privacy` writes it; None where nothing is guaranteed."""
    each = defended.guarantees(harness.prepare(spec, federation, torch.device("cpu")), rounds)
    return [
        Privacy(
            epsilon=one.epsilon if math.isfinite(one.epsilon) else None,
            delta=one.delta,
            unit=one.unit,
            noise=one.noise,
            covers=list(one.covers),
            leaves_out=list(one.leaves_out),
            accountant=one.accountant,
        ).model_dump()
        for one in each
        if one is not None
    ] or None


def in_words(privacy: Sequence[Mapping[str, Any]] | None) -> str:
    """What is guaranteed to the client that is guaranteed least, whatever the attack."""
    if not privacy:
        return NO_GUARANTEE
    worst = max(privacy, key=lambda each: math.inf if each["epsilon"] is None else each["epsilon"])
    if worst["epsilon"] is None:
        return NO_GUARANTEE
    epsilon = epsilon_bounds.rounded_up(worst["epsilon"])
    return f"({epsilon:.3g}, {worst['delta']:g})-differential privacy per {UNITS[worst['unit']]}"
