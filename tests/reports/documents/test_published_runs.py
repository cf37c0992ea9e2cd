"""How far the runs of the published settings are, and which rows earlier code made, by hand."""

from privbench import presets
from reports.documents import published_runs
from tests.builders.records import changed, record


def rows(records):
    lines = published_runs.table(records).splitlines()[2:]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def test_a_row_says_which_seeds_were_trained_and_which_of_them_attacked_in_which_rounds():
    trained = record(attack=None, seeds=(100, 101, 102))
    each = ((102, "best"), (100, "best"), (100, "10"), (100, "2"))
    attacked = [record(seeds=(seed,), round_=name) for seed, name in each]
    assert rows([trained, *attacked]) == [["cifar10", "FedAvg", "100 to 102", "2, 10 (100); best (100, 102)"]]


def test_an_attack_stands_for_its_training_and_data_sets_and_methods_are_apart():
    records = [record("fedcg", seeds=(7,)), record(attack=None, dataset="digits"), record(attack=None, seeds=(7,))]
    assert rows(records) == [
        ["cifar10", "FedAvg", "7", "-"],
        ["cifar10", "FedCG", "7", "best (7)"],
        ["digits", "FedAvg", "0 to 1", "-"],
    ]


def test_rows_of_an_earlier_revision_are_counted_by_table_and_attack():
    old = [changed(record("fedavg", attack="staged", round_=name), attack_revision=0) for name in ("2", "best")]
    today = changed(old[0], attack_revision=presets.revision_of(old[0].cell))
    table = published_runs.earlier_revisions({"one": [*old, today, record(attack=None)], "two": [today]})
    now = presets.revision_of(old[0].cell)
    assert table.splitlines()[2:] == [f"| `one` | `staged` | 0 | {now} | 2 |"]
