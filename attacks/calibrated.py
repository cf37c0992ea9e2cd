"""The private extractor fitted to a few images that the attacker knows, and the victims inverted through it.

Whoever knows images of a client, one that it published, or canaries, and which uploads are of them, sees E of them: the features in
these uploads. LeNet-5's E has
2,572 (grey) or 2,872 (colour) numbers, and an image gives 400 equations. The fit is the most probable extractor under a Gaussian
prior about a random start, or with `start` about the initial extractor or a surrogate (attacks/shadow/fitting/calibration.py).
The client's other uploads, the victims among them, refine it (refinement.py there). Whether they do, and how far the fit is
trusted, is chosen on known images that were left out (held_out.py). Without a known image the class mean is returned.
"""

from dataclasses import dataclass
from typing import ClassVar

from attacks.common.data_fit import CLIP, NOISE
from attacks.features.learned_prior import plug_and_play
from attacks.shadow import shadow_federation
from attacks.shadow.fitting import calibrated_extractors
from attacks.shadow.fitting.extractor_descent import Calibration
from attacks.shadow.surrogate_attack import of_sound_images
from privbench.execution.applicability import Limits
from privbench.hyperparameters import BySetting, Count, CountOrZero, Positive, Share
from privbench.types import Artifact, Knowledge, Presets, Progress, Reconstruction, no_progress

NEEDS = frozenset({"gradient:classifier", "auxiliary", "known"})
KNOWLEDGE = "gradient + auxiliary + known images"


@dataclass(frozen=True)
class Calibrated:
    """The private extractor fitted to known images of its client, then inverted (this suite)."""

    fit_steps: Count = 300  # of the calibration
    steps: Count = 100  # of the inversion
    scale: Positive = 1.0  # of the prior of the weights, relative to their size at the start
    refine_steps: CountOrZero = 120  # of the fit's refinement by the victims' uploads; 0: none
    prior: plug_and_play.Prior = "gaussian"
    denoiser_weight: Share = 0.5  # of the prior that a denoiser takes
    start: calibrated_extractors.Start = "random"  # what the prior of the weights is around

    needs = BySetting(NEEDS, lambda attack: NEEDS | {"initial"} if attack.start == "initial" else NEEDS)
    limits: ClassVar[Limits] = Limits(
        private_extractor=True, linear_classifier=True, plain_extractor=True, unmixed=True
    )
    knowledge = BySetting(
        KNOWLEDGE, lambda attack: f"{KNOWLEDGE} + initial networks" if attack.start == "initial" else KNOWLEDGE
    )
    rung: ClassVar[str] = "L6"
    knows: ClassVar[frozenset[str]] = NOISE | CLIP
    # The victims' uploads refine the fit.
    pools: ClassVar[bool] = True
    # 2: refined by the client's other uploads
    revision: ClassVar[int] = 2
    # 3: features in closed form are those of all columns of the gradient
    noised_features_revision: ClassVar[int] = 3
    # 4: a batch that cannot be separated costs its own images alone
    batches_revision: ClassVar[int] = 4
    presets: ClassVar[Presets] = {"smoke": {"steps": 5, "fit_steps": 5, "refine_steps": 5}}

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """Each victim through its client's fitted extractor."""
        return of_sound_images(
            artifact, knowledge, seed, lambda sound: self.of_single(sound, knowledge, seed, progress), progress
        )

    def of_single(self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress) -> Reconstruction:
        """All victims; their gradients are finite, and of one image each."""
        assert knowledge.known is not None, "the needs of this attack name known images"
        view = shadow_federation.real(artifact, knowledge, seed, "Calibrated")
        how = Calibration(view.model, view.noise is None, self.scale, self.fit_steps, knowledge.known.error)
        starts = calibrated_extractors.starts_of(self.start, view, knowledge, seed)
        fits = calibrated_extractors.from_known(
            how, self.refine_steps, starts, view, knowledge.known, knowledge, seed, progress
        )
        plugged = plug_and_play.of(self.prior, self.denoiser_weight, knowledge, view.model.classes, seed)
        return calibrated_extractors.ended(view, fits, self.steps, progress, plugged)
