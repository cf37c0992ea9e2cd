"""`privbench reproduce` and `repeat`: one finished cell again, with what differs, and the cells of records on other seeds."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from privbench.cli import listing
from privbench.errors import Interrupted, UserError
from privbench.execution import reproduce
from privbench.execution.progress import JobBars
from privbench.records import schema
from privbench.records.schema import AttackRecord, Record
from privbench.records.store import Store
from privbench.requests.options import PlaceOptions
from privbench.spec import CellSpec
from privbench.system import console, interrupts
from reports.folders import contents
from reports.records.labels import REFUSED
from reports.running import repetition, status, study_run

MOST_DIFFERENCES = 10  # lines printed about a result that is not reproduced


def reproduce_and_show(prefix: str, out: Path, into: Path | None, data_dir: Path | None, attack_only: bool) -> bool:
    """Runs one finished cell again from its record and prints what differs; True when nothing does."""
    first = _record_of(prefix, out)
    try:
        with ExitStack() as stack:
            fresh = into or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="privbench-")))
            bars = stack.enter_context(JobBars(1 if first.environment["device"] == "cuda" else len(first.cell.seeds)))
            second = reproduce.again(first, out, fresh, data_dir, bars.progress, bars.outcome, attack_only=attack_only)
            lines = reproduce.differences(first, second, out, fresh)
            compared = reproduce.compared(first, out, fresh)
    except (Interrupted, KeyboardInterrupt):
        # A second run counts only where all of it was made in one go in a fresh folder.
        removed = f"{into} holds a part of the second run; remove it, and " if into and into.exists() else ""
        interrupts.end(f"{removed}the same command begins anew")
    to = console.results()
    what = f"{first.id} ({len(first.cell.seeds)} seed(s){', attack only' if attack_only else ', training and attack'})"
    for line in reproduce.moved(first, second):
        to.say(f"another place: {line}")
    if not lines:
        to.say(f"{_reproduced(first, compared)}: {what}")
        return True
    to.say(f"NOT reproduced: {what}; {len(lines)} difference(s)")
    for line in lines[:MOST_DIFFERENCES]:
        to.say(f"  {line}")
    if len(lines) > MOST_DIFFERENCES:
        to.say(f"  ... and {len(lines) - MOST_DIFFERENCES} more")
    return False


def repeat(
    runs: Path, first_seed: int | None, seeds: int | None, only: repetition.Only, place: PlaceOptions
) -> list[CellSpec]:
    """Runs the cells of some records on other seeds and says how far each is; UserError where one is left open."""
    table, to = contents.read(runs), console.results()
    cells = repetition.cells(table.records, first_seed, seeds, only, Store(place.out).recorded())
    for line in table.left_out:
        to.say(f"- left out of {runs}: {line}")
    states = study_run.execute(cells, place.out, place.data_dir, place.device, engine=place.engine)
    to.say(status.counts(states))
    for line in status.reasons(cells, states):
        to.print(f"- {line}")
    if open_ := [state for state in states if state.word not in (status.DONE, REFUSED)]:
        raise UserError(f"{len(open_)} of {len(cells)} cells are unfinished: {open_[0].why}")
    if all(state.word == REFUSED for state in states):
        raise UserError(f"every cell is refused: {states[0].why}")
    places = dict.fromkeys(shlex.quote(str(each)) for each in (runs, place.out))
    to.say(f"`privbench merge FILE.jsonl.xz {' '.join(places)}` makes one table of old and new seeds")
    return cells


def _reproduced(first: Record, compared: Sequence[int]) -> str:
    """What may be claimed where nothing differs: bits only of reconstructions that were there to be compared."""
    if not isinstance(first, AttackRecord):
        return "reproduced: every number of the record is the same"
    lost = [seed for seed in first.cell.seeds if seed not in compared]
    if not lost:
        return "reproduced bit for bit: every number of the record, and every reconstruction"
    return (
        "reproduced: every number of the record is the same; the old reconstructions of "
        f"seed(s) {', '.join(map(str, lost))} are gone, so their bits were not compared"
    )


def _record_of(prefix: str, out: Path) -> Record:
    """The record of the one finished cell whose id begins with `prefix`."""
    store = Store(out)
    cell = listing.only(list(store.cells()), prefix, f"cell under {out}")
    if not store.record(cell).exists():
        raise UserError(f"cell {cell.id} is unfinished; the command that started it continues it")
    return schema.read_of(cell, store.record(cell))
