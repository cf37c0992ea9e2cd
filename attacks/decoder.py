"""A convolutional decoder h -> x, trained on auxiliary images seen through aligned surrogates: a learned inverse.

What D is stands in attacks/shadow/learned_decoder.py; how much of its answer counts, x = mu_y + a D(h, y), in
attacks/shadow/decoder_share.py. There is no descent on the victims, so the loss that is reported is the relative feature distance
of the answer through the client's surrogate.
"""

from dataclasses import asdict, dataclass
from typing import ClassVar

import torch

from attacks.common.data_fit import CLIP, NOISE
from attacks.common.no_information import gave_up
from attacks.features.inversion import Extractors
from attacks.shadow import alignment, decoder_share, learned_decoder, selection, shadow_federation
from attacks.shadow.settings import SHORT, AlignedSettings
from attacks.shadow.surrogate_attack import of_sound_images
from privbench.execution.applicability import Limits
from privbench.hyperparameters import Count
from privbench.types import Artifact, Knowledge, Presets, Progress, Reconstruction, no_progress


@dataclass(frozen=True)
class Decoder(AlignedSettings):
    """A decoder of features, trained through aligned surrogates (learned inverse: Dosovitskiy and Brox, CVPR 2016)."""

    decoder_steps: Count = 500

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier", "auxiliary"})
    uses: ClassVar[frozenset[str]] = frozenset({"upload:generator"})
    limits: ClassVar[Limits] = Limits(
        private_extractor=True, linear_classifier=True, plain_extractor=True, unmixed=True
    )
    knowledge: ClassVar[str] = "gradient + auxiliary"
    rung: ClassVar[str] = "L5"
    knows: ClassVar[frozenset[str]] = NOISE | CLIP
    pools: ClassVar[bool] = True
    # 4: features in closed form are those of all columns of the gradient
    noised_features_revision: ClassVar[int] = 4
    private_dropout_revision: ClassVar[int] = 5  # 5: as `surrogate` 3
    presets: ClassVar[Presets] = {"smoke": SHORT | {"align_steps": 3, "decoder_steps": 3}}
    revision: ClassVar[int] = 3  # 2, 3: as `aligned-surrogate`

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """One pass of D per victim."""
        return of_sound_images(artifact, knowledge, seed, lambda sound: self._decoded(sound, knowledge, seed), progress)

    def _decoded(self, artifact: Artifact, knowledge: Knowledge, seed: int) -> Reconstruction:
        """All victims; their gradients are finite, and of one image each."""
        real, recipe = shadow_federation.real(artifact, knowledge, seed, "Decoder"), alignment.aligned(self)
        validated, members = decoder_share.NOTHING, Extractors()
        if len(real.auxiliary.labels) >= selection.FEWEST:
            settings = asdict(self) | {"revision": self.revision}
            validated = decoder_share.validated(
                recipe, self.decoder_steps, settings, real, artifact.round, seed, knowledge
            )
        means = shadow_federation.expected(real, learned_decoder.class_means(real))
        answer = torch.zeros_like(real.h[:, :1, :1, :1])
        if validated.share:
            members = recipe.extractors(real, seed, knowledge)
            answer = decoder_share.answers(real, members, self.decoder_steps, seed, knowledge)
        x = means + decoder_share.carried_over(validated, answer) * answer.to(means)
        loss = torch.zeros(len(x), device=x.device)
        for v, victim in enumerate(real.victim.tolist() if members else ()):
            loss[v] = learned_decoder.feature_distance(real, members[victim][0], x[v : v + 1], v)
        first = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        decoded = Reconstruction(x[:, None], real.labels[:, None], loss, loss[:, None], first, 0)
        return decoded if validated.share else gave_up(decoded)
