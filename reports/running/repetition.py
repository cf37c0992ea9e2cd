"""The cells of some records on other seeds: a published table made again, or continued where its seeds are few."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from privbench import presets
from privbench.errors import UserError
from privbench.records.schema import Record
from privbench.spec import CellSpec

LOG = logging.getLogger("privbench")


class Only(NamedTuple):
    """The cells of a table that are meant: those of these names, as cells spell them; None: of every one.

    Cells of training alone have no attack, and are not meant where attacks are named.
    """

    methods: Sequence[str] | None = None
    datasets: Sequence[str] | None = None
    defenses: Sequence[str] | None = None
    attacks: Sequence[str] | None = None
    rounds: Sequence[str] | None = None


ALL = Only()


def cells(
    records: Sequence[Record],
    first_seed: int | None,
    seeds: int | None,
    only: Only = ALL,
    recorded: Iterable[CellSpec] = (),
) -> list[CellSpec]:
    """Each cell of some records on `seeds` seeds, by default as many as it has, from `first_seed` on, by default after its last.

    Records of one cell with other seeds are one cell. Seeds that are among `recorded` cells already are not specified again: those
    cells stand for them. Records of another revision, whose numbers today's code would not give, are left out with a warning.
    UserError: there is no record of a name in `only`, or of all together; all are of another revision; or a cell has such a seed
    already.
    """
    groups: dict[str, list[CellSpec]] = {}
    for record in _of_today(_chosen(records, only)):
        groups.setdefault(record.cell.id_but_for_seeds, []).append(record.cell)
    made: dict[str, list[CellSpec]] = {}
    for cell in recorded:
        made.setdefault(cell.id_but_for_seeds, []).append(cell)
    return [cell for key, group in groups.items() for cell in _of_cell(group, first_seed, seeds, made.get(key, []))]


def _chosen(records: Sequence[Record], only: Only) -> list[Record]:
    names = [(c.train.method, c.train.dataset, c.train.defense, c.attack, c.round) for c in (r.cell for r in records)]
    for asked, there in zip(only, zip(*names, strict=True), strict=False):
        known = [name for name in dict.fromkeys(there) if name is not None]
        if absent := [name for name in asked or () if name not in known]:
            raise UserError(f"there is no record of {', '.join(absent)}; there are records of {', '.join(known)}")
    chosen = [
        record
        for record, each in zip(records, names, strict=True)
        if all(asked is None or name in asked for asked, name in zip(only, each, strict=True))
    ]
    if records and not chosen:
        raise UserError("there is no record of all that was named together")
    return chosen


def _of_today(records: Sequence[Record]) -> list[Record]:
    today = [r for r in records if _is_of_today(r)]
    if len(today) == len(records):
        return today
    gone = [r.cell for r in records if not _is_of_today(r)]
    names = ", ".join(dict.fromkeys(c.attack or c.train.method for c in gone))
    why = f"of another revision of privbench, whose numbers today's code would not give: {names}"
    if not today:
        raise UserError(f"all {len(gone)} cells are {why}")
    LOG.warning("left out: %d of %d cells are %s", len(gone), len(records), why)
    return today


def _is_of_today(record: Record) -> bool:
    return record.id == record.cell.id and presets.is_of_today(record.cell)


def _of_cell(
    group: Sequence[CellSpec], first_seed: int | None, seeds: int | None, made: Sequence[CellSpec]
) -> list[CellSpec]:
    """The cells of the seeds that one cell is to be made on: of those that are there, and one of the others."""
    cell, there = group[0], sorted({seed for each in group for seed in each.seeds})
    first = there[-1] + 1 if first_seed is None else first_seed
    wanted = presets.seeds_of(cell.preset, len(there) if seeds is None else seeds, first)
    if common := sorted({*wanted} & {*there}):
        has = next(each for each in group if common[0] in each.seeds)
        raise UserError(
            f"cell {has.id} has seed {common[0]} already; name another --first-seed, or take `privbench reproduce` to run it again"
        )
    standing = [each for each in made if {*each.seeds} & {*wanted}]
    missing = [seed for seed in wanted if not any(seed in each.seeds for each in standing)]
    return [*standing, *([cell.with_seeds(missing)] if missing else [])]
