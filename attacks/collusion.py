"""A colluding client hands its own extractor to the server: another stand-in, made by the very training that is attacked.

In round 0 it is the victims' own, and inverted as such (attacks/exact.py). Later clients share a classifier, not an extractor,
and two of them may read the same classifier with opposite signs; whether the colluder's extractor or a surrogate is inverted
is decided by the rehearsal, in which a shadow client colludes. The colluder's images are not used; they would join the
auxiliary ones.
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
class Collusion(AlignedSurrogate):
    """The colluder's E_k, with what the rungs below have."""

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier", "auxiliary", "colluder"})
    knowledge: ClassVar[str] = "gradient + auxiliary + colluding client"
    rung: ClassVar[str] = "L6"

    def whole(self, real: World, knowledge: Knowledge) -> dict[int, Params]:
        """The extractor of each attacked client's colluder."""
        return real.colluder

    def recipes(self) -> Mapping[str, Recipe]:
        """Those of the rungs below, and the colluder's extractor."""
        return {**super().recipes(), "colluder": self.colluders}

    def colluders(self, own: World, seed: int, knowledge: Knowledge) -> Extractors:
        """The extractor of each attacked client's colluder."""
        return {client: [params] for client, params in own.colluder.items()}
