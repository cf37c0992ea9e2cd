"""Decoded images of a user's own folders, kept so that a folder is decoded once: outside it, in privbench.system.places.images().

One file per class folder. Its name holds the folder's path and, of every image, path, size and time of change: an image that
changes in any of them has the class decoded again, and what was kept of the folder before is removed. Nothing depends on the
cache: where it cannot be written, or was damaged, images are decoded.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import PIL
from torch import Tensor

from privbench.data.readers import tree
from privbench.errors import UserError
from privbench.system import files, places

KIND = "decoded"
FORMAT = 1  # raised where the same files would be decoded otherwise
ANNOUNCED = 1_000  # from so many images on, a line says that they are read


def read(paths: Sequence[Path]) -> Tensor:
    """The images of one class folder in their own colours, as `tree.read` gives them: [N, C, 32, 32] uint8."""
    place = _place(paths)
    with suppress(UserError):
        return files.load_tensors(place, KIND)[0]["images"]
    if len(paths) >= ANNOUNCED:
        print(
            f"reading {len(paths):,} images of {paths[0].parent.name!r}; kept for later runs",
            file=sys.stderr,
            flush=True,
        )
    images = tree.read(paths, colour=False)
    # The name is taken anew: a file that changed while it was read is not kept under its old content.
    if _place(paths) == place:
        with suppress(UserError, OSError):
            for old in place.parent.glob(f"{place.name.partition('-')[0]}-*"):
                old.unlink(missing_ok=True)
            files.save_tensors(place, KIND, {"images": images}, {})
            files.sweep(place.parent, place.stat().st_mtime)
    return images


def _place(paths: Sequence[Path]) -> Path:
    """Where the images of one folder are kept."""
    folder = os.fspath(paths[0].parent.resolve())
    digest = hashlib.sha256(f"{FORMAT} {PIL.__version__}".encode())
    for path in paths:
        state = os.stat(path)  # noqa: PTH116 (thousands of times)
        digest.update(f"{path.name}\t{state.st_size}\t{state.st_mtime_ns}\n".encode(errors="surrogateescape"))
    owner = hashlib.sha256(folder.encode(errors="surrogateescape")).hexdigest()[:16]
    return places.images() / f"{owner}-{digest.hexdigest()[:16]}.safetensors"
