"""Running a study: every cell that is not recorded, then every report of those that are.

Cells fail alone. Why one failed is kept beside it until it is tried again; what is on disk is never computed twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from privbench import data, registry
from privbench.errors import Interrupted, UserError
from privbench.execution import cell_jobs, foundations, preconditions
from privbench.execution.progress import CONSOLE, JobBars
from privbench.execution.sweep import engines, shards
from privbench.execution.sweep.shards import Shard
from privbench.records.schema import AttackRecord, Record
from privbench.records.store import Store
from privbench.requests.options import PlaceOptions
from privbench.spec import CellSpec
from privbench.system import cpu, files, machine
from privbench.training import federation
from reports.records import ceiling
from reports.records.labels import REFUSED, Gap
from reports.running import forecast, ladder_cells, status, study_reports
from reports.running.status import CellStatus
from reports.running.study_plan import few
from reports.studies.definition import Study


def execute(
    cells: Sequence[CellSpec],
    out: Path,
    data_dir: Path | None,
    device: str,
    *,
    strict: bool = False,
    shard: Shard | None = None,
    engine: str = engines.LOCAL,
) -> list[CellStatus]:
    """Runs what is not recorded and says how far every cell is. Raises Interrupted, after finished cells are recorded.

    A cell of which it is known beforehand that it cannot be made is refused before anything is trained; with `strict`, so is all.
    With a `shard`, only its training runs are made and attacked. `engine` is what --engine names (execution/sweep/engines.py).
    """
    run_jobs, store = engines.of(engine), Store(out)
    store.check_writable()
    recorded = [store.record(cell).exists() for cell in cells]
    for cell in cells:
        files.remove(store.failure(cell))
    workers = 1 if machine.device(device).type == "cuda" else cpu.cores()
    absent = absent_data(store, cells, data_dir)
    at_hand = [cell for cell in cells if cell.train.dataset not in absent]
    reasons = preconditions.impossible(store, at_hand, data_dir, workers=workers)
    if strict and (absent or reasons):
        raise UserError(next(iter([*absent.values(), *reasons.values()])))
    for cell in at_hand:
        if cell.id in reasons:
            store.write_failure(cell, reasons[cell.id], refused=True)
    able = [cell for cell in at_hand if cell.id not in reasons]
    runs = None if shard is None else shards.runs(cells, shard)
    jobs = {job.title: job for job in cell_jobs.trials_of(able, out, data_dir, device, runs)}
    try:
        with JobBars(len(jobs)) as bars:
            outcome = partial(_ended, store, jobs, bars)
            failures = cell_jobs.run_cells(able, out, data_dir, device, bars.progress, outcome, runs, run_jobs)
    except Interrupted:
        cell_jobs.record_finished(store, able)
        CONSOLE.say(status.counts([status.of(store, cell, absent) for cell in cells]))
        raise
    states = [
        status.of(store, cell, absent)._replace(is_new=not was_there)
        for cell, was_there in zip(cells, recorded, strict=True)
    ]
    if failures or shard is not None:
        return states
    # Nothing failed, so what is not there was there.
    reason = "was deleted while the command ran; the same command makes it again"
    return [
        CellStatus(status.FAILED, f"{store.cell(cell)} {reason}")
        if state.word in (status.NOT_RUN, status.INTERRUPTED)
        else state
        for cell, state in zip(cells, states, strict=True)
    ]


def _ended(store: Store, jobs: Mapping[str, cell_jobs.Trial], bars: JobBars, title: str, reason: str | None) -> None:
    """One job ended; its reason is kept beside the cells that have none of their own."""
    for cell in jobs[title].cells if reason is not None and title in jobs else ():
        done = all(store.result(cell, spec.seed).exists() for spec in jobs[title].specs)
        # A refusal of this cell says more than its neighbour's end.
        if not done and not store.failure(cell).exists():
            cell_jobs.fail(store, cell, reason or "")
    bars.outcome(title, reason)


def absent_data(
    store: Store, cells: Sequence[CellSpec], data_dir: Path | None, *, fetch: bool = True
) -> dict[str, str]:
    """Of each data set that unrecorded cells need and that is not there, how to get it; of one of unknown code, that it is.

    Where files are missing, the data set is tried all the same: it may download itself, or the chosen domains may be there. Without
    `fetch` nothing is tried, and chosen domains count as there.
    """
    reasons: dict[str, str] = {}
    # Checksums of large files: taken once for all cells.
    present: set[str] = set()
    for cell in cells:
        name, domains = cell.train.dataset, cell.train.domains
        if (
            name in reasons
            or name in present
            or store.record(cell).exists()
            or name.startswith(registry.FOLDER)
            or (domains and not fetch)
        ):
            continue
        try:
            if not any(line.startswith("missing") for line in data.check(name, data_dir)):
                present.add(name)
            elif fetch:
                federation.read(name, data_dir, domains, cell.train.image_size)
            else:
                reasons[name] = f"`privbench data check {name}` says which files go where"
        except UserError as error:
            reasons[name] = str(error)
    return reasons


def check_present(store: Store, cells: Sequence[CellSpec], states: Sequence[CellStatus], paths: Sequence[Path]) -> None:
    """UserError where records or reports were deleted while a command ran: it must not end as if they were there.

    Of cells that it recorded also what they were made of: without that, the record goes too, and the same command makes all again.
    """
    done = [(cell, state) for cell, state in zip(cells, states, strict=True) if state.record is not None]
    for path in (*(store.record(cell) for cell, _ in done), *paths):
        if not path.exists():
            raise UserError(f"{path} was deleted while the command ran; the same command makes it again")
    for cell, state in done:
        if state.is_new:
            try:
                foundations.check(store, cell)
            except UserError:
                files.remove(store.record(cell))
                raise


def sorted_out(
    cells: Sequence[CellSpec], states: Sequence[CellStatus]
) -> tuple[list[CellSpec], list[Record], list[Gap]]:
    """(the cells that are done, their records, a gap for each other one)."""
    done = [cell for cell, state in zip(cells, states, strict=True) if state.record is not None]
    records = [state.record for state in states if state.record is not None]
    gaps = [
        Gap(
            cell,
            state.why or "the same command runs it",
            state.word,
        )
        for cell, state in zip(cells, states, strict=True)
        if state.record is None
    ]
    return done, records, gaps


class Studied(NamedTuple):
    """What a study gave, with its reports on disk."""

    study: Study
    cells: list[CellSpec]
    states: list[CellStatus]  # of `cells`, in the same order
    folder: Path
    records: list[Record]
    references: list[AttackRecord]
    gaps: list[Gap]
    paths: list[Path]

    def unfinished(self) -> list[CellStatus]:
        """The cells that should be recorded; not those without data, nor attacks of a ladder that cannot be made."""
        settled = (status.DONE, status.NO_DATA, *([REFUSED] if self.study.is_ladder else []))
        return [state for state in self.states if state.word not in settled]


def run_study(chosen: Study, cells: Sequence[CellSpec], place: PlaceOptions) -> Studied:
    """Runs or resumes a study and writes its reports to <out>/<study>-<preset>; UserError where no cell could be run.

    An attack of the ladder that cannot be made on what a method sends is left out, and said; so is one that refuses its artifact.
    """
    cells, unmet = ladder_cells.applicable(cells) if chosen.is_ladder else (cells, [])
    for line in [
        *few(chosen, cells),
        *forecast.lines(cell_jobs.trials_of(cells, place.out, place.data_dir, place.device), place.device),
    ]:
        CONSOLE.say(line)
    states = execute(cells, place.out, place.data_dir, place.device, engine=place.engine)
    folder, store = files.inside(place.out, f"{chosen.name}-{cells[0].preset}"), Store(place.out)
    done, records, gaps = sorted_out(cells, states)
    gaps = [*unmet, *gaps]
    if not records:
        raise UserError(f"no cell of '{chosen.name}' could be run: {states[0].why}")
    references = ceiling.references(store, [r for r in records if isinstance(r, AttackRecord)])
    with CONSOLE.status("drawing the reports"):
        paths = study_reports.write(chosen, store, done, records, gaps, folder, place.data_dir, references)
    paths += study_reports.write_page(chosen, cells, states, paths, folder)
    check_present(store, cells, states, paths)
    return Studied(chosen, list(cells), states, folder, records, references, gaps, paths)


def run_shard(chosen: Study, cells: Sequence[CellSpec], place: PlaceOptions, shard: Shard) -> str:
    """Runs or resumes one shard of a study, and says in a line what there is of it; no reports, as other shards have the rest.

    UserError where some of it could not be made.
    """
    cells, _ = ladder_cells.applicable(cells) if chosen.is_ladder else (cells, [])
    states = execute(cells, place.out, place.data_dir, place.device, shard=shard, engine=place.engine)
    store, runs = Store(place.out), shards.runs(cells, shard)
    settled = (REFUSED, status.NO_DATA)
    results = [
        store.result(cell, spec.seed)
        for cell, state in zip(cells, states, strict=True)
        for spec in cell.train_specs()
        if spec.id in runs and state.word not in settled
    ]
    done = sum(path.exists() for path in results)
    line = (
        f"shard {shard.part} of {shard.parts}: {len(runs)} training run(s), {done} of {len(results)} results; privbench merge "
        "INTO FOLDER... puts shards together"
    )
    failed = [state.why for state in states if state.word in (status.FAILED, status.DAMAGED)]
    if done < len(results) or failed:
        raise UserError(f"{line}; {failed[0] if failed else 'run the same command again'}")
    return line
