"""Tensors by name from a safetensors or npz file of a user's own; header and sizes are checked before anything is allocated.

Nothing is unpickled: an npz member of objects is refused like a file of another kind.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from privbench.errors import Missing, UserError
from privbench.observation.format import limits
from privbench.system import files
from privbench.system.file_headers import read_header, short
from privbench.tensors import Params

KINDS = (".safetensors", ".npz")
NPY = ".npy"
HEADER_BYTES = 2**12  # of one member of an npz; NumPy writes 128
PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # as NumPy writes members
NUMBERS = "biuf"  # NumPy's kinds of numbers
LARGEST_NUMBER = 8  # bytes; torch has no extended precision
ITEM_BYTES = 8  # of one number, at most
SMALL = 2**20  # bytes that any file may announce
SHRUNK = 64  # how many times its own size an npz may announce: gradients hardly shrink, a file that is made to fill memory does


class Shapes(NamedTuple):
    """What a file announces."""

    path: Path
    shapes: dict[str, tuple[int, ...]]

    def only(self, names: Collection[str]) -> Shapes:
        """The same without tensors of other names."""
        return self._replace(shapes={name: shape for name, shape in self.shapes.items() if name in names})


def announced(path: Path) -> Shapes:
    """The shapes of a file's tensors, from its headers alone; UserError: no such file, another kind, not sound, or too large."""
    _check_kind(path)
    with _reading(path):
        if path.suffix == ".npz":
            with zipfile.ZipFile(path) as archive:
                shapes = {_name(m): _header(archive, m)[0] for m in _members(archive)}
        else:
            shapes = {name: declared.shape for name, declared in read_header(path).tensors.items()}
        if len(shapes) > limits.TENSORS:
            raise ValueError(f"it holds {len(shapes)} tensors, more than {limits.TENSORS}")
        if sum(math.prod(shape) for shape in shapes.values()) * ITEM_BYTES > limits.ROUND_BYTES:
            raise ValueError(f"it announces more than {limits.ROUND_BYTES} bytes")
    return Shapes(path, shapes)


def read(file: Shapes) -> Params:
    """Those tensors of a file with checked headers that `file` names, on the CPU; UserError as `announced`."""
    with _reading(file.path):
        if file.path.suffix != ".npz":
            return files.read_tensors(file.path, file.shapes)[0]
        with zipfile.ZipFile(file.path) as archive:
            return {_name(m): _array(archive, m) for m in _members(archive) if _name(m) in file.shapes}


def _check_kind(path: Path) -> None:
    # Its user typed this path, so that a link in it is followed; names that come from files never reach this place.
    if not path.is_file():
        raise Missing(f"there is no file {path}")
    if path.suffix not in KINDS:
        raise UserError(
            f"{path} is neither a .safetensors nor an .npz file; a pickle (.pt, .pth, .pkl) is never read, as it may run code: "
            "write it again with safetensors.torch.save_file"
        )


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    # A compressed array may be damaged, an encrypted one needs a password, and Python's parser gives up on deeply nested headers.
    except (ValueError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, MemoryError, TokenError) as error:
        raise UserError(
            f"{path} is no sound {path.suffix[1:]} file ({short(error) or type(error).__name__})"
        ) from error


def _members(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    members = archive.infolist()
    # Of the file itself: several members may say that they lie in the same bytes.
    announced, packed = sum(m.file_size for m in members), _size(archive)
    if announced > max(SMALL, SHRUNK * packed):
        raise ValueError(
            f"{packed} bytes of it announce {announced}; write it again with numpy.savez, which does not compress"
        )
    if len(members) > limits.TENSORS:
        raise ValueError(f"it holds {len(members)} arrays, more than {limits.TENSORS}")
    if other := [m.filename for m in members if m.compress_type not in PACKED]:
        raise ValueError(f"'{short(other[0])}' is packed in another way than numpy.savez packs")
    names = [m.filename for m in members]
    if len(set(names)) < len(names):
        raise ValueError("it names an array twice")
    if foreign := [name for name in names if not name.endswith(NPY)]:
        raise ValueError(f"'{short(foreign[0])}' is no array; a pickle is never read")
    return members


def _size(archive: zipfile.ZipFile) -> int:
    assert archive.filename is not None, "opened by its path"
    return Path(archive.filename).stat().st_size


def _name(member: zipfile.ZipInfo) -> str:
    return member.filename.removesuffix(NPY)


def _header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """(shape, type) of one array; ValueError where it is none of numbers, or has another size than it announces."""
    with archive.open(member) as file:
        version = npy.read_magic(file)
        readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        if version not in readers:
            raise ValueError(f"array '{short(_name(member))}' is of version {version}")
        shape, _, dtype = readers[version](file, max_header_size=HEADER_BYTES)
        began = file.tell()
    if dtype.hasobject or dtype.kind not in NUMBERS or dtype.itemsize > LARGEST_NUMBER:
        raise ValueError(f"array '{short(_name(member))}' holds {dtype}, not numbers; a pickle is never read")
    if member.file_size != began + math.prod(shape) * dtype.itemsize:
        raise ValueError(f"array '{short(_name(member))}' does not have the size that it announces")
    return tuple(int(n) for n in shape), dtype


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Tensor:
    with archive.open(member) as file:
        array = npy.read_array(file, allow_pickle=False, max_header_size=HEADER_BYTES)
    return torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape).astype(_native(array.dtype), copy=True))


def _native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """A type that torch has: whole numbers as int64, all else in this machine's order of bytes."""
    return np.dtype(np.int64) if dtype.kind in "iu" and dtype != np.uint8 else dtype.newbyteorder("=")
