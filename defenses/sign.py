"""Signs: of every entry only its sign is sent, and one scale a tensor (signSGD, Bernstein et al., ICML 2018, arXiv 1802.04434).

    q(t) = sign(t) mean|t|,  the mean over the tensor
The scale is that of Karimireddy et al. (ICML 2019, arXiv 1901.09847), without their error feedback; it lets updates be averaged.
It guarantees nothing.
"""

from dataclasses import dataclass
from typing import Any

import torch

from privbench.defense import Defense, Place
from privbench.tensors import Parts


@dataclass(frozen=True)
class Sign(Defense):
    """Sends the sign of every entry and a scale for each tensor (signSGD, Bernstein et al., ICML 2018); no guarantee."""

    @property
    def places(self) -> frozenset[Place]:
        """On what is sent."""
        return frozenset({"message"})

    def message(self, tensors: Parts, rng: torch.Generator) -> Parts:
        """sign(t) mean|t|."""
        return {
            part: {name: t.sign() * t.abs().mean() for name, t in params.items()} for part, params in tensors.items()
        }

    def describe(self) -> dict[str, Any]:
        """Name only; the scales, the attacker sees."""
        return {"name": "sign", "where": "update"}
