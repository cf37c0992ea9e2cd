"""Accuracy of the models that a client has after a round: differences, orderings, and what is near a printed value."""

import pytest

from privbench.errors import UserError
from privbench.training.history import ModelAccuracy
from reports.documents import model_accuracy
from reports.records import comparison
from tests.builders.paper_cells import paper_cells
from tests.builders.records import record, with_models


def test_what_a_defence_costs_is_said_of_each_model():
    plain, noisy = (record(seeds=range(5), defense=defense) for defense in ("none", "gaussian:0.1"))
    records = [with_models(plain, lambda seed: 70.0 + seed), with_models(noisy, lambda seed: 60.0 + 1.1 * seed)]
    text = model_accuracy.cost(records, "FedAvg + Gaussian 0.1", "FedAvg")
    # Differences of -10, -9.9, -9.8, -9.7 and -9.6; Student's t of 4 degrees of freedom has its 97.5% quantile at 2.776.
    half = 2.776 * 0.1 * 2.5**0.5 / 5**0.5
    assert f"The broadcast model: -9.80 points [{-9.8 - half:.2f}, {-9.8 + half:.2f}]. It is lower." in text
    assert "The personal model: +0.00 points [+0.00, +0.00]. No difference is shown." in text
    few = [with_models(record(seeds=range(2), defense=r.cell.train.defense), lambda seed: seed) for r in records]
    assert "too few seeds for a verdict" in model_accuracy.cost(few, "FedAvg + Gaussian 0.1", "FedAvg")
    with pytest.raises(UserError, match="other seeds"):
        model_accuracy.cost([records[0], few[1]], "FedAvg + Gaussian 0.1", "FedAvg")


def test_a_difference_in_accuracy_is_paired_by_seed():
    mean, low, high = comparison.paired_means([61, 72, 83], [60, 70, 80])
    assert mean == pytest.approx(2)
    # Student's t of 2 degrees of freedom has its 97.5% quantile at 4.303; the differences are 1, 2 and 3.
    assert high - mean == pytest.approx(4.303 / 3**0.5, abs=1e-3)
    assert mean - low == pytest.approx(high - mean)
    with pytest.raises(ValueError, match="the same ones"):
        comparison.paired_means([61, 72, 83], [60, 70])


def of_fedcg_table(method, seeds, broadcast):
    """A record of FedCG's Table 1 on CIFAR-10 with 4 clients."""
    (cell,) = [
        c for c in paper_cells("fedcg-table1")
        if (c.train.dataset, c.train.method, c.train.clients) == ("cifar10", method, 4)
    ]  # fmt: skip
    cell = cell.model_copy(update={"seeds": tuple(seeds)})
    return with_models(record(method, seeds=seeds).model_copy(update={"cell": cell, "id": cell.id}), broadcast)


def rows_of_orderings(records):
    """Rival of FedCG -> what stands behind its name."""
    return {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]]
        for line in model_accuracy.orderings(records, "FedCG", ["FedCG 1"]).splitlines()
        if line.startswith("| Fed")
    }


def test_an_ordering_stands_beside_the_printed_one_of_each_model():
    # FedCG is printed 0.29 above FedAvg and 2.85 above FedSplit.
    levels = {"fedcg": lambda s: 50.0 + s, "fedavg": lambda s: 51.0 + 0.9 * s, "fedsplit": lambda s: 50.0 + 3 * (s - 2)}
    records = [of_fedcg_table(method, range(5), level) for method, level in levels.items()]
    rows = rows_of_orderings(records)
    half = 2.776 * 0.1 * 2.5**0.5 / 5**0.5
    assert rows["FedAvg"][0] == "+0.29"
    assert rows["FedAvg"][4] == f"-0.80 [{-0.8 - half:+.2f}, {-0.8 + half:+.2f}], reversed"
    assert rows["FedSplit"][0] == "+2.85"
    assert rows["FedSplit"][4].endswith("not shown")
    assert rows["FedSplit"][4].startswith("+2.00 [")
    higher = records[0].model_copy(
        update={"seeds": [s.model_copy(update={"accuracy": [a + 1.5 for a in s.accuracy]}) for s in records[0].seeds]}
    )
    # The accuracy of tables is compared too: each client's at its own best round.
    assert rows_of_orderings([higher, *records[1:]])["FedAvg"][1] == "+1.50 [+1.50, +1.50], as printed"
    one = [of_fedcg_table(method, [100], lambda s: {"fedcg": 52.0}.get(method, 50.0)) for method in levels]  # noqa: B023
    text = model_accuracy.orderings(one, "FedCG", ["FedCG 1"])
    assert text.count("+2.00, as printed") == 2
    assert "Seeds: 1. Below 5 seeds no interval is given" in text
    with pytest.raises(UserError, match="other seeds"):
        model_accuracy.orderings([records[0], one[1]], "FedCG", ["FedCG 1"])


def test_records_of_another_schedule_stand_beside_the_printed_values_of_the_published_one():
    levels = {"fedcg": lambda s: 30.0 + s, "fedavg": lambda s: 31.0 + s}
    printed = [of_fedcg_table(method, [100], lambda _: 40.0) for method in levels]
    quick = [with_models(record(method, seeds=range(5)), level) for method, level in levels.items()]
    # No number is printed for the quick preset itself.
    assert "| FedAvg |" not in model_accuracy.orderings(quick, "FedCG", ["FedCG 1"])
    text = model_accuracy.orderings(quick, "FedCG", ["FedCG 1"], printed)
    (row,) = (line.split("|")[2:-1] for line in text.splitlines() if line.startswith("| FedAvg |"))
    assert [row[0].strip(), row[4].strip()] == ["+0.29", "-1.00 [-1.00, -1.00], reversed"]


def test_the_model_nearest_to_a_printed_accuracy_is_one_of_four():
    # FedAvg is printed at 47.23%.
    made = of_fedcg_table("fedavg", [100], lambda _: 47.9)
    named = {0.0: "broadcast, with what came back: 47.9%", 47.5: f"{model_accuracy.OWN_BEST}: 47.5%"}
    for own, text in named.items():
        record_ = made.model_copy(update={"seeds": [made.seeds[0].model_copy(update={"accuracy": [own]})]})
        (line, *_) = model_accuracy.nearest([record_], ["FedCG 1"]).splitlines()
        assert line == f"- FedAvg: 47.23% is printed. Nearest: {text}."


def by_round(method, levels):
    """A record whose clients have, after round 1, 2, ..., one accuracy in validation and in test, of each model alike."""
    whole = record(method, seeds=[100])
    (seed,) = whole.seeds
    rounds = [
        seed.training.rounds[0].model_copy(
            update={
                "models": {name: ModelAccuracy(validation=[a], test=[a - 1]) for name in model_accuracy.MODELS},
                "validation_accuracy": [a],
                "test_accuracy": [a + 3],
            }
        )
        for a in levels
    ]
    training = seed.training.model_copy(update={"rounds": rounds})
    return whole.model_copy(update={"seeds": [seed.model_copy(update={"training": training})]})


def test_a_shorter_training_is_the_beginning_of_the_whole_one():
    records = [
        by_round("fedavg", [10, 40, 30, 45]),
        by_round("fedcg", [20, 30, 44, 50]),
        by_round("local", [5, 6, 7, 8]),
    ]
    lines = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in model_accuracy.shorter(records, (1, 2, 3)).splitlines()
    ]
    head, rows = lines[0], {row[1]: row for row in lines if row[0] == "personal"}
    # Tables have each client's own best round.
    own = {row[1]: row[2:] for row in lines if row[0] == model_accuracy.OWN_BEST}
    assert own["2"] == ["9.0", "43.0", "33.0", "2 of 3"]
    assert own["all"] == ["11.0", "48.0", "53.0", "3 of 3"]
    assert head[2:5] == ["Local", "FedAvg", "FedCG"]
    assert rows["1"][2:] == ["4.0", "9.0", "19.0", "3 of 3"]
    # The best round by validation counts, and FedAvg is ahead.
    assert rows["2"][2:] == ["5.0", "39.0", "29.0", "2 of 3"]
    assert rows["3"][2:] == ["6.0", "39.0", "43.0", "3 of 3"]
    assert rows["all"][2:] == ["7.0", "44.0", "49.0", "3 of 3"]


def test_leads_of_a_shorter_training_are_of_the_seeds_that_both_methods_have():
    fedcg = with_models(record("fedcg", seeds=range(5)), lambda s: 50.0 + s)
    fedavg = with_models(record("fedavg", seeds=range(6)), lambda s: 47.0 + 2 * s)
    text = model_accuracy.shorter_leads([fedcg, fedavg], "FedCG", 1)
    rows = {
        row[1]: row[2:] for row in (line.strip("| ").split(" | ") for line in text.splitlines()) if row[0] == "FedAvg"
    }
    # 3 - s, of five seeds.
    half = 2.776 * 2.5**0.5 / 5**0.5
    lead = f"+1.00 [{1 - half:+.2f}, {1 + half:+.2f}]"
    assert rows["broadcast"] == ["5", lead, lead]
    assert set(rows) == {model_accuracy.OWN_BEST, "personal", "uploaded", "broadcast"}
    few = with_models(record("fedavg", seeds=range(4)), lambda s: 47.0 + 2 * s)
    assert "| FedAvg | broadcast | 4 | +1.50 | +1.50 |" in model_accuracy.shorter_leads([fedcg, few], "FedCG", 1)
    # Both are 52% on average, but FedCG is ahead on the seeds that both have.
    (line,) = (line for line in model_accuracy.shorter([fedcg, fedavg], ()).splitlines() if "| broadcast |" in line)
    assert line.endswith("| all | 52.0 | 52.0 | 1 of 1 |")


def test_seeds_of_several_records_stand_together_each_once():
    first, further = (
        of_fedcg_table("fedcg", [0], lambda s: 50.0),
        of_fedcg_table("fedcg", [1, 2], lambda s: 50.0 + 2 * s),
    )
    # The same seed, trained again: the first record counts.
    again = of_fedcg_table("fedcg", [0], lambda s: 90.0)
    alone = of_fedcg_table("fedavg", [0], lambda s: 40.0)
    joined = model_accuracy.with_all_seeds([first, further, again, alone])
    assert [r.cell.seeds for r in joined] == [(0,), (0, 1, 2)]
    text = model_accuracy.over_seeds(joined, ["FedCG 1"])
    rows = {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]]
        for line in text.splitlines()[2:]
        if line.startswith("|")
    }
    assert text.endswith("test, 2 cores, torch 2, 2026-01-01.")
    # 50, 52 and 54; accuracies of the personal model are 40 + s and 44, in the mean 42 + s / 2.
    assert rows["FedCG"] == ["47.5 ± 0.7", "42.5 ± 0.5", "42.5 ± 0.5", "42.5 ± 0.5", "52.0 ± 2.0", "0 to 2"]
    assert rows["FedAvg"] == ["47.2 ± 0.2", "42.0", "42.0", "42.0", "40.0", "0"]


def test_orderings_are_tested_together():
    """Of many differences some leave out 0 by chance; below five seeds none is tested."""
    one, others = (0.5, 2.0, 0.6, 1.9, 1.0), {(0.5, -0.5, 0.2, -0.3, 0.1), (0.4, -0.4, 0.2, -0.3, 0.1)}
    assert model_accuracy._shown({one}) == {one: True}
    assert model_accuracy._shown({one, *others}) == dict.fromkeys({one, *others}, False)
    assert model_accuracy._shown({one[:4]}) == {}
    assert model_accuracy._ordering(-1.0, one, is_shown=True).endswith(", reversed")
    assert model_accuracy._ordering(1.0, one, is_shown=True).endswith(", as printed")
    assert model_accuracy._ordering(1.0, one, is_shown=False).endswith(", not shown")
    assert model_accuracy._ordering(1.0, one[:4], is_shown=True) == "+1.25, as printed"
