"""ORACLE, the second reference: a decoder trained through the victim's own private extractor, which no server has.

attacks/oracle.py inverts the true extractor by descent; this trains the decoder D of attacks/shadow/learned_decoder.py on auxiliary
images seen through it, one D for each client, and answers
    x = mu_y + a D(h, y)            (attacks/shadow/true_extractor_decoder.py)
with the share a from images that D was not trained on. Neither reference bounds the other, or any attack: each says what one way
of using the true extractor gives. The loss that is reported is the relative feature distance of the answer through that extractor.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from attacks.common.data_fit import CLIP, NOISE
from attacks.common.no_information import gave_up
from attacks.shadow import learned_decoder, shadow_federation, true_extractor_decoder
from attacks.shadow.selection import FEWEST
from attacks.shadow.surrogate_attack import of_sound_images
from privbench.execution.applicability import Limits
from privbench.hyperparameters import Count
from privbench.types import Artifact, Knowledge, Presets, Progress, Reconstruction, no_progress


@dataclass(frozen=True)
class OracleDecoder:
    """Reference: a decoder trained through the victim's true extractor (this suite)."""

    decoder_steps: Count = 500

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier", "auxiliary", "oracle"})
    limits: ClassVar[Limits] = Limits(
        private_extractor=True, linear_classifier=True, plain_extractor=True, unmixed=True
    )
    knowledge: ClassVar[str] = "ORACLE (the victim's private extractor)"
    rung: ClassVar[str] = "L8"
    knows: ClassVar[frozenset[str]] = NOISE | CLIP
    # 1: features in closed form are those of all columns of the gradient
    noised_features_revision: ClassVar[int] = 1
    presets: ClassVar[Presets] = {"smoke": {"decoder_steps": 3}}

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """Each victim through its own client's D."""
        return of_sound_images(
            artifact, knowledge, seed, lambda sound: self.through_true(sound, knowledge, seed, progress), progress
        )

    def through_true(self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress) -> Reconstruction:
        """All victims of a private extractor, one image each; class means where there are too few auxiliary images."""
        assert knowledge.oracle is not None, "the needs of this attack name the oracle"
        real = shadow_federation.real(artifact, knowledge, seed, "OracleDecoder")
        means = shadow_federation.expected(real, learned_decoder.class_means(real))
        x, loss = means.clone(), torch.zeros(len(means), device=means.device)
        for done, client in enumerate(real.clients if len(real.auxiliary.labels) >= FEWEST else ()):
            progress(done, len(real.clients), "decoders through the true extractors")
            rows = torch.nonzero(real.client == client)[:, 0]
            view, net = shadow_federation.select(real, rows), knowledge.oracle[client].params["extractor"]
            x[rows] += true_extractor_decoder.answers(view, net, self.decoder_steps, means, seed, knowledge)
            for row in rows.tolist():
                loss[row] = learned_decoder.feature_distance(real, net, x[row : row + 1], row)
        first = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        decoded = Reconstruction(x[:, None], real.labels[:, None], loss, loss[:, None], first, 0)
        return decoded if len(real.auxiliary.labels) >= FEWEST else gave_up(decoded)
