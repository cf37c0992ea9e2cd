"""A colluding client hands its own extractor to the server: another surrogate, made by the very training that is attacked.

In round 0 it is the victims' own, and inverted as such (attacks/shadow/known_extractor.py). Later clients share a classifier,
not an extractor, and two of them may read the same classifier with opposite signs; whether the colluder's extractor or a
surrogate is inverted is decided by the rehearsal, in which a shadow client colludes.

The colluder hands its training images over, too, which join the auxiliary ones. Every attacked client has a colluder of its own,
who knows nothing of the others' images: so each client's victims are attacked by themselves.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from attacks.aligned_surrogate import AlignedSurrogate
from attacks.common import failed_uploads
from attacks.features.inversion import Extractors
from attacks.shadow import shadow_federation
from attacks.shadow.selection import SHORT, Recipe
from attacks.shadow.shadow_federation import ServerView
from privbench.tensors import Params
from privbench.types import Artifact, Batch, Knowledge, Presets, Progress, Reconstruction, no_progress


@dataclass(frozen=True)
class Collusion(AlignedSurrogate):
    """The colluder's E_k, with what the rungs below have."""

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier", "auxiliary", "colluder"})
    knowledge: ClassVar[str] = "gradient + auxiliary + colluding client with its images"
    rung: ClassVar[str] = "L6"
    presets: ClassVar[Presets] = {"smoke": SHORT | {"align_steps": 3}}
    revision: ClassVar[int] = 3  # 3: the colluder's images

    def through_stand_ins(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """The victims of each client with the images of its colluder."""
        assert knowledge.colluder is not None, "the needs name the colluder"
        assert knowledge.auxiliary is not None, "the needs name auxiliary images"
        parts = []
        for client in shadow_federation.clients_of(artifact.client):
            rows = torch.nonzero(artifact.client == client)[:, 0]
            theirs = knowledge.colluder[client]
            pairs = zip(knowledge.auxiliary, theirs.images, strict=True)
            both = Batch(*(torch.cat([mine, more.to(mine)]) for mine, more in pairs))
            whole = replace(knowledge, auxiliary=both, colluder={client: theirs})
            parts.append((rows, super().through_stand_ins(artifact.select(rows), whole, seed, progress)))
        return failed_uploads.joined(parts)

    def whole(self, real: ServerView, knowledge: Knowledge) -> dict[int, Params]:
        """The extractor of each attacked client's colluder."""
        return real.colluder

    def recipes(self) -> Mapping[str, Recipe]:
        """Those of the rungs below, and the colluder's extractor."""
        return {**super().recipes(), "colluder": self.colluders}

    def colluders(self, own: ServerView, seed: int, knowledge: Knowledge) -> Extractors:
        """The extractor of each attacked client's colluder."""
        return shadow_federation.of_clients(own, {client: [params] for client, params in own.colluder.items()})
