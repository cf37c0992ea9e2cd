"""The no-information floor: what a PSNR is worth that anybody can reach without attacking."""

from dataclasses import dataclass
from typing import ClassVar

from attacks.common import no_information
from privbench.types import Artifact, Knowledge, Progress, Reconstruction, no_progress


@dataclass(frozen=True)
class Grey:
    """Every pixel 0.5."""

    needs: ClassVar[frozenset[str]] = frozenset()
    knowledge: ClassVar[str] = "nothing"
    rung: ClassVar[str] = "L0"

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """Constant grey."""
        return no_information.grey(artifact)


@dataclass(frozen=True)
class DatasetMean:
    """The mean of other images of the same data set."""

    needs: ClassVar[frozenset[str]] = frozenset({"auxiliary"})
    knowledge: ClassVar[str] = "auxiliary mean"
    rung: ClassVar[str] = "L0"

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """The same mean image for every victim."""
        return no_information.dataset_mean(artifact, knowledge)


@dataclass(frozen=True)
class ClassMean:
    """The mean of other images of the victim's class.

    The class is recovered from the gradient or update (attacks/common/labels.py).
    """

    needs: ClassVar[frozenset[str]] = frozenset({"auxiliary", "classes"})
    knowledge: ClassVar[str] = "label + auxiliary mean"
    rung: ClassVar[str] = "L0"
    update_batches_revision: ClassVar[int] = 1  # 1: other labels of batches moved by Adam

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """The class's mean image; the data set's where there is no other image of the class."""
        return no_information.class_mean(artifact, knowledge)


@dataclass(frozen=True)
class NearestAuxiliary:
    """The auxiliary image of the victim's class that is nearest to the class's mean: the best guess among real images.

    The image nearest to the victim would require the truth. Without an extractor the label, recovered from the gradient or
    update, is all that distinguishes auxiliary images. Of the class's images the one nearest to their mean has the least mean
    squared error to the others.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"auxiliary", "classes"})
    knowledge: ClassVar[str] = "label + auxiliary image"
    rung: ClassVar[str] = "L0"
    update_batches_revision: ClassVar[int] = 1  # 1: other labels of batches moved by Adam

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """The most central image of each class; of the data set where there is no other image of the class."""
        return no_information.nearest_auxiliary(artifact, knowledge)
