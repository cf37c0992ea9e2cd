"""A cell whose attack states something of each client, from the command to its record and table."""

import dataclasses
import json
import shutil

import pytest
import torch

import privbench
from privbench.errors import AttackRefused, UserError
from privbench.execution import one_attack, reproduce
from privbench.records import schema
from privbench.records.schema import InferenceRecord
from privbench.records.store import Store
from privbench.scoring.statement_scores import total_variation
from privbench.types import Knowledge, Statements
from reports.documents import blocks
from reports.tables import inference_table
from tests.builders.records import with_knowledge
from tests.builders.small_artifacts import artifact, digits

NAME, QUESTION = "label-distribution", "label distribution"
OPTIONS = {
    "method": "fedsplit", "dataset": "digits", "preset": "smoke", "seeds": 1, "first_seed": 3, "omega": 0.5, "victims": 8,
}  # fmt: skip


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return privbench.attack(attack=[NAME, "grey"], out=tmp_path_factory.mktemp("runs"), **OPTIONS)


def test_an_inference_stands_beside_a_reconstruction(results):
    assert [r.attack for r in results] == ["grey", NAME]
    [inferred], [attacked] = results.inferred, results.attacked
    assert attacked.attack == "grey"
    assert inferred.question == QUESTION
    assert inferred.answers == inferred.class_names
    assert {path.name for path in results.folder.glob("*.md")} == {"table.md", "inference.md"}


def test_a_statement_is_scored_by_what_the_client_holds(results):
    [record] = results.inferred
    counts = torch.tensor(record.label_counts[0]).double()
    for each in record.statements:
        truth = counts[each.client] / counts[each.client].sum()
        assert each.true == pytest.approx(truth.tolist())
        assert each.score == pytest.approx(float(total_variation(torch.tensor(each.stated).double(), truth)))
        assert sum(each.stated) == pytest.approx(1)
    assert sum(each.uploads for each in record.statements) == OPTIONS["victims"]


def test_a_record_is_read_as_it_was_written(results, tmp_path):
    [record] = results.inferred
    schema.write(record, tmp_path / "record.json")
    assert schema.read(tmp_path / "record.json") == record
    assert isinstance(schema.read(tmp_path / "record.json"), InferenceRecord)


@pytest.mark.parametrize(
    ("place", "value"), [("question", "shoe size"), ("answers", ["one"]), ("floors", {}), ("stated", [1.0])]
)
def test_a_record_that_says_no_sound_statement_is_refused(results, tmp_path, place, value):
    [record] = results.inferred
    path = tmp_path / "record.json"
    schema.write(record, path)
    content = json.loads(path.read_text())
    holder = content if place in content else content["seeds"][0]["statements"][0]
    holder[place] = value
    content.pop("digest", None)
    with pytest.raises(UserError):
        schema.of_value(content, path)


def test_the_same_command_makes_nothing_again_and_a_lost_result_the_same_again(results, tmp_path):
    root = results.folder.parent
    shutil.copytree(root, tmp_path / "copy")
    store, [record] = Store(tmp_path / "copy"), results.inferred
    result, written = store.result(record.cell, 3), store.record(record.cell)
    before = written.read_bytes()
    again = privbench.attack(attack=NAME, out=store.root, **OPTIONS)
    assert written.read_bytes() == before
    result.unlink()
    written.unlink()
    again = privbench.attack(attack=NAME, out=store.root, **OPTIONS)
    assert again.inferred[0].statements == record.statements


def test_smoke_shows_no_score(results):
    [table] = inference_table.report(results.inferred).tables
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert row["score"] == row["floor"] == row["gain"] == "(smoke)"


def test_a_row_says_of_how_many_clients_an_answer_was_made_and_an_older_record_says_nothing(results):
    [record] = results.inferred
    clients = len(record.statements)
    assert record.knowledge.pools_clients == clients > 1
    older = with_knowledge(record, pools_clients=None)
    shown = [dict(zip(inference_table.COLUMNS, inference_table.row(r), strict=True)) for r in (record, older)]
    assert [row["attacker knows"] for row in shown] == [f"gradient; pools {clients} clients", "gradient"]
    assert "pools_clients" not in older.knowledge.model_dump()
    assert reproduce.unlike_records(older, record) == []


def test_a_tag_from_before_the_training_specification_was_named_is_shown_with_it(results):
    [record] = results.inferred
    needs = [*record.knowledge.needs, "specification"]
    older, newer = (
        with_knowledge(record, needs=needs, tag=tag, pools_clients=None)
        for tag in ("gradient", "gradient + training specification")
    )
    assert {inference_table.row(r)[2] for r in (older, newer)} == {"gradient + training specification"}
    assert reproduce.unlike_records(older, newer) == []
    assert reproduce.unlike_records(older, with_knowledge(newer, needs=["classes"])) != []


def test_a_published_ladder_shows_beneath_it_what_inferences_state(results):
    [inferred], attacked = results.inferred, results.attacked
    alone, both = blocks._ladder(attacked), blocks._ladder([inferred, *attacked])
    assert both.startswith(alone.rstrip())
    beneath = both.removeprefix(alone.rstrip())
    assert beneath.lstrip().startswith(f"## {inference_table.TITLE}\n")
    assert f"| FedSplit | {NAME} |" in beneath
    assert NAME not in alone


def test_a_row_whose_attacker_does_not_know_the_defence_is_named(results):
    [record] = results.inferred
    unknown = with_knowledge(record, not_modelled=["prune"])
    assert not any("does not know" in note for note in inference_table.report([record]).notes)
    (note,) = (note for note in inference_table.report([unknown]).notes if "does not know" in note)
    assert note.startswith(
        "FedSplit, label-distribution: this attacker does not know the defence (it has no form for: prune)"
    )


@dataclasses.dataclass(frozen=True)
class Says:
    """States whatever it was given."""

    needs = frozenset({"classes"})
    knowledge = "gradient"
    rung = "L2"
    question = QUESTION
    answers = None

    def infer(self, artifact, knowledge, seed, progress):
        """Ours."""
        assert artifact.gradients
        assert knowledge == Knowledge()
        return Statements(type(self).answers)


@pytest.mark.parametrize(
    "answers",
    [
        torch.full((2, 2), 0.5),
        torch.tensor([[0.5, 0.4]]),
        torch.tensor([[1.5, -0.5]]),
        torch.tensor([[torch.nan, 1.0]]),
    ],
)
def test_what_is_no_distribution_for_each_client_is_refused(monkeypatch, answers):
    seen, name = artifact(*digits(2)), f"{__name__}:Says"
    monkeypatch.setattr("privbench.registry.resolve", lambda kind, name: Says)
    monkeypatch.setattr(Says, "answers", torch.tensor([[0.25, 0.75]]))
    every = Knowledge(auxiliary=digits(4))
    place = torch.device("cpu")
    stated = one_attack.infer_from_artifact(name, {}, seen, every, 0, place, lambda *_: None)
    assert stated.answers.tolist() == [[0.25, 0.75]]
    monkeypatch.setattr(Says, "answers", answers)
    with pytest.raises(UserError, match="should"):
        one_attack.infer_from_artifact(name, {}, seen, every, 0, place, lambda *_: None)


def test_an_inference_reconstructs_no_image():
    with pytest.raises(AttackRefused, match="reconstructs no image"):
        one_attack.attack_artifact(NAME, {}, artifact(*digits(2)), Knowledge(), 0, torch.device("cpu"), lambda *_: None)
