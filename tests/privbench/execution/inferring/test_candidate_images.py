"""Which images an inference is asked about, and that the answer is the score's alone."""

import dataclasses

import pytest
import torch

import privbench
from privbench import data, presets
from privbench.data import partition
from privbench.errors import AttackRefused, UserError
from privbench.execution import generator_scores, one_attack
from privbench.execution.inferring import candidate_images
from privbench.observation import chosen_victims, knowledge
from privbench.records.store import Store
from privbench.scoring.statement_scores import of_membership
from privbench.types import Candidates, Knowledge, Statements
from reports.records.number_text import range_text
from reports.tables import inference_table
from reports.tables.inferences import membership_rows
from tests.builders.federations import digits_federation
from tests.builders.small_artifacts import artifact, digits


@pytest.fixture(scope="module")
def federation():
    return digits_federation((40, 30))


def asked_of(federation, victims=4):
    chosen = chosen_victims.choose_victims(federation, victims, 1, 0)
    return candidate_images.choose(federation, chosen, 3, 32), chosen


def stored(images):
    return knowledge.digests([(255 * images).round().to(torch.uint8)])


def test_half_of_the_candidates_are_a_clients_and_the_others_nobodys(federation):
    (candidates, members), victims = asked_of(federation)
    trained_on = [knowledge.digests([client.train.images]) for client in federation.clients]
    others = knowledge.digests([client.test.images for client in federation.clients])
    for k in range(2):
        inside, outside = (stored(candidates.images[k][mask]) for mask in (members[k], ~members[k]))
        assert len(inside) == len(outside) == members.shape[1] // 2
        assert inside <= trained_on[k]
        assert outside <= others - trained_on[0] - trained_on[1]
        assert not inside & stored(victims.images[victims.clients == k].flatten(0, 1))


def test_where_test_images_are_unlike_training_images_others_are_held_out_training_images(federation):
    (_, members), _ = asked_of(federation)
    (candidates, again), _ = asked_of(federation._replace(test_alike=False))
    assert members.shape[0] == again.shape[0] == 2
    held_out = knowledge.digests([federation.public.images])
    for images, inside in zip(candidates.images, again, strict=True):
        assert stored(images[~inside]) <= held_out
    # More images of each client would leave fewer that none has.
    with pytest.raises(UserError, match=r"no training image.*lower --victims, or lower --per-client"):
        asked_of(federation._replace(test_alike=False, public=None))


def test_a_server_that_trains_on_what_is_held_out_is_not_asked_of_it(federation):
    train = presets.train_spec("smoke", "photos", "feddf")
    cell = presets.cell_spec("smoke", train, "membership-inference")
    with pytest.raises(UserError, match="feddf distils on these"):
        candidate_images.of_cell(cell, train, federation._replace(test_alike=False), 0)


def test_others_of_photos_are_crops_of_the_strips_that_train():
    """No image is of a strip that only test crops are of: a reader of borders alone would know it."""
    photos = partition.federate(data.load("photos", None), clients=4, per_client=40, how="iid", seed=0)
    assert not photos.test_alike
    whole = data.load("photos", None).domains["all"].train.images
    assert knowledge.digests([generator_scores.non_members(photos, 0).images]) < knowledge.digests([whole])


def test_data_sets_whose_test_images_are_unlike_are_those_of_the_revision():
    """presets.py names them, as it loads no data; every other embedded data set says the reverse."""
    embedded = ("digits", "digits4", "photos", "glyphs")
    assert {name for name in embedded if not data.load(name, None).test_alike} == set(presets.TEST_UNLIKE)


def test_the_class_of_a_candidate_tells_nothing(federation):
    (candidates, members), _ = asked_of(federation)
    for labels, inside in zip(candidates.labels, members, strict=True):
        assert torch.equal(labels[inside].sort().values, labels[~inside].sort().values)


def test_the_place_of_a_candidate_tells_nothing_and_is_drawn_by_the_seed(federation):
    (candidates, members), victims = asked_of(federation)
    again = candidate_images.choose(federation, victims, 3, 32)
    other = candidate_images.choose(federation, victims, 4, 32)
    assert torch.equal(candidates.images, again.candidates.images)
    assert torch.equal(members, again.members)
    assert not torch.equal(members, other.members)
    half = members.shape[1] // 2
    assert 0 < int(members[:, :half].sum()) < 2 * half


def test_a_client_without_a_pair_is_refused(federation):
    def of_class(images, label):
        return images._replace(labels=torch.full_like(images.labels, label))

    clients = [c._replace(train=of_class(c.train, 1), test=of_class(c.test, 2)) for c in federation.clients]
    apart = federation._replace(clients=tuple(clients))
    with pytest.raises(UserError, match=r"no training image.*lower --victims, and raise --per-client"):
        asked_of(apart)


def test_clients_of_tasks_are_refused(federation):
    train = presets.train_spec("smoke", "digits", "reptile")
    cell = presets.cell_spec("smoke", train, "membership-inference")
    with pytest.raises(UserError, match="trains on tasks"):
        candidate_images.of_cell(cell, train, federation, 0)


@dataclasses.dataclass(frozen=True)
class Says:
    """States whatever it was given."""

    needs = frozenset({"candidates"})
    knowledge = "candidates"
    rung = "L2"
    question = "membership"
    answers = None

    def infer(self, artifact, knowledge, seed, progress):
        """Ours."""
        return Statements(type(self).answers)


@pytest.mark.parametrize(
    "answers", [torch.tensor([[0.5, 1.1]]), torch.tensor([[0.5, torch.nan]]), torch.tensor([[0.5]])]
)
def test_what_is_no_probability_of_each_candidate_is_refused(monkeypatch, answers):
    seen, name = artifact(*digits(2)), f"{__name__}:Says"
    monkeypatch.setattr("privbench.registry.resolve", lambda kind, name: Says)
    monkeypatch.setattr(Says, "answers", torch.tensor([[1.0, 0.75]]))
    every = Knowledge(candidates=Candidates(torch.zeros(1, 2, 1, 32, 32), torch.zeros(1, 2, dtype=torch.long)))
    arguments = {}, seen, every, 0, torch.device("cpu"), lambda *_: None
    assert one_attack.infer_from_artifact(name, *arguments).answers.tolist() == [[1.0, 0.75]]
    monkeypatch.setattr(Says, "answers", answers)
    with pytest.raises(UserError, match="should state"):
        one_attack.infer_from_artifact(name, *arguments)


def test_an_artifact_alone_has_no_candidates():
    needs = frozenset({"candidates"})
    with pytest.raises(UserError, match="attack a run of your own"):
        knowledge.only(needs, Knowledge(), "membership")
    with pytest.raises(AttackRefused):
        one_attack.infer_from_artifact(
            "membership-inference", {}, artifact(*digits(2)), Knowledge(), 0, torch.device("cpu"), lambda *_: None
        )


def test_the_score_is_the_share_of_pairs_in_the_right_order():
    stated = torch.tensor([[0.9, 0.4, 0.4, 0.1]], dtype=torch.float64)
    asked = Candidates(torch.tensor([1.0, 1.0, 0.0, 0.0])[None, :, None, None, None], torch.zeros(1, 4).long())
    [scored] = of_membership(stated, asked, torch.tensor([[True, True, False, False]]))
    assert scored.score == (1 + 1 + 0.5 + 1) / 4
    assert scored.true == [1.0, 1.0, 0.0, 0.0]
    # Members are white and the others black, which needs no network.
    assert scored.floors == {"chance": 0.5, "blind": 1.0}


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    results = privbench.attack(
        attack="membership-inference", method="fedavg", dataset="digits", preset="smoke", backbone="mlp", seeds=1, first_seed=3,
        victims=4, clients=2, out=tmp_path_factory.mktemp("runs"),
    )  # fmt: skip
    [record] = results.inferred
    return record, results.folder.parent


def test_a_record_has_the_probability_of_every_candidate_and_whether_it_was_a_member(record):
    record, root = record
    assert record.question == "membership"
    assert record.answers == ["member"]
    for each in record.statements:
        assert len(each.stated) == len(each.true) > 2
        assert sum(each.true) == len(each.true) / 2
    assert Store(root).record(record.cell).is_file()


def with_statements(record, statements, preset="quick"):
    seeds = [record.seeds[0].model_copy(update={"statements": statements})]
    return record.model_copy(update={"seeds": seeds, "cell": record.cell.model_copy(update={"preset": preset})})


def test_a_row_has_area_accuracy_and_the_rate_at_few_false_positives(record):
    record, _ = record
    # Of 100 members 40 above all others, 20 among them and 40 below; as many others.
    stated = [0.9] * 40 + [0.6] * 20 + [0.2] * 40 + [0.6] * 50 + [0.3] * 50
    true = [1.0] * 100 + [0.0] * 100
    one = record.statements[0].model_copy(update={"stated": stated, "true": true, "score": 0.55})
    two = one.model_copy(update={"client": 1})
    recognised = with_statements(record, [one, two])
    row = dict(zip(membership_rows.COLUMNS, membership_rows.row(recognised), strict=True))
    assert row["balanced accuracy, %"].startswith("55.0 ")
    assert row["TPR at 1% FPR, %"].startswith("40.0 ")
    # Above 10 of the 100 others there are no more members: half of the others stand beside the next 20.
    assert row["TPR at 10% FPR, %"].startswith("40.0 ")
    assert "provable from 20.0" in row["TPR at 10% FPR, %"]
    assert row["clients recognised"] == "2 of 2"
    assert row["AUC"].replace("*", "").startswith("0.550 ")
    assert "provable from 7.0" in row["TPR at 1% FPR, %"]
    area = membership_rows.mean(recognised, membership_rows.auc)
    assert range_text(area, digits=3) in row["AUC"]
    report = inference_table.report([recognised])
    assert [table.columns for table in report.tables] == [membership_rows.COLUMNS]
    assert any("100 training images of each client" in note for note in report.notes)


def test_an_area_is_above_every_floor_or_not_bold(record):
    """Of members that a classifier of pixels recognises as well, the area says nothing, and the table says so."""
    record, _ = record
    stated, true = [0.9] * 90 + [0.1] * 10 + [0.9] * 10 + [0.1] * 90, [1.0] * 100 + [0.0] * 100
    one = record.statements[0].model_copy(update={"stated": stated, "true": true, "score": 0.9})

    def table(floors):
        each = [one.model_copy(update={"seed": seed, "floors": floors}) for seed in range(5)]
        shown = with_statements(record, each)
        return dict(zip(membership_rows.COLUMNS, membership_rows.row(shown), strict=True)), membership_rows.how([shown])

    unlike = "differ from the others without any network, so"
    for floors, bold, blind, said in (
        # A record from before the blind area was measured.
        ({"chance": 0.5}, False, "-", False),
        ({"chance": 0.5, "blind": 0.5}, True, "0.500 ", False),
        ({"chance": 0.5, "blind": 0.9}, False, "0.900 ", True),
    ):
        row, notes = table(floors)
        assert row["AUC"].startswith("**") == bold
        assert row["blind AUC"].startswith(blind)
        assert any(unlike in note for note in notes) == said
        assert len(membership_rows.how([recognised := with_statements(record, [one]), recognised])) == len(
            membership_rows.how([recognised])
        )


def test_smoke_shows_no_score(record):
    row = dict(zip(membership_rows.COLUMNS, membership_rows.row(record[0]), strict=True))
    assert {row[name] for name in membership_rows.SCORED} == {"(smoke)"}
