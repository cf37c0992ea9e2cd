"""Images and extractors of each client found together, from aligned surrogates and all of the client's uploads.

A surrogate is near the client's extractor, and its errors are the same for every upload of the client: what the images cannot
explain, the extractor must. attacks/shadow/fitting/joint_refinement.py descends on both. Of three recipes (surrogate, aligned,
joint) the shadow validation takes one.
"""

from dataclasses import dataclass
from typing import ClassVar

from attacks.common.data_fit import CLIP, NOISE
from attacks.shadow import alignment, recipes
from attacks.shadow.fitting import joint_refinement
from attacks.shadow.settings import SHORT, JointSettings
from attacks.shadow.surrogate_attack import SurrogateAttack
from privbench.execution.applicability import Limits
from privbench.types import Artifact, Knowledge, Presets, Progress, Reconstruction, no_progress


@dataclass(frozen=True)
class Joint(JointSettings):
    """The private extractor and all images of a client's uploads, optimised together from aligned surrogates (this suite)."""

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier", "auxiliary"})
    uses: ClassVar[frozenset[str]] = frozenset({"upload:generator"})
    limits: ClassVar[Limits] = Limits(
        private_extractor=True, linear_classifier=True, plain_extractor=True, unmixed=True
    )
    knowledge: ClassVar[str] = "gradient + auxiliary"
    rung: ClassVar[str] = "L5"
    knows: ClassVar[frozenset[str]] = NOISE | CLIP
    # All uploads of a client say what its extractor is.
    pools: ClassVar[bool] = True
    presets: ClassVar[Presets] = {"smoke": SHORT | {"align_steps": 3, "joint_steps": 3, "starts": 1}}

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """All victims through plain, aligned or refined surrogates."""
        chosen_from = (recipes.surrogates(self), alignment.aligned(self), joint_refinement.joint(self))
        return SurrogateAttack("Joint", self, chosen_from).reconstruct(artifact, knowledge, seed, progress)
