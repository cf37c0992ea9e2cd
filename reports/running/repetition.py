"""The cells of some records on other seeds: a published table made again, or continued where its seeds are few."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from privbench import presets, registry
from privbench.errors import UserError
from privbench.records.schema import Record
from privbench.spec import CellSpec


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
    cells stand for them. UserError: there is no record of a name in `only`, or of all together; one is of an earlier revision, so
    that today's code would not continue it; or a cell has such a seed already.
    """
    groups: dict[str, list[CellSpec]] = {}
    for record in _chosen(records, only):
        groups.setdefault(_continued(record).id_but_for_seeds, []).append(record.cell)
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


def _continued(record: Record) -> CellSpec:
    cell = record.cell
    if record.id != cell.id or (cell.attack and not registry.is_of_today(cell.attack, cell.attack_revision)):
        raise UserError(
            f"record {record.id} is of another revision of privbench, whose numbers today's code would not give"
        )
    return cell


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
