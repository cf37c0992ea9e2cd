"""Images and extractors of each client found together, from aligned surrogates and all of the client's uploads.

A surrogate is near the client's extractor, and its errors are the same for every upload of the client: what the images cannot
explain, the extractor must. attacks/shadow/fitting/joint_refinement.py descends on both. Of three recipes (surrogate, aligned,
joint) the shadow validation takes one.

With `uploads=kept` the victims' uploads are joined by those that the server kept of the same round, of images that nobody scores
(privbench/observation/other_images.py). The result is that of an attack on all of them, of which the victims are handed over.
Uploads of other rounds are not read: a client's extractor is another there, as `chained` has it.

With `uploads=whole` it reads what a real client sends, the change of the classifier over local training on all of the client's
images (`--observe update`; attacks/shadow/fitting/whole_updates.py). There the client's data set is the victim batch alone, and its
optimiser starts afresh (privbench/observation/local_update.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from attacks.common import failed_uploads
from attacks.common.data_fit import CLIP, NOISE
from attacks.shadow import alignment, recipes
from attacks.shadow.fitting import joint_refinement, whole_updates
from attacks.shadow.settings import SHORT, JointSettings
from attacks.shadow.surrogate_attack import SurrogateAttack
from privbench.execution.applicability import Limits
from privbench.hyperparameters import BySetting
from privbench.types import Artifact, Knowledge, Parts, Presets, Progress, Reconstruction, no_progress

NEEDS = frozenset({"gradient:classifier", "auxiliary"})
KNOWLEDGE = "gradient + auxiliary"
NEEDS_BY_UPLOADS = {
    "victims": NEEDS,
    "kept": NEEDS | {"rounds"},
    "whole": frozenset({"update:classifier", "auxiliary"}),
}
KNOWLEDGE_BY_UPLOADS = {
    "victims": KNOWLEDGE,
    "kept": f"{KNOWLEDGE} + kept uploads",
    "whole": "update + auxiliary",
}


@dataclass(frozen=True)
class Joint(JointSettings):
    """The private extractor and all images of a client's uploads, optimised together from aligned surrogates (this suite)."""

    # kept: those that the server kept of the attacked round as well; whole: updates of local training on all images of a client
    uploads: Literal["victims", "kept", "whole"] = "victims"

    needs = BySetting(NEEDS, lambda attack: NEEDS_BY_UPLOADS[attack.uploads])
    uses: ClassVar[frozenset[str]] = frozenset({"upload:generator"})
    limits: ClassVar[Limits] = Limits(
        private_extractor=True, linear_classifier=True, plain_extractor=True, unmixed=True
    )
    knowledge = BySetting(KNOWLEDGE, lambda attack: KNOWLEDGE_BY_UPLOADS[attack.uploads])
    rung: ClassVar[str] = "L5"
    # The fit to whole updates has one deviation for all of them, whatever was done to them.
    knows = BySetting(NOISE | CLIP, lambda attack: frozenset() if attack.uploads == "whole" else NOISE | CLIP)
    # All uploads of a client say what its extractor is.
    pools: ClassVar[bool] = True
    # 1: features in closed form are those of all columns of the gradient
    noised_features_revision: ClassVar[int] = 1
    update_batches_revision: ClassVar[int] = 2  # 2: other labels of batches moved by Adam
    private_dropout_revision: ClassVar[int] = 3  # 3: as `surrogate` 3
    presets: ClassVar[Presets] = {"smoke": SHORT | {"align_steps": 3, "joint_steps": 3, "starts": 1}}

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """All victims through plain, aligned or refined surrogates."""
        if self.uploads == "whole":
            return failed_uploads.set_aside(
                artifact, lambda sound: whole_updates.reconstruct(self, sound, knowledge, seed, progress)
            )
        chosen_from = (recipes.surrogates(self), alignment.aligned(self), joint_refinement.joint(self))
        every = with_kept(artifact, knowledge.rounds or ()) if self.uploads == "kept" else artifact
        end = SurrogateAttack("Joint", self, chosen_from).reconstruct(every, knowledge, seed, progress)
        return end if every is artifact else first(end, artifact.victims)


def with_kept(artifact: Artifact, rounds: Sequence[Artifact]) -> Artifact:
    """The victims' uploads, and after them those that the server kept of the same round."""
    kept = [seen for seen in rounds if seen.round == artifact.round]
    return joined([artifact, *kept]) if kept else artifact


def joined(each: Sequence[Artifact]) -> Artifact:
    """Single gradients of the same round in one artifact; all have batches of one size."""

    def of(parts: Sequence[Parts]) -> Parts:
        return {
            part: {name: torch.cat([one[part][name] for one in parts]) for name in net}
            for part, net in parts[0].items()
        }

    labels = [one.labels for one in each if one.labels is not None]
    return replace(
        each[0],
        gradients=of([one.gradients for one in each]),
        client=torch.cat([one.client for one in each]),
        labels=torch.cat(labels) if len(labels) == len(each) else None,
    )


def first(end: Reconstruction, count: int) -> Reconstruction:
    """What was reconstructed of the first `count` victims."""
    images, labels, loss, trace, restart = (t[:count] for t in end[:5])
    outcome = None if end.outcome is None else end.outcome[:count]
    return end._replace(images=images, labels=labels, loss=loss, trace=trace, restart=restart, outcome=outcome)
