"""An active server: of an honest and a crafted classifier it sends the one that brings back more of the images.

What it crafts depends on the uploads that it expects (attacks/crafted/classifiers.py): a gentle classifier for one image, a steep
one for a batch, which sorts the images into rows of its first layer's gradient, and under noise a saturated one of either kind; or,
for one image, a concentrated one, which bears clipping and coarse number formats too (attacks/crafted/concentrated.py).
How its gradients are read stands in attacks/crafted/readout.py. Where E is private the features are attacked by the surrogates of
`aligned-surrogate`. Of one image without noise an honest classifier gives the same features, so that the attack does not apply.

Where E is broadcast a dry run decides before anything is sent (attacks/crafted/dry_run.py): crafted with one half of the
auxiliary images and tried on some of the other, against what `staged`, or `posterior` under noise, makes of the honest
classifier's gradients, and against class means.

Fowl et al.: Robbing the Fed, ICLR 2022, arXiv 2110.13057 (bins of a ReLU layer, distinguished by differences of rows; a
sigmoid's slope makes bins of its own). Deviations: the layer stands at its place in the architecture, behind the extractor,
as a client would look at shapes, so that features are imprinted and not images; the layers behind it are crafted too.

Heads beside LeNet-5's (attacks/crafted/heads.py): those of several linear layers, whatever activation of single units lies between
them, of batches and under noise; those of one linear layer, of batches without noise, where an image alone in its class comes back.
Elsewhere the server stays honest. Levels cannot be laid for private extractors whose features have no known range.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attacks.common import labels
from attacks.common.data_fit import CLIP, NOISE
from attacks.crafted import classifiers, dry_run
from attacks.crafted.readout import Readout
from attacks.posterior import Posterior
from attacks.shadow import alignment, recipes
from attacks.shadow.settings import SHORT, AlignedSettings
from attacks.shadow.surrogate_attack import SurrogateAttack
from attacks.staged import Staged
from privbench.execution.applicability import Limits
from privbench.hyperparameters import Count, CountOrZero
from privbench.networks.model import Model
from privbench.types import Artifact, Knowledge, Networks, Presets, Progress, Reconstruction, no_progress


@dataclass(frozen=True)
class Imprint(AlignedSettings):
    """A crafted classifier that sorts a batch's images into gradient rows (after Fowl et al., ICLR 2022)."""

    feature_steps: Count = 300  # of the inversion of a batch's features
    # Names of settings are part of stored specifications, so `rehearsal` (dry run) stays.
    rehearsal_images: CountOrZero = 12  # of the dry run; 0: what is crafted is sent without one

    needs: ClassVar[frozenset[str]] = frozenset({"classes", "auxiliary"})
    limits: ClassVar[Limits] = Limits(
        linear_classifier=True, plain_classifier=True, unmixed=True, plain_private_extractor=True, placed_features=True
    )
    uses: ClassVar[frozenset[str]] = frozenset({"upload:generator"}) | {
        f"{kind}:{part}" for kind in ("gradient", "update") for part in ("classifier", "extractor")
    }
    knowledge: ClassVar[str] = "active server + auxiliary"
    rung: ClassVar[str] = "L7"
    knows: ClassVar[frozenset[str]] = NOISE | CLIP
    presets: ClassVar[Presets] = {"smoke": SHORT | {"align_steps": 3, "feature_steps": 5, "rehearsal_images": 0}}
    pools: ClassVar[bool] = True
    active: ClassVar[bool] = True
    # 1: noise, auxiliary images, E's gradient; 2: gentle, saturated or honest, as the dry run says; 4: as `aligned-surrogate`;
    # 8: an honest server does not apply (up to 7 counted those of the attacks that answered for it then); 9: concentrated, too;
    # 10: layerwise inversion as `staged` has it since its revision 2
    revision: ClassVar[int] = 10
    # 11: the dry run's clients defend each step as clients do, an honest server is worth class means at least, rows of clipped
    # batches have labels, and a saturated classifier is no larger than sums and number formats carry
    # 16: of rows that agree alike the first is taken, labels are those of Adam's updates, noise below a saturated classifier keeps
    # its number format, and of one layer clips are undone
    batches_revision: ClassVar[int] = 16
    defended_revision: ClassVar[int] = 11
    # 11: the dry run's clients take mini-batches, and SGD's weight decay is no part of the gradient
    updates_revision: ClassVar[int] = 11
    wire_revision: ClassVar[int] = 11  # 11: as `staged`
    # 11: as `surrogate`, where the extractor is private; 12: as other defended cells
    noised_features_revision: ClassVar[int] = 12
    dropout_revision: ClassVar[int] = 13  # 13: the dry run's clients drop features
    labels_known_revision: ClassVar[int] = 14  # 14: its dry run's server knows them, too
    update_wire_revision: ClassVar[int] = 14  # 14: updates keep their number format
    defended_updates_revision: ClassVar[int] = 14  # 14: clips of a message are of the update, not of its gradient
    private_dropout_revision: ClassVar[int] = 15  # 15: as `surrogate` 3

    def craft(self, model: Model, broadcast: Networks, knowledge: Knowledge, seed: int) -> Networks:
        """The classifier to send in place of the broadcast one, or HONEST; UserError unless its first layer is linear."""
        classifiers.check_craftable(model, broadcast)
        return dry_run.better_classifier(
            model, broadcast, knowledge, self.rehearsal_images, seed, self.readout.read, passive
        )

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """All victims; UserError where the classifier is neither crafted nor, as far as is known, sent by this attack."""
        return self.readout.reconstruct(artifact, knowledge, seed, progress)

    @property
    def readout(self) -> Readout:
        """`staged` for one image, the surrogates of `aligned-surrogate` for private extractors, feature inversion for batches."""
        surrogates = SurrogateAttack("Imprint", self, (recipes.surrogates(self), alignment.aligned(self)))
        return Readout(
            Staged().reconstruct,
            surrogates.reconstruct,
            Staged(feature_steps=self.feature_steps).descents,
            self.exact_steps,
        )


def passive(artifact: Artifact) -> Staged | Posterior:
    """What attacks the uploads of an honest server, against which a crafted classifier has to bring back more."""
    return Posterior() if labels.noise_variance(artifact) else Staged()
