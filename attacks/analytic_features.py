"""Closed-form features through the extractor that every client started with, known to an attacker who has the initial networks.

One image's classifier gradient gives h exactly (attacks/common/closed_form.py); h alone is no image, and what it says of one
depends on the extractor. In round 0 that is the initial one, and h is inverted through it:
    min over z of ||logit E_0(x) - logit h||^2 / tau^2 + ||z||^2      (attacks/features/inversion.py)
with a prior of smooth images around grey, because this attacker has no images. Later the clients' extractors have left their
start by an unknown way. How far is guessed from how far the broadcast classifier has left its own:
tau = ERROR ||C - C_0|| / ||C_0|| of the features, so that the inversion fades into grey instead of into noise.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from attacks.common import labels
from attacks.common.data_fit import CLIP, NOISE, PRUNE, REPRESENTATION
from attacks.features import inversion, per_image
from attacks.shadow import shadow_federation
from privbench.execution.applicability import Limits
from privbench.hyperparameters import Count, Positive
from privbench.tensors import relative_change
from privbench.types import Artifact, Knowledge, Presets, Progress, Reconstruction, no_progress

ERROR = 10.0  # tau per relative change of the classifier


@dataclass(frozen=True)
class AnalyticFeatures:
    """Features in closed form, inverted through the initial extractor (Geiping et al., NeurIPS 2020, Prop. 3.1)."""

    steps: Count = 400
    tau: Positive = 0.001  # of the logit of h, relative to its spread, while nothing has been trained

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier", "initial"})
    knowledge: ClassVar[str] = "gradient + initial networks + natural images"
    rung: ClassVar[str] = "L3"
    knows: ClassVar[frozenset[str]] = NOISE | CLIP | PRUNE | REPRESENTATION
    # 1: features in closed form are those of all columns of the gradient
    noised_features_revision: ClassVar[int] = 1
    presets: ClassVar[Presets] = {"smoke": {"steps": 5}}
    limits: ClassVar[Limits] = Limits(
        private_extractor=True, linear_classifier=True, plain_extractor=True, unmixed=True
    )

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """All victims through E_0."""
        return per_image.attack(
            artifact, knowledge, seed, lambda single: self.through_initial(single, knowledge, progress), progress
        )

    def through_initial(self, artifact: Artifact, knowledge: Knowledge, progress: Progress) -> Reconstruction:
        """All victims of a private extractor, one image each."""
        assert knowledge.initial is not None, "the needs of this attack name the initial networks"
        (h, mask), noise = shadow_federation.required_features(artifact, "AnalyticFeatures")
        y = labels.recover(artifact)[:, 0]
        drift = relative_change(artifact.weights["classifier"], knowledge.initial.params["classifier"])
        exact = drift == 0 and noise is None
        tau = self.tau if exact else ERROR * drift
        variance = torch.full_like(h[:, 0, 0, 0], tau**2) + (0 if noise is None else noise)
        prior = inversion.usual(artifact.image_shape, artifact.model.classes, h)
        net = knowledge.initial.params["extractor"]
        end = inversion.invert(
            artifact.model, [[net]] * len(h), prior, h, y, variance,
            exact=exact, steps=self.steps, mask=mask, progress=progress,
        )  # fmt: skip
        first = torch.zeros(len(end.x), dtype=torch.int64, device=end.x.device)
        return Reconstruction(end.x, y[:, None], end.loss, end.trace, first, end.evaluations)
