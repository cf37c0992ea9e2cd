"""ORACLE, the second reference: a decoder trained through the victim's own private extractor, which no server has.

attacks/oracle.py inverts the true extractor by descent; this trains the decoder D of attacks/shadow/learned_decoder.py on auxiliary
images seen through it, one D for each client, and
    x = mu_y + a D(h, y),  a = <D, x' - mu> / ||D||^2, within [0, 1],
with a from auxiliary images x' that D was not trained on (one in HELD_OUT). Where the gradient was noised, the auxiliary features
are noised alike, so that D learns what noise leaves. Neither reference bounds the other, or any attack: each says what one way
of using the true extractor gives. The loss that is reported is the relative feature distance of the answer through that extractor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attacks.common import training_cache
from attacks.common.no_information import gave_up
from attacks.shadow import learned_decoder, shadow_federation, surrogate_training
from attacks.shadow.selection import FEWEST
from attacks.shadow.shadow_federation import ServerView
from attacks.shadow.surrogate_attack import of_sound_images
from privbench.applicability import Limits
from privbench.hyperparameters import Count
from privbench.seeds import stream
from privbench.tensors import Params
from privbench.types import Artifact, Batch, Knowledge, Presets, Progress, Reconstruction, no_progress

HELD_OUT = 5  # of so many auxiliary images one is kept for the share
NOISY_COPIES = 8  # of the auxiliary features, where the gradient was noised


@dataclass(frozen=True)
class OracleDecoder:
    """Reference: a decoder trained through the victim's true extractor (this suite)."""

    decoder_steps: Count = 500

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier", "auxiliary", "oracle"})
    limits: ClassVar[Limits] = Limits(private_extractor=True, linear_classifier=True, unmixed=True)
    knowledge: ClassVar[str] = "ORACLE (the victim's private extractor)"
    rung: ClassVar[str] = "L8"
    presets: ClassVar[Presets] = {"smoke": {"decoder_steps": 3}}

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """Each victim through its own client's D."""
        return of_sound_images(
            artifact, knowledge, seed, lambda sound: self.through_own(sound, knowledge, seed, progress), progress
        )

    def through_own(self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress) -> Reconstruction:
        """All victims of a private extractor, one image each; class means where there are too few auxiliary images."""
        assert knowledge.oracle is not None, "the needs of this attack name the oracle"
        real = shadow_federation.real(artifact, knowledge, seed, "OracleDecoder")
        means = learned_decoder.class_means(real)[real.labels]
        x, loss = means.clone(), torch.zeros(len(means), device=means.device)
        for done, client in enumerate(real.clients if len(real.auxiliary.labels) >= FEWEST else ()):
            progress(done, len(real.clients), "decoders through the true extractors")
            rows = torch.nonzero(real.client == client)[:, 0]
            own, net = shadow_federation.select(real, rows), knowledge.oracle[client].params["extractor"]
            made = self._trained(own, net, seed, knowledge)
            x[rows] += made["share"] * _answer(made, own.h, own.labels, own, means)
            for row in rows.tolist():
                loss[row] = learned_decoder.feature_distance(real, net, x[row : row + 1], row)
        first = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        found = Reconstruction(x[:, None], real.labels[:, None], loss, loss[:, None], first, 0)
        return found if len(real.auxiliary.labels) >= FEWEST else gave_up(found)

    def _trained(self, own: ServerView, net: Params, seed: int, knowledge: Knowledge) -> dict[str, Tensor]:
        """D of one client and its "share"; kept on disk for all that attack the artifact."""
        depends_on = [*own.auxiliary, *(net[name] for name in sorted(net))]
        return training_cache.cached(
            knowledge.cache,
            "oracle-decoder",
            {"decoder_steps": self.decoder_steps, "seed": seed},
            depends_on if own.noise is None else [*depends_on, own.noise],
            lambda: self._train(own, net, seed),
            own.h.device,
        )

    def _train(self, own: ServerView, net: Params, seed: int) -> dict[str, Tensor]:
        images, classes = own.auxiliary
        apart = torch.arange(len(images), device=images.device) % HELD_OUT == 0
        mine, other = Batch(images[~apart], classes[~apart]), Batch(images[apart], classes[apart])
        params = learned_decoder.fitted(
            own._replace(auxiliary=mine), seen(own, net, mine, seed, "training"), self.decoder_steps, seed
        )
        means = learned_decoder.class_means(own._replace(auxiliary=mine))[other.labels]
        answer = torch.cat(
            [_answer(params, h, other.labels, own, means) for h in seen(own, net, other, seed, "held out")]
        ).flatten(1)
        missing = (other.images - means).flatten(1).repeat(len(answer) // len(means), 1)
        share = ((answer * missing).sum() / answer.square().sum().clamp_min(1e-12)).clamp(0, 1)
        return {**params, "share": share}


def seen(own: ServerView, net: Params, images: Batch, seed: int, name: str) -> list[Tensor]:
    """What the true extractor makes of some images [n, c, s, s]; several copies with the client's noise where there is any."""
    h = surrogate_training.extract(own.model, net, images.images)
    if own.noise is None:
        return [h]
    rng, spread = stream(seed, "attacker", "oracle-decoder", name), own.noise.median().sqrt().to(h)
    return [h + spread * torch.randn(h.shape, generator=rng).to(h) for _ in range(NOISY_COPIES)]


def _answer(params: Mapping[str, Tensor], h: Tensor, y: Tensor, own: ServerView, like: Tensor) -> Tensor:
    """a D(h, y) without a, shaped as the images."""
    return learned_decoder.decode(dict(params), h.to(like), y, own.model.classes, like)
