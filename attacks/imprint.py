"""An active server: of an honest and a crafted classifier it sends the one that brings back more of the images.

What it crafts (attacks/crafted/classifiers.py) depends on the uploads that it expects:
    one image, E broadcast     a gentle classifier: h in closed form, and E's gradient, go to `staged`
    a batch                    a steep one, which sorts the images into rows of its first layer's gradient
                               (attacks/crafted/gradient_bins.py): features of single images, inverted as in attacks/staged.py
    under noise                a saturated one of either kind, under which the noise cannot be heard: everything goes on as without
                               noise. An image of the class that has won leaves no gradient, and ends at the mean of the two.
    E private                  features alone, which are attacked by the surrogates of `aligned-surrogate` through the classifier
                               that an honest server would have sent, without which (an artifact file alone) there are the
                               class means. Of one image without noise an honest classifier gives the same features, so that
                               the attack does not apply. Of a batch every image with a row of its own is a victim of its own, as in
                               attacks/features/per_image.py; the others end at the class means.

Where E is broadcast a dry run decides before anything is sent (attacks/crafted/dry_run.py): crafted with one half of the
auxiliary images and tried on some of the other, against what `staged`, or `posterior` under noise, makes of the honest
classifier's gradients. The server sends the honest classifier where that scores higher, e.g. where a defence clips. Then the
attack does not apply: a passive attack says what an honest server reads, and here the class means stand in its place. Whether
the server was honest is seen by comparing with what an honest one would have sent.

All this is of single-precision gradients of one step (FedSGD) that nobody clips. A saturated classifier's gradients have a root
mean square of about 1e14: in fp16 they overflow. Whole updates are taken for a gradient (attacks/common/updates.py); under Adam no
step is longer than its rate, crafted or honest. The dry run plays clients that send in the same format
(privbench/observation/wire.py) and take the same local steps, so that such a server is honest where it gains nothing. What is
measured of each stands in docs/results/imprint-on-the-wire.md.

Fowl et al.: Robbing the Fed, ICLR 2022, arXiv 2110.13057 (bins of a ReLU layer, distinguished by differences of rows; a
sigmoid's slope makes bins of its own). Deviations: the layer stands at its place in the architecture, behind the extractor,
as a client would look at shapes, so that features are imprinted and not images; the layers behind it are crafted too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from attacks.common import closed_form, descend, failed_uploads, labels, problem, updates
from attacks.common.no_information import class_mean, gave_up, not_applicable
from attacks.crafted import classifiers, dry_run, gradient_bins, saturated
from attacks.features import per_image
from attacks.features.disaggregation import Disaggregated
from attacks.posterior import Posterior
from attacks.shadow import alignment, recipes
from attacks.shadow.settings import SHORT, AlignedSettings
from attacks.shadow.surrogate_attack import SurrogateAttack
from attacks.staged import Staged
from privbench.applicability import Limits
from privbench.errors import UserError
from privbench.hyperparameters import Count, CountOrZero
from privbench.networks.base import LinearClassifier
from privbench.networks.model import Model
from privbench.observation.local_update import optimiser_of
from privbench.types import (
    Artifact,
    Batch,
    ExpectedUpload,
    Knowledge,
    Networks,
    Presets,
    Progress,
    Reconstruction,
    no_progress,
)

HONEST = Networks({}, {})  # nothing in place of the broadcast
# A note, and so printed under every table with its numbers.
CLAIM = (
    "imprint sent a crafted classifier: what it reads holds for single-precision gradients of one step that nobody clips, and "
    "for nothing else (docs/results/imprint-on-the-wire.md)"
)
SENT_HONESTLY = (
    "imprint sent the honest classifier, as a crafted one would bring back no more, so that it does not apply here; a passive "
    "attack says what an honest server reads"
)


@dataclass(frozen=True)
class Imprint(AlignedSettings):
    """A crafted classifier that sorts a batch's images into gradient rows (after Fowl et al., ICLR 2022)."""

    feature_steps: Count = 300  # of the inversion of a batch's features
    rehearsal_images: CountOrZero = 12  # of the dry run; 0: what is crafted is sent without one

    needs: ClassVar[frozenset[str]] = frozenset({"classes", "auxiliary"})
    limits: ClassVar[Limits] = Limits(linear_classifier=True, unmixed=True)
    uses: ClassVar[frozenset[str]] = frozenset({"upload:generator"}) | {
        f"{kind}:{part}" for kind in ("gradient", "update") for part in ("classifier", "extractor")
    }
    knowledge: ClassVar[str] = "active server + auxiliary"
    rung: ClassVar[str] = "L7"
    presets: ClassVar[Presets] = {"smoke": SHORT | {"align_steps": 3, "feature_steps": 5, "rehearsal_images": 0}}
    pools: ClassVar[bool] = True
    active: ClassVar[bool] = True
    # 1: noise, auxiliary images, E's gradient; 2: gentle, saturated or honest, as the dry run says; 4: as `aligned-surrogate`;
    # 8: an honest server does not apply (up to 7 counted those of the attacks that answered for it then)
    revision: ClassVar[int] = 8

    def craft(self, model: Model, broadcast: Networks, knowledge: Knowledge, seed: int) -> Networks:
        """The classifier to send in place of the broadcast one, or HONEST; UserError unless its first layer is linear."""
        if "classifier" not in broadcast.params:
            raise UserError("imprint crafts the classifier, which this method does not broadcast; try --attack staged")
        if not isinstance(model.classifier, LinearClassifier):
            raise UserError(f"imprint needs a classifier that begins with a linear layer, but it is {model.backbone}'s")
        assert knowledge.auxiliary is not None, "the needs name auxiliary images"
        assert knowledge.expected is not None, "active attacks are told of the uploads to come"
        expected, auxiliary = knowledge.expected, knowledge.auxiliary
        noise = dry_run.noise_std(expected.defense, seed)
        if expected.local is not None and expected.defense.where == "update":
            noise /= optimiser_of(expected.local).lr * expected.local.steps  # in the update taken for a gradient
        if "extractor" not in broadcast.params:
            alone = expected.batch_size == 1 and not noise
            return HONEST if alone else classifiers.made_for(model, broadcast, auxiliary, expected.batch_size, noise)
        if not self._serves(model, broadcast, auxiliary, expected, noise, seed):
            return HONEST
        return classifiers.made_for(model, broadcast, auxiliary, expected.batch_size, noise)

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """All victims; UserError where the classifier is neither crafted nor, as far as is known, sent by this attack.

        A note says which classifier was sent and, of a crafted one, for what its numbers hold.
        """
        if "classifier" not in artifact.weights:
            raise UserError(
                "imprint reads the classifier's gradient, which these clients do not send; try --attack staged"
            )
        artifact = updates.nearly_gradients(artifact)
        closed_form.check_not_mixed(artifact)
        if _sent_honestly(artifact, knowledge):
            return not_applicable(class_mean(artifact, knowledge))._replace(notes=(SENT_HONESTLY,))
        if not classifiers.is_crafted(artifact.weights["classifier"]):
            raise UserError(
                "imprint reads what its own crafted classifier brought back, but these clients got an honest one; name it "
                "with --attack in a run of your own"
            )
        found = failed_uploads.set_aside(artifact, lambda sound: self._read(sound, knowledge, seed, progress))
        return found._replace(notes=(*found.notes, CLAIM))

    def _serves(
        self, model: Model, broadcast: Networks, auxiliary: Batch, expected: ExpectedUpload, noise: float, seed: int
    ) -> bool:
        """Whether a crafted classifier brings back more of the attacker's own images than an honest one."""
        others, mine = dry_run.halves(auxiliary, seed)
        if not self.rehearsal_images or len(others.labels) < expected.batch_size:
            return True
        clients, known = dry_run.batches(others, self.rehearsal_images, expected.batch_size), Knowledge(mine)
        sent = classifiers.made_for(model, broadcast, mine, expected.batch_size, noise)

        def worth(networks: Networks, attack: Callable[[Artifact], Reconstruction]) -> float:
            return dry_run.psnr_db(attack, dry_run.observed(model, networks, clients, expected, seed), clients.images)

        acting = worth(
            Networks(broadcast.params | sent.params, broadcast.buffers),
            lambda seen: self._read(seen, known, seed, no_progress),
        )
        return acting > worth(broadcast, lambda seen: passive(seen).reconstruct(seen, known, seed))

    def _read(self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress) -> Reconstruction:
        """What a crafted classifier brought back of all victims."""
        if artifact.batch_size > 1:
            problem.check_batch_size(artifact)
            if classifiers.is_saturated(artifact.weights["classifier"]):
                artifact = replace(artifact, defense={"name": "none"})
            read = self._batches if "extractor" in artifact.weights else self._private_batches
            return read(artifact, knowledge, seed, progress)
        if not classifiers.is_saturated(artifact.weights["classifier"]):
            return self._single(artifact, knowledge, seed, progress)
        found, rows = saturated.below_noise(artifact, knowledge), saturated.above_noise(artifact)
        if not len(rows):
            return found
        return failed_uploads.put(
            found, rows, self._single(saturated.denoised(artifact.select(rows)), knowledge, seed, progress)
        )

    def _single(self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress) -> Reconstruction:
        """Gradients of one image each, without noise."""
        if "extractor" in artifact.weights:
            return Staged().reconstruct(artifact, knowledge, seed, progress)
        return self._through_honest(artifact, knowledge, seed, progress)

    def _through_honest(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress
    ) -> Reconstruction:
        """Gradients of one image each of private extractors, by the surrogates of `aligned-surrogate`."""
        if knowledge.broadcast is None:
            return gave_up(class_mean(artifact, knowledge))
        honest = {"classifier": knowledge.broadcast.params["classifier"]}
        attack = SurrogateAttack("Imprint", self, (recipes.surrogates(self), alignment.aligned(self)))
        return attack.reconstruct(replace(artifact, weights=artifact.weights | honest), knowledge, seed, progress)

    def _batches(self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress) -> Reconstruction:
        """The features of single images, inverted."""
        found, own = gradient_bins.features_of(artifact), problem.make(artifact, seed)
        if artifact.labels is None:
            own = own._replace(labels=gradient_bins.completed(gradient_bins.labels_of(artifact, found), own.labels))
        start = problem.plain_start(artifact, seed)
        told = closed_form.undropped(artifact.model, found.h, closed_form.BLURRED)
        end = Staged(feature_steps=self.feature_steps).invert(own, told, None, start, progress)
        return descend.reconstruction(end, 1, own.labels)

    def _private_batches(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress
    ) -> Reconstruction:
        """Every image with a row of its own as a victim of its own; class means for the others."""
        found = gradient_bins.features_of(artifact)
        y = gradient_bins.labels_of(artifact, found)
        told = y != gradient_bins.NONE
        y = gradient_bins.completed(y, labels.recover(artifact))
        each = per_image.singles(artifact, Disaggregated(found.h, y, y[:, 0].double(), 0))
        whole = gave_up(class_mean(each, knowledge))
        rows = torch.nonzero(told.flatten())[:, 0]
        if len(rows):
            whole = failed_uploads.put(whole, rows, self._through_honest(each.select(rows), knowledge, seed, progress))
        return per_image.folded(whole, artifact.batch_size)


def passive(artifact: Artifact) -> Staged | Posterior:
    """What attacks the uploads of an honest server, against which a crafted classifier has to bring back more."""
    return Posterior() if labels.noise_variance(artifact) else Staged()


def _sent_honestly(artifact: Artifact, knowledge: Knowledge) -> bool:
    """Whether the clients got what an honest server would have sent: in a run of its own that was the attack's choice."""
    if knowledge.broadcast is None:
        return False
    honest, got = knowledge.broadcast.params["classifier"], artifact.weights["classifier"]
    return all(torch.equal(t, got[name]) for name, t in honest.items())
