"""Quantisation: every entry is rounded to one of few levels, at random and without bias (QSGD, Alistarh et al., NeurIPS 2017).

    q(t) = s sign(t) xi(t) / L,   s the largest |t| of the tensor,  L = 2^(bits - 1) - 1 levels above zero,
    xi(t) = floor(L |t| / s) + Bernoulli(fraction)
QSGD scales by the Euclidean norm; the largest entry is the tighter scale (as in TernGrad, Wen et al., NeurIPS 2017). It guarantees
nothing.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from privbench.defense import Defense, Place
from privbench.errors import UserError
from privbench.tensors import Parts

MOST_BITS = 16


@dataclass(frozen=True)
class Quantize(Defense):
    """Rounds every entry to one of 2^bits - 1 levels, without bias (QSGD, Alistarh et al., NeurIPS 2017); no guarantee."""

    bits: int  # an entry takes, its sign included

    def __post_init__(self) -> None:
        """Refuses a number of bits that is none."""
        if not 2 <= self.bits <= MOST_BITS:
            raise UserError(f"the defence quantize needs 2 to {MOST_BITS} bits, but {self.bits} was given")

    @property
    def places(self) -> frozenset[Place]:
        """On what is sent."""
        return frozenset({"message"})

    @property
    def levels(self) -> int:
        """L, how many there are above zero."""
        return int(2 ** (self.bits - 1)) - 1

    def message(self, tensors: Parts, rng: torch.Generator) -> Parts:
        """q(t), with a scale for each tensor."""
        return {part: {name: self._rounded(t, rng) for name, t in params.items()} for part, params in tensors.items()}

    def _rounded(self, t: Tensor, rng: torch.Generator) -> Tensor:
        scale = t.abs().amax()
        steps = self.levels * t.abs() / torch.where(scale > 0, scale, 1.0)
        # The quotient of the largest entry may round to a little more than L, and that fraction up to L + 1.
        steps = steps.clamp(max=self.levels)
        up = torch.rand(t.shape, generator=rng).to(t) < steps - steps.floor()
        return scale * t.sign() * (steps.floor() + up) / self.levels

    def describe(self) -> dict[str, Any]:
        """The attacker knows the bits; the scales, it sees."""
        return {"name": "quantize", "bits": self.bits, "where": "update"}
