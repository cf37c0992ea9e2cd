"""The table of meta-learners: means over seeds, intervals over the tasks of all seeds, and nothing of other methods."""

import math

import pytest

from privbench.training.history import TaskScores
from reports.tables.training import task_table
from tests.builders.records import record, with_training


def scored(r, accuracies, shots=1):
    """The record with task scores in every round; those of the best round are the given accuracies, one per seed."""
    each = []
    for training, accuracy in zip(r.training, accuracies, strict=True):
        rounds = []
        for entry in training.rounds:
            best = entry.round == training.best_round
            scores = TaskScores(
                ways=5, shots=shots, tasks=100, accuracy=accuracy if best else 1.0, half_width=3.0,
                untrained_accuracy=40.0, untrained_half_width=4.0, untrained_longer_accuracy=58.0,
                untrained_longer_half_width=2.0,
            )  # fmt: skip
            rounds.append(entry.model_copy(update={"tasks": scores}))
        each.append(training.model_copy(update={"rounds": rounds}))
    return with_training(r, each)


def test_a_row_has_the_mean_over_seeds_and_the_interval_over_all_tasks():
    records = [
        scored(record("reptile"), (60.0, 70.0)),
        scored(record("reptile", attack="staged"), (60.0, 70.0)),
        scored(record("reptile", spec={"method_settings": {"shots": 5}}), (80.0, 81.0), shots=5),
        record("fedavg"),
    ]
    whole = task_table.report(records)
    (table,) = whole.tables
    width = math.sqrt(2 * 9) / 2
    assert [row[:4] for row in table.rows] == [
        ["Reptile", "5-way 1-shot", "200", f"65.0 +- {width:.1f}"],
        ["Reptile (shots 5)", "5-way 5-shot", "200", f"80.5 +- {width:.1f}"],
    ]
    assert table.rows[0][4:] == [f"40.0 +- {math.sqrt(2 * 16) / 2:.1f}", f"58.0 +- {math.sqrt(2 * 4) / 2:.1f}"]
    assert len(table.columns) == len(table.rows[0])
    first = whole.numbers[0]
    assert (first["accuracy"], first["tasks"], first["untrained_longer"]) == (65.0, 200, 58.0)
    assert first["accuracy_half_width"] == pytest.approx(width)


def test_without_a_meta_learner_there_is_no_table():
    assert task_table.report([record("fedavg")]).tables == []


def test_scores_are_written_and_read_with_the_rounds_and_absent_elsewhere():
    assert "tasks" not in record("fedavg").model_dump(mode="json")["seeds"][0]["training"]["rounds"][0]
    dumped = scored(record("reptile"), (60.0, 70.0)).model_dump(mode="json")
    assert dumped["seeds"][0]["training"]["rounds"][1]["tasks"]["untrained_longer_accuracy"] == 58.0
