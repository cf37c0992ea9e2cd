"""Aligned surrogates of an attacker who also knows the initial networks: those of round 0, or a start for later ones.

In round 0 the initial extractor is every client's own, and inverted as such (attacks/shadow/known_extractor.py), with the prior
learned from auxiliary images that `analytic-features` lacks. Later it is where the clients began: the recipe "from initial"
trains and aligns a surrogate from there, validated in a shadow federation whose clients start there too.

A shadow that starts at E_0 flatters a surrogate that does: its clients have stayed nearer to E_0 than real ones. So a shadow
validation alone cannot say whether "from initial" is better than what the attacker without E_0 would take, which is validated in
his own shadow. The victims' real features can (attacks/shadow/surrogate_attack.py): "from initial" is the challenger there. Where
it is not taken, both attackers return the same images.
"""

from dataclasses import dataclass
from typing import ClassVar

from attacks.common.data_fit import CLIP, NOISE
from attacks.shadow import alignment, recipes, shadow_federation
from attacks.shadow.settings import SHORT, AlignedSettings
from attacks.shadow.surrogate_attack import SurrogateAttack
from privbench.execution.applicability import Limits
from privbench.types import Artifact, Knowledge, Presets, Progress, Reconstruction, no_progress


@dataclass(frozen=True)
class InitialSurrogate(AlignedSettings):
    """The initial extractor where it still holds, else surrogates trained and aligned from it (this suite)."""

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier", "auxiliary", "initial"})
    uses: ClassVar[frozenset[str]] = frozenset({"upload:generator"})
    limits: ClassVar[Limits] = Limits(
        private_extractor=True, linear_classifier=True, plain_extractor=True, unmixed=True
    )
    knowledge: ClassVar[str] = "gradient + auxiliary + initial networks"
    rung: ClassVar[str] = "L5"
    knows: ClassVar[frozenset[str]] = NOISE | CLIP
    # Whether the shadow validation applies is decided on the features of all victims together.
    pools: ClassVar[bool] = True
    # 4: features in closed form are those of all columns of the gradient
    noised_features_revision: ClassVar[int] = 4
    private_dropout_revision: ClassVar[int] = 5  # 5: as `surrogate` 3
    presets: ClassVar[Presets] = {"smoke": SHORT | {"align_steps": 3}}
    revision: ClassVar[int] = 3  # 2, 3: as `aligned-surrogate`

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """All victims through E_0, or through surrogates."""
        return self.attack(artifact, knowledge).reconstruct(artifact, knowledge, seed, progress)

    def attack(self, artifact: Artifact, knowledge: Knowledge) -> SurrogateAttack:
        """E_0 for every attacked client, the recipes without it, and the one from it."""
        assert knowledge.initial is not None, "the needs of this attack name the initial networks"
        initial = knowledge.initial.params["extractor"]
        return SurrogateAttack(
            "InitialSurrogate",
            self,
            (recipes.surrogates(self), alignment.aligned(self)),
            alignment.from_initial(self, initial),
            dict.fromkeys(shadow_federation.clients_of(artifact.client), initial),
        )
