"""`privbench attack`: runs the cells of one method, writes their tables and figures, prints the table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from privbench.errors import UserError
from privbench.records.schema import AttackRecord, InferenceRecord, Record
from privbench.records.store import Store
from privbench.requests.options import PlaceOptions
from privbench.spec import CellSpec
from privbench.system import console, files
from reports.figures import of_attack, sweep_curve
from reports.records import ceiling
from reports.records.labels import REFUSED, Gap
from reports.running import ladder_cells
from reports.running.status import CellStatus
from reports.running.study_run import check_present, execute, sorted_out
from reports.running.study_view import print_files
from reports.tables import attack_table, inference_table, ladder, report_files, terminal
from reports.tables.report import Report

# The file of what else is learned.
INFERENCES = "inference"


class Attacked(NamedTuple):
    """What a run of cells of one method gave, with its tables and figures on disk."""

    folder: Path
    records: list[AttackRecord]
    references: list[AttackRecord]  # of other cells in the same store: ceilings that tables refer to
    gaps: list[Gap]
    paths: list[Path]
    is_ladder: bool
    inferred: list[InferenceRecord]

    @property
    def finished(self) -> list[Record]:
        """The records of reconstructions, and behind them those of inferences."""
        return [*self.records, *self.inferred]

    def unfinished(self) -> list[Gap]:
        """The cells that should be there; of a ladder, attacks that cannot be made are left out."""
        return [gap for gap in self.gaps if not (self.is_ladder and gap.state == REFUSED)]


def run_attacks(cells: Sequence[CellSpec], place: PlaceOptions) -> Attacked:
    """Runs or reuses the cells, writes tables, scatter plots, grids and curves to a folder of their own.

    UserError before anything is trained where a cell can be known to be impossible, and where none could be finished.
    """
    store, folder = Store(place.out), files.inside(place.out, f"attack-{cells[0].id}")
    states = execute(cells, place.out, place.data_dir, place.device, strict=True, engine=place.engine)
    done, records, inferred, gaps = _attacked(cells, states)
    references, paths = ceiling.references(store, records), []
    if records or not inferred:
        paths += report_files.write(attack_table.report(records, gaps, references), folder / "table")
    if inferred:
        paths += report_files.write(inference_table.report(inferred), folder / INFERENCES)
    paths += of_attack.attacked(store, done, records, folder) + of_attack.histograms(records, folder)
    paths += ladder_cells.curves(records, folder) + sweep_curve.curves(records, folder)
    check_present(store, cells, states, paths)
    return Attacked(folder, records, references, gaps, paths, is_ladder=False, inferred=inferred)


def run_ladder(cells: Sequence[CellSpec], place: PlaceOptions) -> Attacked:
    """The same for the attack ladder of one method: attacks whose needs are not met are gaps and are not tried."""
    folder = files.inside(place.out, f"ladder-{cells[0].id}")
    able, unmet = ladder_cells.applicable(cells)
    states = execute(able, place.out, place.data_dir, place.device, engine=place.engine)
    done, records, inferred, open_ = _attacked(able, states)
    gaps = [*unmet, *open_]
    paths = report_files.write(ladder.report(records, gaps), folder / "ladder")
    if inferred:
        paths += report_files.write(inference_table.report(inferred), folder / INFERENCES)
    paths += ladder_cells.curves(records, folder) + sweep_curve.curves(records, folder)
    paths += ladder_cells.grids(Store(place.out), done, records, folder, [cell.round for cell in done])
    check_present(Store(place.out), able, states, paths)
    return Attacked(folder, records, [], gaps, paths, is_ladder=True, inferred=inferred)


def show_attacked(ended: Attacked) -> None:
    """Prints the table; UserError for cells that are unfinished."""
    to = console.results()
    print_files(ended.paths, ended.folder, to)
    for name, report in _reports(ended):
        terminal.show(report, ended.folder / f"{name}.md", to)
    if unfinished := ended.unfinished():
        raise UserError(
            f"{len(unfinished)} of {len(ended.finished) + len(unfinished)} cells are unfinished: {unfinished[0].reason}"
        )


def _reports(ended: Attacked) -> list[tuple[str, Report]]:
    """(name of the file, report) of everything that there is: of images, and of what else is learned."""
    reports = []
    if ended.is_ladder:
        reports.append(("ladder", ladder.report(ended.records, ended.gaps)))
    elif ended.records or not ended.inferred:
        reports.append(("table", attack_table.report(ended.records, ended.gaps, ended.references)))
    if ended.inferred:
        reports.append((INFERENCES, inference_table.report(ended.inferred)))
    return reports


def _attacked(
    cells: Sequence[CellSpec], states: Sequence[CellStatus]
) -> tuple[list[CellSpec], list[AttackRecord], list[InferenceRecord], list[Gap]]:
    """(cells whose images were attacked, their records, those of inferences, the others); UserError when none is done."""
    done, records, gaps = sorted_out(cells, states)
    if not records:
        raise UserError(gaps[0].reason)
    pairs = [(cell, r) for cell, r in zip(done, records, strict=True) if isinstance(r, AttackRecord)]
    inferred = [r for r in records if isinstance(r, InferenceRecord)]
    return [cell for cell, _ in pairs], [r for _, r in pairs], inferred, gaps
