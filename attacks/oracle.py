"""ORACLE: inverts the victim's own private extractor, which no server has; a reference, no bound.

It says what one way of using the true extractor gives, with a Gaussian prior. Another way may give more: `oracle-decoder`, the
second reference, trains a decoder through it (attacks/oracle_decoder.py), and an active server makes clients send more.

min over z of ||logit E(x) - logit h||^2 / tau^2 + ||z||^2 (attacks/features/inversion.py), with the class means and variances of
auxiliary images as the prior. Where the gradient was noised, that is done through h itself and with its variance, and is one of two
starts for the image that makes the whole gradient of C most probable (attacks/features/true_extractor_posterior.py).
"""

from dataclasses import dataclass
from typing import ClassVar

from attacks.common import batched, labels
from attacks.common.data_fit import CLIP, NOISE, PRUNE, REPRESENTATION
from attacks.features import per_image, true_extractor_posterior
from attacks.shadow import known_extractor, shadow_federation
from privbench.execution.applicability import Limits
from privbench.hyperparameters import Count
from privbench.types import Artifact, Knowledge, Presets, Progress, Reconstruction, no_progress


@dataclass(frozen=True)
class Oracle:
    """Reference: the victim's true extractor, inverted by descent (this suite)."""

    steps: Count = 400

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier", "auxiliary", "oracle"})
    limits: ClassVar[Limits] = Limits(
        private_extractor=True, linear_classifier=True, plain_extractor=True, unmixed=True
    )
    knowledge: ClassVar[str] = "ORACLE (the victim's private extractor)"
    rung: ClassVar[str] = "L8"
    knows: ClassVar[frozenset[str]] = NOISE | CLIP | PRUNE | REPRESENTATION
    # 1: features in closed form are those of all columns of the gradient
    noised_features_revision: ClassVar[int] = 1
    presets: ClassVar[Presets] = {"smoke": {"steps": 5}}

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """Each victim through its own client's extractor."""
        return per_image.attack(
            artifact, knowledge, seed, lambda single: self.through_true(single, knowledge, seed, progress), progress
        )

    def through_true(self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress) -> Reconstruction:
        """All victims of a private extractor, one image each."""
        assert knowledge.oracle is not None, "the needs of this attack name the oracle"
        view = shadow_federation.real(artifact, knowledge, seed, "Oracle")
        nets = shadow_federation.of_clients(view, {k: [knowledge.oracle[k].params["extractor"]] for k in view.clients})
        end = known_extractor.invert(view, nets, self.steps, progress)
        if not labels.noise_variance(artifact):
            return batched.reconstruction(end, 1, view.labels[:, None])
        whole = true_extractor_posterior.most_probable(
            artifact, view.auxiliary, knowledge.oracle, end.x, self.steps, seed, progress
        )
        return whole._replace(gradient_evaluations=whole.gradient_evaluations + end.evaluations)
