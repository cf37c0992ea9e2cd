"""The ladder's cells: which of its attacks apply to a method, and the reports of several methods at several rounds.

A page for the reader (reports/tables/ladder_summary.py), one file of long tables per data set (reports/tables/ladder.py), the
curve over rounds per data set (reports/figures/psnr_by_round.py) and grids of reconstructions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from privbench import registry
from privbench.execution import applicability
from privbench.observation import active_server
from privbench.records.schema import AttackRecord, InferenceRecord
from privbench.records.store import Store
from privbench.spec import CellSpec
from privbench.system import files
from reports.figures import of_attack, psnr_by_round
from reports.records import grouping
from reports.records.labels import REFUSED, Gap, label, unique
from reports.records.measured import best_record
from reports.tables import inference_table, ladder, ladder_summary, report_files

SHOWN_ROUNDS = ("0", "best")  # of which a study draws grids


def applicable(cells: Sequence[CellSpec]) -> tuple[list[CellSpec], list[Gap]]:
    """(cells whose attack can be made on what their method sends, a gap for each other one), before anything is trained."""
    reasons = [_reason(cell) for cell in cells]
    able = [cell for cell, reason in zip(cells, reasons, strict=True) if reason is None]
    return able, [Gap(cell, reason, REFUSED) for cell, reason in zip(cells, reasons, strict=True) if reason]


def _reason(cell: CellSpec) -> str | None:
    """Why a cell's attack cannot be made or does not apply, whatever its gradients are; None where it can."""
    method = registry.create(registry.resolve("method", cell.train.method), cell.train.method_settings)
    if lack := active_server.lacking(cell, method):
        return lack
    if active_server.too_early(cell):
        return active_server.TOO_EARLY
    attack = registry.resolve("attack", cell.attack or "")
    fault = applicability.exceeded(cell.attack or "", applicability.of(attack), cell)
    # Without the way out: a ladder makes every other attack anyway.
    return f"not applicable: {fault.partition(';')[0]}" if fault else None


def write(
    store: Store,
    cells: Sequence[CellSpec],
    records: Sequence[AttackRecord],
    gaps: Sequence[Gap],
    folder: Path,
    inferred: Sequence[InferenceRecord] = (),
) -> list[Path]:
    """Every report of several methods; `records` are those of `cells`, in the same order, and `inferred` stand beneath."""
    summary = inference_table.beneath(ladder_summary.report(records, gaps), inferred)
    paths = report_files.write(summary, folder / "summary")
    for key, name in of_attack.stems(records).items():
        of_setting = [r for r in records if grouping.setting(r.cell) == key]
        lost = [gap for gap in gaps if grouping.setting(gap.cell) == key]
        beside = [r for r in inferred if grouping.setting(r.cell) == key]
        whole = inference_table.beneath(ladder.report(of_setting, lost), beside)
        paths += report_files.write(whole, files.inside(folder, f"ladder-{name}"))
    return paths + curves(records, folder) + grids(store, cells, records, folder, SHOWN_ROUNDS, strongest=True)


def curves(records: Sequence[AttackRecord], folder: Path) -> list[Path]:
    """`<data set>-rounds`, a panel per method."""
    return [
        path
        for key, name in of_attack.observation_stems(records).items()
        for path in psnr_by_round.write(
            [r for r in records if grouping.observation(r.cell) == key], files.inside(folder, f"{name}-rounds")
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

    With `strongest` a row is the best attack of a row of the ladder, else every attack has one.
    """
    by_id = {cell.id: cell for cell in cells}
    names, methods = of_attack.observation_stems(records), unique(label(r.cell) for r in records)
    paths = []
    for block in ladder.blocks([r for r in records if r.cell.round in rounds]):
        first = block.every[0]
        shown = _strongest(block) if strongest else [
            r for r in block.every if r.attack not in registry.FLOORS or r.attack == first.floor.name
        ]  # fmt: skip
        method = f"-{_stem(label(first.cell))}" if len(methods) > 1 else ""
        stem = files.inside(folder, f"{names[grouping.observation(first.cell)]}{method}-grid-{first.cell.round}")
        paths += of_attack.write_grid(store, [by_id[r.id] for r in shown], min(first.cell.seeds), stem)
    return paths


def _strongest(block: ladder.Block) -> list[AttackRecord]:
    """The best floor and the best attack of every row, each once."""
    floors = [] if block.floors is None else [block.floors.first]
    return list({r.id: r for r in [*floors, *(best_record(row.best.attacks) for row in block.rows)]}.values())


def _stem(name: str) -> str:
    """A method's name in names of files, e.g. "fedavg-gaussian-0.1"."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")
