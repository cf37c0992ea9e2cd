"""Aligned surrogates of an attacker who also knows the initial networks: those of round 0, or a start for later ones.

In round 0 the initial extractor is every client's own, and inverted as such (attacks/exact.py), with the prior learned from
auxiliary images that `analytic-features` lacks. Later it is where the clients began: the recipe "from initial" trains and
aligns a surrogate from there, and the clients of the shadow federation start there too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from attacks.aligned_surrogate import AlignedSurrogate
from attacks.inversion import Extractors
from attacks.stand_in import Recipe
from attacks.world import World
from privbench.types import Knowledge, Params


@dataclass(frozen=True)
class InitialSurrogate(AlignedSurrogate):
    """E_0 where it still holds, else surrogates from it or from nothing, aligned to each client's victims."""

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier", "auxiliary", "initial"})
    knowledge: ClassVar[str] = "gradient + auxiliary + initial networks"
    rung: ClassVar[str] = "L5"

    def whole(self, real: World, knowledge: Knowledge) -> dict[int, Params]:
        """The initial extractor for every attacked client."""
        return {k: _initial(knowledge) for k in real.clients}

    def recipes(self) -> Mapping[str, Recipe]:
        """Those of the rungs below, and surrogates that start where the clients did."""
        return {**super().recipes(), "from initial": self.from_initial}

    def from_initial(self, own: World, seed: int, knowledge: Knowledge) -> Extractors:
        """One surrogate per client, trained and aligned from E_0."""
        return self.aligned_from(own, _initial(knowledge), "initial", seed, knowledge)


def _initial(knowledge: Knowledge) -> Params:
    assert knowledge.initial is not None, "the needs of this attack name the initial networks"
    return knowledge.initial.params["extractor"]
