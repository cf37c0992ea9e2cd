"""What the server sees: exactly the shared parts' gradients and uploads, after the defence."""

import dataclasses

import pytest
import torch

from privbench import presets, written_defense
from privbench.errors import UserError
from privbench.observation import artifact_files, chosen_victims, observe, other_images
from privbench.training import checkpoint, harness
from privbench.types import Artifact, LocalSteps
from tests.builders.federations import digits_federation, learn_round

CPU = torch.device("cpu")


ONE_STEP = LocalSteps(1, {"kind": "sgd", "lr": 0.1, "weight_decay": 0.0})


def seen(method, tmp_path, defense="none", victims=3, batch_size=1, labels_known=False, settings=None, **observed):
    each = presets.train_spec(
        "smoke", "digits", method, clients=2, changes={"rounds": 1}, method_settings=settings or {}
    )
    federation = digits_federation((20, 33))
    setup = harness.prepare(each, federation, CPU)
    state = harness.initial(setup)
    learn_round([setup], [state])
    checkpoint.save_snapshot(tmp_path, each, state)
    shot = checkpoint.load_snapshot(tmp_path, each.id, 1)
    observation = observe.observe(
        shot, federation, setup.model, setup.method, written_defense.create(defense, "step"), method_name=method, dataset="digits",
        victims=victims, batch_size=batch_size, labels_known=labels_known, seed=0, **observed,
    )  # fmt: skip
    return *observation, state, federation


@pytest.mark.parametrize(
    ("method", "gradients", "uploads", "served"),
    [
        ("fedavg", {"extractor", "classifier"}, set(), set()),
        ("fedprox", {"extractor", "classifier"}, set(), set()),
        ("feddf", {"extractor", "classifier"}, set(), set()),
        ("fedper", {"extractor"}, set(), set()),
        ("fedsplit", {"classifier"}, set(), set()),
        ("lg-fedavg", {"classifier"}, set(), set()),
        ("fedgen", {"classifier"}, set(), {"generator"}),
        ("fedcg", {"classifier"}, {"generator"}, set()),
        ("nfl-cgan", {"classifier"}, {"generator"}, set()),
        ("fedmd-cg", {"classifier"}, {"generator"}, set()),
    ],
)
def test_the_artifact_holds_what_the_method_shares_and_nothing_else(method, gradients, uploads, served, tmp_path):
    shown, _, state, federation = seen(method, tmp_path)
    assert set(shown.gradients) == gradients
    assert set(shown.uploads) == uploads
    assert set(shown.shared_parts) == gradients | uploads
    assert set(shown.weights) == gradients | uploads | served
    assert (shown.label_counts is not None) == (method == "fedmd-cg")
    if shown.label_counts is not None:
        labels = [client.train.labels.tolist() for client in federation.clients]
        assert shown.label_counts.tolist() == [[each.count(y) for y in range(10)] for each in labels]
    offered = {"gradient"} | {f"gradient:{p}" for p in gradients} | {f"upload:{p}" for p in uploads}
    offered |= {f"broadcast:{p}" for p in shown.weights} | ({"label_counts"} if method == "fedmd-cg" else set())
    offered |= {"classes"} if "classifier" in gradients else set()
    assert shown.offers() == offered
    private = {p for p in state.clients[0].params if p not in shown.shared_parts}
    secrets = [t for c in state.clients for p in private for t in c.params[p].values() if t.numel() > 10]
    visible = [
        t for group in (shown.gradients, shown.weights, shown.uploads) for p in group.values() for t in p.values()
    ]
    for secret in secrets:
        assert not any(secret.shape == t.shape[-secret.ndim :] and (t == secret).all() for t in visible)


def test_a_method_that_sends_nothing_cannot_be_attacked(tmp_path):
    with pytest.raises(UserError, match="nothing to attack"):
        seen("local", tmp_path)


def test_gradients_equal_a_plain_backward_pass_at_the_clients_own_extractor(tmp_path):
    shown, truth, state, _ = seen("fedsplit", tmp_path, batch_size=2)
    for v in range(shown.victims):
        client = state.clients[int(shown.client[v])]
        h, _ = shown.model.net("extractor").apply(client.params["extractor"], {}, truth.images[v], train=True)
        weights = {n: t.clone().requires_grad_() for n, t in state.server.params["classifier"].items()}
        logits, _ = shown.model.net("classifier").apply(weights, {}, h, train=True)
        torch.nn.functional.cross_entropy(logits, truth.labels[v]).backward()
        for name, t in weights.items():
            torch.testing.assert_close(shown.gradients["classifier"][name][v], t.grad)


def test_the_gradient_of_a_method_with_dropout_is_taken_with_a_mask_per_victim(tmp_path):
    shown, truth, state, _ = seen("nfl-cgan", tmp_path, victims=4)
    for v in range(4):
        gradient = {n: t[v] for n, t in shown.gradients["classifier"].items()}
        rows = gradient["fc1.weight"] / gradient["fc1.bias"][:, None]  # what entered the first layer, in every row
        extractor = state.clients[int(shown.client[v])].params["extractor"]
        h, _ = shown.model.net("extractor").apply(extractor, {}, truth.images[v], train=True)
        mask = rows[0].abs() > 1e-6
        assert 0.6 < mask.float().mean() < 0.95
        torch.testing.assert_close(rows[0], torch.where(mask, h.flatten() / 0.8, 0.0), rtol=1e-3, atol=1e-4)


def test_victims_are_training_images_of_their_client_and_the_same_for_every_method(tmp_path):
    shown, truth, _, federation = seen("fedavg", tmp_path, victims=4, batch_size=2)
    for v, k in enumerate(shown.client.tolist()):
        pool = (federation.clients[k].train.images / 255).flatten(1)
        for image in truth.images[v].flatten(1):
            assert (pool == image).all(1).any()
    _, other, _, _ = seen("fedcg", tmp_path, victims=4, batch_size=2)
    assert torch.equal(truth.images, other.images)


def test_auxiliary_images_are_disjoint_from_all_training_images():
    federation = digits_federation((20, 33))
    helpers = observe.auxiliary(federation)
    train = torch.cat([c.train.images for c in federation.clients]) / 255
    assert len(helpers.labels) == 20
    gaps = torch.cdist(helpers.images.flatten(1), train.flatten(1))
    assert gaps.min() > 0


def test_labels_are_shown_only_when_declared(tmp_path):
    hidden, truth, _, _ = seen("fedavg", tmp_path)
    assert hidden.labels is None
    assert "labels" not in hidden.offers()
    shown, _, _, _ = seen("fedavg", tmp_path, labels_known=True)
    assert torch.equal(shown.labels, truth.labels)


def test_the_variance_on_the_wire_is_the_variance_asked_for(tmp_path):
    clean, _, _, _ = seen("fedavg", tmp_path, victims=6)
    noisy, _, _, _ = seen("fedavg", tmp_path, defense="gaussian:0.1", victims=6)
    gaps = torch.cat(
        [(noisy.gradients[p][n] - clean.gradients[p][n]).flatten() for p in clean.gradients for n in clean.gradients[p]]
    )
    assert gaps.numel() > 300_000
    assert gaps.var().item() == pytest.approx(0.1, rel=0.01)
    assert abs(gaps.mean().item()) < 0.002
    assert not torch.equal(gaps[:400], gaps[400:800])
    assert noisy.defense == {"name": "gaussian", "variance": 0.1, "where": "step"}


@pytest.mark.parametrize("local", [None, ONE_STEP], ids=["gradients", "updates"])
def test_what_is_sent_for_another_purpose_has_a_noise_of_its_own(local, tmp_path):
    """Even of the same images: who knows one could take the noise off otherwise, and rounds would share theirs."""

    def sent(named):
        of = chosen_victims.choose_victims(digits_federation((20, 33)), 3, 1, 0)._replace(named=named)
        shown = seen("fedavg", tmp_path, "gaussian:0.1", chosen=of, local=local)[0]
        return (shown.gradients if local is None else shown.updates)["classifier"]["fc1.weight"]

    assert torch.equal(sent("victims"), sent("victims"))
    gap = sent("victims") - sent(other_images.KNOWN)
    # Of two noises of variance 0.1, on a step of the rate 0.1 where they enter the steps.
    scale = 1 if local is None else 0.1
    assert gap.var().item() == pytest.approx(2 * 0.1 * scale**2, rel=0.02)


def test_an_update_by_a_loss_on_imitated_features_says_how_many_a_step_takes(tmp_path):
    for loss, imitated in (("classification", 0), ("task", 2)):
        for local in (None, ONE_STEP):
            shown = seen("fedgen", tmp_path, batch_size=2, settings={"observe_loss": loss}, local=local)[0]
            assert shown.imitated == imitated


def test_too_many_victims_for_a_client_are_refused(tmp_path):
    with pytest.raises(UserError, match="lower --victims or --batch-size"):
        seen("fedavg", tmp_path, victims=50)


def test_an_artifact_survives_the_disk(tmp_path):
    shown, truth, _, _ = seen("fedmd-cg", tmp_path, labels_known=True)
    artifact_files.save(shown, tmp_path / "a")
    artifact_files.save_truth(truth, tmp_path / "t.safetensors", tmp_path / "a")
    read = artifact_files.load(tmp_path / "a")
    for field in dataclasses.fields(Artifact):
        written, reread = getattr(shown, field.name), getattr(read, field.name)
        if field.name in artifact_files.GROUPS:
            assert {p: set(t) for p, t in written.items() if t} == {p: set(t) for p, t in reread.items()}
            assert all(torch.equal(written[p][n], reread[p][n]) for p in written for n in written[p])
        elif isinstance(written, torch.Tensor):
            assert torch.equal(written, reread)
        else:
            assert written == reread
    again = artifact_files.load_truth(tmp_path / "t.safetensors", tmp_path / "a")
    assert torch.equal(again.images, truth.images)


def test_an_artifact_whose_gradients_do_not_fit_its_networks_is_refused(tmp_path):
    shown, _, _, _ = seen("fedsplit", tmp_path)
    broken = {"classifier": shown.gradients["classifier"] | {"fc3.bias": torch.zeros(3, 9)}}
    with pytest.raises(UserError, match=r"gradient of classifier.fc3.bias should have shape \(3, 10\)"):
        artifact_files.save(dataclasses.replace(shown, gradients=broken), tmp_path / "a")


def test_a_truth_is_no_artifact_and_that_of_another_is_refused(tmp_path):
    shown, truth, _, _ = seen("fedavg", tmp_path)
    artifact_files.save(shown, tmp_path / "a")
    artifact_files.save_truth(truth, tmp_path / "t.safetensors", tmp_path / "a")
    with pytest.raises(UserError, match="is no folder"):
        artifact_files.load(tmp_path / "t.safetensors")
    other = dataclasses.replace(shown, round=shown.round + 1)
    artifact_files.save(other, tmp_path / "b")
    with pytest.raises(UserError, match=r"t.safetensors is the truth of another observation than .*/b"):
        artifact_files.load_truth(tmp_path / "t.safetensors", tmp_path / "b")
