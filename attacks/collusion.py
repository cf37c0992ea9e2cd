"""A colluding client hands its own extractor to the server: another stand-in, made by the very training that is attacked.

Clients share a classifier, not an extractor, and two of them may read the same classifier with opposite signs; whether the
colluder's extractor, surrogates, or all together are inverted is decided by the rehearsal, in which a shadow client colludes.
The colluder's images are not used; they would join the auxiliary ones.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from attacks.aligned_surrogate import AlignedSurrogate
from attacks.stand_in import Extractors
from attacks.world import World
from privbench.types import Knowledge


@dataclass(frozen=True)
class Collusion(AlignedSurrogate):
    """The colluder's E_k, with what the rungs below have."""

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier", "auxiliary", "colluder"})
    knowledge: ClassVar[str] = "gradient + auxiliary + colluding client"
    rung: ClassVar[str] = "L6"

    def recipes(self) -> Mapping[str, Callable[[World, int, Knowledge], Extractors]]:
        """Those of the rungs below, the colluder's extractor, and all stand-ins together."""
        return {**super().recipes(), "colluder": self.colluders, "all": self.all}

    def colluders(self, own: World, seed: int, knowledge: Knowledge) -> Extractors:
        """The extractor of each attacked client's colluder."""
        return {client: [params] for client, params in own.colluder.items()}

    def all(self, own: World, seed: int, knowledge: Knowledge) -> Extractors:
        """Plain, aligned and the colluder's."""
        both, colluders = self.both(own, seed, knowledge), self.colluders(own, seed, knowledge)
        return {client: both[client] + colluders[client] for client in both}
