"""Aligned surrogates of an attacker who also knows the initial networks: those of round 0, or a start for later ones.

In round 0 the initial extractor is every client's own, and inverted as such (attacks/shadow/known_extractor.py), with the prior
learned from auxiliary images that `analytic-features` lacks. Later it is where the clients began: the recipe "from initial"
trains and aligns a surrogate from there, rehearsed in a shadow federation whose clients start there too.

A shadow that starts at E_0 flatters a surrogate that does: its clients have stayed nearer to E_0 than real ones. So a rehearsal
alone cannot tell whether "from initial" is better than what the attacker without E_0 would take, which is rehearsed in his own
shadow. The victims' real features tell, without their images, by the objective of attacks/features/inversion.py at one tau,
    J(h; E') = min over z of ||E'(x(z)) - h||^2 / tau^2 + ||z||^2,
twice the negative logarithm of the posterior at its mode: E' is the nearer to the victims' extractor, the more probable the
images that explain what was seen. "from initial" is taken where most victims' J is lower with it, and where the attacker
without E_0 would have taken nothing. Otherwise both attackers return the same images.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import ClassVar

import torch

from attacks.aligned_surrogate import AlignedSurrogate
from attacks.features.inversion import Extractors
from attacks.shadow.selection import SHORT, Choice, Recipe
from attacks.shadow.shadow_federation import ServerView
from privbench.tensors import Params
from privbench.types import Knowledge, Presets, Progress

OWN = "from initial"  # the recipe that the attacker without the initial networks lacks


@dataclass(frozen=True)
class InitialSurrogate(AlignedSurrogate):
    """E_0 where it still holds, else surrogates from it or from nothing, aligned to each client's victims."""

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier", "auxiliary", "initial"})
    knowledge: ClassVar[str] = "gradient + auxiliary + initial networks"
    rung: ClassVar[str] = "L5"
    presets: ClassVar[Presets] = {"smoke": SHORT | {"align_steps": 3}}
    revision: ClassVar[int] = 3  # 2, 3: as AlignedSurrogate

    def whole(self, real: ServerView, knowledge: Knowledge) -> dict[int, Params]:
        """The initial extractor for every attacked client."""
        return {k: _initial(knowledge) for k in real.clients}

    def recipes(self) -> Mapping[str, Recipe]:
        """Those of the rungs below, and surrogates that start where the clients did."""
        return {**super().recipes(), OWN: self.from_initial}

    def from_initial(self, own: ServerView, seed: int, knowledge: Knowledge) -> Extractors:
        """One surrogate per client, trained and aligned from E_0."""
        return self.aligned_from(own, _initial(knowledge), "initial", seed, knowledge)

    def rehearse(self, real: ServerView, round_: int, seed: int, knowledge: Knowledge, progress: Progress) -> Choice:
        """What the attacker without E_0 would take, or "from initial" where that explains the victims' features better."""
        below = AlignedSurrogate(**asdict(self))
        lower = below.rehearse(real, round_, seed, replace(knowledge, initial=None), progress)
        own = self.best_of([OWN], real, round_, seed, knowledge, progress)
        if math.isinf(own.tau):
            return lower
        if math.isinf(lower.tau) or self.explains_more(own.recipe, lower, real, seed, knowledge, progress):
            return own
        return lower

    def explains_more(
        self, recipe: str, than: Choice, real: ServerView, seed: int, knowledge: Knowledge, progress: Progress
    ) -> bool:
        """Whether J is lower through a recipe for more than half of the victims, at the other's tau for both."""
        taus = torch.full((len(real.h),), than.tau)
        made = (self.recipes()[name](real, seed, knowledge) for name in (recipe, than.recipe))
        first, second = (self.invert(real, each, taus, progress).loss for each in made)
        return bool((first < second).double().mean() > 0.5)


def _initial(knowledge: Knowledge) -> Params:
    assert knowledge.initial is not None, "the needs of this attack name the initial networks"
    return knowledge.initial.params["extractor"]
