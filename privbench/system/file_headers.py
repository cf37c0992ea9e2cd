"""What a file says of itself, checked before anything that it describes is allocated: strict JSON, and safetensors headers.

Files may come from strangers. A header is small, its sizes add up to the file's size, and nothing in it is believed until then.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch

from privbench.system import interrupts

JSON_VALUES = 2**23  # the most in one, some eighty times those of the largest published record
JSON_BYTES = 2**28  # the largest JSON file: records with every curve of every client are below 2^24
JSON_DEPTH = 64  # lists within objects within lists: a history has 5 levels, a record 8
# Names, shapes and the JSON that a tensor file carries. 1,000 clients' networks with their optimisers name 100,000 tensors in 2^23
# bytes; a history of 1,000 rounds of 100 clients takes 2^24.
HEADER_BYTES = 2**26
TENSORS = 2**18
DIMENSIONS = 8  # of one tensor; the weights of stacked convolutions have 5
LENGTH_BYTES = 8  # of the number before the header: its size
DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64,
    "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
}  # fmt: skip

NESTED = (dict, list)


class Declared(NamedTuple):
    """A tensor as a header announces it."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """How much it will take."""
        return math.prod(self.shape) * self.dtype.itemsize


class Header(NamedTuple):
    """What a safetensors file announces."""

    tensors: dict[str, Declared]
    metadata: dict[str, str]


def strict_json(data: bytes | str, *, finite: bool = False, depth: int = JSON_DEPTH) -> Any:
    """The value of some JSON; ValueError where it is none, nests deeper than `depth`, names a field twice or has too many values.

    With `finite`, also where a number is NaN or infinite. Text that no UTF-8 file could hold (half of a surrogate pair) is refused.
    """
    text = data if isinstance(data, str) else data.decode("utf-8")
    # Each takes many times the memory of the two characters that may have written it; commas within words count as well.
    if sum(map(text.count, ",[{")) > JSON_VALUES:
        raise ValueError(f"it has more than {JSON_VALUES} values")
    try:
        value = json.loads(
            text,
            object_pairs_hook=_without_duplicates,
            parse_constant=_refused if finite else None,
            parse_float=_finite if finite else None,
        )
    except RecursionError as error:
        raise ValueError(f"it nests deeper than {depth} levels") from error
    except ValueError as error:
        if "integer string conversion" in str(error):
            raise ValueError("a whole number in it has thousands of digits") from error
        raise
    _check_depth(value, depth)
    if "\\ud" in text or "\\uD" in text:
        json.dumps(value, ensure_ascii=False).encode()
    return value


def read_header(path: Path) -> Header:
    """The header of a safetensors file, read without its tensors; ValueError where it is none or its sizes do not add up.

    OSError where the file cannot be read.
    """
    size = path.stat().st_size
    # Without a stop between opening and closing, which would leave the file open.
    with interrupts.delayed(), path.open("rb") as file:
        raw = _header_bytes(file, size)
    value = strict_json(raw, depth=4)
    if not isinstance(value, dict):
        raise ValueError("its header is no object")
    metadata = value.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise ValueError("its metadata is no table of words")
    if len(value) > TENSORS:
        raise ValueError(f"it announces {len(value)} tensors, more than {TENSORS}")
    tensors, places = {}, []
    for name, entry in value.items():
        tensors[name], place = _declared(name, entry)
        places.append(place)
    end = 0
    for first, last in sorted(places):
        if first != end:
            raise ValueError("its tensors overlap or leave gaps")
        end = last
    if end != size - LENGTH_BYTES - len(raw):
        raise ValueError(f"it announces {end} bytes of tensors, but holds {size - LENGTH_BYTES - len(raw)}")
    return Header(tensors, metadata)


def short(text: object, most: int = 200) -> str:
    """One line of at most `most` characters, for a message that quotes what a stranger wrote."""
    line = " ".join("".join(c if c.isprintable() else " " for c in str(text)[: 2 * most]).split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


def _header_bytes(file: BinaryIO, size: int) -> bytes:
    length = int.from_bytes(file.read(LENGTH_BYTES), "little")
    if size < LENGTH_BYTES or length > size - LENGTH_BYTES:
        raise ValueError("its header does not fit into the file")
    if length > HEADER_BYTES:
        raise ValueError(f"its header has {length} bytes, more than {HEADER_BYTES}")
    return file.read(length)


def _declared(name: str, entry: Any) -> tuple[Declared, tuple[int, int]]:
    """(a tensor, where it begins and ends behind the header)."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"tensor '{short(name)}' is not described by dtype, shape and data_offsets")
    dtype, shape, place = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"tensor '{short(name)}' is of {short(dtype)}; known: {', '.join(DTYPES)}")
    if not _counts(shape) or len(shape) > DIMENSIONS:
        raise ValueError(f"tensor '{short(name)}' has no shape but {short(shape)}")
    if not _counts(place) or len(place) != 2:
        raise ValueError(f"tensor '{short(name)}' has no place but {short(place)}")
    tensor = Declared(DTYPES[dtype], tuple(shape))
    if place[1] - place[0] != tensor.nbytes:
        raise ValueError(f"tensor '{short(name)}' of shape {short(shape)} does not take {place[1] - place[0]} bytes")
    return tensor, (place[0], place[1])


def _counts(value: Any) -> bool:
    """Whether a value is a list of numbers from 0 to 2^63 - 1, none of them a truth value."""
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 2**63 for n in value)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"it names '{short(twice)}' twice")
    return value


def _refused(word: str) -> Any:
    raise ValueError(f"{short(word)} is no finite number")


def _finite(word: str) -> float:
    value = float(word)
    return value if math.isfinite(value) else _refused(word)


def _check_depth(value: Any, most: int) -> None:
    # By exact types, which is all that JSON makes: most of a record's values are numbers in long lists.
    level, depth = [v for v in [value] if type(v) in NESTED], 0
    while level:
        depth += 1
        if depth > most:
            raise ValueError(f"it nests deeper than {most} levels")
        inner = [v.values() if type(v) is dict else v for v in level]
        level = [v for each in inner for v in each if type(v) in NESTED]
