"""What defences with a noise multiplier have in common: clip to C, add N(0, sigma^2 C^2), sigma given or solved for an epsilon."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from defenses.common import accounting, clipping
from defenses.common.accounting import Releases
from privbench.defense import Defense, Facts
from privbench.errors import UserError


@dataclass(frozen=True)
class GaussianMechanism(Defense):
    """Subclasses say what one release is of, in `releases`, and what is guaranteed."""

    name: ClassVar[str]

    epsilon: float | None = None  # to be guaranteed over the whole schedule; the noise is solved for
    noise: float | None = None  # sigma, in units of the clip
    clip: float = 1.0  # C
    delta: float = 1e-5

    def __post_init__(self) -> None:
        """Refuses an epsilon, a noise, a clip or a delta that is none, and neither or both of the first two."""
        if (self.epsilon is None) == (self.noise is None):
            both = "both were" if self.noise is not None else "neither was"
            raise UserError(
                f"the defence {self.name} takes epsilon=... or noise=..., but {both} given, e.g. {self.name}:epsilon=8"
            )
        accounting.check(self.epsilon, self.delta)
        if self.noise is not None and not (math.isfinite(self.noise) and self.noise >= 0):
            raise UserError(
                f"the defence {self.name} needs noise of at least 0, in units of its clip, but {self.noise:g} was given"
            )
        clipping.check_norm(self.name, self.clip)

    @property
    def sigma(self) -> float:
        """The noise multiplier; UserError for a defence that was given an epsilon and is not planned, as where nobody trains."""
        if self.noise is None:
            raise UserError(
                f"{self.name}:epsilon=... takes its noise from the training that it is planned for, and there is none here; give "
                f"the noise, e.g. {self.name}:noise=1,clip=1"
            )
        return self.noise

    def releases(self, facts: Facts, noise: float) -> tuple[Releases, ...]:
        """What a client that does what `facts` says releases, each with noise of so many clips."""
        raise NotImplementedError

    def planned(self, every: Sequence[Facts]) -> Self:
        """With the least noise that guarantees epsilon to each of these clients over the planned schedule."""
        if self.epsilon is None:
            return self
        noise = 0.0
        for facts in every:
            enough = noise and accounting.spent(self.releases(facts, noise), self.delta).epsilon <= self.epsilon
            if not enough:
                noise = max(noise, accounting.noise_multiplier(self.epsilon, self.delta, self.releases(facts, 0.0)))
        return replace(self, epsilon=None, noise=noise)

    @property
    def noisy(self) -> bool:
        """Unless its noise is set to 0."""
        return self.noise != 0
