"""Surrogate extractors trained through the frozen shared classifier, then inverted at the victim's closed-form features.

Training is attacks/shadow/surrogate_training.py without alignment, inversion attacks/features/inversion.py; a shadow validation
sets the weight of the features (attacks/shadow/surrogate_attack.py). The FedCG authors' notebooks attack through such surrogates,
and choose by the true image.
"""

from dataclasses import dataclass
from typing import ClassVar

from attacks.common.data_fit import CLIP, NOISE
from attacks.shadow import recipes
from attacks.shadow.settings import SHORT, SurrogateSettings
from attacks.shadow.surrogate_attack import SurrogateAttack
from privbench.execution.applicability import Limits
from privbench.types import Artifact, Knowledge, Presets, Progress, Reconstruction, no_progress


@dataclass(frozen=True)
class Surrogate(SurrogateSettings):
    """Surrogate extractors trained through the broadcast classifier, then inverted (as in the FedCG authors' notebooks)."""

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier", "auxiliary"})
    limits: ClassVar[Limits] = Limits(
        private_extractor=True, linear_classifier=True, plain_extractor=True, unmixed=True
    )
    knowledge: ClassVar[str] = "gradient + auxiliary"
    rung: ClassVar[str] = "L4"
    knows: ClassVar[frozenset[str]] = NOISE | CLIP
    # Whether the shadow validation applies is decided on the features of all victims together.
    pools: ClassVar[bool] = True
    # 2: features in closed form are those of all columns of the gradient
    noised_features_revision: ClassVar[int] = 2
    private_dropout_revision: ClassVar[int] = 3  # 3: shadow clients drop features
    presets: ClassVar[Presets] = {"smoke": SHORT}
    revision: ClassVar[int] = 1  # 1: shadow clients train as the attacked ones do

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """All victims through plain surrogates."""
        return SurrogateAttack("Surrogate", self, (recipes.surrogates(self),)).reconstruct(
            artifact, knowledge, seed, progress
        )
