"""What the command line prints of a study: how far every cell is, its tables, and the files that were written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from privbench.errors import UserError
from privbench.records.store import Store
from privbench.spec import CellSpec
from privbench.system import console as consoles
from privbench.system.console import Console
from reports.running import ladder_cells, status, study_reports
from reports.running.status import CellStatus
from reports.running.study_plan import few
from reports.running.study_run import Studied, absent_data
from reports.studies.definition import Study
from reports.tables import render
from reports.tables.summary import counts

MOST_FILES = 8  # that one line names


def show_study(ended: Studied) -> None:
    """Prints how far every cell is and the study's tables; UserError when a cell is left open."""
    to = consoles.results()
    print_files(ended.paths, ended.folder, to)
    _print_state(ended.cells, ended.states, to)
    study_reports.show(
        ended.study, ended.records, ended.gaps, to, ended.folder, ended.references, few(ended.study, ended.cells)
    )
    if open_ := ended.unfinished():
        raise UserError(f"{len(open_)} of {len(ended.states)} cells are unfinished: {open_[0].why}")


def show_status(chosen: Study, cells: Sequence[CellSpec], out: Path, data_dir: Path | None) -> None:
    """Prints how far every cell is; runs and writes nothing. UserError where `out` is a file."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; name a folder of results with --out")
    store, to = Store(out), consoles.results()
    cells, unmet = ladder_cells.applicable(cells) if chosen.is_ladder else (cells, [])
    absent = absent_data(store, cells, data_dir, fetch=False)
    states = [status.of(store, cell, absent) for cell in cells]
    short = [state._replace(why="" if state.word == status.NO_DATA else state.why) for state in states]
    for heading, body in status.listing(cells, short):
        render.show(heading, status.COLUMNS, body, to, words=True)
    to.say(f"{chosen.title}: {status.counts(states)}" + ("" if out.exists() else f"; there is no folder {out} yet"))
    for line in status.reasons(cells, states):
        if line.startswith(status.NO_DATA):
            to.print(f"- {line}")
    if unmet:
        render.show("Left out", counts.GAP_COLUMNS, counts.gap_rows(unmet), to, words=True)


def print_files(paths: Sequence[Path], folder: Path, to: Console) -> None:
    """One line for all files that were written: the pages and pictures, without their other forms."""
    names = [path.name for ending in (".md", ".png") for path in paths if path.suffix == ending]
    more = f" and {len(names) - MOST_FILES} more" if len(names) > MOST_FILES else ""
    to.say(f"wrote {len(paths)} files to {folder}: {', '.join(names[:MOST_FILES])}{more}")


def _print_state(cells: Sequence[CellSpec], states: Sequence[CellStatus], to: Console) -> None:
    to.say(status.counts(states))
    for line in status.reasons(cells, states):
        to.print(f"- {line}")
