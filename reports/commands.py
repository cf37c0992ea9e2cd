"""What the command line does once its words are understood: runs cells, prints rows, writes tables and figures."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from privbench import artifact as artifacts
from privbench import checkpoint, harness, knowledge, partition, plugins, pool, record, run, score, storage
from privbench.errors import UserError
from privbench.record import Record
from privbench.spec import CellSpec, TrainSpec, train_spec
from privbench.store import Store, status
from privbench.types import Knowledge
from reports import attack_table, grid, label_histogram, published_form, scatter
from reports.label_histogram import Panel
from reports.progress import JobBars
from reports.published_form import Gap
from reports.study import cells as study_cells

__all__ = [
    "attack_file",
    "draw_clients",
    "draw_clients_of_run",
    "draw_grid",
    "list_plugins",
    "list_runs",
    "run_and_show",
    "search_and_show",
    "show_run",
    "study_cells",
    "train_and_show",
]

GRID_COLUMNS = 8


def run_and_show(cells: Sequence[CellSpec], out: Path, data_dir: Path | None, device: str, folder: Path) -> None:
    """Runs or reuses the cells, then prints their table and writes tables, scatter plots and grids to `folder`."""
    store = Store(out)
    jobs = run.trials_of(cells, out, data_dir, device)
    reasons: dict[str, str] = {}  # job title -> why it ended early

    def outcome(title: str, reason: str | None) -> None:
        if reason is not None:
            reasons[title] = reason
        bars.outcome(title, reason)

    with JobBars(len(jobs)) as bars:
        failures = run.run_cells(cells, out, data_dir, device, bars.progress, outcome)
    found, damaged = record.find(out / "cells")
    by_id = {r.id: r for r in found}
    done = [cell for cell in cells if cell.id in by_id]
    gaps = [_gap(store, cell, reasons, damaged) for cell in cells if cell.id not in by_id]
    if not done:
        raise UserError(failures[0] if failures else gaps[0].reason)
    records = [by_id[cell.id] for cell in done]
    paths = attack_table.write_tables(records, folder, gaps)
    paths += [path for dataset in _datasets(done) for path in _figures(store, done, records, dataset, folder)]
    console = Console()
    attack_table.print_tables(records, console, gaps)
    for path in paths:
        console.print(f"wrote {path}", markup=False, highlight=False, soft_wrap=True)
    if gaps:
        raise UserError(f"{len(gaps)} of {len(cells)} cells are unfinished: {gaps[0].reason}")


def _gap(store: Store, cell: CellSpec, reasons: dict[str, str], damaged: dict[Path, str]) -> Gap:
    """A cell without a readable record, and why."""
    spec = cell.train.model_dump() | cell.model_dump(exclude={"train"})
    path = store.record(cell)
    if path in damaged:
        return Gap(spec, damaged[path])
    trains = cell.train_specs()
    titles = [run.title(trains), *(run.title((train,)) for train in trains)]
    return Gap(spec, next((reasons[title] for title in titles if title in reasons), "the same command continues it"))


def _datasets(cells: Sequence[CellSpec]) -> list[str]:
    return list(dict.fromkeys(cell.train.dataset for cell in cells))


def _figures(
    store: Store, cells: Sequence[CellSpec], records: Sequence[Record], dataset: str, folder: Path
) -> list[Path]:
    name, own = plugins.stem(dataset), [r for r in records if r.spec["dataset"] == dataset]
    paths = scatter.write(own, folder / f"{name}-scatter")
    paths += _histogram(own, folder / f"{name}-clients")
    for round_ in dict.fromkeys(cell.round for cell in cells if cell.train.dataset == dataset):
        some = [cell for cell in cells if cell.train.dataset == dataset and cell.round == round_]
        paths += _write_grid(store, some, min(some[0].seeds), folder / f"{name}-grid-{round_}")
    return paths


def _histogram(records: Sequence[Record], stem: Path) -> list[Path]:
    """The label histogram of every Dirichlet layout among some records, first seed."""
    dealt = [r for r in records if r.spec.get("partition") == "dirichlet" and r.label_counts]
    by_title = {f"{published_form.partition_text(r.spec)}, seed {r.spec['seeds'][0]}": r for r in reversed(dealt)}
    panels = [
        Panel(title, [str(k + 1) for k in range(len(r.label_counts[0]))], r.label_counts[0])
        for title, r in by_title.items()
    ]
    return label_histogram.write(panels, dealt[0].spec["class_names"], stem) if panels else []


def draw_clients(specs: Sequence[TrainSpec], data_dir: Path | None, stem: Path) -> None:
    """Lays the data out as each specification says, without training; prints who holds what and draws it."""
    feds = [run.federation_of(spec, data_dir) for spec in specs]
    panels = []
    for spec, (fed, note) in zip(specs, feds, strict=True):
        panels.append(_show_clients(spec, partition.census(fed), 0 if fed.public is None else len(fed.public.labels)))
        if note:
            print(f"note: {note}")
    _write_panels(panels, feds[0][0].classes, stem)


def draw_clients_of_run(prefix: str, out: Path) -> None:
    """The same for a training run on disk, from its record alone: nothing is read or trained again."""
    store = Store(out)
    found = [spec for _, spec in store.trained() if spec.id.startswith(prefix)]
    if len(found) != 1:
        many = f"could be any of {', '.join(spec.id for spec in found)}; give more digits"
        none = f"is no training run under {out}; see `privbench list runs`"
        raise UserError(f"'{prefix}' {many if found else none}")
    if not store.clients(found[0]).exists():
        raise UserError(f"run {found[0].id} has no clients.json: an earlier version trained it; leave --run out")
    value = storage.read_json(store.clients(found[0]))
    panel = _show_clients(found[0], value["clients"], value["public"])
    _write_panels([panel], value["classes"], out / f"clients-{found[0].id}")


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


def _write_grid(store: Store, cells: Sequence[CellSpec], seed: int, stem: Path) -> list[Path]:
    """One row per cell that attacked the same victims as the first."""
    first, rows = None, []
    for cell in cells:
        tensors, info = storage.load_tensors(store.reconstruction(cell, seed), "reconstruction")
        spec = cell.train.model_copy(update={"seed": seed})
        truth = artifacts.load_truth(store.artifact(cell, spec, info["round"]) / "truth.safetensors")
        if first is None:
            first = truth
        if truth.images.shape != first.images.shape or not torch.equal(truth.images, first.images):
            continue
        images, failed = score.aligned(tensors["images"], truth)
        psnr = score.psnr_db(images[:, 0], truth.images[:, 0]).masked_fill(failed, math.nan)
        label = published_form.label(cell.train.model_dump()).replace(" + ", "\n+ ") + f"\n{cell.attack}"
        rows.append((label, images[:, 0].clamp(0, 1), psnr))
    assert first is not None, "a grid has at least one cell"
    return grid.write(first.images[:GRID_COLUMNS, 0], rows, stem)


def draw_grid(dataset: str, round_: str, seed: int, out: Path, target: Path | None) -> None:
    """Draws the grid of every finished cell of a data set at one round."""
    store = Store(out)
    cells = [cell for cell in store.cells() if cell.train.dataset == dataset and cell.round == round_]
    cells = [cell for cell in cells if store.reconstruction(cell, seed).exists()]
    if not cells:
        raise UserError(
            f"no finished cell of {dataset} at round {round_} with seed {seed} under {out}; run `privbench attack` first"
        )
    stem = out / f"{plugins.stem(dataset)}-grid-{round_}" if target is None else target.with_suffix("")
    for path in _write_grid(store, cells, seed, stem):
        if target is not None and path.suffix != target.suffix:
            path.unlink()
        else:
            print(f"wrote {path}")


def train_all(specs: Sequence[TrainSpec], out: Path, data_dir: Path | None, device: str) -> Store:
    """Trains what is not trained; UserError with the first failure."""
    store = Store(out)
    store.check_writable()
    stacked = run.device(device).type == "cuda"
    todo = [spec for spec in specs if checkpoint.history(store.train(spec)) is None]
    alike: dict[str, list[TrainSpec]] = {}
    for spec in todo:  # on a GPU the seeds of one specification train together
        alike.setdefault(spec.model_copy(update={"seed": 0}).id if stacked else spec.id, []).append(spec)
    jobs = [run.Trial(run.title(group), tuple(group), (), out, data_dir, device) for group in alike.values()]
    with JobBars(len(jobs)) as bars:
        failures = pool.run_jobs(jobs, 1 if stacked else pool.cores(), bars.progress, bars.outcome)
    if failures:
        raise UserError(failures[0])
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


def attack_file(
    path: Path,
    truth: Path | None,
    attacks: Sequence[str],
    settings: dict[str, Any],
    dataset: str,
    auxiliary: str,
    device: str,
    data_dir: Path | None,
    out: Path,
) -> None:
    """Attacks an artifact file; scores it when a truth file is given."""
    seen = artifacts.load(path)
    known = artifacts.load_truth(truth) if truth is not None else None
    shape = (seen.victims, seen.batch_size, *seen.image_shape)
    if known is not None and tuple(known.images.shape) != shape:
        raise UserError(f"{truth} holds images of shape {tuple(known.images.shape)}, but {path} speaks of {shape}")
    place = run.device(device)
    Store(out).check_writable()
    for name in attacks:
        whole = Knowledge(cache=out / "trained")
        if "auxiliary" in plugins.resolve("attack", name).needs:
            guess = train_spec("quick", dataset, seen.method)
            fed, _ = run.federation_of(guess.model_copy(update={"image_size": seen.model.image_size}), data_dir)
            helpers, _ = knowledge.auxiliary(fed, auxiliary, data_dir, seen.image_shape, 0)
            whole = replace(whole, auxiliary=helpers)
        found = run.attack_artifact(name, settings, seen, whole, 0, place, lambda *_: None)
        target = out / f"{path.stem}-{name}.safetensors"
        tensors = {"images": found.images, "labels": found.labels, "loss": found.loss}
        storage.save_tensors(target, "reconstruction", tensors, {"artifact": path.name, "attack": name})
        line = f"{name}: {seen.victims} victims, median objective {float(found.loss.nanmedian()):.3g}"
        if known is not None:
            scores = score.score(found, known)
            line += f", PSNR {float(scores.psnr_db.mean()):.2f} dB, failures {int(scores.failed.sum())}"
        print(f"{line}; wrote {target}")


LISTED = {
    "method": ("shares",),
    "attack": ("rung", "needs", "knowledge"),
    "dataset": ("default layout",),
    "defense": (),
}  # columns between the name and the docstring


def list_plugins(kind: str) -> None:
    """Every plug-in of a kind with what it asks for or shares, and the first line of its docstring."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("name", *LISTED[kind], "what"):
        table.add_column(column, overflow="fold", no_wrap=column in ("name", "rung"))
    for name in plugins.KINDS[kind]:
        plugin = plugins.resolve(kind, name)
        module = __import__(plugin.__module__, fromlist=["_"])
        what = (module.__doc__ or "").strip().splitlines()[0]
        table.add_row(name, *_listed(kind, name, plugin), what)
    Console().print(table)


def _listed(kind: str, name: str, plugin: Any) -> tuple[str, ...]:
    if kind == "method":
        return (", ".join(plugin.shares) or "nothing",)
    if kind == "attack":
        return plugin.rung, ", ".join(sorted(plugin.needs)) or "nothing", plugin.knowledge
    if kind == "defense":
        return ()
    how, clients, per_client = partition.defaults(name)
    each = {"iid": "iid, up to", "domain": "one domain each, up to", "dirichlet": "Dirichlet(1), on average"}[how]
    return (f"{clients} clients, {each} {per_client:,} images",)


def list_runs(out: Path) -> None:
    """Training runs and finished cells under a folder."""
    store = Store(out)
    trained, cells = store.trained(), store.cells()
    if not trained and not cells:
        raise UserError(f"there are no runs under {out}; start one with `privbench train` or `privbench attack`")
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("id", "data set", "method", "defence", "seed", "attack", "round", "state"):
        table.add_column(column)
    for folder, spec in trained:
        table.add_row(spec.id, spec.dataset, spec.method, spec.defense, str(spec.seed), "", "", status(folder))
    for cell in cells:
        done = store.record(cell).exists()
        seeds = ",".join(str(seed) for seed in cell.seeds)
        state = "recorded" if done else "unfinished; the same command continues"
        t = cell.train
        table.add_row(cell.id, t.dataset, t.method, t.defense, seeds, cell.attack, cell.round, state)
    Console().print(table)


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
        if rounds:
            each = "  ".join(f"{a:.1f}" for a in harness.selected_accuracy(rounds))
            console.print(f"test accuracy per client at its best validation round: {each}")
            console.print(
                f"best round {harness.best_round(rounds)}; {sum(e['seconds'] for e in rounds):.0f} s of training"
            )
        return
    path = folder / "record.json"
    if not path.exists():
        raise UserError(f"cell {name} is unfinished; the command that started it continues it")
    value = storage.read_json(path)
    value.pop("victims", None)
    console.print_json(json.dumps(value))
