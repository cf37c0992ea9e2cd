"""Seeds of one cell of which one was scored before a floor was measured: the record shows the floors that all have."""

import pytest

import privbench
from privbench.execution import reproduce
from privbench.records import pooling, schema
from reports.tables import inference_table


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    results = privbench.attack(
        attack="loss-threshold", method="fedavg", dataset="digits", preset="smoke", backbone="mlp", seeds=2, first_seed=3,
        victims=4, clients=2, out=tmp_path_factory.mktemp("runs"),
    )  # fmt: skip
    [record] = results.inferred
    return record


def with_floors(record, floors):
    """The first seed's statements with these floors alone."""
    first = record.seeds[0]
    each = [s.model_copy(update={"floors": {n: s.floors[n] for n in floors}}) for s in first.statements]
    return record.model_copy(update={"seeds": [first.model_copy(update={"statements": each}), *record.seeds[1:]]})


def test_a_floor_that_one_seed_lacks_is_not_shown(record):
    assert set(record.floors) == {"chance", "blind"}
    mixed = with_floors(record, ["chance"])
    schema.check_whole(mixed)
    assert mixed.floors == ("chance",)
    assert mixed.floor == "chance"
    assert inference_table.report([mixed]).tables


def test_seeds_with_unlike_floors_are_pooled(record):
    parts = [
        record.model_copy(
            update={"seeds": [each], "cell": (cell := record.cell.with_seeds([each.seed])), "id": cell.id}
        )
        for each in with_floors(record, ["chance"]).seeds
    ]
    assert pooling.one(parts).floors == ("chance",)


def test_a_record_without_any_common_floor_is_refused(record):
    with pytest.raises(ValueError, match="no floor that every statement has"):
        schema.check_whole(with_floors(record, []))


def test_a_gain_is_no_more_than_a_score_can_be(record):
    """The ends of an interval may leave what is possible."""
    seeds = [
        seed.model_copy(
            update={
                "statements": [
                    s.model_copy(update={"score": 1.0 if seed.seed == 3 else 0.7, "floors": {"chance": 0.5}})
                    for s in seed.statements
                ]
            }
        )
        for seed in record.seeds
    ]
    gain = inference_table.gain(record.model_copy(update={"seeds": seeds}))
    assert gain.mean == pytest.approx(0.35)
    assert gain.high == 0.5
    assert gain.low == -0.5


def test_a_record_that_does_not_name_the_images_asked_about_is_reproduced_by_one_that_does(record):
    older = record.model_copy(
        update={
            "seeds": [
                seed.model_copy(update={"statements": [s.model_copy(update={"others": None}) for s in seed.statements]})
                for seed in record.seeds
            ]
        }
    )
    assert all(s.others for s in record.statements)
    assert reproduce.unlike_records(older, record) == []
    changed = record.seeds[0].statements[0].model_copy(update={"score": 0.125})
    first = record.seeds[0].model_copy(update={"statements": [changed, *record.seeds[0].statements[1:]]})
    assert len(reproduce.unlike_records(record.model_copy(update={"seeds": [first, *record.seeds[1:]]}), record)) == 1
