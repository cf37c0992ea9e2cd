"""The records behind the published tables: docs/results/records/<table>.jsonl.xz, one record a line, compressed with xz.

A page of docs/results that has no such file says so in a line of its own (NO_RECORDS).
"""

from __future__ import annotations

import json
import lzma
from functools import cache
from pathlib import Path

from privbench.errors import UserError
from privbench.records import schema
from privbench.records.schema import AttackRecord, Record
from privbench.system import files
from reports.records import labels

FOLDER = Path("docs/results")
ENDING = ".jsonl.xz"
NO_RECORDS = "No records of this table are committed"


def path_of(root: Path, name: str) -> Path:
    """Where the records of a table lie."""
    return root / FOLDER / "records" / f"{name}{ENDING}"


@cache
def read(path: Path) -> tuple[Record, ...]:
    """The records of one table, those of the best round first; UserError where one is damaged or altered."""
    if not path.exists():
        raise UserError(f"there are no records at {path}")
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        found = [schema.of_value(json.loads(line), path) for line in lines]
    return tuple(
        sorted(found, key=lambda r: (not labels.round_place(r.cell.round)[0], labels.round_place(r.cell.round)))
    )


def attacked(root: Path, name: str) -> list[AttackRecord]:
    """The records of attacks of one table."""
    return [r for r in read(path_of(root, name)) if isinstance(r, AttackRecord)]


def write(records: list[Record], path: Path) -> None:
    """Commits the records of a table, each as its record file holds it; the same records give the same bytes."""
    lines = []
    for record in records:
        content = record.model_dump(mode="json", serialize_as_any=True)
        version = content.pop("schema_version")
        digest = schema.content_digest_of(record)
        lines.append(json.dumps({"schema_version": version, files.DIGEST: digest, **content}))
    files.write_bytes(path, lzma.compress(("\n".join(lines) + "\n").encode(), preset=9))


def without_records(root: Path) -> list[str]:
    """The pages of docs/results that have no records and do not say so."""
    return [
        page.name
        for page in sorted((root / FOLDER).glob("*.md"))
        if not path_of(root, page.stem).exists() and NO_RECORDS not in page.read_text(encoding="utf-8")
    ]
