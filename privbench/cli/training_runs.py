"""`privbench train` and `privbench search`: trains what is not trained, and prints its accuracy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
from rich.table import Table

from privbench import registry
from privbench.errors import UserError
from privbench.execution import cell_jobs, preconditions
from privbench.execution.progress import JobBars
from privbench.execution.sweep import engines
from privbench.records.store import Store
from privbench.requests.options import PlaceOptions
from privbench.spec import TrainSpec
from privbench.system import console, cpu, machine
from privbench.training import checkpoint, history, restoration


def train_all(
    specs: Sequence[TrainSpec], out: Path, data_dir: Path | None, device: str, engine: str = engines.LOCAL
) -> Store:
    """Trains what is not trained; UserError with the first failure. `engine` is what --engine names."""
    run_jobs, store = engines.of(engine), Store(out)
    store.check_writable()
    stacked = machine.device(device).type == "cuda"
    todo = [spec for spec in specs if _is_open(store, spec)]
    alike: dict[str, list[TrainSpec]] = {}
    for spec in todo:  # on a GPU the seeds of one specification train together
        alike.setdefault(spec.model_copy(update={"seed": 0}).id if stacked else spec.id, []).append(spec)
    names = cell_jobs.titles(list(alike.values()))
    preconditions.check_data(todo, data_dir, workers=1 if stacked else cpu.cores())
    jobs = [
        cell_jobs.Trial(name, tuple(group), (), out, data_dir, device)
        for name, group in zip(names, alike.values(), strict=True)
    ]
    with JobBars(len(jobs)) as bars:
        failures = run_jobs(jobs, 1 if stacked else cpu.cores(), bars.progress, bars.outcome)
    if failures:
        raise UserError(failures[0])
    for spec in specs:
        if lost := restoration.missing(store.train(spec), spec):
            raise UserError(f"{lost[0]} is gone, though its run was trained; run the same command again")
    return store


def _is_open(store: Store, spec: TrainSpec) -> bool:
    """Whether a run is to be trained or mended."""
    try:
        return bool(restoration.missing(store.train(spec), spec))
    except UserError:  # said when the run is trained
        return True


def search_and_show(
    trials: Mapping[str, Sequence[TrainSpec]],
    out: Path,
    data_dir: Path | None,
    device: str,
    engine: str = engines.LOCAL,
) -> dict[str, str]:
    """Trains every value of a setting and prints its accuracy; returns each defence's best value by validation accuracy alone.

    Both accuracies are means over seeds and clients, validation at each client's best round, test at that same round.
    UserError: nothing to choose by, because no round is trained.
    """
    every = [spec for specs in trials.values() for spec in specs]
    if any(spec.schedule.rounds == 0 for spec in every):
        raise UserError("a search needs at least one round of training, but --rounds 0 was given")
    store, chosen = train_all(every, out, data_dir, device, engine), dict[str, str]()
    defenses, first = list(dict.fromkeys(spec.defense for spec in every)), every[0]
    table = Table(title=f"{first.method} on {registry.short(first.dataset)}: accuracy, percent")
    several = ["defence"] if len(defenses) > 1 else []
    for column in (*several, "setting", "validation", "test", ""):
        table.add_column(column, justify="left" if column in ("defence", "setting") else "right")
    for defense in defenses:
        accuracies = {
            name: _searched(store, [spec for spec in specs if spec.defense == defense])
            for name, specs in trials.items()
        }
        chosen[defense] = max(accuracies, key=lambda name: accuracies[name][0])
        for name, (validation, test) in accuracies.items():
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
    store = train_all(specs, place.out, place.data_dir, place.device, place.engine)
    rows: list[dict[str, Any]] = []
    for spec in specs:
        rounds = checkpoint.history(store.train(spec), spec.id) or []
        accuracy = history.selected_accuracy(rounds) if rounds else [math.nan]
        about = {"defense": spec.defense, "seed": spec.seed, "run": spec.id, "rounds": len(rounds)}
        rows += [about | {"client": client + 1, "test_accuracy": each} for client, each in enumerate(accuracy)]
    return pd.DataFrame(rows)


def show_trained(specs: Sequence[TrainSpec], accuracies: pd.DataFrame, place: PlaceOptions) -> None:
    """Prints each client's accuracy; under it, which runs stopped early."""
    defended = accuracies["defense"].nunique() > 1
    table = Table(title=f"{specs[0].method} on {registry.short(specs[0].dataset)}: test accuracy, percent")
    for column in (*(["defence"] if defended else []), "seed", "run", "rounds", "mean", "per client"):
        table.add_column(column, justify="left" if column in ("defence", "run", "per client") else "right")
    for spec in specs:
        clients = accuracies[accuracies["run"] == spec.id]
        table.add_row(
            *([spec.defense] if defended else []), str(spec.seed), spec.id, str(clients["rounds"].iloc[0]),
            f"{clients['test_accuracy'].mean():.2f}", "  ".join(f"{a:.1f}" for a in clients["test_accuracy"]),
        )  # fmt: skip
    to = console.results()
    to.print(table)
    for defense, of_defense in accuracies.groupby("defense", sort=False):
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
