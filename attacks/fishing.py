"""Fishing: an active server sends a classifier under which one image of a large batch outweighs all others, and reads that one.

What is sent stands in attacks/crafted/magnified.py, how the image is read and inverted in magnified_readout.py beside it. All
other images of the batch end at the class means of the recovered labels, as the floor `class-mean` does, and so do all images of
a batch in which none stands alone.

Before anything is sent a dry run decides (attacks/crafted/dry_run.py), against what an honest broadcast brings back: by `staged` of
batches that it may separate, or the class means. The server stays honest where the crafted classifier brings back no more.

It needs gradients of one step over E and C. Noise hides gradients as small as those that it magnifies; a clip changes nothing.
Where E is private the features say all that there is: `imprint` reads those of more images. A client that compares the gradients
of its images notices (privbench/scoring/broadcast_checks.py, `one of many`).

Wen et al.: Fishing for User Data in Large-Batch Federated Learning via Gradient Magnification, ICML 2022, arXiv 2202.00580.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attacks.common import closed_form, failed_uploads
from attacks.common.data_fit import CLIP
from attacks.common.no_information import not_applicable
from attacks.crafted import classifiers, dry_run, magnified
from attacks.crafted.dry_run import Sent
from attacks.crafted.magnified_readout import MagnifiedReadout
from attacks.floors import ClassMean
from attacks.staged import Staged
from privbench.errors import UserError
from privbench.execution.applicability import Limits
from privbench.hyperparameters import Count, CountOrZero
from privbench.networks.model import Model
from privbench.types import Artifact, Batch, Knowledge, Networks, Presets, Progress, Reconstruction, no_progress

# Images of a batch: the largest measured of which `staged` separates the features mostly; of 8 it seldom does
# (docs/appendix/attacks.md).
SEPARABLE = 4
SENT_HONESTLY = (
    "fishing sent the honest classifier, as a crafted one would bring back no more, so that it does not apply here; a passive "
    "attack says what an honest server reads"
)


@dataclass(frozen=True)
class Fishing:
    """A crafted classifier under which one image of a batch outweighs all others (after Wen et al., ICML 2022)."""

    fished_class: CountOrZero | None = None  # of this class alone; None: of any
    feature_steps: Count = 200  # of the inversion of features
    rehearsal_images: CountOrZero = 64  # of the dry run; 0: what is crafted is sent without one

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier", "gradient:extractor", "auxiliary"})
    limits: ClassVar[Limits] = Limits(
        linear_classifier=True, sigmoid_classifier=True, plain_classifier=True, several_images=True
    )
    knowledge: ClassVar[str] = "active server + auxiliary"
    rung: ClassVar[str] = "L7"
    knows: ClassVar[frozenset[str]] = CLIP
    presets: ClassVar[Presets] = {"smoke": {"feature_steps": 5, "rehearsal_images": 0}}
    active: ClassVar[bool] = True
    # 1: layerwise inversion as `staged` has it since its revision 2; 2: an honest server is worth class means at least,
    # and clipped messages have the right label
    revision: ClassVar[int] = 2
    wire_revision: ClassVar[int] = 3  # 3: as `staged`
    dropout_revision: ClassVar[int] = 4  # 4: as `imprint` at its revision 13
    labels_known_revision: ClassVar[int] = 5  # 5: as `imprint` at its revision 14

    def check(self, model: Model, clients: int) -> None:
        """UserError for a class that there is not."""
        if self.fished_class is not None and self.fished_class >= model.classes:
            raise UserError(
                f"fishing was given fished_class={self.fished_class}, but classes are 0 to {model.classes - 1}"
            )

    def craft(self, model: Model, broadcast: Networks, knowledge: Knowledge, seed: int) -> Networks:
        """The classifier to send in place of the broadcast one, or HONEST."""
        assert knowledge.expected is not None, "active attacks are told of the uploads to come"
        expected, only = knowledge.expected, self.fished_class
        if dry_run.gradient_noise_std(expected, seed):
            return classifiers.HONEST

        def made(images: Batch) -> tuple[Sent, ...]:
            return tuple((one,) for one in magnified.candidates(model, broadcast, images, expected, seed, only))

        return dry_run.to_all(
            dry_run.best(model, broadcast, knowledge, self.rehearsal_images, seed, made, self.readout.read, passive)
        )

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """All victims, one image of each at most; UserError where the classifier is not, as far as is known, this attack's."""
        closed_form.check_not_mixed(artifact)
        if classifiers.is_honest(artifact.weights["classifier"], knowledge.broadcast):
            return not_applicable(artifact, knowledge, SENT_HONESTLY)
        if not magnified.is_magnified(artifact.weights["classifier"]):
            raise UserError(
                "fishing reads what its own crafted classifier brought back, but these clients got another one; name it with "
                "--attack in a run of your own"
            )
        return failed_uploads.set_aside(artifact, lambda sound: self.readout.read(sound, knowledge, seed, progress))

    @property
    def readout(self) -> MagnifiedReadout:
        """Layerwise inversion, and the inversion of features."""
        return MagnifiedReadout(
            Staged(feature_steps=1, steps=0).reconstruct, Staged(feature_steps=self.feature_steps).descents
        )


def passive(artifact: Artifact) -> Staged | ClassMean:
    """What attacks the uploads of an honest server, against which a crafted classifier has to bring back more."""
    return Staged() if artifact.batch_size <= SEPARABLE else ClassMean()
