"""Climbing the ladder: which of its attacks can be made on a method, and the reports of several methods at several rounds.

A page for the reader (reports/ladder_summary.py), one file of long tables per data set (reports/ladder.py), the curve over rounds
per data set (reports/round_curve.py) and grids of reconstructions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from privbench import active, plugins, storage
from privbench.record import AttackRecord
from privbench.spec import CellSpec
from privbench.store import Store
from reports import drawings, ladder, ladder_summary, round_curve, rows, tables
from reports.measured import best_record
from reports.published_form import REFUSED, Gap, label, unique

SHOWN_ROUNDS = ("0", "best")  # of which a study draws grids


def climbable(cells: Sequence[CellSpec]) -> tuple[list[CellSpec], list[Gap]]:
    """(cells whose attack can be made on what their method sends, a gap for each other one), before anything is trained."""
    reasons = [_reason(cell) for cell in cells]
    able = [cell for cell, reason in zip(cells, reasons, strict=True) if reason is None]
    return able, [Gap(cell, reason, REFUSED) for cell, reason in zip(cells, reasons, strict=True) if reason]


def _reason(cell: CellSpec) -> str | None:
    """Why a cell's attack cannot be made, whatever its gradients are; None where it can."""
    method = plugins.create(plugins.resolve("method", cell.train.method), cell.train.method_settings)
    if lack := active.lacking(cell, method):
        return lack
    return "works through rounds of training, and round 0 is before any" if active.too_early(cell) else None


def write(
    store: Store, cells: Sequence[CellSpec], records: Sequence[AttackRecord], gaps: Sequence[Gap], folder: Path
) -> list[Path]:
    """Every report of several methods; `records` are those of `cells`, in the same order."""
    paths = tables.write(ladder_summary.report(records, gaps), folder / "summary")
    for key, name in drawings.stems(records).items():
        own = [r for r in records if rows.setting(r.cell) == key]
        lost = [gap for gap in gaps if rows.setting(gap.cell) == key]
        paths += ladder.write_tables(own, storage.inside(folder, f"ladder-{name}"), lost)
    return paths + curves(records, folder) + grids(store, cells, records, folder, SHOWN_ROUNDS, strongest=True)


def curves(records: Sequence[AttackRecord], folder: Path) -> list[Path]:
    """`<data set>-rounds`, a panel per method."""
    return [
        path
        for key, name in drawings.stems(records).items()
        for path in round_curve.write(
            [r for r in records if rows.setting(r.cell) == key], storage.inside(folder, f"{name}-rounds")
        )
    ]


def grids(
    store: Store,
    cells: Sequence[CellSpec],
    records: Sequence[AttackRecord],
    folder: Path,
    rounds: Sequence[str],
    *,
    strongest: bool = False,
) -> list[Path]:
    """`<data set>-grid-<round>`, rungs from below, of the floors the best; with several methods, one grid of each.

    With `strongest` a row is the strongest attack of a knowledge tag, else every attack has one.
    """
    by_id = {cell.id: cell for cell in cells}
    names, methods = drawings.stems(records), unique(label(r.cell) for r in records)
    paths = []
    for block in ladder.blocks([r for r in records if r.cell.round in rounds]):
        first = block.every[0]
        own = [best_record(row.attacks) for row in block.best] if strongest else [
            r for r in block.every if r.attack not in plugins.FLOORS or r.attack == first.floor.name
        ]  # fmt: skip
        method = f"-{_stem(label(first.cell))}" if len(methods) > 1 else ""
        stem = storage.inside(folder, f"{names[rows.setting(first.cell)]}{method}-grid-{first.cell.round}")
        paths += drawings.write_grid(store, [by_id[r.id] for r in own], min(first.cell.seeds), stem)
    return paths


def _stem(name: str) -> str:
    """A method's name in names of files, e.g. "fedavg-gaussian-0.1"."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")
