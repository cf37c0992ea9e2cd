"""What lies in a folder of results, or in a file of records: all that can be read, and one line for each thing that cannot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from privbench.errors import UserError
from privbench.records import pooling, record_lines, schema
from privbench.records.schema import FILE_NAME, AttackRecord, Record
from privbench.records.store import Store
from privbench.spec import CellSpec
from reports.records.labels import MISSING, REFUSED, Gap

UNFINISHED = "unfinished; the command that started it continues it"


class Contents(NamedTuple):
    """The results of one place."""

    # Its last part alone: a page that is sent says nothing of folders on the sender's machine.
    name: str
    records: list[Record]
    gaps: list[Gap]
    # What is not in `records`, and why.
    left_out: list[str]
    # Where networks and reconstructions lie; None of a file of records.
    store: Store | None

    @property
    def attacked(self) -> list[AttackRecord]:
        """The records of attacks."""
        return [r for r in self.records if isinstance(r, AttackRecord)]

    def without_place(self, text: str) -> str:
        """A text with paths that begin in the folder: where it lies on the sender's machine is nobody's business."""
        return text if self.store is None else text.replace(f"{self.store.root}/", "")


def read(place: Path, *, earlier: bool = False) -> Contents:
    """The contents of a folder of results or of a file of records (privbench/records/record_lines.py).

    With `earlier`, records of earlier revisions of training, of all attacks or of their own attack are read, too; else they are
    counted. UserError where there is no record.
    """
    try:
        contents = _of_folder(place, earlier=earlier) if place.is_dir() else _of_file(place, earlier=earlier)
    except OSError as error:
        raise UserError(f"cannot read {place}: {error.strerror or error}") from error
    if not contents.records:
        if contents.left_out:
            raise UserError(f"there are no finished cells under {place} ({contents.left_out[0]})")
        how = f"; `privbench attack --out {place}` makes some" if contents.store is not None else ""
        raise UserError(f"there are no finished cells under {place}{how}")
    return contents


def _of_file(path: Path, *, earlier: bool) -> Contents:
    if not path.exists():
        raise UserError(f"there is no {path}")
    if not path.name.endswith(record_lines.ENDING):
        raise UserError(f"{path} is neither a folder of results nor a file of records (*{record_lines.ENDING})")
    # Those of one cell as `privbench merge` takes them: the same once, other seeds together, contradictions refused.
    records = pooling.pooled(record_lines.read(path))
    old = [r.id for r in records if r.id != r.cell.id]
    kept = records if earlier else [r for r in records if r.id == r.cell.id]
    return Contents(path.name, kept, [], [] if earlier else _of_earlier(old), None)


def _of_folder(root: Path, *, earlier: bool) -> Contents:
    store = Store(root)
    contents = Contents(root.resolve().name, [], [], [], store)
    old = [folder for folder in store.earlier() if folder.parent.name == "cells"]
    for cell in store.cells():
        try:
            _add(contents, store, cell)
        except UserError as error:
            contents.left_out.append(contents.without_place(str(error)))
    if not earlier:
        contents.left_out.extend(_of_earlier([folder.name for folder in old]))
        return contents
    for folder in old:
        try:
            if (folder / FILE_NAME).exists():
                contents.records.append(schema.read(folder / FILE_NAME))
        except UserError as error:
            contents.left_out.append(contents.without_place(str(error)))
    return contents


def _add(contents: Contents, store: Store, cell: CellSpec) -> None:
    """Adds one cell; UserError where a file of it cannot be read."""
    if store.record(cell).exists():
        contents.records.append(schema.read_of(cell, store.record(cell)))
    elif store.failure(cell).exists():
        reason, refused = store.read_failure(cell)
        contents.gaps.append(Gap(cell, contents.without_place(reason), REFUSED if refused else MISSING))
    else:
        contents.gaps.append(Gap(cell, UNFINISHED))


def _of_earlier(ids: Sequence[str]) -> list[str]:
    if not ids:
        return []
    return [
        f"{len(ids)} cell{'s' * (len(ids) > 1)} of an earlier revision of privbench, or altered since, whose numbers today's code "
        f"would not give, e.g. {ids[0]}"
    ]
