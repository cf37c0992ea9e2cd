"""Files of full data sets: where they lie, whether they are the published ones, and what to do when they are absent."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from privbench.errors import UserError


class File(NamedTuple):
    """A file or folder of a data set, relative to the data folder."""

    path: str
    sha256: str | None = None  # of the published file; None where several versions are in use

    def state(self, root: Path) -> str:
        """One line for `privbench data check`."""
        place = root / self.path
        if not place.exists():
            return f"missing   {place}"
        if self.sha256 is None or place.is_dir():
            return f"present   {place}"
        return f"{'complete' if digest(place) == self.sha256 else 'damaged '}  {place}"

    def verified(self, root: Path) -> Path:
        """The path, after its checksum was compared; a damaged file is named."""
        place = root / self.path
        if self.sha256 is not None and digest(place) != self.sha256:
            raise UserError(f"{place} is damaged (its checksum is not the published one); remove it and fetch it again")
        return place


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require(
    name: str, files: Sequence[File], root: Path, fetch: Callable[[Path], None] | None, other_layout: str | None = None
) -> None:
    """Makes sure that all files, or the folder of another layout, exist; fetches them once when they do not."""

    def complete() -> bool:
        other = other_layout is not None and (root / other_layout).is_dir()
        return other or all((root / file.path).exists() for file in files)

    if complete():
        return
    absent = [file for file in files if not (root / file.path).exists()]
    reason = "it cannot be downloaded automatically"
    if fetch is not None:
        try:
            fetch(root)
        except UserError as error:
            reason = str(error)
        if complete():
            return
    missing = ", ".join(file.path for file in absent)
    raise UserError(f"{name} needs {missing} under {root} ({reason}); put the files there or point --data-dir at them")


def read_idx(path: Path) -> np.ndarray:
    """An array of unsigned bytes in the MNIST idx format, gzipped; a damaged file is named."""
    try:
        data = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} is damaged (it does not decompress); remove it and fetch it again") from error
    axes = data[3] if len(data) >= 4 else 0
    shape = tuple(int.from_bytes(data[4 + 4 * a : 8 + 4 * a], "big") for a in range(axes))
    body = np.frombuffer(data, np.uint8, offset=min(4 + 4 * axes, len(data)))
    if axes == 0 or data[2] != 8 or body.size != int(np.prod(shape)):
        raise UserError(f"{path} is damaged (its size does not fit its header); remove it and fetch it again")
    return body.reshape(shape)
