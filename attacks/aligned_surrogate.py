"""Surrogates aligned, client by client, to the client's generator and to its other victims' features.

What aligns them stands in attacks/shadow/alignment.py. Of two recipes (surrogate, aligned) the shadow validation takes one.
"""

from dataclasses import dataclass
from typing import ClassVar

from attacks.common.data_fit import CLIP, NOISE
from attacks.shadow import alignment, recipes
from attacks.shadow.settings import SHORT, AlignedSettings
from attacks.shadow.surrogate_attack import SurrogateAttack
from privbench.execution.applicability import Limits
from privbench.types import Artifact, Knowledge, Presets, Progress, Reconstruction, no_progress


@dataclass(frozen=True)
class AlignedSurrogate(AlignedSettings):
    """Surrogates aligned by moments to each client's generator and to its other victims' features (this suite)."""

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier", "auxiliary"})
    uses: ClassVar[frozenset[str]] = frozenset({"upload:generator"})
    limits: ClassVar[Limits] = Limits(
        private_extractor=True, linear_classifier=True, plain_extractor=True, unmixed=True
    )
    knowledge: ClassVar[str] = "gradient + auxiliary"
    rung: ClassVar[str] = "L5"
    knows: ClassVar[frozenset[str]] = NOISE | CLIP
    # Whether the shadow validation applies is decided on the features of all victims together.
    pools: ClassVar[bool] = True
    # 3: features in closed form are those of all columns of the gradient
    noised_features_revision: ClassVar[int] = 3
    private_dropout_revision: ClassVar[int] = 4  # 4: as `surrogate` 3
    presets: ClassVar[Presets] = {"smoke": SHORT | {"align_steps": 3}}
    revision: ClassVar[int] = 2  # 1: as `surrogate`; 2: no victim's features align its own surrogate

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """All victims through plain or aligned surrogates."""
        chosen_from = (recipes.surrogates(self), alignment.aligned(self))
        return SurrogateAttack("AlignedSurrogate", self, chosen_from).reconstruct(artifact, knowledge, seed, progress)
