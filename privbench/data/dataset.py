"""What a data-set file returns: `load(root) -> Dataset`, with its source, checksums, licence and citation."""

from typing import NamedTuple

import torch

from privbench.errors import UserError
from privbench.types import Images

SIDE = 32  # pixels, of the images of every data set, unless larger ones are asked for


class Domain(NamedTuple):
    """One domain's images. Where it has no validation images, the partition draws them (privbench/data/partition.py)."""

    train: Images
    test: Images
    validation: Images | None = None


class Dataset(NamedTuple):
    """A labelled image data set at 32x32 (or larger, see resize.py), in one domain ("all") or several."""

    name: str
    classes: tuple[str, ...]
    domains: dict[str, Domain]
    flip: bool  # whether the papers flip its training images horizontally
    source: str  # where from, with licence and citation, one paragraph
    note: str = ""  # what differs from the published data set, e.g. a domain that was left out
    public: Images | None = None  # images of no client, when the papers name them apart (Digit5: MNIST)
    # Half of each class trains, drawn per seed from a domain's `train`; what is left of it joins `test`.
    halved: bool = False
    # Its training, validation and test images are of different classes, for methods that learn from tasks.
    by_class: bool = False
    # Whether its test images were drawn as its training images were. Where they were not, an image can be seen to be no training
    # image without any network, and membership is asked against training images that no client has.
    test_alike: bool = True


def sound(dataset: Dataset, side: int = SIDE) -> Dataset:
    """The data set itself, loaded for inputs of `side` pixels, after a check of what training relies on.

    UserError, in one line, for the first of these faults:

    images that are not uint8 [N, 1 or 3, s, s] with s = 32 or `side`, one s for all (see resize.py); grey and coloured images
    together; labels that do not fit the images or the classes; a class of which no domain has a training image. Of a data set
    that is split by class: a class without any image, or with images for two purposes.
    """
    sets = [
        (f"{name}'s {purpose} images", part)
        for name, domain in dataset.domains.items()
        for purpose, part in zip(Domain._fields, domain, strict=True)
        if part is not None
    ]
    sets += [("the public images", dataset.public)] if dataset.public is not None else []
    if not sets:
        raise UserError(f"{dataset.name} has no images")
    channels, height = (int(n) for n in sets[0][1].images.shape[1:3])
    stored = height if height in (SIDE, side) else SIDE
    for what, (images, labels) in sets:
        shape = tuple(images.shape)
        if images.dtype != torch.uint8 or shape[2:] != (stored, stored) or shape[1] not in (1, 3):
            raise UserError(
                f"{dataset.name}: {what} must be uint8 of shape [N, 1 or 3, {stored}, {stored}], "
                f"but are {images.dtype} {list(shape)}"
            )
        if shape[1] != channels:
            grey, colour = (what, sets[0][0]) if shape[1] == 1 else (sets[0][0], what)
            raise UserError(
                f"{dataset.name}: {grey} are grey, but colour is expected as in {colour}; repeat their one channel three times"
            )
        if len(labels) != len(images) or (
            len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < len(dataset.classes)
        ):
            raise UserError(
                f"{dataset.name}: the {len(labels)} labels of {what} must be one per image ({len(images)}), "
                f"from 0 to {len(dataset.classes) - 1}"
            )
    if dataset.by_class:
        _check_split(dataset)
        return dataset
    counts = torch.zeros(len(dataset.classes), dtype=torch.int64)
    for domain in dataset.domains.values():
        counts += torch.bincount(domain.train.labels, minlength=len(dataset.classes))
    absent = [name for name, count in zip(dataset.classes, counts.tolist(), strict=True) if count == 0]
    if absent:
        raise UserError(
            f"{dataset.name} has no training image of the class '{absent[0]}' in any domain"
            f"{f' (nor of {len(absent) - 1} others)' if absent[1:] else ''}; add some, or leave the class out"
        )
    return dataset


def _check_split(dataset: Dataset) -> None:
    """UserError unless every class of a data set that is split by class serves one purpose."""
    purposes: dict[int, set[str]] = {}
    for domain in dataset.domains.values():
        for purpose, part in zip(Domain._fields, domain, strict=True):
            for label in [] if part is None else part.labels.unique().tolist():
                purposes.setdefault(label, set()).add(purpose)
    for label, name in enumerate(dataset.classes):
        if len(each := purposes.get(label, set())) != 1:
            fault = f"has images for {' and '.join(sorted(each))}" if each else "has no image"
            raise UserError(f"{dataset.name} is split by class, but its class '{name}' {fault}")
