"""What the command line does once its words are understood: runs cells, prints rows, writes tables and figures."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

from privbench import (
    checkpoint,
    federations,
    harness,
    knowledge,
    machine,
    partition,
    plugins,
    pool,
    record,
    reproduce,
    results,
    run,
    storage,
)
from privbench.errors import UserError
from privbench.record import AttackRecord, Record
from privbench.spec import CellSpec, TrainSpec
from privbench.store import Store, status
from reports import attack_table, climb, drawings, label_histogram, ladder, training_view
from reports.artifact_file import attack_file
from reports.label_histogram import Panel
from reports.progress import JobBars
from reports.published_form import REFUSED, Gap
from reports.states import State
from reports.study_run import (
    FULL_SEEDS,
    FULL_VICTIMS,
    check_there,
    execute,
    list_studies,
    plan,
    run_study,
    show_status,
    sorted_out,
)

__all__ = [
    "FULL_SEEDS",
    "FULL_VICTIMS",
    "attack_file",
    "climb_and_show",
    "draw_clients",
    "draw_clients_of_run",
    "draw_grid",
    "list_plugins",
    "list_runs",
    "list_studies",
    "plan",
    "reproduce_and_show",
    "run_and_show",
    "run_study",
    "search_and_show",
    "show_run",
    "show_status",
    "train_and_show",
]

Spec = TypeVar("Spec", CellSpec, TrainSpec)
MOST_DIFFERENCES = 10  # lines told of a result that is not reproduced


def run_and_show(cells: Sequence[CellSpec], out: Path, data_dir: Path | None, device: str, folder: Path) -> None:
    """Runs or reuses the cells, prints their table, and writes tables, scatter plots, grids and curves over rounds to `folder`."""
    store = Store(out)
    states = execute(cells, out, data_dir, device)
    done, records, gaps = _attacked(cells, states)
    paths = attack_table.write_tables(records, folder, gaps)
    paths += drawings.attacked(store, done, records, folder) + drawings.histograms(records, folder)
    paths += climb.curves(records, folder)
    console = Console()
    attack_table.print_tables(records, console, gaps)
    _tell(paths, console)
    check_there(store, done, paths)
    if gaps:
        raise UserError(f"{len(gaps)} of {len(cells)} cells are unfinished: {gaps[0].reason}")


def climb_and_show(cells: Sequence[CellSpec], out: Path, data_dir: Path | None, device: str, folder: Path) -> None:
    """The same for the attack ladder of one method: rungs whose needs are not met are told and left out.

    UserError at the end for cells that are unfinished for another reason than that the attack cannot be made.
    """
    able, unmet = climb.climbable(cells)
    done, records, gaps = _attacked(able, execute(able, out, data_dir, device))
    paths = ladder.write_tables(records, folder / "ladder", [*unmet, *gaps])
    paths += climb.curves(records, folder)
    paths += climb.grids(Store(out), done, records, folder, [cell.round for cell in done])
    console = Console()
    ladder.print_tables(records, console, [*unmet, *gaps])
    _tell(paths, console)
    check_there(Store(out), done, paths)
    failed = [gap for gap in gaps if gap.state != REFUSED]
    if failed:
        raise UserError(f"{len(failed)} of {len(cells)} cells are unfinished: {failed[0].reason}")


def _attacked(
    cells: Sequence[CellSpec], states: Sequence[State]
) -> tuple[list[CellSpec], list[AttackRecord], list[Gap]]:
    """(cells that are done, their records, the others); UserError when none is done."""
    done, records, gaps = sorted_out(cells, states)
    if not records:
        raise UserError(gaps[0].reason)
    return done, [r for r in records if isinstance(r, AttackRecord)], gaps


def _tell(paths: Sequence[Path], console: Console) -> None:
    for path in paths:
        console.print(f"wrote {path}", markup=False, highlight=False, soft_wrap=True)


def draw_clients(specs: Sequence[TrainSpec], data_dir: Path | None, stem: Path) -> None:
    """Lays the data out as each specification says, without training; prints who holds what and draws it."""
    feds = [federations.of(spec, data_dir) for spec in specs]
    panels = []
    for spec, (fed, note) in zip(specs, feds, strict=True):
        panels.append(_show_clients(spec, partition.census(fed), 0 if fed.public is None else len(fed.public.labels)))
        if note:
            print(f"note: {note}")
    _write_panels(panels, feds[0][0].classes, stem)


def draw_clients_of_run(prefix: str, out: Path) -> None:
    """The same for a training run on disk, from its record alone: nothing is read or trained again."""
    store = Store(out)
    spec = _only([spec for _, spec in store.trained()], prefix, f"training run under {out}")
    if not store.clients(spec).exists():
        raise UserError(f"run {spec.id} has no clients.json: an earlier version trained it; leave --run out")
    value = storage.read_json(store.clients(spec))
    panel = _show_clients(spec, value["clients"], value["public"])
    _write_panels([panel], value["classes"], out / f"clients-{spec.id}")


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
    title = f"{plugins.short(spec.dataset)}, {how}, {len(census)} clients, seed {spec.seed}"
    table = Table(title=title, box=None, padding=(0, 2, 0, 0))
    for column in ("client", "domain", "training", "classes", "largest class", "validation", "test"):
        table.add_column(column, justify="left" if column in ("client", "domain") else "right")
    for k, own in enumerate(census):
        train = own["train"]
        held, share = sum(count > 0 for count in train), max(train) / max(1, sum(train))
        sizes = (f"{sum(own[name]):,}" for name in ("validation", "test"))
        table.add_row(str(k + 1), own["domain"], f"{sum(train):,}", str(held), f"{100 * share:.0f}%", *sizes)
    console = Console()
    console.print(table)
    console.print(f"{public:,} public images of no client")
    one_each = spec.partition == "domain"
    names = [own["domain"] if one_each else str(k + 1) for k, own in enumerate(census)]
    return Panel(title, names, [own["train"] for own in census])


def _write_panels(panels: Sequence[Panel], classes: Sequence[str], stem: Path) -> None:
    for path in label_histogram.write(panels, classes, stem):
        print(f"wrote {path}")


def draw_grid(dataset: str, round_: str, seed: int, out: Path, target: Path | None) -> None:
    """Draws the grid of every finished cell of a data set at one round."""
    store = Store(out)
    cells = [cell for cell in store.cells() if cell.train.dataset == dataset and cell.round == round_]
    cells = [cell for cell in cells if cell.attack is not None and store.result(cell, seed).exists()]
    if not cells:
        raise UserError(
            f"no finished cell of {dataset} at round {round_} with seed {seed} under {out}; run `privbench attack` first"
        )
    stem = out / f"{plugins.stem(dataset)}-grid-{round_}" if target is None else target.with_suffix("")
    for path in drawings.write_grid(store, cells, seed, stem):
        if target is not None and path.suffix != target.suffix:
            path.unlink()
        else:
            print(f"wrote {path}")


def train_all(specs: Sequence[TrainSpec], out: Path, data_dir: Path | None, device: str) -> Store:
    """Trains what is not trained; UserError with the first failure."""
    store = Store(out)
    store.check_writable()
    stacked = machine.device(device).type == "cuda"
    todo = [spec for spec in specs if not checkpoint.is_finished(store.train(spec))]
    alike: dict[str, list[TrainSpec]] = {}
    for spec in todo:  # on a GPU the seeds of one specification train together
        alike.setdefault(spec.model_copy(update={"seed": 0}).id if stacked else spec.id, []).append(spec)
    names = run.titles(list(alike.values()))
    jobs = [
        run.Trial(name, tuple(group), (), out, data_dir, device)
        for name, group in zip(names, alike.values(), strict=True)
    ]
    with JobBars(len(jobs)) as bars:
        failures = pool.run_jobs(jobs, 1 if stacked else pool.cores(), bars.progress, bars.outcome)
    if failures:
        raise UserError(failures[0])
    for spec in specs:
        if checkpoint.history(store.train(spec)) is None:
            raise UserError(f"{store.train(spec)} is gone, though its run was trained; run the same command again")
    return store


def search_and_show(trials: Mapping[str, Sequence[TrainSpec]], out: Path, data_dir: Path | None, device: str) -> str:
    """Trains every value of a setting and prints its accuracy; returns the best by validation accuracy alone.

    Both accuracies are means over seeds and clients, validation at each client's best round, test at that same round.
    UserError: nothing to choose by, because no round is trained.
    """
    if any(spec.schedule.rounds == 0 for specs in trials.values() for spec in specs):
        raise UserError("a search needs at least one round of training, but --rounds 0 was given")
    store = train_all([spec for specs in trials.values() for spec in specs], out, data_dir, device)
    found: dict[str, tuple[float, float]] = {}
    for name, specs in trials.items():
        histories = [checkpoint.history(store.train(spec)) or [] for spec in specs]
        scores = [(harness.best_validation(h), harness.selected_accuracy(h)) for h in histories]
        found[name] = (fmean(v for best, _ in scores for v in best), fmean(t for _, test in scores for t in test))
    best = max(found, key=lambda name: found[name][0])
    first = trials[best][0]
    table = Table(title=f"{first.method} on {plugins.short(first.dataset)}: accuracy, percent")
    for column in ("setting", "validation", "test", ""):
        table.add_column(column, justify="left" if column == "setting" else "right")
    for name, (validation, test) in found.items():
        table.add_row(name, f"{validation:.2f}", f"{test:.2f}", "best" if name == best else "")
    Console().print(table)
    return best


def train_and_show(specs: Sequence[TrainSpec], out: Path, data_dir: Path | None, device: str) -> None:
    """Trains what is not trained and prints each client's accuracy."""
    store = train_all(specs, out, data_dir, device)
    table = Table(title=f"{specs[0].method} on {plugins.short(specs[0].dataset)}: test accuracy, percent")
    for column in ("seed", "run", "rounds", "mean", "per client"):
        table.add_column(column, justify="left" if column in ("run", "per client") else "right")
    means = []
    for spec in specs:
        rounds = checkpoint.history(store.train(spec)) or []
        each = harness.selected_accuracy(rounds) if rounds else [math.nan]
        means.append(sum(each) / len(each))
        table.add_row(
            str(spec.seed), spec.id, str(len(rounds)), f"{means[-1]:.2f}", "  ".join(f"{a:.1f}" for a in each)
        )
    console = Console()
    console.print(table)
    mean = sum(means) / len(means)
    spread = math.sqrt(sum((m - mean) ** 2 for m in means) / (len(means) - 1)) if len(means) > 1 else None
    console.print(
        f"mean over seeds {mean:.2f}" + (f" +- {spread:.2f}" if spread is not None else " (one seed, no spread)")
    )


LISTED = {
    "method": ("shares",),
    "attack": ("rung", "needs", "uses where sent", "knowledge"),
    "dataset": ("default layout",),
    "defense": (),
}  # columns between the name and the docstring


def list_plugins(kind: str) -> None:
    """Every plug-in of a kind with what it asks for or shares, and the first line of its docstring."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("name", *LISTED[kind], "what"):
        table.add_column(column, overflow="fold", no_wrap=column in ("name", "rung"))
    modules = [plugin.__module__ for plugin in {plugins.resolve(kind, name) for name in plugins.KINDS[kind]}]
    for name in plugins.KINDS[kind]:
        plugin = plugins.resolve(kind, name)
        module = __import__(plugin.__module__, fromlist=["_"])
        alone = modules.count(plugin.__module__) == 1  # else the module's first line says nothing of the single one
        what = ((module if alone else plugin).__doc__ or "").strip().splitlines()[0]
        table.add_row(name, *_listed(kind, name, plugin), what)
    Console().print(table)


def _listed(kind: str, name: str, plugin: Any) -> tuple[str, ...]:
    if kind == "method":
        return (", ".join(plugin.shares) or "nothing",)
    if kind == "attack":
        needs, uses = (", ".join(sorted(each)) or "nothing" for each in (plugin.needs, knowledge.uses(plugin)))
        return plugin.rung, needs, uses, knowledge.tag(plugin)
    if kind == "defense":
        return ()
    how, clients, per_client = partition.defaults(name)
    each = {"iid": "iid, up to", "domain": "one domain each, up to", "dirichlet": "Dirichlet(1), on average"}[how]
    return (f"{clients} clients, {each} {per_client:,} images",)


def reproduce_and_show(prefix: str, out: Path, into: Path | None, data_dir: Path | None, attack_only: bool) -> bool:
    """Runs one finished cell again from its record and prints what differs; True when nothing does."""
    first = _record_of(prefix, out)
    with ExitStack() as stack:
        fresh = into or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="privbench-")))
        bars = stack.enter_context(JobBars(1 if first.environment["device"] == "cuda" else len(first.cell.seeds)))
        second = reproduce.again(first, out, fresh, data_dir, bars.progress, bars.outcome, attack_only=attack_only)
        lines = reproduce.differences(first, second, out, fresh)
        compared = reproduce.compared(first, out, fresh)
    what = f"{first.id} ({len(first.cell.seeds)} seed(s){', attack only' if attack_only else ', training and attack'})"
    for line in reproduce.moved(first, second):
        print(f"another place: {line}")
    if not lines:
        print(f"{_reproduced(first, compared)}: {what}")
        return True
    print(f"NOT reproduced: {what}; {len(lines)} difference(s)")
    for line in lines[:MOST_DIFFERENCES]:
        print(f"  {line}")
    if len(lines) > MOST_DIFFERENCES:
        print(f"  ... and {len(lines) - MOST_DIFFERENCES} more")
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
    return record.read(store.record(cell))


def list_runs(out: Path) -> None:
    """Training runs and finished cells under a folder."""
    store = Store(out)
    trained, cells, earlier = store.trained(), store.cells(), store.earlier()
    if not trained and not cells and not earlier:
        raise UserError(f"there are no runs under {out}; start one with `privbench train` or `privbench attack`")
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("id", "data set", "method", "defence", "seed", "attack", "round", "state"):
        table.add_column(column, overflow="fold", no_wrap=column == "id")
    for folder, spec in trained:
        table.add_row(spec.id, spec.dataset, spec.method, spec.defense, str(spec.seed), "", "", status(folder))
    for cell in cells:
        done = store.record(cell).exists()
        seeds = ",".join(str(seed) for seed in cell.seeds)
        state = "recorded" if done else "unfinished; the same command continues"
        t = cell.train
        table.add_row(cell.id, t.dataset, t.method, t.defense, seeds, *_attack_and_round(cell), state)
    Console().print(table)
    if earlier:
        example = earlier[0].relative_to(out)
        print(
            f"not listed: {len(earlier)} folder(s) of earlier revisions, which nothing reads any more, e.g. {example}"
        )


def _attack_and_round(cell: CellSpec) -> tuple[str, str]:
    return ("", "") if cell.attack is None else (cell.attack, cell.round)


def show_run(prefix: str, out: Path) -> None:
    """Everything on disk about the one run or cell whose id begins with `prefix`."""
    store = Store(out)
    found = [(spec.id, "train", folder) for folder, spec in store.trained() if spec.id.startswith(prefix)]
    found += [(cell.id, "cell", store.cell(cell)) for cell in store.cells() if cell.id.startswith(prefix)]
    if not found:
        raise UserError(f"no run or cell under {out} begins with '{prefix}'; see `privbench list runs`")
    if len(found) > 1:
        raise UserError(f"'{prefix}' could be any of {', '.join(name for name, _, _ in found)}; give more digits")
    name, kind, folder = found[0]
    console = Console()
    console.print(f"{kind} {name} in {folder}", markup=False, highlight=False)
    if kind == "train":
        console.print_json(json.dumps(storage.read_json(folder / checkpoint.SPEC)))
        console.print(status(folder))
        rounds = checkpoint.history(folder)
        if rounds is not None:
            console.print(f"{sum(entry['seconds'] for entry in rounds):.0f} s of training")
            classes = storage.read_json(folder / "clients.json")["classes"]
            training_view.show([results.training(folder)], classes, console)
        return
    if not (folder / record.FILE_NAME).exists():
        raise UserError(f"cell {name} is unfinished; the command that started it continues it")
    found_record = record.read(folder / record.FILE_NAME)
    shown = found_record.model_dump(mode="json", exclude={"seeds"})  # too long, or in the tables
    if isinstance(found_record, AttackRecord):
        shown |= {
            "scores": found_record.scores._asdict(),
            "floors": found_record.floors,
            "gain_db": found_record.gain_db,
        }
        shown |= {"flags": [flag.model_dump() for flag in found_record.flags]}
    console.print_json(json.dumps(shown))
    training_view.show(found_record.training, found_record.class_names, console)
