"""Gaussian noise on what a client sends: the DP baseline of FedCG's Table 2 (variance sigma^2 = 0.001 and 0.1).

The paper does not say whether noise enters every local step's gradient or the uploaded update; `where` selects it. The
default is "update": only there do the table's accuracies survive. Measured on `digits` (quick preset, one seed), noise on the
update leaves 96% at both variances, because the personal model is trained again after every broadcast; noise on every step
leaves chance, and so it does on CIFAR-10 at the paper's rate (docs/appendix/metrics.md). The attacked gradient gets noise of
the same variance either way.
Nothing is clipped, so no (epsilon, delta) follows: a table may print sigma^2 and must not call it epsilon.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch

from privbench.errors import UserError
from privbench.tensors import Params

PLACES = ("step", "update")


@dataclass(frozen=True)
class Gaussian:
    """Adds noise N(0, variance) to every coordinate; clips nothing, so it guarantees nothing (FedCG Table 2)."""

    variance: float
    where: str = "update"

    def __post_init__(self) -> None:
        """Refuses a negative variance and an unknown place."""
        if not (math.isfinite(self.variance) and self.variance >= 0):
            raise UserError(f"the Gaussian defence needs a variance of at least 0, but {self.variance} was given")
        if self.where not in PLACES:
            raise UserError(f"the Gaussian defence acts on a 'step' or an 'update', but --where {self.where} was given")

    def protect(self, tensors: Params, rng: torch.Generator) -> Params:
        """tensor + N(0, variance), drawn on the CPU in float32."""
        std = math.sqrt(self.variance)
        return {name: t + std * torch.randn(t.shape, generator=rng).to(t) for name, t in tensors.items()}

    def describe(self) -> dict[str, Any]:
        """The attacker knows the variance and where it enters."""
        return {"name": "gaussian", "variance": self.variance, "where": self.where}
