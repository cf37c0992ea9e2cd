"""Running a study: every cell that is not recorded, then every report of those that are.

Cells fail alone. Why one failed is kept beside it until it is tried again; what is on disk is never computed twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from privbench import data, registry
from privbench.errors import Interrupted, UserError
from privbench.execution import beforehand, cell_jobs, foundations
from privbench.execution.progress import CONSOLE, JobBars
from privbench.records.schema import AttackRecord, Record
from privbench.records.store import Store
from privbench.requests.options import PlaceOptions, TrainingOptions
from privbench.spec import CellSpec
from privbench.system import console as consoles
from privbench.system import cpu, files, machine
from privbench.system.console import Console
from privbench.training import federation
from reports.records import ceiling
from reports.records.labels import REFUSED, Gap
from reports.running import forecast, ladder_cells, status, study_reports
from reports.running.status import CellStatus
from reports.studies import definition
from reports.studies.definition import Study
from reports.tables import ladder_summary, render

# Of the attack table that may be published.
FULL_VICTIMS, FULL_SEEDS = 64, 5
# A seed of the same at a first look.
FIRST_VICTIMS = 8
MOST_FILES = 8  # that one line names
Datasets = Sequence[tuple[str, tuple[str, ...] | None]]


def plan(
    name: str,
    training: TrainingOptions,
    datasets: Datasets | None,
    *,
    methods: Sequence[str] | None = None,
    rounds: Sequence[str] | None = None,
    victims: int | None = None,
    defenses: Sequence[str] = (),
) -> tuple[Study, list[CellSpec]]:
    """(the study, its cells as asked for, with `defenses` in place of its own); UserError when nothing of it is left."""
    chosen = definition.read(name)
    choices = definition.Choices(
        how=training.partition,
        omega=training.omega,
        min_per_client=training.min_per_client,
        where=training.where,
        protocol=training.protocol,
        flip=training.flip,
        measured=training.measured,
        equal_work=training.equal_work,
        changes=training.changes(),
        defenses=tuple(defenses),
    )
    cells = definition.cells(
        chosen,
        training.preset,
        datasets,
        methods=methods,
        rounds=rounds,
        seeds=training.seeds,
        first_seed=training.first_seed,
        victims=victims,
        choices=choices,
    )
    if not cells:
        raise UserError(f"the study '{name}' has no cell of these methods on these data sets")
    return chosen, cells


def plan_table(
    training: TrainingOptions,
    datasets: Datasets | None,
    *,
    full: bool = False,
    victims: int | None = None,
    defenses: Sequence[str] = (),
) -> tuple[Study, list[CellSpec]]:
    """The attack table: in `quick` a first look with few victims and one seed, unless `full` asks for the one to publish."""
    if training.preset == "quick":
        training = replace(training, seeds=training.seeds or (FULL_SEEDS if full else 1))
        victims = victims or (FULL_VICTIMS if full else FIRST_VICTIMS)
    return plan("attack-table", training, datasets, victims=victims, defenses=defenses)


def execute(
    cells: Sequence[CellSpec], out: Path, data_dir: Path | None, device: str, *, strict: bool = False
) -> list[CellStatus]:
    """Runs what is not recorded and says how far every cell is. Raises Interrupted, after finished cells are recorded.

    A cell of which it is known beforehand that it cannot be made is refused before anything is trained; with `strict`, so is all.
    """
    store = Store(out)
    store.check_writable()
    recorded = [store.record(cell).exists() for cell in cells]
    for cell in cells:
        store.failure(cell).unlink(missing_ok=True)
    workers = 1 if machine.device(device).type == "cuda" else cpu.cores()
    absent = absent_data(store, cells, data_dir)
    at_hand = [cell for cell in cells if cell.train.dataset not in absent]
    reasons = beforehand.impossible(store, at_hand, data_dir, workers=workers)
    if strict and (absent or reasons):
        raise UserError(next(iter([*absent.values(), *reasons.values()])))
    for cell in at_hand:
        if cell.id in reasons:
            store.write_failure(cell, reasons[cell.id], refused=True)
    able = [cell for cell in at_hand if cell.id not in reasons]
    jobs = {job.title: job for job in cell_jobs.trials_of(able, out, data_dir, device)}
    try:
        with JobBars(len(jobs)) as bars:
            outcome = partial(_ended, store, jobs, bars)
            failures = cell_jobs.run_cells(able, out, data_dir, device, bars.progress, outcome)
    except Interrupted:
        cell_jobs.record_finished(store, able)
        CONSOLE.say(status.counts([status.of(store, cell, absent) for cell in cells]))
        raise
    found = [
        status.of(store, cell, absent)._replace(is_new=not was_there)
        for cell, was_there in zip(cells, recorded, strict=True)
    ]
    if failures:
        return found
    # Nothing failed, so what is not there was there.
    gone = "was deleted while the command ran; the same command makes it again"
    return [
        CellStatus(status.FAILED, f"{store.cell(cell)} {gone}")
        if state.word in (status.NOT_RUN, status.INTERRUPTED)
        else state
        for cell, state in zip(cells, found, strict=True)
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
    """Of each data set that unrecorded cells need and that is not there, how to get it.

    Where files are missing, the data set is tried all the same: it may download itself, or the chosen domains may be there. Without
    `fetch` nothing is tried, and chosen domains count as there.
    """
    found: dict[str, str] = {}
    for cell in cells:
        name, domains = cell.train.dataset, cell.train.domains
        if name in found or store.record(cell).exists() or name.startswith(registry.FOLDER) or (domains and not fetch):
            continue
        if not any(line.startswith("missing") for line in data.check(name, data_dir)):
            continue
        if not fetch:
            found[name] = f"`privbench data check {name}` says which files go where"
            continue
        try:
            federation.read(name, data_dir, domains, cell.train.image_size)
        except UserError as error:
            found[name] = str(error)
    return found


def check_there(store: Store, cells: Sequence[CellSpec], states: Sequence[CellStatus], paths: Sequence[Path]) -> None:
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
                store.record(cell).unlink(missing_ok=True)
                raise


def sorted_out(
    cells: Sequence[CellSpec], found: Sequence[CellStatus]
) -> tuple[list[CellSpec], list[Record], list[Gap]]:
    """(the cells that are done, their records, a gap for each other one)."""
    done = [cell for cell, state in zip(cells, found, strict=True) if state.record is not None]
    records = [state.record for state in found if state.record is not None]
    gaps = [
        Gap(
            cell,
            state.why or "the same command runs it",
            state.word,
        )
        for cell, state in zip(cells, found, strict=True)
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
    found = execute(cells, place.out, place.data_dir, place.device)
    folder, store = files.inside(place.out, f"{chosen.name}-{cells[0].preset}"), Store(place.out)
    done, records, gaps = sorted_out(cells, found)
    gaps = [*unmet, *gaps]
    if not records:
        raise UserError(f"no cell of '{chosen.name}' could be run: {found[0].why}")
    references = ceiling.references(store, [r for r in records if isinstance(r, AttackRecord)])
    with CONSOLE.status("drawing the reports"):
        paths = study_reports.write(chosen, store, done, records, gaps, folder, place.data_dir, references)
    paths += study_reports.write_page(chosen, cells, found, paths, folder)
    check_there(store, cells, found, paths)
    return Studied(chosen, list(cells), found, folder, records, references, gaps, paths)


def show_study(ended: Studied) -> None:
    """Prints how far every cell is and the study's tables; UserError when a cell is left open."""
    to = consoles.results()
    tell_files(ended.paths, ended.folder, to)
    _print_state(ended.cells, ended.states, to)
    study_reports.show(
        ended.study, ended.records, ended.gaps, to, ended.folder, ended.references, few(ended.study, ended.cells)
    )
    if open_ := ended.unfinished():
        raise UserError(f"{len(open_)} of {len(ended.states)} cells are unfinished: {open_[0].why}")


def few(chosen: Study, cells: Sequence[CellSpec]) -> list[str]:
    """What a reader must know of an attack table with too few victims or seeds to be published; else nothing."""
    line = first_look(cells) if chosen.name == "attack-table" else ""
    return [line] if line else []


def first_look(cells: Sequence[CellSpec]) -> str:
    """One line where the attack table has too few victims or seeds to be published, with what gives enough; else ""."""
    victims, seeds = (min(each) for each in ([c.victims for c in cells], [len(c.seeds) for c in cells]))
    if victims >= FULL_VICTIMS and seeds >= FULL_SEEDS:
        return ""
    return (
        f"A first look: {victims} victims a seed, {seeds} seed{'s' if seeds > 1 else ''}. The table to publish "
        f"({FULL_VICTIMS} victims a seed, {FULL_SEEDS} seeds): make attack-table FULL=1, or privbench table --full"
    )


def tell_files(paths: Sequence[Path], folder: Path, to: Console) -> None:
    """One line for all files that were written: the pages and pictures, without their other forms."""
    names = [path.name for ending in (".md", ".png") for path in paths if path.suffix == ending]
    more = f" and {len(names) - MOST_FILES} more" if len(names) > MOST_FILES else ""
    to.say(f"wrote {len(paths)} files to {folder}: {', '.join(names[:MOST_FILES])}{more}")


def _print_state(cells: Sequence[CellSpec], found: Sequence[CellStatus], to: Console) -> None:
    to.say(status.counts(found))
    for line in status.reasons(cells, found):
        to.print(f"- {line}")


def show_status(chosen: Study, cells: Sequence[CellSpec], out: Path, data_dir: Path | None) -> None:
    """Prints how far every cell is; runs and writes nothing."""
    store, to = Store(out), consoles.results()
    cells, unmet = ladder_cells.applicable(cells) if chosen.is_ladder else (cells, [])
    absent = absent_data(store, cells, data_dir, fetch=False)
    found = [status.of(store, cell, absent) for cell in cells]
    short = [state._replace(why="" if state.word == status.NO_DATA else state.why) for state in found]
    for heading, body in status.listing(cells, short):
        render.show(heading, status.COLUMNS, body, to, words=True)
    to.say(f"{chosen.title}: {status.counts(found)}")
    for line in status.reasons(cells, found):
        if line.startswith(status.NO_DATA):
            to.print(f"- {line}")
    if unmet:
        render.show("Left out", ladder_summary.GAP_COLUMNS, ladder_summary.gap_rows(unmet), to, words=True)
