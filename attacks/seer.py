"""SEER: an active server sends networks that it has trained together with a secret decoder, which finds one image in a batch.

What is sent is made by gradient descent (attacks/crafted/secret/training.py): no layer has a handcrafted form, the loss stays near
that of an honest broadcast, and in no layer does one image's gradient exceed the others'. Only behind a projection that the server
alone knows the brightest image of a batch is left. How it is read stands in attacks/crafted/secret/readout.py. All other images
end at the class means of the recovered labels, as the floor `class-mean` does, and so do all images of a batch in which none stands
alone.

Under secure aggregation the sum over clients is one batch. Before anything is sent, a dry run on images that trained nothing
decides against the honest networks' class means. Noise exceeds what is left behind the projection, so that the server stays honest
under it. Where E is private it cannot be trained, and whole updates are no gradients of one step.

Garov, Dimitrov, Jovanovic, Vechev: Hiding in Plain Sight: Disguising Data Stealing Attacks in Federated Learning, ICLR 2024, arXiv
2306.03013. Deviations: attacks/crafted/secret/training.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attacks.common import closed_form, failed_uploads
from attacks.common.data_fit import CLIP
from attacks.common.no_information import not_applicable
from attacks.crafted import classifiers, dry_run
from attacks.crafted.secret import readout, training
from attacks.crafted.secret.training import SecretTraining
from privbench.execution.applicability import Limits
from privbench.hyperparameters import Count, CountOrZero
from privbench.networks.model import Model
from privbench.types import Artifact, Knowledge, Networks, Presets, Progress, Reconstruction, no_progress

SENT_HONESTLY = (
    "seer sent the honest networks, as those with a secret decoder would bring back no more, so that it does not apply here; a "
    "passive attack says what an honest server reads"
)


@dataclass(frozen=True)
class Seer:
    """Networks trained with a secret decoder that finds one image in a batch's gradient (after Garov et al., ICLR 2024)."""

    start_steps: Count = 800  # of extractor, classifier and reconstructor
    train_steps: Count = 3000  # of the classifier, until the secret projection leaves one image
    decoder_steps: Count = 2000  # of the reconstructor that reads
    darkest: bool = False  # the darkest image of a batch, in place of the brightest
    rehearsal_images: CountOrZero = 64  # of the dry run; 0: what is crafted is sent without one

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier", "gradient:extractor", "auxiliary"})
    limits: ClassVar[Limits] = Limits(
        linear_classifier=True, sigmoid_classifier=True, plain_classifier=True, several_images=True
    )
    knowledge: ClassVar[str] = "active server + auxiliary"
    rung: ClassVar[str] = "L7"
    knows: ClassVar[frozenset[str]] = CLIP
    presets: ClassVar[Presets] = {
        "smoke": {"start_steps": 5, "train_steps": 5, "decoder_steps": 5, "rehearsal_images": 0}
    }
    active: ClassVar[bool] = True
    dropout_revision: ClassVar[int] = 1  # 1: as `imprint` at its revision 13
    labels_known_revision: ClassVar[int] = 2  # 2: as `imprint` at its revision 14

    def craft(self, model: Model, broadcast: Networks, knowledge: Knowledge, seed: int) -> Networks:
        """The extractor and classifier to send in place of the broadcast ones, or HONEST."""
        assert knowledge.auxiliary is not None, "the needs name auxiliary images"
        assert knowledge.expected is not None, "active attacks are told of the uploads to come"
        expected, images = knowledge.expected, training.parted(knowledge.auxiliary)
        # One image has no others to hide among.
        if expected.batch_size == 1 or dry_run.gradient_noise_std(expected, seed):
            return classifiers.HONEST
        how = SecretTraining(self.start_steps, self.train_steps, self.darkest)
        sent = training.networks(model, broadcast, images[0], expected.batch_size, how, seed)
        gains = readout.brings_more(
            model, broadcast, sent, images, self.rehearsal_images, expected, self.decoder_steps, seed
        )
        return sent if gains else classifiers.HONEST

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """All victims, one image of each at most."""
        closed_form.check_not_mixed(artifact)
        if classifiers.is_honest(artifact.weights["classifier"], knowledge.broadcast):
            return not_applicable(artifact, knowledge, SENT_HONESTLY)

        def of_sound(sound: Artifact) -> Reconstruction:
            return readout.read(sound, knowledge, self.decoder_steps, seed, progress)

        return failed_uploads.set_aside(artifact, of_sound)
