"""A data set whose training, validation and test classes are different ones, from files: class -> images for each purpose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from privbench.data.dataset import Dataset, Domain
from privbench.data.readers import tree
from privbench.errors import UserError
from privbench.types import Images

Files = Mapping[str, Sequence[Path]]  # class -> its images


class ClassSplit(NamedTuple):
    """The files of every purpose."""

    train: Files
    validation: Files
    test: Files

    @property
    def classes(self) -> tuple[str, ...]:
        """All classes, those that train first."""
        return tuple(dict.fromkeys(name for part in self for name in part))


def folders_of(path: Path, prefix: str = "") -> dict[str, list[Path]]:
    """The images of a folder of class folders, by class; UserError for a class folder without any."""
    classes = {prefix + folder.name: tree.images_of(folder) for folder in tree.folder(path).folders}
    for name, images in classes.items():
        if not images:
            raise UserError(f"{path / name.removeprefix(prefix)} holds no image; put its images there or remove it")
    if not classes:
        raise UserError(f"{path} is empty; it must hold one folder of images per class")
    return classes


def read(name: str, split: ClassSplit, source: str, note: str, *, colour: bool) -> Dataset:
    """One domain, split by class, never flipped; UserError names a file that is no image."""
    labels = {one: label for label, one in enumerate(split.classes)}
    train, validation, test = (_images(part, labels, colour=colour) for part in split)
    domain = Domain(train, test, validation)
    return Dataset(name, split.classes, {"all": domain}, flip=False, source=source, note=note, by_class=True)


def _images(files: Files, label_of: Mapping[str, int], *, colour: bool) -> Images:
    """The images of one purpose, class after class."""
    labels = [torch.full((len(paths),), label_of[name]) for name, paths in files.items()]
    paths = [path for each in files.values() for path in each]
    return Images(tree.read(paths, colour=colour), torch.cat(labels))
