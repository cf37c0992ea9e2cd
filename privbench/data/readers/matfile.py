"""Numeric arrays of a MATLAB level-5 file (SVHN and Synthetic Digits), read in plain Python.

Format: The MathWorks, MAT-File Format, "Level 5 MAT-File Format". scipy.io.loadmat reads far more, but it crashes the whole
process on some damaged files; here every length is checked against the bytes that are there, and ValueError says what is wrong.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

import numpy as np

HEADER = 128
SMALL = 2**24  # bytes that any element may unpack to
SHRUNK = 64  # how many times its own size a larger one may: pictures hardly shrink, an element that is made to fill memory does
MATRIX, COMPRESSED = 14, 15
NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}


class Element(NamedTuple):
    """One tagged piece of a file."""

    kind: int
    body: memoryview
    end: int  # where the next element begins


def arrays(data: bytes) -> dict[str, np.ndarray]:
    """Name -> array, as stored; elements that are no real numeric matrix are passed over."""
    order = {b"IM": "<", b"MI": ">"}.get(data[126:HEADER])
    if order is None or data[:6] != b"MATLAB":
        raise ValueError("no level-5 MAT-file")
    matrices = {}
    at = HEADER
    while at < len(data):
        outer = _element(memoryview(data), at, order)
        at = outer.end
        if outer.kind == COMPRESSED:
            outer = _element(memoryview(_unpacked(outer.body)), 0, order)
        if outer.kind == MATRIX:
            _, dims, name, values = _parts(outer.body, order)
            shape = np.frombuffer(dims.body, f"{order}i4")
            if values.kind in NUMBERS:
                flat = np.frombuffer(values.body, order + NUMBERS[values.kind])
                matrices[bytes(name.body).decode("ascii")] = flat.reshape(shape, order="F")
    return matrices


def _unpacked(body: memoryview) -> bytes:
    """An element's bytes; ValueError where they are damaged, or more than a file of pictures would have."""
    most, unpacking = max(SMALL, SHRUNK * len(body)), zlib.decompressobj()
    try:
        unpacked = unpacking.decompress(body, most + 1)
    except zlib.error as error:
        raise ValueError(f"an element does not decompress ({error})") from error
    if len(unpacked) > most:
        raise ValueError(f"an element of {len(body)} bytes unpacks to more than {most}")
    if not unpacking.eof:
        raise ValueError("a compressed element is cut off")
    return unpacked


def _parts(body: memoryview, order: str) -> list[Element]:
    parts: list[Element] = []
    at = 0
    for _ in ("flags", "dimensions", "name", "real part"):
        part = _element(body, at, order)
        parts.append(part)
        at = part.end
    return parts


def _element(data: memoryview, at: int, order: str) -> Element:
    try:
        kind, size = struct.unpack_from(f"{order}II", data, at)
    except struct.error as error:
        raise ValueError("the file ends in the middle of an element") from error
    if kind >> 16:  # a small element: type and size in four bytes, its data in the next four
        kind, size, begin, end = kind & 0xFFFF, kind >> 16, at + 4, at + 8
    else:  # padded to eight bytes, but for compressed ones
        begin = at + 8
        end = begin + (size if kind == COMPRESSED else -(-size // 8) * 8)
    if begin + size > len(data):
        raise ValueError("the file ends in the middle of an element")
    return Element(kind, data[begin : begin + size], end)
