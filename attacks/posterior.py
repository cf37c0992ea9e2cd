"""The most probable image given a noised gradient, by an attacker who knows the noise and has images of the same kind.

F and how it is descended on stand in attacks/features/map_estimate.py. What is known here besides: mu is the mean of the
auxiliary images' classes, each with its probability given the noised gradient (attacks/common/labels.py), Sigma holds the
variances within a class (attacks/features/inversion.py) and, where the label is uncertain, those of the class means about mu.
Where the noise leaves nothing to be read, the answer stays at mu: the best guess without an image.

Closed-form features first, as attacks/staged.py has it without noise, led astray here (docs/appendix/tuning.md). Without noise
there is nothing to weigh, and the attack does not apply.

Balunovic et al.: Bayesian Framework for Gradient Leakage, ICLR 2022, arXiv 2111.04706, derive the objective; there the prior is a
handcrafted one.
"""

from dataclasses import dataclass
from typing import ClassVar

from attacks.common import labels, problem
from attacks.common.data_fit import CLIP, NOISE
from attacks.features import inversion, map_estimate
from attacks.features.learned_prior import plug_and_play, posterior_mean
from privbench.execution.applicability import Limits
from privbench.hyperparameters import Count, CountOrZero, Share
from privbench.types import Artifact, Knowledge, Presets, Progress, Reconstruction, no_progress


@dataclass(frozen=True)
class Posterior:
    """The most probable image under noise, with a prior from auxiliary images (after Balunovic et al., ICLR 2022)."""

    direction_steps: Count = 200
    steps: Count = 600
    starts: Count = 7  # at most
    prior: plug_and_play.Prior = "gaussian"
    denoiser_weight: Share = 0.5  # of the prior that a denoiser takes
    # Draws of the posterior that are averaged; 0: its mode (attacks/features/learned_prior/posterior_mean.py).
    samples: CountOrZero = 0
    further_steps: Count = 100  # of each descent of the two

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier", "gradient:extractor", "auxiliary"})
    knowledge: ClassVar[str] = "gradient + auxiliary"
    rung: ClassVar[str] = "L4"
    knows: ClassVar[frozenset[str]] = NOISE | CLIP
    presets: ClassVar[Presets] = {"smoke": {"steps": 5, "direction_steps": 5, "starts": 3}}
    limits: ClassVar[Limits] = Limits(noise=True)
    # 1: the direction first, and several starts; 2: wider where the label is uncertain; 3: as 2, refused without noise
    revision: ClassVar[int] = 3

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """All victims, each from several starts."""
        assert labels.noise_variance(artifact), "the limits of this attack demand noise"
        assert knowledge.auxiliary is not None, "the needs of this attack name auxiliary images"
        posed = problem.make(artifact, seed)
        learned = inversion.learned(knowledge.auxiliary, artifact.model.classes, next(iter(posed.observed.values())))
        prior = map_estimate.mixture(learned, labels.probabilities(artifact))
        steps = map_estimate.Steps(self.direction_steps, self.steps)
        end = map_estimate.most_probable(posed, artifact, prior, seed, steps, self.starts, progress)
        if self.prior == "gaussian" and not self.samples:
            return end
        plugged = plug_and_play.of(self.prior, self.denoiser_weight, knowledge, artifact.model.classes, seed)
        how = posterior_mean.Further(plugged, self.further_steps, self.samples)
        return posterior_mean.further(posed, artifact, prior, end, how, seed, progress)
