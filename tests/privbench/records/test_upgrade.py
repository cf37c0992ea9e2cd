"""Records of schema 2, as an earlier version wrote them, are read without training or attacking again."""

import json
from pathlib import Path
from statistics import fmean

import pytest

from privbench.errors import UserError
from privbench.records import schema, upgrade
from privbench.records.schema import AttackRecord, Record

FOLDER = Path(__file__).parent / "schema2"
NAMES = ("update-matching", "decoder", "accuracy")


def old(name):
    return json.loads((FOLDER / f"{name}.json").read_text())


def read(name):
    return schema.read(FOLDER / f"{name}.json")


@pytest.mark.parametrize("name", NAMES)
def test_a_record_of_schema_2_keeps_its_name_specification_and_trainings(name):
    value, record = old(name), read(name)
    assert value["schema_version"] == 2
    assert record.schema_version == 3
    assert record.id == value["id"]
    assert [t.model_dump(mode="json", exclude_unset=True) for t in record.training] == value["training"]
    assert list(record.accuracy.per_client) == value["accuracy"]["per_client"]
    assert record.accuracy.mean == pytest.approx(value["accuracy"]["mean"])
    assert {n: s.mean for n, s in record.averages._asdict().items()} == pytest.approx(
        {n: s["mean"] for n, s in value["averages"].items()}
    )
    assert record.label_counts == value["label_counts"]
    assert record.cell.train.model_dump()["schedule"] == value["spec"]["schedule"]
    assert record.class_names == value["spec"]["class_names"]
    assert type(record) is (Record if name == "accuracy" else AttackRecord)


@pytest.mark.parametrize("name", ["update-matching", "decoder"])
def test_its_scores_are_summarised_again_from_its_victims(name):
    value, record = old(name), read(name)
    same_scores = ("ssim", "psnr_db", "feature_error")
    for each in same_scores:
        assert getattr(record.scores, each) == pytest.approx(value["scores"][each]["mean"])
    assert record.scores.identification == pytest.approx(value["scores"]["identification"])
    assert record.floors == pytest.approx(value["floors"])
    assert record.floor.name == value["floor"]["name"]
    assert record.gain_db == pytest.approx(value["gain_db"]["mean"])
    assert record.rounds == value["rounds"]
    assert record.accuracy_at_round.mean == pytest.approx(value["accuracy_at_round"])
    assert fmean(v.psnr_db for v in record.victims) == pytest.approx(value["scores"]["psnr_db"]["mean"])
    assert record.knowledge.needs == value["knowledge"]["needs"]


def test_what_schema_2_left_out_is_what_gives_the_record_s_own_name():
    cell = read("update-matching").cell
    assert (cell.local_steps, cell.local_lr, cell.attack_revision) == (3, 0.1, 1)
    assert read("decoder").cell.attack_revision == 1
    assert read("accuracy").cell.attack_revision == 0


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ({}, "reconstructed"),
        ({"failed": True}, "diverged"),
        ({"loss": None}, "diverged"),
        ({"gradient_norm": 0.0, "failed": True}, "not applicable"),
        ({"psnr_db": 12.0, "floors": {"grey": 11.0, "class-mean": 12.0 + 1e-7}}, "gave up"),
        ({"psnr_db": 12.0, "floors": {"grey": 11.0, "class-mean": 12.001}}, "reconstructed"),
    ],
)
def test_outcomes_follow_from_what_schema_2_kept(change, outcome):
    value = old("update-matching")
    value["victims"][0] |= {"gradient_norm": 1.0, "loss": 0.1, "failed": False, "psnr_db": 20.0} | change
    assert upgrade.to_schema_3(value)["seeds"][0]["victims"][0]["outcome"] == outcome
    value["spec"]["attack"] = "grey"
    assert upgrade.to_schema_3(value)["seeds"][0]["victims"][0]["outcome"] == "reconstructed"


def test_an_upgraded_record_is_written_in_today_s_schema(tmp_path):
    path = tmp_path / "record.json"
    schema.write(read("decoder"), path)
    assert json.loads(path.read_text())["schema_version"] == 3
    assert schema.read(path) == read("decoder")


@pytest.mark.parametrize("lost", ["victims", "training", "knowledge", "spec"])
def test_a_damaged_record_of_schema_2_is_named(lost, tmp_path):
    value = old("decoder")
    del value[lost]
    (tmp_path / "record.json").write_text(json.dumps(value))
    with pytest.raises(UserError, match=r"record\.json is damaged") as caught:
        schema.read(tmp_path / "record.json")
    assert "\n" not in str(caught.value)
