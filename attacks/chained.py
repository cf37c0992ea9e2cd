"""A server that keeps what it was sent follows every private extractor from the initial networks to the attacked round.

It needs no image of a client. In round 0 every client's extractor is the initial one, so that images whose uploads it saw then are
its to know; paired with their uploads of the next observed round they calibrate that round's extractor, and so on
(attacks/shadow/fitting/chain.py). Through the extractor of the attacked round other images, the victims, are inverted, as by
`calibrated`. Which rounds the server observed is a setting of the cell: the longer a gap, the more an extractor has changed in it.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from attacks.common import batched
from attacks.common.data_fit import CLIP, NOISE
from attacks.features import per_image
from attacks.features.learned_prior import plug_and_play
from attacks.shadow import selection, shadow_federation
from attacks.shadow.fitting import calibrated_extractors, chain
from attacks.shadow.fitting.extractor_descent import Calibration
from attacks.shadow.surrogate_attack import of_sound_images
from privbench.execution.applicability import Limits
from privbench.hyperparameters import Count, CountOrZero, Positive, Share
from privbench.types import Artifact, Knowledge, Outcome, Presets, Progress, Reconstruction, no_progress


@dataclass(frozen=True)
class Chained:
    """The private extractor followed from round 0 by what the server kept of each round, then inverted (this suite)."""

    fit_steps: Count = 200  # of each round's calibration
    find_steps: Count = 80  # of the kept images, in the first round
    again_steps: Count = 30  # of these in each later round, from where they were
    steps: Count = 100  # of the inversion
    scale: Positive = 1.0  # of the prior of the weights, relative to their size in the round before
    refine_steps: CountOrZero = 120  # of the last fit's refinement by the victims' uploads; 0: none
    prior: plug_and_play.Prior = "gaussian"  # of the victims; kept images are found under the Gaussian one
    denoiser_weight: Share = 0.5  # of the prior that a denoiser takes

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier", "auxiliary", "initial", "rounds"})
    limits: ClassVar[Limits] = Limits(
        private_extractor=True, linear_classifier=True, plain_extractor=True, unmixed=True
    )
    knowledge: ClassVar[str] = "gradient + auxiliary + initial networks + earlier rounds"
    rung: ClassVar[str] = "L6"
    knows: ClassVar[frozenset[str]] = NOISE | CLIP
    # The victims' uploads refine the last fit.
    pools: ClassVar[bool] = True
    # 2: refined by the client's other uploads; 3: kept images are found from where they were
    revision: ClassVar[int] = 3
    # 4: features in closed form are those of all columns of the gradient
    noised_features_revision: ClassVar[int] = 4
    # 5: a batch that cannot be separated costs its own images alone
    batches_revision: ClassVar[int] = 5
    presets: ClassVar[Presets] = {
        "smoke": {"steps": 5, "fit_steps": 5, "find_steps": 5, "again_steps": 5, "refine_steps": 5}
    }

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """Each victim through its client's extractor, as the chain has it in the attacked round."""
        return of_sound_images(
            artifact, knowledge, seed, lambda sound: self.of_single(sound, knowledge, seed, progress), progress
        )

    def of_single(self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress) -> Reconstruction:
        """All victims; their gradients are finite, and of one image each."""
        assert knowledge.rounds is not None, "the needs of this attack name what the server kept"
        assert knowledge.initial is not None, "the needs of this attack name the initial networks"
        view = shadow_federation.real(artifact, knowledge, seed, "Chained")
        how = Calibration(view.model, view.noise is None, self.scale, self.fit_steps)
        uploads = [(seen.round, per_image.of_kept(seen, knowledge, seed, progress)) for seen in knowledge.rounds]
        rounds = [(number, chain.uploads(seen, view.clients)) for number, seen in uploads if seen is not None]
        read = [(number, one) for number, one in rounds if one is not None]
        if not read or read[-1][0] != artifact.round:
            end, outcome = selection.class_means(view), torch.full_like(view.client, Outcome.GAVE_UP)
            return batched.reconstruction(end, 1, view.labels[:, None])._replace(outcome=outcome)
        initial = {n: t.to(view.h.device) for n, t in knowledge.initial.params["extractor"].items()}
        fits = chain.followed(how, view, read, initial, self.find_steps, self.again_steps, self.refine_steps, progress)
        plugged = plug_and_play.of(self.prior, self.denoiser_weight, knowledge, view.model.classes, seed)
        return calibrated_extractors.ended(view, fits, self.steps, progress, plugged)
