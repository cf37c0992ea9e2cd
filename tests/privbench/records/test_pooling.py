"""Records of one cell made apart, seed by seed, are the record of all seeds, field by field."""

import pytest

from privbench.errors import UserError
from privbench.records import pooling, record_lines
from privbench.records.entries import KnowledgeUsed
from tests.builders.records import changed, record, with_knowledge

ENVIRONMENTS = [{"machine": "AMD"}, {"machine": "AMD"}, {"machine": "Intel"}]


def named(made):
    """Under the name of its cell, as a run's record is."""
    cell = made.cell.with_seeds(made.cell.seeds)
    return made.model_copy(update={"cell": cell, "id": cell.id})


def of_seeds(*seeds, attack="dlg"):
    """The record of one run of several seeds."""
    return named(record(attack=attack, seeds=seeds, environments=ENVIRONMENTS))


def alone(whole, *numbers):
    """The record that a run of those seeds alone would have left; each seed cost as much, and used 5 MiB and one more a seed."""
    share = len(numbers) / len(whole.seeds)
    cost = {
        name: type(value)(value * share) for name, value in whole.cost.model_dump().items() if name != "peak_memory_mib"
    }
    cost["peak_memory_mib"] = max(5.0 + number for number in numbers)
    seeds = [s for s in whole.seeds if s.seed in numbers]
    notes = [note for note in whole.notes if not note.startswith("the seeds differ")]
    part = whole.model_copy(update={"seeds": seeds, "cost": type(whole.cost)(**cost), "notes": notes})
    part = part.model_copy(update={"environment": whole.environment | ENVIRONMENTS[numbers[0]]})
    return named(changed(part, seeds=numbers))


@pytest.mark.parametrize("attack", ["dlg", None])
@pytest.mark.parametrize("parts", [((0,), (1,), (2,)), ((1,), (0, 2)), ((2,), (0,), (1,)), ((0, 1), (2,))])
def test_seeds_made_apart_are_the_record_of_all_seeds(attack, parts):
    whole = of_seeds(0, 1, 2, attack=attack)
    together = pooling.one([alone(whole, *numbers) for numbers in parts])
    # Which kinds of machine there were is said of the records, of which the first seed of each is known.
    kinds = {ENVIRONMENTS[numbers[0]]["machine"] for numbers in parts}
    expected = whole.notes if len(kinds) > 1 else [n for n in whole.notes if not n.startswith("the seeds differ")]
    assert together == whole.model_copy(update={"notes": expected})
    assert together.accuracy == whole.accuracy
    if attack:
        assert (together.gain_db, together.victims) == (whole.gain_db, whole.victims)


def test_other_cells_stay_apart_and_in_order():
    whole, other = of_seeds(0, 1), named(record("fedsplit", seeds=(0,)))
    best, last = (named(record(seeds=(0,), round_=name)) for name in ("best", "last"))
    assert pooling.pooled([other, alone(whole, 1), last, alone(whole, 0)]) == [other, whole, last]
    assert best not in pooling.pooled([other, last])


def test_a_record_that_is_there_twice_counts_once():
    whole = of_seeds(0, 1)
    parts = [alone(whole, 0), alone(whole, 1)]
    assert pooling.pooled([*parts, *parts]) == [whole]


def test_a_record_of_an_earlier_revision_is_never_pooled():
    old = named(record(seeds=(0,))).model_copy(update={"id": "0" * 12})
    new = named(record(seeds=(1,)))
    assert pooling.pooled([old, new]) == [old, new]


def test_a_seed_that_two_records_have_counts_once_where_its_numbers_are_the_same():
    whole = of_seeds(0, 1, 2)
    parts = [alone(whole, 0, 1), alone(whole, 1, 2)]
    slower = [r.model_copy(update={"seconds": r.seconds + 1}) for r in parts[1].seeds[0].training.rounds]
    training = parts[1].seeds[0].training.model_copy(update={"rounds": slower})
    again = parts[1].seeds[0].model_copy(update={"training": training})
    parts[1] = parts[1].model_copy(update={"seeds": [again, parts[1].seeds[1]]})
    (together,) = pooling.pooled(parts)
    assert together.seeds == whole.seeds
    assert together.cost.attack_seconds == sum(part.cost.attack_seconds for part in parts)
    note = "seconds and gradient evaluations count seed 1 once for each record that has it"
    assert note in together.notes
    assert note not in pooling.one([alone(whole, 0, 1), alone(whole, 2)]).notes


def test_a_seed_whose_numbers_differ_is_refused_with_both_records():
    whole = of_seeds(0, 1, 2)
    first, second = alone(whole, 0, 1), alone(whole, 1, 2)
    other = second.seeds[0].model_copy(update={"accuracy": [a + 1 for a in second.seeds[0].accuracy]})
    message = rf"have seed 1, and their numbers differ: {first.id} with seeds 0, 1 and {second.id} with 1, 2 \(accuracy\[0\]: "
    with pytest.raises(UserError, match=message):
        pooling.pooled([first, second.model_copy(update={"seeds": [other, second.seeds[1]]})])


def test_merging_step_by_step_says_the_same_as_merging_at_once():
    whole = of_seeds(0, 1, 2)
    machines = ("AMD A1, 4C", "AMD A2, 4C", "Intel")
    guarantees = ("epsilon 7; epsilon 8", "epsilon 9; epsilon 8", "epsilon 7")
    parts = [
        part.model_copy(update={"guarantee": guarantee, "environment": part.environment | {"machine": machine}})
        for part, guarantee, machine in zip((alone(whole, n) for n in range(3)), guarantees, machines, strict=True)
    ]
    at_once = pooling.one(parts)
    assert at_once.guarantee == "epsilon 7; epsilon 8; epsilon 9"
    assert "the seeds differ in machine: AMD A1, 4C | AMD A2, 4C | Intel" in at_once.notes
    for order in ((0, 1, 2), (2, 0, 1)):
        first, second, third = (parts[i] for i in order)
        step_by_step = pooling.one([pooling.one([first, second]), third])
        assert step_by_step.seeds == at_once.seeds
        assert sorted(step_by_step.guarantee.split("; ")) == sorted(at_once.guarantee.split("; "))
        assert (step_by_step.notes, step_by_step.cost) == (at_once.notes, at_once.cost)
        # What is there already changes nothing, and costs nothing again.
        assert pooling.one([step_by_step, third, first]) == step_by_step


def test_what_is_said_once_must_be_the_same():
    whole = of_seeds(0, 1)
    first, second = alone(whole, 0), alone(whole, 1)
    with pytest.raises(UserError, match="their class_names differ"):
        pooling.one([first, second.model_copy(update={"class_names": ["other"] * 10})])
    with pytest.raises(UserError, match="their attackers know other things"):
        pooling.one([first, with_knowledge(second, tag="gradient + auxiliary")])


def test_parts_that_make_no_whole_record_are_refused():
    whole = of_seeds(0, 1)
    first, second = alone(whole, 0), alone(whole, 1)
    victims = [v.model_copy(update={"floors": {"other": 1.0}}) for v in second.seeds[0].victims]
    other = second.seeds[0].model_copy(update={"victims": victims})
    with pytest.raises(UserError, match="make no whole one: no floor that every victim has"):
        pooling.one([first, second.model_copy(update={"seeds": [other]})])


def test_a_part_whose_seeds_the_others_have_says_nothing():
    whole = of_seeds(0, 1, 2)
    covered = alone(whole, 0).model_copy(update={"notes": ["of no use"]})
    together = pooling.one([covered, alone(whole, 0, 1), alone(whole, 2)])
    assert together == pooling.one([alone(whole, 0, 1), alone(whole, 2)])
    assert pooling.one([covered, whole]) == whole


def test_labels_are_recovered_where_one_seed_gave_some():
    whole = of_seeds(0, 1)
    parts = [with_knowledge(alone(whole, 0), labels="none"), with_knowledge(alone(whole, 1), labels="recovered")]
    assert pooling.one(parts).knowledge == KnowledgeUsed(**whole.knowledge.model_dump() | {"labels": "recovered"})


def test_the_guarantees_of_all_seeds_are_said():
    whole = of_seeds(0, 1)
    parts = [alone(whole, 0).model_copy(update={"guarantee": "(1, 1e-5)"}), alone(whole, 1)]
    assert pooling.one(parts).guarantee == "(1, 1e-5); no (epsilon, delta) guarantee"


def test_what_was_pooled_is_written_and_read(tmp_path):
    whole = of_seeds(0, 1, 2)
    together = pooling.pooled([alone(whole, number) for number in (2, 1, 0)])
    record_lines.write(together, tmp_path / "all.jsonl.xz")
    assert record_lines.read(tmp_path / "all.jsonl.xz") == together
