"""What a classifier that magnifies one image (magnified.py) brought back of all batches: one image of each, read and inverted.

Where layerwise inversion explains the image's gradient to EXPLAINED, that is the answer. Elsewhere other images of the batch still
show in the gradient, to which the layers' equations are more sensitive than its features are, and those are inverted alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from attacks.common import batched, closed_form, failed_uploads, problem
from attacks.common.no_information import class_mean, gave_up
from attacks.crafted import magnified
from attacks.features import anchored_matching
from attacks.features.anchored_matching import AnchoredMatching
from privbench.types import Artifact, Knowledge, Progress, Reconstruction

EXPLAINED = 1e-9  # layer-scaled distance


@dataclass(frozen=True)
class MagnifiedReadout:
    """The attacks that work on the gradient of an image that stands alone."""

    by_layers: Callable[[Artifact, Knowledge, int, Progress], Reconstruction]
    descents: AnchoredMatching  # of its features

    def read(self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress) -> Reconstruction:
        """All victims, whose gradients are finite: one image of each in place of a class mean, where one stands alone."""
        assert knowledge.auxiliary is not None, "the needs name auxiliary images"
        known = magnified.features_of(artifact, knowledge.auxiliary).images
        rows = torch.nonzero(magnified.standing_alone(artifact, known))[:, 0]
        whole = gave_up(class_mean(artifact, knowledge))
        read = f"{len(rows)} of {artifact.victims} batches of {artifact.batch_size}"
        note = f"fishing read one image of each of {read}; all other images are class means"
        if not len(rows):
            return whole._replace(notes=(note,))
        one = self.invert(magnified.alone(artifact.select(rows), known), seed, progress)
        images, y = whole.images[rows].to(one.images), whole.labels[rows]
        # In place of the first class mean of its class.
        place = (y == one.labels).int().argmax(1)
        images[torch.arange(len(rows)), place] = one.images[:, 0]
        return failed_uploads.put(whole, rows, one._replace(images=images, labels=y, notes=(note,)))

    def invert(self, artifact: Artifact, seed: int, progress: Progress) -> Reconstruction:
        """The images of gradients of one image each, in which others may still show."""
        posed, features = problem.make(artifact, seed), closed_form.of_single(artifact)
        assert features is not None, "a linear layer takes the features of LeNet-5"
        by_layers = self.by_layers(artifact, Knowledge(), seed, progress)
        start = problem.plain_start(artifact, seed)
        end = self.descents.invert(posed, features.batched(), None, start, progress)
        every = torch.arange(artifact.victims)
        mixed = ~(anchored_matching.unexplained(posed, by_layers.images) < EXPLAINED)
        return anchored_matching.merged(by_layers, batched.reconstruction(end, 1, posed.labels), every, mixed)
