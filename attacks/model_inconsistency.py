"""Model inconsistency: an active server under secure aggregation sends its target one network and silences all other clients.

The others get a classifier under which their gradients vanish, so that the target's stands alone in the sum
(attacks/crafted/isolation.py). The target gets what `imprint` would send it: the crafted classifier, or the honest one where
that brings back as much. What it sends is then attacked as if it had arrived by itself.

It holds for single gradients over E and C. Whole updates are refused: weight decay moves silent networks too, and Adam makes full
steps of that. Without secure aggregation nothing has to be isolated, and `imprint` is this attack. Clients that compare what they
received, or a server that has to sign one broadcast, would end it.

Pasquini, Francati, Ateniese: Eluding Secure Aggregation in Federated Learning via Model Inconsistency, CCS 2022, arXiv 2111.07380.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from attacks.common.data_fit import CLIP, NOISE
from attacks.crafted import classifiers, dry_run, isolation
from attacks.imprint import Imprint, passive
from privbench.errors import UserError
from privbench.execution.applicability import Limits
from privbench.hyperparameters import Count, CountOrZero
from privbench.networks.model import Model
from privbench.types import Artifact, Knowledge, Networks, Presets, Progress, Reconstruction, no_progress


@dataclass(frozen=True)
class ModelInconsistency:
    """Isolates one client's gradient in a secure sum, and reads it as `imprint` does (Pasquini et al., CCS 2022)."""

    target: CountOrZero = 0  # the client whose images are attacked, from 0
    feature_steps: Count = 300  # as `imprint`
    rehearsal_images: CountOrZero = 12  # as `imprint`

    needs: ClassVar[frozenset[str]] = frozenset({"aggregate", "gradient:classifier", "gradient:extractor", "auxiliary"})
    limits: ClassVar[Limits] = Limits(linear_classifier=True, sigmoid_classifier=True, plain_classifier=True)
    knowledge: ClassVar[str] = "active server + auxiliary"
    rung: ClassVar[str] = "L7"
    knows: ClassVar[frozenset[str]] = NOISE | CLIP
    presets: ClassVar[Presets] = {"smoke": {"feature_steps": 5, "rehearsal_images": 0}}
    active: ClassVar[bool] = True
    # 1: as `imprint` 9; 2: the dry run counts the target's images; 3: and has the noise of all messages; 4: as `imprint` 11;
    # 5 under dropout: as `imprint` 13; 6: what was done to the isolated message is known, in the dry run as well
    revision: ClassVar[int] = 6

    def check(self, model: Model, clients: int) -> None:
        """UserError for a target that is no client."""
        if self.target >= clients:
            raise UserError(
                f"model-inconsistency was given target={self.target}, but there are {clients} clients, from 0 on"
            )

    def craft(self, model: Model, broadcast: Networks, knowledge: Knowledge, seed: int) -> Networks:
        """What the target receives, or HONEST; UserError unless its classifier begins with a linear layer."""
        assert knowledge.expected is not None, "active attacks are told of the uploads to come"
        expected = knowledge.expected
        assert expected.weights is not None, "messages are taken out of sums alone"
        # The more images the target has, the finer its message is in fixed point.
        counts = (expected.weights[self.target],)
        # The others' messages are silent but for their noise, which counts relative to the target's share.
        noise = math.hypot(*expected.shares) / expected.shares[self.target]
        alone = expected._replace(
            batch_size=expected.images_per_client,
            weights=counts,
            noise_factor=noise,
            largest=dry_run.largest_entry(expected),
        )
        return self._imprint.craft(model, broadcast, replace(knowledge, expected=alone), seed)

    def craft_others(self, model: Model, broadcast: Networks) -> Networks:
        """What all other clients receive."""
        return isolation.silent(model, broadcast)

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """All of the target's images, and in a note what of the sum is not its; UserError where no client was isolated."""
        if artifact.target is None:
            raise UserError(
                "model-inconsistency reads a sum in which it has isolated one client, but all clients received the same here; name "
                "it with --attack in a run of your own, or try --attack staged"
            )
        # Of a sum that is not finite nothing is said.
        residual = isolation.residual(artifact)
        residual = residual[residual.isfinite()]
        share = f"has {float(residual.mean()):.2g} of its norm" if len(residual) else "is unknown, as no sum is finite"
        note = (
            f"model-inconsistency isolated client {artifact.target}: the other clients' part of a sum, all of it in the last bias, "
            f"{share}; that gradient is read off the last weights instead"
        )
        alone = isolation.standing_alone(artifact)
        is_honest = classifiers.is_honest(alone.weights["classifier"], knowledge.broadcast)
        attack = passive(alone) if is_honest else self._imprint
        answer = attack.reconstruct(alone, knowledge, seed, progress)
        return answer._replace(notes=(*answer.notes, note))

    @property
    def _imprint(self) -> Imprint:
        return Imprint(feature_steps=self.feature_steps, rehearsal_images=self.rehearsal_images)
