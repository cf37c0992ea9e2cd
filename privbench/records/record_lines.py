"""Several records in one file, NAME.jsonl.xz: one record a line, each as its record file holds it, compressed with xz."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from privbench.errors import Damaged, UserError
from privbench.records import schema
from privbench.records.schema import Record
from privbench.system import files
from privbench.system.file_headers import short, strict_json

ENDING = ".jsonl.xz"
PIECE_BYTES = 2**20  # unpacked at once
MEMORY_BYTES = 2**27  # of the unpacking itself
# Of a file, unpacked: some eight times the largest published one; and of one record.
MOST_BYTES, MOST_LINE_BYTES = 2**29, 2**26
ADVICE = "ask whoever made the file for it again"


def read(path: Path) -> list[Record]:
    """Every record, in the file's order; UserError where one is damaged or altered, or where there is no such file."""
    if not path.is_file():
        raise UserError(f"there are no records at {path}")
    try:
        return [
            schema.of_value(_json(line, path, number), f"line {number} of {path}", ADVICE)
            for number, line in enumerate(_lines(path), 1)
        ]
    except (lzma.LZMAError, EOFError, ValueError) as error:
        raise Damaged(f"{path} is damaged ({short(str(error))})") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


def _json(line: bytes, path: Path, number: int) -> Any:
    try:
        return strict_json(line)
    except ValueError as error:
        raise Damaged(f"line {number} of {path} is damaged ({short(str(error))}); {ADVICE}") from error


def _lines(path: Path) -> Iterator[bytes]:
    """The lines that a file unpacks to, piece by piece: a small file may unpack to one that no memory holds.

    LZMAError or ValueError for what needs more memory, EOFError for a file that ends too early.
    """
    total = length = 0
    begun: list[bytes] = []
    for piece in _pieces(path):
        total += len(piece)
        first, *others = piece.split(b"\n")
        begun.append(first)
        length += len(first)
        for line in others:
            yield b"".join(begun)
            begun, length = [line], len(line)
        if total > MOST_BYTES or length > MOST_LINE_BYTES:
            raise ValueError(f"it unpacks to more than {MOST_BYTES} bytes, or a line to more than {MOST_LINE_BYTES}")
    if length:
        yield b"".join(begun)


def _pieces(path: Path) -> Iterator[bytes]:
    """What a file unpacks to, of all its streams: `xz` joins files end to end, with zeros between them."""
    with path.open("rb") as packed:
        unpacking, compressed = _unpacking(), packed.read(PIECE_BYTES)
        while True:
            yield unpacking.decompress(compressed, PIECE_BYTES)
            compressed = b""
            if unpacking.eof:
                compressed = unpacking.unused_data.lstrip(b"\0")
                while not compressed:
                    if not (read := packed.read(PIECE_BYTES)):
                        return
                    compressed = read.lstrip(b"\0")
                unpacking = _unpacking()
            elif unpacking.needs_input and not (compressed := packed.read(PIECE_BYTES)):
                raise EOFError("it ends too early")


def _unpacking() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MEMORY_BYTES)


def write(records: Sequence[Record], path: Path) -> None:
    """The same records give the same bytes. UserError where they are more than is read."""
    lines: list[bytes] = []
    for record in records:
        content = record.model_dump(mode="json", serialize_as_any=True)
        version = content.pop("schema_version")
        digest = schema.content_digest_of(record)
        lines.append(json.dumps({"schema_version": version, files.DIGEST: digest, **content}).encode())
    if max(map(len, lines), default=0) > MOST_LINE_BYTES or sum(map(len, lines)) + len(lines) > MOST_BYTES:
        raise UserError(f"these records are too large for one file, {path}: merge some of them into another one")
    files.write_bytes(path, lzma.compress(b"\n".join(lines) + b"\n", preset=9))
