"""Several records in one file, NAME.jsonl.xz: one record a line, each as its record file holds it, compressed with xz."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator, Sequence
from pathlib import Path

from privbench.errors import Damaged, UserError
from privbench.records import schema
from privbench.records.schema import Record
from privbench.system import files
from privbench.system.file_headers import JSON_BYTES, short, strict_json

ENDING = ".jsonl.xz"
PIECE_BYTES = 2**20  # unpacked at once
MEMORY_BYTES = 2**27  # of the unpacking itself
MOST_BYTES = 2**32  # of a file, unpacked


def read(path: Path) -> list[Record]:
    """Every record, in the file's order; UserError where one is damaged or altered, or where there is no such file."""
    if not path.is_file():
        raise UserError(f"there are no records at {path}")
    try:
        return [schema.of_value(strict_json(line), path) for line in _lines(path)]
    except (lzma.LZMAError, EOFError, ValueError) as error:
        raise Damaged(f"{path} is damaged ({short(str(error))})") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


def _lines(path: Path) -> Iterator[bytes]:
    """The lines that a file unpacks to, piece by piece: a small file may unpack to one that no memory holds.

    LZMAError or ValueError for what needs more memory, EOFError for a file that ends too early.
    """
    unpacking, rest, total = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MEMORY_BYTES), b"", 0
    with path.open("rb") as packed:
        while not unpacking.eof:
            compressed = packed.read(PIECE_BYTES) if unpacking.needs_input else b""
            if unpacking.needs_input and not compressed:
                raise EOFError("it ends too early")
            piece = unpacking.decompress(compressed, PIECE_BYTES)
            total += len(piece)
            *lines, rest = (rest + piece).split(b"\n")
            if total > MOST_BYTES or len(rest) > JSON_BYTES:
                raise ValueError(f"it unpacks to more than {MOST_BYTES} bytes, or a line to more than {JSON_BYTES}")
            yield from lines
    if rest:
        yield rest


def write(records: Sequence[Record], path: Path) -> None:
    """The same records give the same bytes."""
    lines = []
    for record in records:
        content = record.model_dump(mode="json", serialize_as_any=True)
        version = content.pop("schema_version")
        digest = schema.content_digest_of(record)
        lines.append(json.dumps({"schema_version": version, files.DIGEST: digest, **content}))
    files.write_bytes(path, lzma.compress(("\n".join(lines) + "\n").encode(), preset=9))
