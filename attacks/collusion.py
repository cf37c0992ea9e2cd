"""A colluding client gives its extractor to the server: one more surrogate, made by the very training that is attacked.

In round 0 it is the victims' own, and inverted as such (attacks/shadow/known_extractor.py). Later clients share a classifier,
not an extractor, and two of them may read the same classifier with opposite signs; whether the colluder's extractor or a
surrogate is inverted is decided by the shadow validation, in which a shadow client colludes.

The colluder also gives its training images. Every attacked client has a colluder of its own, who knows nothing of the others'
images: so each client's victims are attacked by themselves, through surrogates for which these images join the auxiliary ones.
The shadow validation has the auxiliary images alone. It is made once for all clients, and for all attacks with these recipes.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from attacks.common import failed_uploads
from attacks.common.data_fit import CLIP, NOISE
from attacks.shadow import alignment, recipes, shadow_federation
from attacks.shadow.selection import Choice
from attacks.shadow.settings import SHORT, AlignedSettings
from attacks.shadow.surrogate_attack import SurrogateAttack, of_sound_images
from privbench.execution.applicability import Limits
from privbench.tensors import Params
from privbench.types import Artifact, Batch, Knowledge, Presets, Progress, Reconstruction, no_progress


@dataclass(frozen=True)
class Collusion(AlignedSettings):
    """A colluding client's extractor and images, beside aligned surrogates (this suite)."""

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier", "auxiliary", "colluder"})
    uses: ClassVar[frozenset[str]] = frozenset({"upload:generator"})
    limits: ClassVar[Limits] = Limits(
        private_extractor=True, linear_classifier=True, plain_extractor=True, unmixed=True
    )
    knowledge: ClassVar[str] = "gradient + auxiliary + colluding client with its images"
    rung: ClassVar[str] = "L6"
    knows: ClassVar[frozenset[str]] = NOISE | CLIP
    # Whether the shadow validation applies is decided on the features of all victims together.
    pools: ClassVar[bool] = True
    # 5: features in closed form are those of all columns of the gradient
    noised_features_revision: ClassVar[int] = 5
    private_dropout_revision: ClassVar[int] = 6  # 6: as `surrogate` 3
    presets: ClassVar[Presets] = {"smoke": SHORT | {"align_steps": 3}}
    # 3: the colluder's images; 4: one shadow validation, without them, for all clients
    revision: ClassVar[int] = 4

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """The victims of each client with the extractor and the images of its colluder."""
        return of_sound_images(
            artifact, knowledge, seed, lambda sound: self._by_client(sound, knowledge, seed, progress), progress
        )

    def _by_client(self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress) -> Reconstruction:
        assert knowledge.colluder is not None, "the needs name the colluder"
        assert knowledge.auxiliary is not None, "the needs name auxiliary images"
        everyone = {client: colluder.params["extractor"] for client, colluder in knowledge.colluder.items()}

        @functools.cache
        def chosen() -> Choice:
            real = shadow_federation.real(artifact, knowledge, seed, "Collusion")
            return self.attack(everyone).choice(real, artifact.round, seed, knowledge, progress)

        parts = []
        for client in shadow_federation.clients_of(artifact.client):
            rows = torch.nonzero(artifact.client == client)[:, 0]
            colluder = knowledge.colluder[client]
            pairs = zip(knowledge.auxiliary, colluder.images, strict=True)
            images = Batch(*(torch.cat([auxiliary, more.to(auxiliary)]) for auxiliary, more in pairs))
            with_colluder = replace(knowledge, auxiliary=images, colluder={client: colluder})
            attack = replace(self.attack({client: everyone[client]}), chosen=chosen)
            parts.append((rows, attack.of_single(artifact.select(rows), with_colluder, seed, progress)))
        return failed_uploads.joined(parts)

    def attack(self, extractors: Mapping[int, Params]) -> SurrogateAttack:
        """The extractors of colluders, attacked client -> network, each of which may be the client's own, and three recipes."""
        chosen_from = (recipes.surrogates(self), alignment.aligned(self), recipes.of_colluders(self))
        return SurrogateAttack("Collusion", self, chosen_from, extractors=extractors)
