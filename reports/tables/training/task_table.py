"""What a meta-learner is worth: its accuracy on few-shot tasks of held-out classes, beside the same tasks without meta-learning.

A pure function of records. Without meta-learning means from the networks that training began with, by as many steps on the same
support sets and by five times as many (privbench/training/task_evaluation.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from privbench.records.schema import Record
from privbench.training.history import TaskScores
from reports.records import grouping, guarantees, remarks
from reports.tables.report import Report, Table

COLUMNS = {
    "accuracy": "accuracy, %",
    "untrained": "without meta-learning",
    "untrained_longer": "the same, 5 times the steps",
}
HOW = (
    "Accuracy is that of the broadcast networks after some steps on the support set of each test task, at the round with the best "
    "validation accuracy; +- is half of the 95% interval over tasks, of all seeds together. Without meta-learning: from the "
    "networks that training began with."
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


def _pooled(each: Sequence[TaskScores], name: str) -> tuple[float, float]:
    """(mean, half of its 95% interval over the tasks of all seeds), percent; every seed has as many tasks."""
    field = "" if name == "accuracy" else f"{name}_"
    means = [getattr(one, f"{field}accuracy") for one in each]
    halves = [getattr(one, f"{field}half_width") for one in each]
    return fmean(means), math.sqrt(sum(half**2 for half in halves)) / len(halves)


def _row(name: str, record: Record) -> list[str]:
    each = scores_of(record)
    texts = ["{:.1f} +- {:.1f}".format(*_pooled(each, one)) for one in COLUMNS]
    kind = f"{each[0].ways}-way {each[0].shots}-shot"
    return [name, kind, f"{sum(one.tasks for one in each):,}", *texts, guarantees.text(record)]


def _numbers(name: str, key: grouping.Setting, record: Record) -> dict[str, Any]:
    each = scores_of(record)
    pooled = {one: _pooled(each, one) for one in COLUMNS}
    return {
        "id": record.id, "setting": grouping.title(key), "row": name, "ways": each[0].ways, "shots": each[0].shots,
        "tasks": sum(one.tasks for one in each), "seeds": " ".join(map(str, record.cell.seeds)),
        **{one: mean for one, (mean, _) in pooled.items()},
        **{f"{one}_half_width": half for one, (_, half) in pooled.items()},
        "epsilon": guarantees.epsilon(record),
    }  # fmt: skip
