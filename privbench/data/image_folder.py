"""A folder of images of a user's own: class folders, or domain folders with class folders; `--dataset folder:PATH`.

    PATH/<class>/<image>             one domain, partitioned over clients IID or by Dirichlet
    PATH/<domain>/<class>/<image>    one domain per client, or pooled

The depth at which the images lie decides between the two. Class names are the folders' names. Images are resized to 32x32 (the
whole picture, squashed to a square) and never flipped; they must be all grey or all in colour.

Of each class of each domain 60% train, 20% validate, 20% test (NFL-CGAN's shares for Digit5 and Office), drawn once and for all.
Images that are the same at 32x32, pixel by pixel, always go to the same split, in whichever folder they lie: copies do not leak.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from privbench import trust
from privbench.data.dataset import Dataset, Domain
from privbench.data.readers import decoded, formats, tree
from privbench.errors import UserError
from privbench.seeds import stream
from privbench.types import Images

ALL = "all"  # the one domain of a folder of class folders
SHARES = (0.6, 0.2)  # of training and validation
PURPOSES = ("train", "validate", "test")
SPLIT_NAMES = frozenset({"train", "training", "val", "valid", "validation", "test", "testing"})


class Listing(NamedTuple):
    """What lies in a folder."""

    path: Path
    files: dict[str, dict[str, list[Path]]]  # domain -> class -> images
    passed_over: int  # files of other kinds beside the images

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains' names; none for a folder of class folders."""
        return () if tuple(self.files) == (ALL,) else tuple(self.files)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of all class folders, in alphabetical order."""
        return tuple(sorted({name for by_class in self.files.values() for name in by_class}))

    @property
    def images(self) -> int:
        """How many images there are."""
        return sum(len(paths) for by_class in self.files.values() for paths in by_class.values())

    @property
    def content(self) -> str:
        """Sixteen hexadecimal digits that change with the name or size of any image.

        An image that was replaced by another of the very same size is not noticed: reading all of them would take too long.
        """
        digest, begin = hashlib.sha256(), len(os.fspath(self.path / "x")) - 1
        for by_class in self.files.values():
            for paths in by_class.values():
                for path in paths:
                    name = os.fspath(path)
                    size = os.stat(name).st_size  # noqa: PTH116 (thousands of times)
                    digest.update(f"{name[begin:].replace(os.sep, '/')}\t{size}\n".encode(errors="surrogateescape"))
        return digest.hexdigest()[:16]


def path_of(name: str) -> Path:
    """The folder in `folder:PATH`; UserError for one that only a file names (privbench/trust.py). Nothing is read before."""
    trust.check("dataset", name)
    return Path(name.removeprefix(trust.FOLDER)).expanduser()


def survey(path: Path) -> Listing:
    """The images of a folder by domain and class; UserError names the first thing that fits neither layout."""
    if not path.is_dir():
        raise UserError(f"there is no folder {path}; --dataset folder:PATH takes a folder of class folders")
    whole = tree.folder(path)
    if whole.images:
        raise UserError(f"{whole.images[0]} lies outside any class; put the images of {path} into one folder per class")
    if not whole.folders:
        raise UserError(f"{path} is empty; it must hold one folder of images per class, or one such folder per domain")
    tops = [tree.folder(top) for top in whole.folders]
    for top in tops:
        if not top.images and not top.folders:
            raise UserError(f"{top.path} is empty; put images into it or remove it")
    flat, deep = [top for top in tops if top.images], [top for top in tops if top.folders]
    if flat and deep:
        raise UserError(
            f"{path} mixes two layouts: {flat[0].path.name} holds images and {deep[0].path.name} holds folders; "
            "have class folders only, or domain folders with class folders only"
        )
    others = whole.others + sum(top.others for top in tops)
    if flat:
        files = {ALL: {top.path.name: list(top.images) for top in tops}}
    else:
        if {top.path.name.lower() for top in tops} <= SPLIT_NAMES:
            raise UserError(
                f"the folders {', '.join(top.path.name for top in tops)} of {path} look like splits, not domains; privbench "
                f"splits images itself, so name a folder of class folders, e.g. folder:{tops[0].path}"
            )
        classes = {top.path.name: [tree.folder(folder) for folder in top.folders] for top in tops}
        files = {
            domain: {folder.path.name: _class_images(folder) for folder in each} for domain, each in classes.items()
        }
        others += sum(folder.others for each in classes.values() for folder in each)
    listing = Listing(path, files, others)
    _check_names(path, (*listing.files, *listing.classes))
    if len(listing.classes) < 2:
        raise UserError(f"{path} must hold two classes or more, but it holds only '{listing.classes[0]}'")
    return listing


def _check_names(path: Path, folders: Sequence[str]) -> None:
    """UserError for a name that no text holds, such as one in Latin-1: it would stand in every record."""
    for name in folders:
        if name.encode(errors="replace").decode() != name:
            raise UserError(f"{path}: the name of the folder {name!a} is no UTF-8; rename it")


def load(path: Path, domains: tuple[str, ...] | None = None) -> Dataset:
    """The images of a folder, decoded class by class and split."""
    listing = survey(path)
    chosen = domains or tuple(listing.files)
    for domain in chosen:
        if domain not in listing.files:
            raise UserError(f"{path} has no domain '{domain}'; known: {', '.join(listing.domains) or 'none'}")
    splits: dict[bytes, int] = {}  # image -> split, over all classes and domains
    loaded, first = {}, None
    for domain in chosen:
        parts: list[list[Images]] = [[], [], []]
        for name, paths in listing.files[domain].items():
            images = decoded.read(paths)
            first = first or (paths[0], images.shape[1])
            if images.shape[1] != first[1]:
                raise tree.mixed(paths[0], first[0], grey=images.shape[1] == 1)
            rows = split(images, splits, paths[0].parent, (domain, name))
            for part, indices in zip(parts, rows, strict=True):
                part.append(Images(images[indices], torch.full((len(indices),), listing.classes.index(name))))
        train, validation, test = (Images(*(torch.cat(t) for t in zip(*part, strict=True))) for part in parts)
        loaded[domain] = Domain(train, test, validation)
    notes = [] if chosen == tuple(listing.files) else [f"{path.name} with the domains {', '.join(chosen)} only"]
    notes += [f"{listing.passed_over} files of {path.name} that are no images were passed over"] * bool(
        listing.passed_over
    )
    name = f"{trust.FOLDER}{path}"
    return Dataset(name, listing.classes, loaded, flip=False, source=f"the user's own, {path}", note="; ".join(notes))


def split(images: Tensor, splits: dict[bytes, int], folder: Path, names: Sequence[str]) -> list[list[int]]:
    """The rows of `images` that train, validate and test; `splits` (image -> split) is obeyed and added to.

    Different images are assigned in a random order until each split has its share; every split gets one at least.
    """
    keys = [hashlib.sha256(image.numpy().tobytes()).digest() for image in images]
    order = torch.randperm(len(keys), generator=stream(0, "folder", *names)).tolist()
    free = list(dict.fromkeys(keys[k] for k in order if keys[k] not in splits))
    copies = Counter(keys)
    sizes = [0, 0, 0]
    for key in keys:
        if key in splits:
            sizes[splits[key]] += 1
    goals = [round(share * len(keys)) for share in SHARES] + [len(keys)]
    for remaining, key in zip(range(len(free), 0, -1), free, strict=True):
        empty = [purpose for purpose, size in enumerate(sizes) if size == 0]
        short = [purpose for purpose, size in enumerate(sizes) if size < goals[purpose]]
        splits[key] = empty[0] if remaining <= len(empty) else short[0]
        sizes[splits[key]] += copies[key]
    if 0 in sizes:
        elsewhere = len(copies) - len(free)
        copied = f", {elsewhere} of them copied from other folders" if elsewhere else ""
        raise UserError(
            f"{folder} must hold three different images or more, one each to train, validate and test, "
            f"but it holds {len(copies)}{copied}"
        )
    return [[k for k, key in enumerate(keys) if splits[key] == purpose] for purpose in range(len(PURPOSES))]


def check(path: Path) -> list[str]:
    """One line per class folder; every image is read, and each damaged one has a line."""
    lines = []
    for by_class in survey(path).files.values():
        for paths in by_class.values():
            faults = []
            for file in paths:
                try:
                    formats.picture(file, least=tree.LEAST)
                except UserError as error:
                    faults.append(f"damaged   {error}")
            lines += faults or [f"present   {paths[0].parent} ({len(paths):,} readable images)"]
    return lines


def _class_images(folder: tree.Folder) -> list[Path]:
    if folder.folders:
        raise UserError(f"{folder.folders[0]} lies too deep; images belong into PATH/CLASS or PATH/DOMAIN/CLASS")
    if not folder.images:
        raise UserError(f"{folder.path} is empty; put images into it or remove it")
    return list(folder.images)
