"""Running a study: every cell that is not recorded, then every report of those that are.

Cells fail alone. Why one failed is kept beside it until it is tried again; what is on disk is never computed twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from privbench import data, federations, plugins, run
from privbench.errors import Interrupted, UserError
from privbench.options import TrainingOptions
from privbench.record import Record
from privbench.spec import CellSpec
from privbench.store import Store
from reports import climb, forecast, ladder_summary, layout, states, study, study_reports
from reports.progress import CONSOLE, JobBars
from reports.published_form import REFUSED, Gap
from reports.states import State
from reports.study import Study

# Of the attack table that may be published.
FULL_VICTIMS, FULL_SEEDS = 64, 5
Datasets = Sequence[tuple[str, tuple[str, ...] | None]]


def plan(
    name: str,
    training: TrainingOptions,
    datasets: Datasets | None,
    *,
    methods: Sequence[str] | None = None,
    rounds: Sequence[str] | None = None,
    victims: int | None = None,
) -> tuple[Study, list[CellSpec]]:
    """(the study, its cells as asked for); UserError when nothing of it is left."""
    chosen = study.read(name)
    choices = study.Choices(
        how=training.partition,
        omega=training.omega,
        min_per_client=training.min_per_client,
        where=training.where,
        protocol=training.protocol,
        flip=training.flip,
        measured=training.measured,
        equal_work=training.equal_work,
        changes=training.changes(),
    )
    cells = study.cells(
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


def execute(cells: Sequence[CellSpec], out: Path, data_dir: Path | None, device: str) -> list[State]:
    """Runs what is not recorded and says how far every cell is. Raises Interrupted, after finished cells are recorded."""
    store = Store(out)
    store.check_writable()
    for cell in cells:
        store.failure(cell).unlink(missing_ok=True)
    absent = absent_data(store, cells, data_dir)
    able = [cell for cell in cells if cell.train.dataset not in absent]
    jobs = {job.title: job for job in run.trials_of(able, out, data_dir, device)}

    def outcome(title: str, reason: str | None) -> None:
        for cell in jobs[title].cells if reason is not None and title in jobs else ():
            seeds = [spec.seed for spec in jobs[title].specs]
            done = all(store.result(cell, seed).exists() for seed in seeds)
            # A refusal of this cell says more than its neighbour's end.
            if not done and not store.failure(cell).exists():
                run.fail(store, cell, str(reason))
        bars.outcome(title, reason)

    try:
        with JobBars(len(jobs)) as bars:
            failures = run.run_cells(able, out, data_dir, device, bars.progress, outcome)
    except Interrupted:
        run.record_finished(store, able)
        CONSOLE.print(Text(states.counts([states.of(store, cell, absent) for cell in cells])))
        raise
    found = [states.of(store, cell, absent) for cell in cells]
    if failures:
        return found
    # Nothing failed, so what is not there was there.
    gone = "was deleted while the command ran; the same command makes it again"
    return [
        State(states.FAILED, f"{store.cell(cell)} {gone}")
        if state.word in (states.NOT_RUN, states.INTERRUPTED)
        else state
        for cell, state in zip(cells, found, strict=True)
    ]


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
        if name in found or store.record(cell).exists() or name.startswith(plugins.FOLDER) or (domains and not fetch):
            continue
        if not any(line.startswith("missing") for line in data.check(name, data_dir)):
            continue
        if not fetch:
            found[name] = f"`privbench data check {name}` says which files go where"
            continue
        try:
            federations.read(name, data_dir, domains, cell.train.image_size)
        except UserError as error:
            found[name] = str(error)
    return found


def check_there(store: Store, cells: Sequence[CellSpec], paths: Sequence[Path]) -> None:
    """UserError where records or reports were deleted while a command ran: it must not end as if they were there."""
    for path in (*(store.record(cell) for cell in cells), *paths):
        if not path.exists():
            raise UserError(f"{path} was deleted while the command ran; the same command makes it again")


def sorted_out(cells: Sequence[CellSpec], found: Sequence[State]) -> tuple[list[CellSpec], list[Record], list[Gap]]:
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


def run_study(chosen: Study, cells: Sequence[CellSpec], out: Path, data_dir: Path | None, device: str) -> None:
    """Runs or resumes a study and writes its reports to <out>/<study>-<preset>; UserError when a cell is left open.

    An attack of the ladder that cannot be made on what a method sends is left out, and told; so is one that refuses its artifact.
    """
    cells, unmet = climb.climbable(cells) if chosen.climbs else (cells, [])
    few = [first_look(cells)] if chosen.name == "attack-table" and first_look(cells) else []
    for line in [*few, *forecast.lines(run.trials_of(cells, out, data_dir, device), device)]:
        CONSOLE.print(Text(line))
    found = execute(cells, out, data_dir, device)
    folder = out / f"{chosen.name}-{cells[0].preset}"
    done, records, gaps = sorted_out(cells, found)
    gaps = [*unmet, *gaps]
    console = Console()
    if records:
        with CONSOLE.status("drawing the reports"):
            paths = study_reports.write(chosen, Store(out), done, records, gaps, folder, data_dir)
        paths.append(study_reports.write_page(chosen, cells, found, paths, folder))
        study_reports.show(chosen, records, gaps, console)
    _print_state(cells, found, console)
    for line in few:
        console.print(Text(line))
    if not records:
        raise UserError(f"no cell of '{chosen.name}' could be run: {found[0].why}")
    console.print(f"wrote {len(paths)} files; begin with {paths[-1]}", markup=False, highlight=False, soft_wrap=True)
    check_there(Store(out), done, paths)
    settled = (states.DONE, states.NO_DATA, *([REFUSED] if chosen.climbs else []))
    open_ = [state for state in found if state.word not in settled]
    if open_:
        raise UserError(f"{len(open_)} of {len(cells)} cells are unfinished: {open_[0].why}")


def first_look(cells: Sequence[CellSpec]) -> str:
    """One line where the attack table has too few victims or seeds to be published, with what gives enough; else ""."""
    victims, seeds = (min(each) for each in ([c.victims for c in cells], [len(c.seeds) for c in cells]))
    if victims >= FULL_VICTIMS and seeds >= FULL_SEEDS:
        return ""
    return (
        f"A first look: {victims} victims a seed, {seeds} seed{'s' if seeds > 1 else ''}. The table to publish "
        f"({FULL_VICTIMS} victims a seed, {FULL_SEEDS} seeds): make attack-table FULL=1, or privbench table --full"
    )


def _print_state(cells: Sequence[CellSpec], found: Sequence[State], console: Console) -> None:
    console.print(Text(states.counts(found)))
    for line in states.reasons(cells, found):
        console.print(Text(f"- {line}"))


def show_status(chosen: Study, cells: Sequence[CellSpec], out: Path, data_dir: Path | None) -> None:
    """Prints how far every cell is; runs and writes nothing."""
    store, console = Store(out), Console()
    cells, unmet = climb.climbable(cells) if chosen.climbs else (cells, [])
    absent = absent_data(store, cells, data_dir, fetch=False)
    found = [states.of(store, cell, absent) for cell in cells]
    short = [state._replace(why="" if state.word == states.NO_DATA else state.why) for state in found]
    for heading, body in states.listing(cells, short):
        layout.show(heading, states.COLUMNS, body, console, words=True)
    console.print(Text(f"{chosen.title}: {states.counts(found)}"))
    for line in states.reasons(cells, found):
        if line.startswith(states.NO_DATA):
            console.print(Text(f"- {line}"))
    if unmet:
        layout.show("Left out", ladder_summary.GAP_COLUMNS, ladder_summary.gap_rows(unmet), console, words=True)


def list_studies() -> None:
    """Every study with what it is the cells of."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("name", "source", "what"):
        table.add_column(column, overflow="fold")
    for name in study.names():
        own = study.read(name)
        table.add_row(name, own.source, own.about)
    Console().print(table)
