"""Which cells of two folders are the same cell, and what of them differs."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from privbench.errors import UserError
from privbench.execution import reproduce
from privbench.records.schema import Record
from privbench.spec import CellSpec, TrainSpec, nearest

# Of a specification: what code made the cell, not what the cell is.
REVISIONS = ("attack_revision", "active")
# Of a record: its names, which change with the revision, and what says no number.
NAMES = ("id", "cell", "schema_version")


class Pair(NamedTuple):
    """One cell of both folders."""

    before: Record
    after: Record

    @property
    def other_revision(self) -> bool:
        """Whether the two were made by code of different revisions."""
        return self.before.id != self.after.id and key_of(self.before.cell, ()) == key_of(self.after.cell, ())

    def differences(self) -> list[str]:
        """One line per number or word of the two records that is not the same; times, places and names are no numbers."""
        return reproduce.unlike_records(self.before, self.after, NAMES)


class Paired(NamedTuple):
    """Two folders' records, cell by cell."""

    pairs: list[Pair]
    only_before: list[Record]
    only_after: list[Record]
    # Cells that several of the other folder could be.
    ambiguous_before: list[Record]
    ambiguous_after: list[Record]


def paired(before: Sequence[Record], after: Sequence[Record], but_for: Collection[str] = ()) -> Paired:
    """Pairs cells that are the same, whatever revision made them, and whatever they have in the fields `but_for`.

    A field is one of a cell or of its training, by name. Of two records of one cell in one folder, that of today's revision counts.
    Where several cells of a folder differ in `but_for` alone, they are not paired. UserError for a field that there is not.
    """
    names = [name for name in (*CellSpec.model_fields, *TrainSpec.model_fields) if name not in ("train", *REVISIONS)]
    for name in but_for:
        if name not in names:
            raise UserError(f"no cell has a field '{name}'; {nearest(name, names)}")
    of_a, of_b = (_by_key(records, but_for) for records in (before, after))
    both = [key for key in of_a if key in of_b]
    clear = [key for key in both if len(of_a[key]) == len(of_b[key]) == 1]
    return Paired(
        pairs=[Pair(of_a[key][0], of_b[key][0]) for key in clear],
        only_before=[r for key, records in of_a.items() if key not in of_b for r in records],
        only_after=[r for key, records in of_b.items() if key not in of_a for r in records],
        ambiguous_before=[r for key in both if key not in clear for r in of_a[key]],
        ambiguous_after=[r for key in both if key not in clear for r in of_b[key]],
    )


def key_of(cell: CellSpec, but_for: Collection[str]) -> str:
    """What a cell is, as text: its specification without revisions and without some fields; settings of defaults are spelt out."""
    fields = {name: value for name, value in _every(cell) if name not in (*REVISIONS, *but_for)}
    if "seeds" in but_for:
        fields.pop("seed", None)
    return json.dumps(fields, sort_keys=True, default=str)


def _every(cell: CellSpec) -> Iterator[tuple[str, Any]]:
    """Every field of a cell and of its training with its value, also those that a file leaves out."""
    for name in type(cell).model_fields:
        if name != "train":
            yield name, getattr(cell, name)
    for name in type(cell.train).model_fields:
        value = getattr(cell.train, name)
        yield name, value.model_dump() if hasattr(value, "model_dump") else value


def _by_key(records: Sequence[Record], but_for: Collection[str]) -> Mapping[str, list[Record]]:
    """Each cell's records; of one and the same cell that of today's revision alone."""
    whole: dict[str, Record] = {}
    for r in records:
        exact = key_of(r.cell, ())
        if exact not in whole or _age(whole[exact]) <= _age(r):
            whole[exact] = r
    by_key: dict[str, list[Record]] = {}
    for r in whole.values():
        by_key.setdefault(key_of(r.cell, but_for), []).append(r)
    return by_key


def _age(r: Record) -> tuple[bool, int]:
    """Larger of a later revision: whether its name is today's for all attacks, then the revision of its own attack."""
    return r.id == r.cell.id, r.cell.attack_revision
