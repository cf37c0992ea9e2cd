"""What a meta-learner is worth: its accuracy on few-shot tasks of held-out classes, beside the same tasks without meta-learning.

A pure function of records. Without meta-learning means from the networks that training began with, by as many steps on the same
support sets and by five times as many (privbench/training/task_evaluation.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from privbench.records.schema import Record
from privbench.scoring import statistics
from privbench.training.history import TaskScores
from reports.records import grouping, guarantees, remarks
from reports.tables.report import Report, Table

ACCURACY = "accuracy"
COLUMNS = {
    ACCURACY: "accuracy, %",
    "untrained": "without meta-learning",
    "untrained_longer": "the same, 5 times the steps",
}
OVER_TASKS = "(tasks)"  # behind an interval of one seed
HOW = (
    "Accuracy is that of the broadcast networks after some steps on the support set of each test task, at the round with the best "
    "validation accuracy. Without meta-learning: from the networks that training began with. The difference is the accuracy with "
    "meta-learning less that without, paired by seed. +- is half of the 95% interval of Student's t over seeds. "
    f"Of one seed it is over its tasks alone, {OVER_TASKS}, and says nothing of training again."
)


def report(records: Sequence[Record]) -> Report:
    """One table per setting, a row per method with its settings and defence; none where no record is of a meta-learner."""
    tables, numbers = [], []
    for key in grouping.settings(records):
        each = {name: r for name, r in grouping.chosen(records, key).items() if scores_of(r)}
        if not each:
            continue
        rows = [_row(name, r) for name, r in each.items()]
        is_guaranteed = guarantees.any_stated(list(each.values()))
        columns = ["", "tasks", "test tasks", *COLUMNS.values(), *([guarantees.EPSILON] if is_guaranteed else [])]
        tables.append(Table(grouping.title(key), columns, [row[: len(columns)] for row in rows]))
        numbers += [_numbers(name, key, r) for name, r in each.items()]
    used = [r for r in records if scores_of(r)]
    notes = [*remarks.training_header(used), HOW, *guarantees.how(used), *guarantees.coverage(used)] if used else []
    return Report("Few-shot tasks", notes, tables, numbers)


def scores_of(record: Record) -> list[TaskScores]:
    """Of each seed, at its best round; nothing of a method that is not tested on tasks, or was not trained."""
    each = [seed.rounds[seed.best_round - 1].tasks for seed in record.training if seed.best_round]
    return [one for one in each if one is not None]


def _values(each: Sequence[TaskScores], name: str) -> list[float]:
    """What each seed has under one of COLUMNS, percent."""
    return [getattr(one, "accuracy" if name == ACCURACY else f"{name}_accuracy") for one in each]


def _interval(each: Sequence[TaskScores], name: str) -> tuple[float, float]:
    """(mean, half of its 95% interval), percent: over seeds, or of one seed over its tasks."""
    values = _values(each, name)
    if len(values) > 1:
        return _over_seeds(values)
    return values[0], getattr(each[0], "half_width" if name == ACCURACY else f"{name}_half_width")


def _gain(each: Sequence[TaskScores], name: str) -> tuple[float, float | None]:
    """(mean, half of its 95% interval) of accuracy with meta-learning less one of COLUMNS, seed by seed; of one seed no half."""
    differences = [a - b for a, b in zip(_values(each, ACCURACY), _values(each, name), strict=True)]
    return _over_seeds(differences) if len(differences) > 1 else (differences[0], None)


def _over_seeds(values: Sequence[float]) -> tuple[float, float]:
    of_seeds = statistics.of_means(values)
    return of_seeds.mean, of_seeds.half_width


def _text(each: Sequence[TaskScores], name: str) -> str:
    """A cell: the mean with its interval, and without meta-learning the difference."""
    text = "{:.1f} +- {:.1f}".format(*_interval(each, name)) + (f" {OVER_TASKS}" if len(each) == 1 else "")
    if name == ACCURACY:
        return text
    gain, half = _gain(each, name)
    return f"{text}; difference {gain:+.1f}" + ("" if half is None else f" +- {half:.1f}")


def _row(name: str, record: Record) -> list[str]:
    each = scores_of(record)
    kind = f"{each[0].ways}-way {each[0].shots}-shot"
    texts = [_text(each, one) for one in COLUMNS]
    return [name, kind, f"{sum(one.tasks for one in each):,}", *texts, guarantees.text(record)]


def _numbers(name: str, key: grouping.Setting, record: Record) -> dict[str, Any]:
    each = scores_of(record)
    intervals = {one: _interval(each, one) for one in COLUMNS}
    gains = {f"gain_over_{one}": _gain(each, one) for one in COLUMNS if one != ACCURACY}
    return {
        "id": record.id, "setting": grouping.title(key), "row": name, "ways": each[0].ways, "shots": each[0].shots,
        "tasks": sum(one.tasks for one in each), "seeds": " ".join(map(str, record.cell.seeds)),
        "interval_over": "seeds" if len(each) > 1 else "tasks",
        **{one: mean for one, (mean, _) in (intervals | gains).items()},
        **{f"{one}_half_width": half for one, (_, half) in (intervals | gains).items()},
        "epsilon": guarantees.epsilon(record),
    }  # fmt: skip
