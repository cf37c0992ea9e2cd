"""The metrics of training on the terminal, for `privbench show`: per client, per round, and the confusion of classes.

A pure function of the training part of a record, or of one training run. docs/appendix/metrics.md defines every number.
"""

from __future__ import annotations

from collections.abc import Sequence

from privbench.records.entries import ClientMetrics, SeedTraining
from privbench.records.means import averages, mean, spread
from privbench.system.console import Console
from privbench.training.history import Round
from reports.records.number_text import NONE, spread_text
from reports.tables import render

METRICS = {
    "accuracy, %": "accuracy", "precision, %": "precision", "recall, %": "recall", "F1, %": "f1",
    "false positives, %": "false_positive_rate", "AUC": "auc", "consistency, nats": "consistency",
}  # fmt: skip
PER_ROUND = {
    "validation, %": ("validation_accuracy", 2), "test, %": ("test_accuracy", 2), "global, %": ("global_accuracy", 2),
    "consistency, nats": ("consistency", 4), "bytes up": ("bytes_up", 0), "bytes down": ("bytes_down", 0),
    "seconds": ("seconds", 2),
}  # fmt: skip
FINE = ("auc", "consistency")  # shown with four decimals, percentages with two
MOST_ROUNDS = 12
MOST_CLASSES = 12  # in a confusion matrix


def show(trainings: Sequence[SeedTraining], classes: Sequence[str], console: Console) -> None:
    """Prints the tables of one or several seeds."""
    seeds = f"seed {trainings[0].seed}" if len(trainings) == 1 else f"mean over {len(trainings)} seeds"
    render.show(f"Metrics per client, {seeds}", *clients(trainings), console)
    overall = spread([t.global_accuracy for t in trainings])
    if overall.mean is not None:
        best = ", ".join(str(t.best_round) for t in trainings)
        text = spread_text(overall.mean, overall.std)
        console.print(f"global accuracy (G.acc) {text} % at the best round ({best}); L.acc is the mean accuracy above")
        render.show(f"Per round, mean over clients, {seeds}", *rounds(trainings), console)
    if len(classes) <= MOST_CLASSES:
        title = "Confusion matrix (rows: true class)"
        render.show(title, *confusion(trainings, classes), console)


def clients(trainings: Sequence[SeedTraining]) -> tuple[list[str], list[list[str]]]:
    """(columns, rows): one row per client, averaged over seeds, and the mean over clients with its spread over seeds."""
    rows = []
    for k in range(len(trainings[0].clients)):
        metrics = [t.clients[k] for t in trainings]
        best = ", ".join(str(c.round) for c in metrics)
        rows.append([str(k + 1), best, *(_cell(mean([_get(c, n) for c in metrics]), n) for n in METRICS.values())])
    accuracy = spread([mean([c.accuracy for c in t.clients]) for t in trainings])
    whole = averages(trainings)
    spreads = [accuracy if name == "accuracy" else getattr(whole, name) for name in METRICS.values()]
    last = [_cell(s.mean, name, s.std) for s, name in zip(spreads, METRICS.values(), strict=True)]
    return ["client", "best round", *METRICS], [*rows, ["mean", "", *last]]


def _get(client: ClientMetrics, name: str) -> float | None:
    value: float | None = getattr(client, name)
    return value


def _cell(value: float | None, name: str, std: float | None = None) -> str:
    if value is None:
        return NONE
    digits = 4 if name in FINE else 2
    return f"{value:.{digits}f}" + (f" +- {std:.{digits}f}" if std is not None else "")


def rounds(trainings: Sequence[SeedTraining]) -> tuple[list[str], list[list[str]]]:
    """(columns, rows): the curves at up to twelve rounds that every seed has, means over clients and seeds."""
    last = min(len(t.rounds) for t in trainings)
    step = max(1, -(-last // MOST_ROUNDS))
    stages = list(trainings[0].rounds[0].loss)
    numbers = sorted({*range(0, last, step), last - 1})
    columns = ["round", *(f"{stage} loss" for stage in stages), *PER_ROUND]
    return columns, [_round([t.rounds[r] for t in trainings], stages) for r in numbers]


def _round(each_seed: Sequence[Round], stages: Sequence[str]) -> list[str]:
    """The row of one round of every seed."""
    losses = [mean([mean(r.loss[stage]) for r in each_seed]) for stage in stages]
    values = [
        (mean([_over_clients(getattr(r, name)) for r in each_seed]), digits) for name, digits in PER_ROUND.values()
    ]
    each = [*((loss, 4) for loss in losses), *values]
    return [str(each_seed[0].round), *(NONE if value is None else f"{value:,.{digits}f}" for value, digits in each)]


def _over_clients(values: float | Sequence[float | None]) -> float | None:
    return mean(values) if isinstance(values, Sequence) else values


def confusion(trainings: Sequence[SeedTraining], classes: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """(columns, rows): test images by true (row) and predicted class over clients and seeds, with the class's mean AUC."""
    every = [client for t in trainings for client in t.clients]
    rows = []
    for y, name in enumerate(classes):
        counts = [sum(client.confusion[y][p] for client in every) for p in range(len(classes))]
        area = mean([client.auc_by_class[y] for client in every])
        rows.append([name, *map(str, counts), _cell(area, "auc")])
    return ["class", *classes, "AUC"], rows
