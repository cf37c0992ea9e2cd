"""The no-information floor: what a PSNR is worth that anybody can reach without attacking."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attacks.common import labels, problem
from attacks.features import updates
from privbench.types import Artifact, Batch, Knowledge, Outcome, Reconstruction, Report, no_report


def _still(artifact: Artifact, images: Tensor, known: Tensor) -> Reconstruction:
    """A reconstruction that descended on nothing."""
    zero = torch.zeros(artifact.victims, device=images.device)
    return Reconstruction(images, known, zero, zero[:, None], zero.long(), 0)


def gave_up(found: Reconstruction) -> Reconstruction:
    """A reconstruction that says of every victim that a floor stands in its place."""
    return found._replace(outcome=torch.full_like(found.restart, Outcome.GAVE_UP))


def _unknown(artifact: Artifact) -> Tensor:
    return torch.full((artifact.victims, artifact.batch_size), -1, device=artifact.client.device)


def _auxiliary(knowledge: Knowledge) -> Batch:
    assert knowledge.auxiliary is not None, "the needs of this floor name auxiliary images"
    return knowledge.auxiliary


def _by_class(artifact: Artifact, knowledge: Knowledge, pick: Callable[[Tensor], Tensor]) -> Reconstruction:
    """`pick` of the auxiliary images of each victim's class; of all where there is none of the class."""
    images, classes = _auxiliary(knowledge)
    known = labels.recover(updates.nearly_gradients(artifact))
    picked = {int(c): pick(images[classes == c]) for c in classes.unique()}
    other = pick(images)
    rows = [torch.stack([picked.get(int(c), other) for c in batch]) for batch in known]
    return _still(artifact, torch.stack(rows), known)


@dataclass(frozen=True)
class Grey:
    """Every pixel 0.5."""

    needs: ClassVar[frozenset[str]] = frozenset()
    knowledge: ClassVar[str] = "nothing"
    rung: ClassVar[str] = "L0"

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, report: Report = no_report
    ) -> Reconstruction:
        """Constant grey."""
        return _still(artifact, problem.grey_start(artifact, torch.float32), _unknown(artifact))


@dataclass(frozen=True)
class DatasetMean:
    """The mean of other images of the same data set."""

    needs: ClassVar[frozenset[str]] = frozenset({"auxiliary"})
    knowledge: ClassVar[str] = "auxiliary mean"
    rung: ClassVar[str] = "L0"

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, report: Report = no_report
    ) -> Reconstruction:
        """The same mean image for every victim."""
        mean = _auxiliary(knowledge).images.mean(0)
        shape = (artifact.victims, artifact.batch_size, *artifact.image_shape)
        return _still(artifact, mean.expand(shape).clone(), _unknown(artifact))


@dataclass(frozen=True)
class ClassMean:
    """The mean of other images of the victim's class; the class is read off the gradient or update (attacks/common/labels.py)."""

    needs: ClassVar[frozenset[str]] = frozenset({"auxiliary", "classes"})
    knowledge: ClassVar[str] = "label + auxiliary mean"
    rung: ClassVar[str] = "L0"

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, report: Report = no_report
    ) -> Reconstruction:
        """The class's mean image; the data set's where no other image of the class is at hand."""
        return _by_class(artifact, knowledge, lambda images: images.mean(0))


@dataclass(frozen=True)
class NearestAuxiliary:
    """The auxiliary image of the victim's class that is nearest to the class's mean: the best guess among real images.

    Nearest to the victim would take the truth. The label, read off the gradient or update, is all that tells auxiliary images apart
    without an extractor; of the class's images the one nearest to their mean has the least mean squared error to the others.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"auxiliary", "classes"})
    knowledge: ClassVar[str] = "label + auxiliary image"
    rung: ClassVar[str] = "L0"

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, report: Report = no_report
    ) -> Reconstruction:
        """The most central image of each class; of the data set where no other image of the class is at hand."""
        return _by_class(artifact, knowledge, _central)


def _central(images: Tensor) -> Tensor:
    """Of [N, C, H, W] the image nearest to their mean."""
    return images[(images - images.mean(0)).square().flatten(1).sum(1).argmin()]
