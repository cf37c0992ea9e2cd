"""What a crafted classifier brought back of all victims, read off its gradients and inverted.

    one image, E broadcast     h in closed form, and E's gradient, as an honest classifier's (attacks/staged.py)
    one image, concentrated    h in closed form, with the variance of its noise (concentrated.py), inverted; through E where that is
                               broadcast
    a batch, E broadcast       features of single images in the rows of the first layer (gradient_bins.py), or in the
                               classes of a head of one layer (class_sums.py), inverted
    E private                  features alone, attacked through the classifier that an honest server would have sent; without that
                               (an artifact file alone) there are the class means. Of a batch every image with a row of its own is
                               a victim of its own, as in attacks/features/per_image.py; the others end at the class means.
Under a saturated classifier the noise is negligible, and everything goes on as without noise. An image of the class that has won
leaves no gradient, and ends at the mean of the two (attacks/crafted/saturated.py).

Where the server was honest the attack does not apply: a passive attack says what an honest server reads, and here the class means
stand in its place. Whether it was honest is seen by comparing with what an honest one would have sent.

All this is of gradients of one step (FedSGD), in single precision and not clipped, but for a concentrated classifier's. A saturated
one's have a root mean square of about 1e14: in fp16 they overflow. Whole updates are taken for a gradient
(attacks/common/updates.py); under Adam no step is longer than its rate, crafted or honest. What is measured of each stands in
docs/results/imprint-on-the-wire.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attacks.common import batched, closed_form, data_fit, failed_uploads, labels, problem, updates
from attacks.common.no_information import class_mean, gave_up, not_applicable
from attacks.crafted import classifiers, concentrated, gradient_bins, saturated
from attacks.features import per_image
from attacks.features.anchored_matching import AnchoredMatching
from attacks.features.separation.row_spaces import Disaggregated
from attacks.shadow import known_extractor, shadow_federation
from privbench.defending import described
from privbench.errors import UserError
from privbench.observation import wire
from privbench.types import Artifact, Knowledge, Progress, Reconstruction

# A note, and so printed under every table with its numbers.
CLAIM = (
    "imprint sent a crafted classifier: what it reads holds for single-precision gradients of one step that nobody clips, and "
    "for nothing else (docs/results/imprint-on-the-wire.md)"
)
OTHERWISE_CLAIM = (
    "imprint sent a crafted classifier: what it reads holds for uploads that are clipped, rounded and made of local steps as these "
    "are, and for nothing else (docs/results/imprint-on-the-wire.md)"
)
CONCENTRATED_CLAIM = (
    "imprint sent a concentrated classifier: what it reads holds for gradients of one image and one step, whether clipped and "
    "noised or not, and for nothing else"
)
SENT_HONESTLY = (
    "imprint sent the honest classifier, as a crafted one would bring back no more, so that it does not apply here; a passive "
    "attack says what an honest server reads"
)
Attack = Callable[[Artifact, Knowledge, int, Progress], Reconstruction]


@dataclass(frozen=True)
class Readout:
    """The attacks that work on what the crafted classifier's gradients give."""

    of_one_image: Attack  # on gradients of one image without noise, with E broadcast
    of_private: Attack  # on the same with E private
    descents: AnchoredMatching  # of features of batches
    exact_steps: int  # of the inversion of one image's noisy features through a broadcast E

    def reconstruct(self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress) -> Reconstruction:
        """All victims; UserError where the classifier is neither crafted nor, as far as is known, sent by this attack.

        A note says which classifier was sent and, of a crafted one, for what its numbers hold.
        """
        if "classifier" not in artifact.weights:
            raise UserError(
                "imprint reads the classifier's gradient, which these clients do not send; try --attack staged"
            )
        claim, gradients = _claim(artifact), updates.nearly_gradients(artifact)
        closed_form.check_not_mixed(gradients)
        if classifiers.is_honest(artifact.weights["classifier"], knowledge.broadcast):
            return not_applicable(artifact, knowledge, SENT_HONESTLY)
        first = artifact.model.classifier.features_layer
        if first is None or not classifiers.is_crafted(artifact.weights["classifier"], first):
            raise UserError(
                "imprint reads what its own crafted classifier brought back, but these clients got an honest one; name it "
                "with --attack in a run of your own"
            )
        images = failed_uploads.set_aside(
            artifact, lambda sound: self.read(sound, knowledge, seed, progress), gradients
        )
        return images._replace(notes=(*images.notes, claim))

    def read(self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress) -> Reconstruction:
        """The images of all victims, which were sent a crafted classifier; their gradients are finite."""
        sent, artifact = artifact, updates.nearly_gradients(artifact)
        last = artifact.model.classifier.logits_layer
        is_saturated = classifiers.is_saturated(artifact.weights["classifier"], last)
        if artifact.batch_size > 1:
            problem.check_batch_size(artifact)
            # Noise is negligible beside the gradient unless that was clipped.
            if is_saturated and not _was_clipped(artifact):
                form = artifact.defense.get("wire", "float32")
                defense = wire.described({"name": saturated.name_of_noise(artifact)}, form)
                artifact = replace(artifact, defense=defense)
            recovered = labels.recover(updates.with_labels(artifact, sent))
            read = self._batches if "extractor" in artifact.weights else self._private_batches
            return read(artifact, recovered, knowledge, seed, progress)
        if concentrated.is_concentrated(artifact.weights["classifier"]):
            return self._concentrated(artifact, knowledge, seed, progress)
        if not is_saturated:
            return self._single(artifact, knowledge, seed, progress)
        floor, rows = saturated.below_noise(artifact, knowledge), saturated.above_noise(artifact)
        if not len(rows):
            return floor
        denoised = self._single(saturated.denoised(artifact.select(rows)), knowledge, seed, progress)
        return failed_uploads.put(floor, rows, denoised)

    def _single(self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress) -> Reconstruction:
        """Gradients of one image each, without noise."""
        if "extractor" in artifact.weights:
            return self.of_one_image(artifact, knowledge, seed, progress)
        return self._through_honest(artifact, knowledge, seed, progress)

    def _concentrated(self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress) -> Reconstruction:
        """Gradients of one image each, clipped and noised."""
        shown = concentrated.of_features(artifact, concentrated.features_of(artifact))
        if "extractor" not in artifact.weights:
            return self._through_honest(shown, knowledge, seed, progress)
        view = shadow_federation.real(shown, knowledge, seed, "imprint")
        extractors = {k: [artifact.weights["extractor"]] for k in view.clients}
        end = known_extractor.invert(view, shadow_federation.of_clients(view, extractors), self.exact_steps, progress)
        return batched.reconstruction(end, 1, view.labels[:, None])

    def _through_honest(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress
    ) -> Reconstruction:
        """Gradients of one image each of private extractors, through the classifier of an honest server."""
        if knowledge.broadcast is None:
            return gave_up(class_mean(artifact, knowledge))
        honest = {"classifier": knowledge.broadcast.params["classifier"]}
        return self.of_private(replace(artifact, weights=artifact.weights | honest), knowledge, seed, progress)

    def _batches(
        self, artifact: Artifact, recovered: Tensor, knowledge: Knowledge, seed: int, progress: Progress
    ) -> Reconstruction:
        """The features of single images, inverted; images that no row labels have what is left of the labels `recovered` [V, B]."""
        binned, posed = gradient_bins.features_of(artifact), problem.make(artifact, seed)
        if artifact.labels is None:
            identified = gradient_bins.labels_of(artifact, binned)
            posed = posed._replace(labels=gradient_bins.completed(identified, recovered))
        features = closed_form.undropped(
            artifact.model, binned.h, closed_form.BLURRED, pruned=closed_form.prunes(artifact)
        )
        start = problem.plain_start(artifact, seed)
        return batched.reconstruction(self.descents.invert(posed, features, None, start, progress), 1, posed.labels)

    def _private_batches(
        self, artifact: Artifact, recovered: Tensor, knowledge: Knowledge, seed: int, progress: Progress
    ) -> Reconstruction:
        """Every image with a row of its own as a victim of its own; class means of the others, as `_batches` labels them."""
        binned = gradient_bins.features_of(artifact)
        y = gradient_bins.labels_of(artifact, binned)
        alone = torch.nonzero((y != gradient_bins.NONE).flatten())[:, 0]
        y = gradient_bins.completed(y, recovered)
        each = per_image.singles(artifact, Disaggregated(binned.h, y, y[:, 0].double(), 0))
        whole = gave_up(class_mean(each, knowledge))
        if len(alone):
            inverted = self._through_honest(each.select(alone), knowledge, seed, progress)
            whole = failed_uploads.put(whole, alone, inverted)
        return per_image.folded(whole, artifact.batch_size)


def _was_clipped(artifact: Artifact) -> bool:
    """Whether gradients were, or in a whole update taken for one the images of every step."""
    return data_fit.of(artifact).clip is not None or artifact.defense.get("clips") == "example"


def _claim(artifact: Artifact) -> str:
    """For what the numbers of an upload at a crafted classifier hold."""
    if concentrated.is_concentrated(artifact.weights["classifier"]):
        return CONCENTRATED_CLAIM
    done = {kind for one in described.single(artifact.defense) for kind in described.kinds(one)} - data_fit.NOISE
    return OTHERWISE_CLAIM if done or artifact.local is not None or "wire" in artifact.defense else CLAIM
