"""Clipping alone: what a client sends has norm C at most. It guarantees nothing, and an attacker learns all but the scale."""

from dataclasses import dataclass
from typing import Any

import torch

from defenses.common import clipping
from privbench.defense import Defense, Place
from privbench.tensors import Parts


@dataclass(frozen=True)
class Clip(Defense):
    """Scales what a client sends down to a norm of at most `norm`; no guarantee."""

    norm: float

    def __post_init__(self) -> None:
        """Refuses a norm that is none."""
        clipping.check_norm("clip", self.norm)

    @property
    def places(self) -> frozenset[Place]:
        """On what is sent."""
        return frozenset({"message"})

    def message(self, tensors: Parts, rng: torch.Generator) -> Parts:
        """t min(1, C / ||t||), one norm over all parts."""
        return clipping.clipped(tensors, self.norm)

    def describe(self) -> dict[str, Any]:
        """The attacker knows the bound."""
        return {"name": "clip", "clip": self.norm, "clips": "message", "where": "update"}
