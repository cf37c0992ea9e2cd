"""Images that anybody can return without attacking, and reconstructions that say so."""

from collections.abc import Callable

import torch
from torch import Tensor

from attacks.common import labels, problem, updates
from privbench.types import Artifact, Batch, Knowledge, Outcome, Reconstruction


def still(artifact: Artifact, images: Tensor, classes: Tensor) -> Reconstruction:
    """A reconstruction that descended on nothing."""
    zero = torch.zeros(artifact.victims, device=images.device)
    return Reconstruction(images, classes, zero, zero[:, None], zero.long(), 0)


def gave_up(reconstruction: Reconstruction) -> Reconstruction:
    """A reconstruction that says of every victim that a floor replaces it."""
    return reconstruction._replace(outcome=torch.full_like(reconstruction.restart, Outcome.GAVE_UP))


def not_applicable(artifact: Artifact, knowledge: Knowledge, note: str) -> Reconstruction:
    """Class means, and for every victim that there was nothing for the attack to read; the note says why."""
    means = class_mean(artifact, knowledge)
    return means._replace(outcome=torch.full_like(means.restart, Outcome.NOT_APPLICABLE), notes=(note,))


def _auxiliary(knowledge: Knowledge) -> Batch:
    assert knowledge.auxiliary is not None, "the needs of this floor name auxiliary images"
    return knowledge.auxiliary


def _by_class(artifact: Artifact, knowledge: Knowledge, pick: Callable[[Tensor], Tensor]) -> Reconstruction:
    """`pick` of the auxiliary images of each victim's class; of all where there is none of the class."""
    images, classes = _auxiliary(knowledge)
    recovered = labels.recover(updates.labelled_gradients(artifact))
    picked = {int(c): pick(images[classes == c]) for c in classes.unique()}
    other = pick(images)
    rows = [torch.stack([picked.get(int(c), other) for c in batch]) for batch in recovered]
    return still(artifact, torch.stack(rows), recovered)


def grey(artifact: Artifact) -> Reconstruction:
    """Every pixel 0.5."""
    return still(artifact, problem.grey_start(artifact, torch.float32), labels.unknown(artifact))


def dataset_mean(artifact: Artifact, knowledge: Knowledge) -> Reconstruction:
    """The mean of the auxiliary images, the same for every victim."""
    mean = _auxiliary(knowledge).images.mean(0)
    shape = (artifact.victims, artifact.batch_size, *artifact.image_shape)
    return still(artifact, mean.expand(shape).clone(), labels.unknown(artifact))


def class_mean(artifact: Artifact, knowledge: Knowledge) -> Reconstruction:
    """The mean of the auxiliary images of each victim's class; of all where there is none of the class."""
    return _by_class(artifact, knowledge, lambda images: images.mean(0))


def nearest_auxiliary(artifact: Artifact, knowledge: Knowledge) -> Reconstruction:
    """Of the auxiliary images of each victim's class the one nearest to their mean; of all where there is none of the class."""
    return _by_class(artifact, knowledge, central)


def central(images: Tensor) -> Tensor:
    """Of [N, C, H, W] the image nearest to their mean."""
    return images[(images - images.mean(0)).square().flatten(1).sum(1).argmin()]
