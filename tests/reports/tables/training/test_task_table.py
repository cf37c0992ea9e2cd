"""The table of meta-learners: means and intervals over seeds, of one seed over its tasks, and nothing of other methods."""

import pytest
from scipy import stats

from privbench.training.history import TaskScores
from reports.tables.training import task_table
from tests.builders.records import record, with_training


def scored(r, accuracies, shots=1, untrained=(40.0, 40.0)):
    """The record with task scores in every round; those of the best round are the given accuracies, one per seed."""
    each = []
    for training, accuracy, floor in zip(r.training, accuracies, untrained, strict=False):
        rounds = []
        for entry in training.rounds:
            best = entry.round == training.best_round
            scores = TaskScores(
                ways=5, shots=shots, tasks=100, accuracy=accuracy if best else 1.0, half_width=3.0,
                untrained_accuracy=floor, untrained_half_width=4.0, untrained_longer_accuracy=58.0,
                untrained_longer_half_width=2.0,
            )  # fmt: skip
            rounds.append(entry.model_copy(update={"tasks": scores}))
        each.append(training.model_copy(update={"rounds": rounds}))
    return with_training(r, each)


# Student's t of two seeds: the half width of 95% is so many times half of their difference.
T = stats.t.ppf(0.975, 1)


def test_a_row_has_the_mean_over_seeds_and_the_interval_of_student_s_t_over_them():
    records = [
        scored(record("reptile"), (60.0, 70.0)),
        scored(record("reptile", attack="staged"), (60.0, 70.0)),
        scored(record("reptile", spec={"method_settings": {"shots": 5}}), (80.0, 81.0), shots=5),
        record("fedavg"),
    ]
    whole = task_table.report(records)
    (table,) = whole.tables
    assert [row[:4] for row in table.rows] == [
        ["Reptile", "5-way 1-shot", "200", f"65.0 +- {5 * T:.1f}"],
        ["Reptile (shots 5)", "5-way 5-shot", "200", f"80.5 +- {0.5 * T:.1f}"],
    ]
    assert table.rows[0][4:] == [
        f"40.0 +- 0.0; difference +25.0 +- {5 * T:.1f}", f"58.0 +- 0.0; difference +7.0 +- {5 * T:.1f}",
    ]  # fmt: skip
    assert len(table.columns) == len(table.rows[0]) <= 8
    first = whole.numbers[0]
    assert (first["accuracy"], first["tasks"], first["untrained_longer"]) == (65.0, 200, 58.0)
    assert first["accuracy_half_width"] == first["gain_over_untrained_half_width"] == pytest.approx(5 * T)
    assert (first["gain_over_untrained_longer"], first["interval_over"]) == (7.0, "seeds")
    assert "Student's t over seeds" in whole.notes[-1]


def test_the_difference_to_no_meta_learning_is_paired_by_seed():
    """Both vary by ten points from seed to seed, and always differ by ten."""
    (table,) = task_table.report([scored(record("reptile"), (60.0, 70.0), untrained=(50.0, 60.0))]).tables
    assert table.rows[0][3:5] == [f"65.0 +- {5 * T:.1f}", f"55.0 +- {5 * T:.1f}; difference +10.0 +- 0.0"]


def test_of_one_seed_the_interval_is_over_its_tasks_and_says_so():
    whole = task_table.report([scored(record("reptile", seeds=(0,)), (60.0,))])
    assert whole.tables[0].rows[0][3:] == [
        "60.0 +- 3.0 (tasks)", "40.0 +- 4.0 (tasks); difference +20.0", "58.0 +- 2.0 (tasks); difference +2.0",
    ]  # fmt: skip
    (numbers,) = whole.numbers
    assert (numbers["interval_over"], numbers["accuracy_half_width"]) == ("tasks", 3.0)
    assert numbers["gain_over_untrained_half_width"] is None


def test_without_a_meta_learner_there_is_no_table():
    assert task_table.report([record("fedavg")]).tables == []


def test_scores_are_written_and_read_with_the_rounds_and_absent_elsewhere():
    assert "tasks" not in record("fedavg").model_dump(mode="json")["seeds"][0]["training"]["rounds"][0]
    dumped = scored(record("reptile"), (60.0, 70.0)).model_dump(mode="json")
    assert dumped["seeds"][0]["training"]["rounds"][1]["tasks"]["untrained_longer_accuracy"] == 58.0
