"""Gaussian noise on what a client sends: the DP baseline of FedCG's Table 2 (variance sigma^2 = 0.001 and 0.1).

The paper does not say whether noise enters every local step's gradient or the uploaded update; `where` selects it. The
default is "update". There it costs the personal model less accuracy than is printed, because that is trained again after every
broadcast (docs/results/published-cifar10.md). Noise on every step costs far more than is printed (docs/appendix/metrics.md). The
attacked gradient gets noise of the same variance either way.
As in the paper nothing is clipped, so no (epsilon, delta) follows: a table may print sigma^2 and must not call it epsilon. With
`clip` the norm of what is noised is bounded first, over all shared parts at once, and a guarantee for the whole client follows.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch

from defenses.common import clipping, mechanisms
from privbench.defense import Defense, Facts, Guarantee, Place
from privbench.errors import UserError
from privbench.tensors import Parts

WHERE = ("step", "update")


@dataclass(frozen=True)
class Gaussian(Defense):
    """Adds noise N(0, variance) to every coordinate (FedCG Table 2); no guarantee unless `clip` bounds what is noised."""

    variance: float
    where: str = "update"
    clip: float | None = None  # of the norm over all shared parts; None: nothing is clipped
    delta: float = 1e-5  # of the guarantee that clipping gives

    def __post_init__(self) -> None:
        """Refuses a negative variance, an unknown place, and a clip or a delta that is none."""
        if not (math.isfinite(self.variance) and self.variance >= 0):
            raise UserError(f"the Gaussian defence needs a variance of at least 0, but {self.variance} was given")
        if self.where not in WHERE:
            raise UserError(f"the Gaussian defence acts on a 'step' or an 'update', but --where {self.where} was given")
        if self.clip is not None:
            clipping.check_norm("gaussian", self.clip)
        mechanisms.accounting.check(None, self.delta)

    @property
    def places(self) -> frozenset[Place]:
        """By `where`."""
        return frozenset({"step" if self.where == "step" else "message"})

    def message(self, tensors: Parts, rng: torch.Generator) -> Parts:
        """Clipped where there is a clip, then t + N(0, variance), drawn on the CPU in float32."""
        bounded = tensors if self.clip is None else clipping.clipped(tensors, self.clip)
        return clipping.noised(bounded, math.sqrt(self.variance), rng)

    def step(self, gradients: Parts, rng: torch.Generator) -> Parts:
        """The same of one step's gradient."""
        return self.message(gradients, rng)

    @property
    def is_private(self) -> bool:
        """With a clip."""
        return self.clip is not None

    def guarantee(self, facts: Facts) -> Guarantee | None:
        """With a clip: each release is a Gaussian mechanism of sensitivity `clip`, one a round or one a local step."""
        if self.clip is None:
            return None
        noise = math.sqrt(self.variance) / self.clip
        steps = sum(stage.steps for stage in facts.stages if {*stage.trains} & {*facts.shared_parts})
        return mechanisms.of_client(facts, noise, facts.rounds * (steps if self.where == "step" else 1), self.delta)

    def noise_variance(self, batch_size: int) -> float:
        """The variance, whatever the batch."""
        return self.variance

    def describe(self) -> dict[str, Any]:
        """The attacker knows the variance, where it enters and what is clipped."""
        clips = {} if self.clip is None else {"clip": self.clip, "clips": "message"}
        return {"name": "gaussian", "variance": self.variance, "where": self.where} | clips
