"""What the command line does once its words are understood: runs cells, prints rows, writes tables and figures."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

import pandas as pd
from rich.table import Table

from privbench import registry
from privbench.cli.artifact_file import attack_file
from privbench.cli.listing import list_runs, show_run
from privbench.data import partition
from privbench.errors import UserError
from privbench.execution import beforehand, cell_jobs, reproduce, worker_pool
from privbench.execution.progress import JobBars
from privbench.records import clients, schema
from privbench.records.schema import AttackRecord, Record
from privbench.records.store import Store
from privbench.requests.options import PlaceOptions
from privbench.spec import CellSpec, TrainSpec
from privbench.system import console, cpu, files, machine
from privbench.system.printable import one_line
from privbench.training import checkpoint, federation, history, restoration
from reports.figures import defense_curve, grid, label_histogram, of_attack
from reports.figures.drawing import style
from reports.figures.label_histogram import Panel
from reports.records import ceiling
from reports.records.labels import REFUSED, Gap, cell_place
from reports.running import ladder_cells
from reports.running.status import CellStatus
from reports.running.study_run import (
    check_there,
    execute,
    plan,
    plan_table,
    run_study,
    show_status,
    show_study,
    sorted_out,
    tell_files,
)
from reports.tables import attack_table, ladder, report_files, terminal

__all__ = [
    "attack_file",
    "draw_clients",
    "draw_clients_of_run",
    "draw_grid",
    "list_runs",
    "plan",
    "plan_table",
    "reproduce_and_show",
    "run_attacks",
    "run_ladder",
    "run_study",
    "search_and_show",
    "show_attacked",
    "show_run",
    "show_status",
    "show_study",
    "show_trained",
    "trained",
]

Spec = TypeVar("Spec", CellSpec, TrainSpec)
MOST_DIFFERENCES = 10  # lines printed about a result that is not reproduced


class Attacked(NamedTuple):
    """What a run of cells of one method gave, with its tables and figures on disk."""

    folder: Path
    records: list[AttackRecord]
    references: list[AttackRecord]  # of other cells in the same store: ceilings that tables refer to
    gaps: list[Gap]
    paths: list[Path]
    is_ladder: bool

    def unfinished(self) -> list[Gap]:
        """The cells that should be there; of a ladder, attacks that cannot be made are left out."""
        return [gap for gap in self.gaps if not (self.is_ladder and gap.state == REFUSED)]


def run_attacks(cells: Sequence[CellSpec], place: PlaceOptions) -> Attacked:
    """Runs or reuses the cells, writes tables, scatter plots, grids and curves to a folder of their own.

    UserError before anything is trained where a cell can be known to be impossible, and where none could be finished.
    """
    store, folder = Store(place.out), files.inside(place.out, f"attack-{cells[0].id}")
    states = execute(cells, place.out, place.data_dir, place.device, strict=True)
    done, records, gaps = _attacked(cells, states)
    references = ceiling.references(store, records)
    paths = report_files.write(attack_table.report(records, gaps, references), folder / "table")
    paths += of_attack.attacked(store, done, records, folder) + of_attack.histograms(records, folder)
    paths += ladder_cells.curves(records, folder) + defense_curve.curves(records, folder)
    check_there(store, cells, states, paths)
    return Attacked(folder, records, references, gaps, paths, is_ladder=False)


def run_ladder(cells: Sequence[CellSpec], place: PlaceOptions) -> Attacked:
    """The same for the attack ladder of one method: attacks whose needs are not met are gaps and are not tried."""
    folder = files.inside(place.out, f"ladder-{cells[0].id}")
    able, unmet = ladder_cells.applicable(cells)
    states = execute(able, place.out, place.data_dir, place.device)
    done, records, open_ = _attacked(able, states)
    gaps = [*unmet, *open_]
    paths = report_files.write(ladder.report(records, gaps), folder / "ladder")
    paths += ladder_cells.curves(records, folder) + defense_curve.curves(records, folder)
    paths += ladder_cells.grids(Store(place.out), done, records, folder, [cell.round for cell in done])
    check_there(Store(place.out), able, states, paths)
    return Attacked(folder, records, [], gaps, paths, is_ladder=True)


def show_attacked(ended: Attacked) -> None:
    """Prints the table; UserError for cells that are unfinished."""
    to = console.results()
    tell_files(ended.paths, ended.folder, to)
    report = (
        ladder.report(ended.records, ended.gaps)
        if ended.is_ladder
        else attack_table.report(ended.records, ended.gaps, ended.references)
    )
    terminal.show(report, ended.folder / ("ladder.md" if ended.is_ladder else "table.md"), to)
    if unfinished := ended.unfinished():
        raise UserError(
            f"{len(unfinished)} of {len(ended.records) + len(unfinished)} cells are unfinished: {unfinished[0].reason}"
        )


def _attacked(
    cells: Sequence[CellSpec], states: Sequence[CellStatus]
) -> tuple[list[CellSpec], list[AttackRecord], list[Gap]]:
    """(cells that are done, their records, the others); UserError when none is done."""
    done, records, gaps = sorted_out(cells, states)
    if not records:
        raise UserError(gaps[0].reason)
    return done, [r for r in records if isinstance(r, AttackRecord)], gaps


def draw_clients(specs: Sequence[TrainSpec], data_dir: Path | None, stem: Path) -> None:
    """Lays the data out as each specification says, without training; prints who holds what and draws it."""
    feds = [federation.of(spec, data_dir) for spec in specs]
    panels = []
    for spec, (fed, note) in zip(specs, feds, strict=True):
        panels.append(_show_clients(spec, partition.census(fed), 0 if fed.public is None else len(fed.public.labels)))
        if note:
            console.results().say(f"note: {note}")
    _write_panels(panels, feds[0][0].classes, stem)


def draw_clients_of_run(prefix: str, out: Path) -> None:
    """The same for a training run on disk, from its record alone: nothing is read or trained again."""
    store = Store(out)
    spec = _only([spec for _, spec in store.trained()], prefix, f"training run under {out}")
    found = clients.read_clients(store, spec)
    panel = _show_clients(spec, found.clients, found.public)
    _write_panels([panel], found.classes, out / f"clients-{spec.id}")


def _only(every: Sequence[Spec], prefix: str, what: str) -> Spec:
    """The one whose id begins with `prefix`; UserError when there is none, or more than one."""
    found = [one for one in every if one.id.startswith(prefix)]
    if len(found) != 1:
        many = f"could be any of {', '.join(one.id for one in found)}; give more digits"
        raise UserError(f"'{prefix}' {many if found else f'is no {what}; see `privbench list runs`'}")
    return found[0]


def _show_clients(spec: TrainSpec, census: Sequence[dict[str, Any]], public: int) -> Panel:
    how = (
        f"Dirichlet({spec.omega:g})"
        if spec.omega is not None
        else {"iid": "IID", "domain": "by domain"}[spec.partition]
    )
    title = f"{registry.short(spec.dataset)}, {how}, {len(census)} clients, seed {spec.seed}"
    table = Table(title=title, box=None, padding=(0, 2, 0, 0))
    for column in ("client", "domain", "training", "classes", "largest class", "validation", "test"):
        table.add_column(column, justify="left" if column in ("client", "domain") else "right")
    for k, own in enumerate(census):
        train = own["train"]
        held, share = sum(count > 0 for count in train), max(train) / max(1, sum(train))
        sizes = (f"{sum(own[name]):,}" for name in ("validation", "test"))
        table.add_row(str(k + 1), one_line(own["domain"]), f"{sum(train):,}", str(held), f"{100 * share:.0f}%", *sizes)
    to = console.results()
    to.print(table)
    to.print(f"{public:,} public images of no client")
    one_each = spec.partition == "domain"
    names = [own["domain"] if one_each else str(k + 1) for k, own in enumerate(census)]
    return Panel(title, names, [own["train"] for own in census])


def _write_panels(panels: Sequence[Panel], classes: Sequence[str], stem: Path) -> None:
    for path in label_histogram.write(panels, classes, stem):
        console.results().say(f"wrote {path}")


def draw_grid(dataset: str, round_: str, seed: int, out: Path, target: Path | None, rows: int, columns: int) -> None:
    """Draws the grid of every finished cell of a data set at one round; `target` is one file, else there are a .png and a .pdf."""
    if target is not None and target.suffix not in style.ENDINGS:
        raise UserError(f"--target {target}: a grid is drawn as .png or .pdf; give the file one of these endings")
    store = Store(out)
    cells = [cell for cell in store.cells() if cell.train.dataset == dataset and cell.round == round_]
    cells = [cell for cell in cells if cell.attack is not None and store.result(cell, seed).exists()]
    if not cells:
        raise UserError(
            f"no finished cell of {registry.short(dataset)} at round {round_} with seed {seed} under {out}; "
            "run `privbench attack` first"
        )
    stem = files.inside(out, f"{registry.stem(dataset)}-grid-{round_}") if target is None else target.with_suffix("")
    endings = style.ENDINGS if target is None else (target.suffix,)
    size = grid.Size(rows, columns)
    for path in of_attack.write_grid(store, sorted(cells, key=cell_place), seed, stem, size, endings):
        console.results().say(f"wrote {path}")


def train_all(specs: Sequence[TrainSpec], out: Path, data_dir: Path | None, device: str) -> Store:
    """Trains what is not trained; UserError with the first failure."""
    store = Store(out)
    store.check_writable()
    stacked = machine.device(device).type == "cuda"
    todo = [spec for spec in specs if _is_open(store, spec)]
    alike: dict[str, list[TrainSpec]] = {}
    for spec in todo:  # on a GPU the seeds of one specification train together
        alike.setdefault(spec.model_copy(update={"seed": 0}).id if stacked else spec.id, []).append(spec)
    names = cell_jobs.titles(list(alike.values()))
    beforehand.check_data(todo, data_dir, workers=1 if stacked else cpu.cores())
    jobs = [
        cell_jobs.Trial(name, tuple(group), (), out, data_dir, device)
        for name, group in zip(names, alike.values(), strict=True)
    ]
    with JobBars(len(jobs)) as bars:
        failures = worker_pool.run_jobs(jobs, 1 if stacked else cpu.cores(), bars.progress, bars.outcome)
    if failures:
        raise UserError(failures[0])
    for spec in specs:
        if gone := restoration.missing(store.train(spec), spec):
            raise UserError(f"{gone[0]} is gone, though its run was trained; run the same command again")
    return store


def _is_open(store: Store, spec: TrainSpec) -> bool:
    """Whether a run is to be trained or mended."""
    try:
        return bool(restoration.missing(store.train(spec), spec))
    except UserError:  # said when the run is trained
        return True


def search_and_show(
    trials: Mapping[str, Sequence[TrainSpec]], out: Path, data_dir: Path | None, device: str
) -> dict[str, str]:
    """Trains every value of a setting and prints its accuracy; returns each defence's best value by validation accuracy alone.

    Both accuracies are means over seeds and clients, validation at each client's best round, test at that same round.
    UserError: nothing to choose by, because no round is trained.
    """
    every = [spec for specs in trials.values() for spec in specs]
    if any(spec.schedule.rounds == 0 for spec in every):
        raise UserError("a search needs at least one round of training, but --rounds 0 was given")
    store, chosen = train_all(every, out, data_dir, device), dict[str, str]()
    defenses, first = list(dict.fromkeys(spec.defense for spec in every)), every[0]
    table = Table(title=f"{first.method} on {registry.short(first.dataset)}: accuracy, percent")
    several = ["defence"] if len(defenses) > 1 else []
    for column in (*several, "setting", "validation", "test", ""):
        table.add_column(column, justify="left" if column in ("defence", "setting") else "right")
    for defense in defenses:
        found = {
            name: _searched(store, [spec for spec in specs if spec.defense == defense])
            for name, specs in trials.items()
        }
        chosen[defense] = max(found, key=lambda name: found[name][0])
        for name, (validation, test) in found.items():
            best = "best" if name == chosen[defense] else ""
            table.add_row(*([defense] if several else []), name, f"{validation:.2f}", f"{test:.2f}", best)
    console.results().print(table)
    return chosen


def _searched(store: Store, specs: Sequence[TrainSpec]) -> tuple[float, float]:
    """(validation, test) accuracy of some seeds of one value."""
    histories = [checkpoint.history(store.train(spec), spec.id) or [] for spec in specs]
    scores = [(history.best_validation(h), history.selected_accuracy(h)) for h in histories]
    return fmean(v for best, _ in scores for v in best), fmean(t for _, test in scores for t in test)


def trained(specs: Sequence[TrainSpec], place: PlaceOptions) -> pd.DataFrame:
    """Trains what is not trained; a row per run and client: test accuracy in percent at the client's best round."""
    store = train_all(specs, place.out, place.data_dir, place.device)
    rows: list[dict[str, Any]] = []
    for spec in specs:
        rounds = checkpoint.history(store.train(spec), spec.id) or []
        accuracy = history.selected_accuracy(rounds) if rounds else [math.nan]
        about = {"defense": spec.defense, "seed": spec.seed, "run": spec.id, "rounds": len(rounds)}
        rows += [about | {"client": client + 1, "test_accuracy": each} for client, each in enumerate(accuracy)]
    return pd.DataFrame(rows)


def show_trained(specs: Sequence[TrainSpec], found: pd.DataFrame, place: PlaceOptions) -> None:
    """Prints each client's accuracy; under it, which runs stopped early."""
    defended = found["defense"].nunique() > 1
    table = Table(title=f"{specs[0].method} on {registry.short(specs[0].dataset)}: test accuracy, percent")
    for column in (*(["defence"] if defended else []), "seed", "run", "rounds", "mean", "per client"):
        table.add_column(column, justify="left" if column in ("defence", "run", "per client") else "right")
    for spec in specs:
        own = found[found["run"] == spec.id]
        table.add_row(
            *([spec.defense] if defended else []), str(spec.seed), spec.id, str(own["rounds"].iloc[0]),
            f"{own['test_accuracy'].mean():.2f}", "  ".join(f"{a:.1f}" for a in own["test_accuracy"]),
        )  # fmt: skip
    to = console.results()
    to.print(table)
    for defense, of_defense in found.groupby("defense", sort=False):
        means = of_defense.groupby("run", sort=False)["test_accuracy"].mean()
        spread = f" +- {means.std():.2f}" if len(means) > 1 else " (one seed, no spread)"
        to.say(f"{f'{defense}: ' if defended else ''}mean over seeds {means.mean():.2f}{spread}")
    for line in stopped_early(Store(place.out), specs):
        to.say(line)


def stopped_early(store: Store, specs: Sequence[TrainSpec]) -> list[str]:
    """One line where some runs ended before their last round, with why and the option that changes it."""
    ended = [(spec, len(checkpoint.history(store.train(spec), spec.id) or [])) for spec in specs]
    early = [(spec, rounds) for spec, rounds in ended if rounds < spec.schedule.rounds]
    if not early:
        return []
    first, counts = early[0][0], sorted({rounds for _, rounds in early})
    after = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return [
        f"{len(early)} of {len(specs)} run(s) stopped after {after} of {first.schedule.rounds} rounds: no client's validation "
        f"accuracy rose for {first.schedule.patience} rounds; --schedule patience={first.schedule.rounds} trains them all"
    ]


def reproduce_and_show(prefix: str, out: Path, into: Path | None, data_dir: Path | None, attack_only: bool) -> bool:
    """Runs one finished cell again from its record and prints what differs; True when nothing does."""
    first = _record_of(prefix, out)
    with ExitStack() as stack:
        fresh = into or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="privbench-")))
        bars = stack.enter_context(JobBars(1 if first.environment["device"] == "cuda" else len(first.cell.seeds)))
        second = reproduce.again(first, out, fresh, data_dir, bars.progress, bars.outcome, attack_only=attack_only)
        lines = reproduce.differences(first, second, out, fresh)
        compared = reproduce.compared(first, out, fresh)
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


def _reproduced(first: Record, compared: Sequence[int]) -> str:
    """What may be claimed where nothing differs: bits only of reconstructions that were there to be compared."""
    if not isinstance(first, AttackRecord):
        return "reproduced: every number of the record is the same"
    gone = [seed for seed in first.cell.seeds if seed not in compared]
    if not gone:
        return "reproduced bit for bit: every number of the record, and every reconstruction"
    return (
        "reproduced: every number of the record is the same; the old reconstructions of "
        f"seed(s) {', '.join(map(str, gone))} are gone, so their bits were not compared"
    )


def _record_of(prefix: str, out: Path) -> Record:
    """The record of the one finished cell whose id begins with `prefix`."""
    store = Store(out)
    cell = _only(list(store.cells()), prefix, f"cell under {out}")
    if not store.record(cell).exists():
        raise UserError(f"cell {cell.id} is unfinished; the command that started it continues it")
    return schema.read_of(cell, store.record(cell))
