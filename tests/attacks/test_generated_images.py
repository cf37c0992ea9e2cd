"""Attacks on a method that sends generators alone: what is observed of which round, files, and the one attack that applies."""

import json
from dataclasses import replace

import pytest
import torch

from attacks.generated_images import ANY, GeneratedImages, generated
from privbench import presets, registry
from privbench.errors import AttackRefused, UserError
from privbench.execution import applicability, one_attack, preconditions
from privbench.observation import artifact_files, chosen_victims, observe
from privbench.observation.format.schema import Messages
from privbench.records import victims
from privbench.records.store import Store
from privbench.training import checkpoint, harness
from privbench.types import Knowledge
from tests.builders.federations import digits_federation

CPU = torch.device("cpu")
SIZES = (20, 31, 26)
MASKS = "secure-aggregation:masks"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Defence -> (folder, set-up) of a run of three rounds, with a snapshot of each."""
    made = {}
    for defense in ("none", MASKS):
        folder = tmp_path_factory.mktemp("runs")
        spec = presets.train_spec(
            "smoke", "digits", "secure-gan", clients=3, defense=defense, changes={"rounds": 3, "batch": 32}
        )
        setup = harness.prepare(spec, digits_federation(SIZES), CPU)
        state = harness.initial(setup)
        for _ in range(3):
            harness.train_round([setup], [state], "alone")
            checkpoint.save_snapshot(folder, spec, state)
        made[defense] = (folder, setup)
    return made


def seen(runs, round_, defense="none", *, labels=False, batch=1, number=4):
    """(artifact, truth, snapshot) after a round."""
    folder, setup = runs[defense]
    shot = checkpoint.load_snapshot(folder, setup.spec.id, round_)
    pair = observe.observe(
        shot, setup.federation, setup.model, setup.method, setup.defense, method_name="secure-gan", dataset="digits",
        victims=number, batch_size=batch, labels_known=labels, seed=0,
    )  # fmt: skip
    return *pair, shot


def same(parts, other):
    return all(torch.equal(t, other[part][n]) for part, net in parts.items() for n, t in net.items())


def test_in_the_first_round_the_server_sees_every_generator(runs):
    artifact, truth, shot = seen(runs, 1)
    assert artifact.upload_client.tolist() == [0, 1, 2]
    assert artifact.client.tolist() == artifact.upload_of.tolist() == [0, 1, 2, 0]
    for k in range(3):
        row = {"generator": {n: t[k] for n, t in artifact.uploads["generator"].items()}}
        assert same(row, shot.uploads[k][0])
    assert artifact.gradients == artifact.updates == {}
    assert artifact.offers() == observe.offers(runs["none"][1].method) == {"upload:generator", "broadcast:generator"}
    assert truth.images.shape == (4, 1, 1, 32, 32)


@pytest.mark.parametrize("defense", ["none", MASKS])
def test_in_later_rounds_there_is_one_message_and_its_victims_are_its_sender_s(runs, defense):
    for round_, turn in ((2, 0), (3, 1)):
        artifact, truth, shot = seen(runs, round_, defense)
        assert artifact.upload_client.tolist() == [turn]
        assert artifact.client.tolist() == [turn] * 4
        assert artifact.upload_of.tolist() == [0] * 4
        assert artifact.member_weights is None
        row = {"generator": {n: t[0] for n, t in artifact.uploads["generator"].items()}}
        assert same(row, shot.uploads[turn][0])
        assert same(row, shot.server.params)
        own = runs["none"][1].federation.clients[turn].train.images
        for image in truth.images[:, 0]:
            assert any(torch.equal(image, (x.float() / 255)) for x in own)


def test_a_sum_is_the_mean_generator_of_all_and_a_victim_an_image_of_each(runs):
    artifact, truth, shot = seen(runs, 1, MASKS, number=2)
    assert artifact.upload_client is None
    assert artifact.members.all()
    assert artifact.member_weights.shape == (2, 3)
    assert artifact.batch_size == 3
    assert truth.images.shape == (2, 3, 1, 32, 32)
    for name, t in artifact.uploads["generator"].items():
        assert len(t) == 1
        mean = sum(n * u[0]["generator"][name].double() for n, u in zip(SIZES, shot.uploads, strict=True)) / sum(SIZES)
        torch.testing.assert_close(t[0].double(), mean, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("round_", "defense"), [(1, "none"), (3, "none"), (1, MASKS)])
def test_files_give_the_same_artifact_and_truth_back(runs, round_, defense, tmp_path):
    artifact, truth, _ = seen(runs, round_, defense, labels=True)
    artifact_files.save(artifact, tmp_path / "observation")
    artifact_files.save_truth(truth, tmp_path / "truth.safetensors", tmp_path / "observation")
    (table,) = json.loads((tmp_path / "observation" / "index.json").read_text())["rounds"][0]["messages"]
    assert table["kind"] == "weights"
    assert (
        table["members"] == {(1, "none"): [[0], [1], [2]], (3, "none"): [[1]], (1, MASKS): [[0, 1, 2]]}[round_, defense]
    )
    assert table["victims"] == artifact.upload_of.tolist()
    back = artifact_files.load(tmp_path / "observation")
    for group in ("uploads", "upload_buffers", "weights", "buffers"):
        assert same(getattr(artifact, group), getattr(back, group))
    for name in ("client", "labels", "member_weights", "upload_client", "upload_of"):
        one, other = getattr(artifact, name), getattr(back, name)
        assert (one is None and other is None) or torch.equal(one, other)
    assert (back.gradients, back.updates, back.batch_size) == ({}, {}, artifact.batch_size)
    assert torch.equal(
        artifact_files.load_truth(tmp_path / "truth.safetensors", tmp_path / "observation").images, truth.images
    )


def test_files_whose_victims_are_of_no_message_are_refused(runs, tmp_path):
    artifact, *_ = seen(runs, 3)
    artifact.upload_client.fill_(2)
    artifact.client.fill_(2)
    artifact_files.save(artifact, tmp_path / "observation")
    fields = {"name": "weights", "kind": "weights", "members": [[0], [1]], "local": None, "imitated": 0}
    Messages(**fields, batch_size=1, victims=[1, 0, 1])
    for wrong in (
        {"batch_size": 1, "victims": [2]}, {"batch_size": None, "victims": [0]}, {"batch_size": 1, "victims": []},
        {"batch_size": 1, "victims": [0], "kind": "gradient"}, {"batch_size": 1},
    ):  # fmt: skip
        with pytest.raises(ValueError, match="Messages"):
            Messages(**fields | wrong)


def test_the_mean_of_what_the_victim_s_generator_makes_is_returned(runs):
    artifact, *_ = seen(runs, 1, labels=True)
    reconstruction = one_attack.attack_artifact("generated-images", {"draws": 64}, artifact, Knowledge(), 5, CPU, print)
    for v in range(4):
        images = generated(artifact, int(artifact.client[v]), int(artifact.labels[v, 0]), 64, 5)
        torch.testing.assert_close(reconstruction.images[v, 0], images.mean(0))
    assert torch.equal(reconstruction.labels, artifact.labels)
    # A victim's class and client decide; nothing else of it does.
    swapped = artifact.labels.flip(0)
    other = GeneratedImages(64).reconstruct(replace(artifact, labels=swapped), Knowledge(), 5)
    assert not torch.equal(other.images[0], reconstruction.images[0])
    medoid = GeneratedImages(64, "medoid").reconstruct(artifact, Knowledge(), 5).images[0, 0]
    images = generated(artifact, 0, int(artifact.labels[0, 0]), 64, 5)
    gaps = (images - images.mean(0)).square().flatten(1).sum(1)
    assert torch.equal(medoid, images[gaps.argmin()])


def test_without_labels_all_classes_take_turns(runs):
    artifact, *_ = seen(runs, 3)
    reconstruction = GeneratedImages(50).reconstruct(artifact, Knowledge(), 5)
    assert (reconstruction.labels == ANY).all()
    assert torch.equal(reconstruction.images[0], reconstruction.images[3])
    torch.testing.assert_close(reconstruction.images[0, 0], generated(artifact, 0, ANY, 50, 5).mean(0))
    # So early all that it makes is grey; a generator of more contrast makes a picture.
    assert victims.outcomes(artifact, reconstruction, is_floor=False) == ["gave up"] * 4
    net = artifact.uploads["generator"]
    artifact = replace(artifact, uploads={"generator": net | {"up2.weight": 1000 * net["up2.weight"]}})
    reconstruction = GeneratedImages(50).reconstruct(artifact, Knowledge(), 5)
    assert victims.outcomes(artifact, reconstruction, is_floor=False) == ["reconstructed"] * 4


def test_the_norm_of_what_was_observed_is_that_of_the_sender_s_generator(runs):
    artifact, _, shot = seen(runs, 1)
    norms = [torch.cat([t.flatten() for t in u[0]["generator"].values()]).double().norm() for u in shot.uploads]
    torch.testing.assert_close(victims.gradient_norms(artifact), torch.stack(norms)[[0, 1, 2, 0]])


def test_attacks_on_gradients_are_refused_with_the_way_out(runs):
    artifact, *_ = seen(runs, 3)
    with pytest.raises(AttackRefused, match=r"shares only \[generator\]; try --attack generated-images"):
        one_attack.attack_artifact("dlg", {}, artifact, Knowledge(), 5, CPU, print)
    limits = applicability.of(GeneratedImages)
    cell = presets.cell_spec("smoke", presets.train_spec("smoke", "digits", "fedcg"), "generated-images")
    assert "that of fedcg makes features" in applicability.exceeded("generated-images", limits, cell)


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        ({"round_": "0"}, "none before round 1; attack a later round than 0"),
        ({"observe": "update"}, "leave out --observe update"),
        (
            {"victims": 40, "round_": "2"},
            "but client 1, which alone is attacked in a round of its own, has 32 training images",
        ),
    ],
)
def test_what_cannot_be_attacked_is_refused_before_training(chosen, says, tmp_path):
    train = presets.train_spec("smoke", "digits", "secure-gan", clients=2)
    cell = presets.cell_spec("smoke", train, "generated-images", **chosen)
    (reason,) = preconditions.impossible(Store(tmp_path), [cell], None, workers=1).values()
    assert says in reason
    assert "\n" not in reason
    with pytest.raises(UserError, match="sends nothing"):
        chosen_victims.check_sent("local", registry.create(registry.resolve("method", "local"), {}))
