"""Folders of images: which files count, and how many of them become one tensor without ever being in memory together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from privbench.data import formats
from privbench.data.resize import SIDE, to_32
from privbench.errors import UserError

ENDINGS = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"})
LEAST = 4 * SIDE  # a JPEG is decoded at a reduced scale, with no side below this, before the antialiased resize


def entries(folder: Path) -> list[Path]:
    """What a folder holds, in alphabetical order, without hidden files and those of packing programs."""
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith((".", "__MACOSX")))
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror or error}") from error


def is_image(path: Path) -> bool:
    """Whether a file's ending names an image format."""
    return path.suffix.lower() in ENDINGS


def images_of(folder: Path) -> list[Path]:
    """The image files directly in a folder, in alphabetical order."""
    return [path for path in entries(folder) if is_image(path) and path.is_file()]


def read(paths: Sequence[Path], *, colour: bool = True) -> Tensor:
    """The images at 32x32: [N, 3, 32, 32] uint8; without `colour`, [N, 1, 32, 32] when the first one is grey.

    Each file is resized as soon as it is decoded. UserError names a damaged file, or a grey one among coloured ones.
    """
    channels = 3 if colour else len(formats.picture(paths[0], least=LEAST))
    images = torch.empty(len(paths), channels, SIDE, SIDE, dtype=torch.uint8)
    for k, path in enumerate(paths):
        picture = formats.picture(path, colour=colour, least=LEAST)
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
