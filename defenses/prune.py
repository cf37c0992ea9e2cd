"""Pruning: of what a client sends, only the largest entries stay (top-k; Aji, Heafield, EMNLP 2017, arXiv 1704.05021).

Zhu, Liu, Han (NeurIPS 2019, arXiv 1906.08935) name it among the defences against their attack. One threshold runs over all parts.
Entries that are left out are lost: nothing is carried over to the next round, as deep gradient compression would. It guarantees
nothing.
"""

from dataclasses import dataclass
from typing import Any

import torch

from privbench.defense import Defense, Place
from privbench.errors import UserError
from privbench.tensors import Parts


@dataclass(frozen=True)
class Prune(Defense):
    """Sends the largest entries alone and zeros for the rest (Aji, Heafield, EMNLP 2017); no guarantee."""

    keep: float  # share of all entries that stay

    def __post_init__(self) -> None:
        """Refuses a share that is none."""
        if not 0 < self.keep <= 1:
            raise UserError(f"the defence prune needs keep above 0 and at most 1, but {self.keep:g} was given")

    @property
    def places(self) -> frozenset[Place]:
        """On what is sent."""
        return frozenset({"message"})

    def message(self, tensors: Parts, rng: torch.Generator) -> Parts:
        """The ceil(keep n) entries of largest absolute value, up to the rounding of keep n; ties at the threshold stay."""
        sizes = torch.cat([t.abs().flatten() for params in tensors.values() for t in params.values()])
        count = max(1, -int(-self.keep * len(sizes) // 1))
        threshold = sizes.topk(count).values[-1]
        return {
            part: {name: t.where(t.abs() >= threshold, 0.0) for name, t in params.items()}
            for part, params in tensors.items()
        }

    def describe(self) -> dict[str, Any]:
        """The attacker knows how much is left out; which entries, it sees."""
        return {"name": "prune", "keep": self.keep, "where": "update"}
