"""What attackers know besides the artifact: from the run, never from the victims, and only when asked for."""

import pytest
import torch

from privbench import presets, spec
from privbench.data import auxiliary_choice
from privbench.errors import UserError
from privbench.observation import knowledge, observe
from privbench.training import checkpoint, harness
from privbench.training.state import Replica
from privbench.types import Images, Knowledge
from tests.builders.federations import digits_federation

SHAPE = (1, 32, 32)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A FedSplit run of one round with its federation: (setup, state at the start, snapshot after the round, artifact)."""
    folder = tmp_path_factory.mktemp("fedsplit")
    each = presets.train_spec("smoke", "digits", "fedsplit", clients=3, changes={"rounds": 1})
    setup = harness.prepare(each, digits_federation((20, 20, 20)), CPU)
    start, state = harness.initial(setup), harness.initial(setup)
    harness.train_round([setup], [state], "alone")
    checkpoint.save_snapshot(folder, each, state)
    shot = checkpoint.load_snapshot(folder, each.id, 1)
    seen, _ = observe.observe(
        shot, setup.federation, setup.model, setup.method, setup.defense, method_name="fedsplit", dataset="digits",
        victims=5, batch_size=1, labels_known=False, seed=0,
    )  # fmt: skip
    return setup, start, shot, seen


def test_the_default_is_all_validation_images():
    federation = digits_federation()
    auxiliary, info = knowledge.auxiliary(federation, "same", None, SHAPE, 0)
    plain = observe.auxiliary(federation)
    assert torch.equal(auxiliary.images, plain.images)
    assert torch.equal(auxiliary.labels, plain.labels)
    assert info == {
        "dataset": "same",
        "share": 1.0,
        "images": 20,
        "labels": "by name",
        "left_out_as_training_images": 0,
    }


def test_a_share_is_a_part_of_the_whole_and_the_same_again():
    whole, _ = knowledge.auxiliary(digits_federation(), "digits", None, SHAPE, 0)
    small, info = knowledge.auxiliary(digits_federation(), "digits:0.1", None, SHAPE, 0)
    again, _ = knowledge.auxiliary(digits_federation(), "digits:0.1", None, SHAPE, 0)
    other, _ = knowledge.auxiliary(digits_federation(), "digits:0.1", None, SHAPE, 1)
    assert len(small.labels) == info["images"] == round(0.1 * len(whole.labels))
    assert torch.equal(small.images, again.images)
    assert not torch.equal(small.images, other.images)
    everything = {image.numpy().tobytes() for image in whole.images}
    assert all(image.numpy().tobytes() in everything for image in small.images)


def test_a_training_image_in_the_auxiliary_set_is_left_out_by_its_content():
    federation = digits_federation((20, 20))
    first, second = federation.clients
    planted = Images(
        torch.cat([second.train.images[3:5], first.validation.images]),
        torch.cat([second.train.labels[3:5], first.validation.labels]),
    )
    federation = federation._replace(clients=(first._replace(validation=planted), second))
    auxiliary, info = knowledge.auxiliary(federation, "same", None, SHAPE, 0)
    assert info["left_out_as_training_images"] == 2
    training = {(i / 255).numpy().tobytes() for c in federation.clients for i in c.train.images}
    assert not training & {image.numpy().tobytes() for image in auxiliary.images}
    assert len(auxiliary.labels) == 20


def test_classes_of_another_data_set_are_matched_by_name_else_by_position():
    federation = digits_federation()
    _, info = knowledge.auxiliary(federation, "digits", None, SHAPE, 0)
    assert info["labels"] == "by name"
    renamed = federation._replace(classes=tuple("9876543210"))
    (plain, _), (turned, _) = (knowledge.auxiliary(f, "digits", None, SHAPE, 0) for f in (federation, renamed))
    assert torch.equal(turned.labels, 9 - plain.labels)
    strange = federation._replace(classes=tuple("abcdefghijk"))
    auxiliary, info = knowledge.auxiliary(strange, "digits", None, SHAPE, 0)
    assert info["labels"] == "by position"
    assert torch.equal(auxiliary.labels, plain.labels)


@pytest.mark.parametrize(
    ("choice", "shape", "message"),
    [
        ("digits:0", SHAPE, "a share above 0 and up to 1, e.g. digits:0.1, not 'digits:0'"),
        ("digits:nan", SHAPE, "a share above 0 and up to 1"),
        ("digist", SHAPE, "unknown dataset 'digist'; did you mean 'digits'"),
        ("photos", SHAPE, "auxiliary images of photos have 3 channels, but the victims' have 1"),
    ],
)
def test_a_wrong_choice_gets_one_line(choice, shape, message):
    with pytest.raises(UserError, match=message) as caught:
        knowledge.auxiliary(digits_federation(), choice, None, shape, 0)
    assert "\n" not in str(caught.value)


def test_more_classes_than_the_victims_have_are_refused():
    federation = digits_federation()._replace(classes=("a", "b"))
    with pytest.raises(UserError, match="digits has 10 classes, more than the 2"):
        knowledge.auxiliary(federation, "digits", None, SHAPE, 0)


def test_a_choice_is_part_of_a_cells_name_and_the_default_is_not():
    train = presets.train_spec("quick", "digits", "fedsplit")
    plain = presets.cell_spec("quick", train, "staged")
    assert "auxiliary" not in plain.model_dump()
    other = presets.cell_spec("quick", train, "staged", auxiliary="digits:0.1")
    assert other.id != plain.id
    assert spec.checked(spec.CellSpec, other.model_dump(mode="json")) == other
    assert auxiliary_choice.canonical("digits:1") == auxiliary_choice.canonical("digits:1.0") == "digits"
    assert auxiliary_choice.canonical("same:0.10") == "same:0.1"


def test_the_initial_networks_are_those_that_every_client_started_with(trained):
    _, start, _, _ = trained
    whole = Replica(start.clients[0].params | start.server.params, start.clients[0].buffers)
    initial = knowledge.initial(Replica(whole.params, whole.buffers | start.server.buffers))
    for k in range(3):
        for name, t in start.clients[k].params["extractor"].items():
            assert torch.equal(initial.params["extractor"][name], t)
    assert set(initial.params) == {"extractor", "classifier"}


def test_the_oracle_is_the_victims_client_and_the_colluder_never_is(trained):
    setup, _, shot, seen = trained
    oracle, colluder = knowledge.oracle(shot, seen), knowledge.colluder(shot, seen, setup.federation)
    assert set(oracle) == set(colluder) == set(seen.client.tolist()) == {0, 1, 2}
    for k in range(3):
        weight = shot.clients[k].params["extractor"]["conv1.weight"]
        assert torch.equal(oracle[k].params["extractor"]["conv1.weight"], weight)
        assert not torch.equal(colluder[k].params["extractor"]["conv1.weight"], weight)
        shared = shot.server.params["classifier"]["fc1.weight"]
        assert torch.equal(oracle[k].params["classifier"]["fc1.weight"], shared)


def test_a_colluder_hands_over_its_training_images_but_none_of_the_attacked_clients(trained):
    setup, _, shot, seen = trained
    clients = list(setup.federation.clients)
    shared = clients[0].train._replace(**{n: t[:2] for n, t in clients[0].train._asdict().items()})
    colluders_images = clients[1].train
    both = Images(
        torch.cat([colluders_images.images, shared.images]), torch.cat([colluders_images.labels, shared.labels])
    )
    clients[1] = clients[1]._replace(train=both)
    colluders = knowledge.colluder(shot, seen, setup.federation._replace(clients=tuple(clients)))
    torch.testing.assert_close(colluders[0].images.images, colluders_images.images.float() / 255)
    assert torch.equal(colluders[0].images.labels, colluders_images.labels)
    assert len(colluders[1].images.labels) == len(clients[2].train.labels)
    attacked = knowledge.digests([clients[0].train.images])
    assert not attacked & knowledge.digests([(255 * colluders[0].images.images).round().to(torch.uint8)])


def test_a_federation_of_one_has_no_colluder(trained):
    _, _, shot, seen = trained
    assert knowledge.colluder(shot._replace(clients=shot.clients[:1]), seen, digits_federation()) is None
    with pytest.raises(UserError, match="attack a run with more clients"):
        knowledge.only(frozenset({"colluder"}), Knowledge(), "collusion")


def test_what_is_not_asked_for_is_withheld(trained, tmp_path):
    setup, _, shot, seen = trained
    federation = setup.federation
    whole = Knowledge(
        auxiliary=observe.auxiliary(federation), initial=knowledge.of_client(shot, 0),
        colluder=knowledge.colluder(shot, seen, federation), oracle=knowledge.oracle(shot, seen), cache=tmp_path,
        sent={}, known=object(), rounds=(seen,), candidates=object(), domains=object(), specification={},
    )  # fmt: skip
    assert knowledge.only(frozenset({"gradient:classifier"}), whole, "dlg") == Knowledge()
    for field in knowledge.FIELDS:
        handed = knowledge.only(frozenset({field, "gradient:classifier"}), whole, "mine")
        assert getattr(handed, field) is getattr(whole, field)
        others = [getattr(handed, other) for other in knowledge.FIELDS if other != field]
        assert others == [None] * (len(knowledge.FIELDS) - 1)
        assert handed.cache == (tmp_path if field == "auxiliary" else None)
