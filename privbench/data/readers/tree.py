"""Folders of images: which files count, and how many of them become one tensor without ever being in memory together."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from privbench.data.dataset import SIDE
from privbench.data.readers import formats
from privbench.data.readers.resize import to_32
from privbench.errors import UserError

ENDINGS = frozenset(formats.PICTURES)
SETTLED_NS = 2_000_000_000  # coarser than any file system's clock: a later change of the folder shows in its time
# Threads that read and decode, and decoded pictures in memory at a time: of the largest allowed, 100 MB each.
READERS, AT_ONCE = 4, 8
LEAST = 4 * SIDE  # a JPEG is decoded at a reduced scale, with no side below this, before the antialiased resize


def entries(folder: Path) -> list[Path]:
    """What a folder holds, in alphabetical order, without hidden files and those of packing programs."""
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith((".", "__MACOSX")))
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror or error}") from error


class Folder(NamedTuple):
    """What a folder holds directly, each in alphabetical order, without hidden entries and those of packing programs."""

    path: Path
    folders: tuple[Path, ...]
    images: tuple[Path, ...]
    others: int  # files that are no images


def folder(path: Path) -> Folder:
    """One folder, in one pass over it; UserError if it cannot be read.

    A folder of thousands of files is listed again and again: one that has not changed for SETTLED_NS is listed once.
    """
    try:
        changed = path.stat().st_mtime_ns
        return _listed(path, changed) if time.time_ns() - changed > SETTLED_NS else _listed.__wrapped__(path, changed)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error


@lru_cache(maxsize=4096)
def _listed(path: Path, changed: int) -> Folder:
    folders, images, others = [], [], 0
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name.startswith((".", "__MACOSX")):
                continue
            if entry.is_dir():
                folders.append(entry.name)
            elif entry.is_file():
                if os.path.splitext(entry.name)[1].lower() in ENDINGS:  # noqa: PTH122 (of a name, not of a path)
                    images.append(entry.name)
                else:
                    others += 1
    inside, pictures = (tuple(path / name for name in sorted(names)) for names in (folders, images))
    return Folder(path, inside, pictures, others)


def images_of(path: Path) -> list[Path]:
    """The image files directly in a folder, in alphabetical order."""
    return list(folder(path).images)


def read(paths: Sequence[Path], *, colour: bool = True) -> Tensor:
    """The images at 32x32: [N, 3, 32, 32] uint8; without `colour`, [N, 1, 32, 32] when the first one is grey.

    Each file is resized as soon as it is decoded. UserError names a damaged file, or a grey one among coloured ones.
    """
    channels = 3 if colour else len(formats.picture(paths[0], least=LEAST))
    images = torch.empty(len(paths), channels, SIDE, SIDE, dtype=torch.uint8)
    with ThreadPoolExecutor(READERS) as readers:
        for begin in range(0, len(paths), AT_ONCE):
            batch = paths[begin : begin + AT_ONCE]
            pictures = readers.map(partial(formats.picture, colour=colour, least=LEAST), batch)
            for k, (path, picture) in enumerate(zip(batch, pictures, strict=True), start=begin):
                if len(picture) != channels:
                    raise mixed(path, paths[0], grey=len(picture) == 1)
                images[k] = to_32(picture[None])[0]
    return images


def mixed(path: Path, other: Path, *, grey: bool) -> UserError:
    """The line for a grey image among coloured ones, or the reverse."""
    which, where = (path, other) if grey else (other, path)
    return UserError(
        f"{which} is a grey image, but colour is expected as in {where}; convert the grey ones to RGB or remove them"
    )
