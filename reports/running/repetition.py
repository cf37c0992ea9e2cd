"""The cells of some records on other seeds: a published table made again, or continued where its seeds are few."""

from __future__ import annotations

from collections.abc import Sequence

from privbench import presets, registry
from privbench.errors import UserError
from privbench.records.schema import Record
from privbench.spec import CellSpec


def cells(
    records: Sequence[Record], first_seed: int | None, seeds: int | None, methods: Sequence[str] | None
) -> list[CellSpec]:
    """Each record's cell on `seeds` seeds, by default as many as it has, from `first_seed` on, by default behind its last.

    Of some methods alone where these are named. UserError: no record is left; one is of an earlier revision, so that today's code
    would not continue it; or one has such a seed already.
    """
    chosen = [r for r in records if methods is None or r.cell.train.method in methods]
    if not chosen:
        known = ", ".join(dict.fromkeys(r.cell.train.method for r in records))
        raise UserError(f"there is no record of {', '.join(methods or ())}; there are records of {known}")
    return list({cell.id: cell for cell in (_cell(record, first_seed, seeds) for record in chosen)}.values())


def _cell(record: Record, first_seed: int | None, seeds: int | None) -> CellSpec:
    cell = record.cell
    of_today = cell.attack is None or registry.is_of_today(cell.attack, cell.attack_revision)
    if record.id != cell.id or not of_today:
        raise UserError(
            f"record {record.id} is of an earlier revision of privbench, whose numbers today's code would not give"
        )
    first = max(cell.seeds) + 1 if first_seed is None else first_seed
    others = presets.seeds_of(cell.preset, len(cell.seeds) if seeds is None else seeds, first)
    common = sorted({*others} & {*cell.seeds})
    if common:
        raise UserError(
            f"cell {cell.id} has seed {common[0]} already; name another --first-seed, or take `privbench reproduce` to run it again"
        )
    return cell.with_seeds(others)
