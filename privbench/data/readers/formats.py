"""File formats of the full data sets; every reader names the file that is damaged.

idx      MNIST, Fashion-MNIST and EMNIST: unsigned bytes behind a header, gzipped or not
mat      SVHN and Synthetic Digits: X (32, 32, 3, N) uint8, y (N, 1)
h5       USPS: groups train and test with data (N, 256) in [0, 1] and target
libsvm   USPS in torchvision's copy: bzip2 text, "label 1:value ... 256:value", labels 1-10, values in [-1, 1]
png, jpg MNIST-M: images named in a list of "name label" lines; Office-Caltech-10, DomainNet, a user's own: folders of images
"""

from __future__ import annotations

import bz2
import gzip
import struct
import threading
import warnings
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from PIL import Image
from torch import Tensor

from privbench.data.readers import matfile
from privbench.data.readers.resize import to_32, to_colour
from privbench.errors import UserError
from privbench.types import Images

# What the decoders of broken files raise, besides UserError: wrong bytes surface as any of these.
BROKEN: tuple[type[Exception], ...] = (
    OSError, EOFError, ValueError, KeyError, IndexError, TypeError, AttributeError, SyntaxError, OverflowError, MemoryError,
    RuntimeError, struct.error,
)  # fmt: skip

GREY = frozenset({"1", "L", "LA", "La"})  # Pillow's modes without colour
DEEP = frozenset({"I", "F", "I;16", "I;16L", "I;16B", "I;16N"})  # Pillow would cut these off at 255
# Ending of an image file -> Pillow's name of its kind. Pillow goes by content: of a file with another kind's it would run that
# kind's plugin, which for PostScript starts another program.
PICTURES = {
    ".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".bmp": "BMP", ".gif": "GIF", ".webp": "WEBP", ".tif": "TIFF", ".tiff": "TIFF",
}  # fmt: skip
KINDS = tuple(dict.fromkeys(PICTURES.values()))
MOST_PIXELS = 2**25  # of one picture: a small file may announce gigabytes
MOST_OF_USPS = 2**24  # numbers of one part of USPS; the larger has 7,291 images of 256
_OPENING = threading.Lock()  # warnings are filtered for all threads at once


def damaged(path: Path, why: str) -> UserError:
    """The line for a file that is there but cannot be what it should be."""
    return UserError(f"{path} is damaged ({why}); remove it and fetch it again")


def labelled(path: Path, images: Tensor, labels: np.ndarray, classes: int = 10) -> Images:
    """Images with their labels, one of `classes` each: [N, C, H, W] uint8, [N]; resized to 32x32."""
    if images.ndim != 4 or len(images) != len(labels) or len(images) == 0 or images.dtype != torch.uint8:
        raise damaged(path, f"{tuple(images.shape)} images of {images.dtype} for {len(labels)} labels")
    if labels.min() < 0 or labels.max() >= classes:
        wrong = labels.max() if labels.max() >= classes else labels.min()
        raise damaged(path, f"a label {wrong}, where 0 to {classes - 1} are known")
    return Images(to_32(images), torch.from_numpy(labels.astype(np.int64)))


def idx(path: Path) -> np.ndarray:
    """An array of unsigned bytes in the MNIST idx format."""
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, "it does not decompress") from error
    axes = data[3] if len(data) >= 4 else 0
    shape = tuple(int.from_bytes(data[4 + 4 * a : 8 + 4 * a], "big") for a in range(axes))
    body = np.frombuffer(data, np.uint8, offset=min(4 + 4 * axes, len(data)))
    if axes == 0 or data[2] != 8 or body.size != int(np.prod(shape, dtype=object)):
        raise damaged(path, "its size does not fit its header")
    return body.reshape(shape)


def mat(path: Path) -> Images:
    """SVHN's format, where the digit zero is labelled 10; Synthetic Digits writes 0."""
    try:
        content = matfile.arrays(path.read_bytes())
        images = torch.from_numpy(np.ascontiguousarray(content["X"].transpose(3, 2, 0, 1)))
        labels = content["y"].reshape(-1).astype(np.int64)
    except BROKEN as error:
        raise damaged(path, "no readable X and y") from error
    return labelled(path, images, np.where(labels == 10, 0, labels))


def image(path: Path) -> Tensor:
    """One image file: [3, H, W] uint8."""
    return picture(path, colour=True)


def picture(path: Path, *, colour: bool = False, least: int | None = None) -> Tensor:
    """One image file in its own colours: [1, H, W] uint8 for a grey one (unless `colour`), else [3, H, W].

    With `least`, a large JPEG is decoded at the smallest of its scales (1/1 to 1/8) whose sides have that many pixels or more.
    UserError: missing, not one of KINDS, damaged, more than eight bits a channel, or more than MOST_PIXELS.
    """
    try:
        with _opened(path) as opened:
            if least is not None:
                opened.draft(None, (least, least))
            if opened.mode in DEEP:
                raise UserError(f"{path} has more than eight bits a channel ({opened.mode}); save it as an 8-bit image")
            mode = "L" if opened.mode in GREY and not colour else "RGB"
            pixels = torch.from_numpy(np.array(opened.convert(mode)))
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing; put it there again") from error
    except BROKEN as error:
        raise damaged(path, "no readable image") from error
    return pixels[None] if mode == "L" else pixels.permute(2, 0, 1)


def _opened(path: Path) -> Image.Image:
    """An image file whose header alone is read; UserError of more than MOST_PIXELS."""
    with _OPENING, warnings.catch_warnings():
        # Pillow's own limit is higher, and its warning does not name the file.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            opened = Image.open(path, formats=KINDS)
        except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
            raise _too_large(path) from error
    if opened.width * opened.height > MOST_PIXELS:
        opened.close()
        raise _too_large(path)
    return opened


def _too_large(path: Path) -> UserError:
    return UserError(f"{path} has more than {MOST_PIXELS:,} pixels; save it smaller, or remove it")


def listed_images(folder: Path, names: Path) -> Images:
    """The images of a folder that are named in a list of "name label" lines."""
    images, labels = [], []
    try:
        lines = names.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise damaged(names, "no readable list") from error
    for line in lines:
        name, _, label = line.partition(" ")
        if not label.strip().isdigit():
            raise damaged(names, f"its line '{line[:40]}' is not a file name and a label")
        if Path(name).name != name or name == "..":
            raise damaged(names, f"its line '{line[:40]}' names a file outside the folder")
        images.append(to_32(image(folder / name)[None])[0])
        labels.append(int(label))
    count = sum(1 for _ in folder.glob("*.png"))
    if len(images) != count or not images:
        raise damaged(names, f"it names {len(images)} images, but {folder.name} holds {count}")
    return labelled(names, torch.stack(images), np.array(labels))


def usps_h5(path: Path) -> tuple[Images, Images]:
    """Training and test images in three equal channels."""
    sets = []
    for part in ("train", "test"):
        try:
            with h5py.File(path, "r") as file:
                data = np.asarray(_own(file, f"{part}/data"), np.float64)
                labels = np.asarray(_own(file, f"{part}/target")).reshape(-1)
            pixels = _bytes(data)
        except BROKEN as error:
            raise damaged(path, f"no readable group {part}") from error
        sets.append(labelled(path, to_colour(torch.from_numpy(pixels)), labels))
    return sets[0], sets[1]


def _own(file: h5py.File, name: str) -> h5py.Dataset:
    """A data set whose numbers lie in the file itself; ValueError where it leads elsewhere, or announces more than USPS has."""
    at: Any = file
    for step in name.split("/"):
        if not isinstance(at, h5py.Group) or not isinstance(at.get(step, getlink=True), h5py.HardLink):
            raise ValueError(f"{name} is missing, or a link")
        at = at[step]
    if not isinstance(at, h5py.Dataset) or at.external is not None or at.is_virtual:
        raise ValueError(f"{name} is no data set of this file")
    if at.size is None or at.size > MOST_OF_USPS:
        raise ValueError(f"{name} announces {at.size} numbers, more than {MOST_OF_USPS}")
    return at


def usps_libsvm(path: Path) -> Images:
    """One of the two files of torchvision's copy, in three equal channels."""
    try:
        rows = [line.split() for line in bz2.decompress(path.read_bytes()).decode("ascii").splitlines()]
        labels = np.array([int(row[0]) - 1 for row in rows])
        values = np.array([[float(entry.partition(":")[2]) for entry in row[1:]] for row in rows])
        pixels = _bytes((values + 1) / 2)
    except BROKEN as error:
        raise damaged(path, "no readable lines of a label and 256 values") from error
    return labelled(path, to_colour(torch.from_numpy(pixels)), labels)


def _bytes(values: np.ndarray) -> np.ndarray:
    if not np.isfinite(values).all():
        raise ValueError("a value is no number")
    return (values.reshape(-1, 1, 16, 16).clip(0, 1) * 255).round().astype(np.uint8)
