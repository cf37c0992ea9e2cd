"""The best guess that a generator of images offers without any gradient: an estimate from what it makes, the same for every victim.

    x~ = mean_n G(z_n, y)   or the G(z_n, y) nearest to it (the medoid in squared error),   z_n ~ N(0, I)
y is the victim's class where labels are known, else every class in turn. Of all images that do not depend on the victim, the mean
of a distribution has the least expected squared error. So this attack scores what the generator alone gives away about the training
images as a whole, against the floors, which have other images of the same distribution. It says nothing of single images that a
generator has memorised.

G is the one that the victim's client sent, or the mean that a sum over clients opened; its batch norm takes running statistics.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from attacks.common import labels, no_information
from privbench.execution.applicability import Limits
from privbench.hyperparameters import Count
from privbench.seeds import stream
from privbench.types import Artifact, Knowledge, Presets, Progress, Reconstruction, no_progress

ANY = -1  # in place of a class that is not known


@dataclass(frozen=True)
class GeneratedImages:
    """The mean, or the medoid, of what the seen generator makes of the victim's class, or of all classes (this suite)."""

    draws: Count = 512
    estimate: Literal["mean", "medoid"] = "mean"

    needs: ClassVar[frozenset[str]] = frozenset({"upload:generator"})
    knowledge: ClassVar[str] = "generator"
    rung: ClassVar[str] = "L2"
    limits: ClassVar[Limits] = Limits(image_generator=True)
    presets: ClassVar[Presets] = {"smoke": {"draws": 32}}

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """One image for every generator and class."""
        classes_of = labels.unknown(artifact) if artifact.labels is None else artifact.labels
        guesses: dict[tuple[int, int], Tensor] = {}
        victims = []
        for row, classes in zip(artifact.upload_of.tolist(), classes_of.tolist(), strict=True):
            for y in classes:
                if (row, y) not in guesses:
                    guesses[row, y] = self._guess(generated(artifact, row, y, self.draws, seed))
            victims.append(torch.stack([guesses[row, y] for y in classes]))
        return no_information.still(artifact, torch.stack(victims), classes_of)

    def _guess(self, images: Tensor) -> Tensor:
        return images.mean(0) if self.estimate == "mean" else no_information.central(images)


def generated(artifact: Artifact, row: int, label: int, draws: int, seed: int) -> Tensor:
    """`draws` images [N, C, H, W] in (0, 1) of the generator in one row of `uploads`, of a class or, for ANY, of all in turn."""
    device, classes = artifact.client.device, artifact.model.classes
    params = {n: t[row] for n, t in artifact.uploads["generator"].items()}
    buffers = {n: t[row] for n, t in artifact.upload_buffers["generator"].items()}
    z = torch.randn(draws, artifact.model.noise_dim, generator=stream(seed, "attacker", "generated images", row, label))
    y = torch.arange(draws) % classes if label == ANY else torch.full((draws,), label)
    with torch.no_grad():
        images, _ = artifact.model.net("generator").apply(params, buffers, z.to(device), y.to(device), train=False)
    return images
