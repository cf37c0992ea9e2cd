"""What a server sees under secure aggregation: one sum a round over all clients, its members and weights, on disk too."""

import json

import pytest
import torch

from privbench import presets, registry
from privbench.errors import AttackRefused, UserError
from privbench.execution import applicability, attack_cell, one_attack
from privbench.methods.base import RoundClock
from privbench.observation import artifact_files, chosen_victims, knowledge, observe
from privbench.observation.format import files
from privbench.scoring import image_scores
from privbench.system import index_files
from privbench.training import checkpoint, harness
from privbench.types import Knowledge, LocalSteps, Reconstruction
from tests.builders.federations import digits_federation, learn_round

CPU = torch.device("cpu")
SIZES = (20, 31, 26)
SGD = LocalSteps(2, {"kind": "sgd", "lr": 0.1, "weight_decay": 0.0})


def seen(folder, method="fedavg", defense="secure-aggregation", *, victims=2, batch=1, local=None, **settings):
    """(artifact, truth, snapshot, set-up) after one round."""
    spec = presets.train_spec(
        "smoke", "digits", method, clients=len(SIZES), defense=defense, method_settings=settings or None,
        changes={"rounds": 1, "local_epochs": 1},
    )  # fmt: skip
    federation = digits_federation(SIZES)
    setup = harness.prepare(spec, federation, CPU)
    state = harness.initial(setup)
    learn_round([setup], [state])
    checkpoint.save_snapshot(folder, spec, state)
    shot = checkpoint.load_snapshot(folder, spec.id, 1)
    artifact, truth = observe.observe(
        shot, federation, setup.model, setup.method, setup.defense, method_name=method, dataset="digits",
        victims=victims, batch_size=batch, labels_known=False, seed=0, local=local,
    )  # fmt: skip
    return artifact, truth, shot, setup


def weighted(each):
    """sum_k n_k t_k / sum n_k of one tensor per client."""
    return sum(n * t.double() for n, t in zip(SIZES, each, strict=True)) / sum(SIZES)


@pytest.mark.parametrize("local", [None, SGD])
@pytest.mark.parametrize("batch", [1, 2])
def test_an_upload_is_the_weighted_sum_of_what_every_client_took_of_its_own_batch(batch, local, tmp_path):
    artifact, truth, *_ = seen(tmp_path, batch=batch, local=local)
    # The same images, client by client: victims of single uploads are dealt to the clients in turn.
    single, of_each, *_ = seen(tmp_path, defense="none", victims=2 * len(SIZES), batch=batch, local=local)
    group, singles = (artifact.gradients, single.gradients) if local is None else (artifact.updates, single.updates)
    for part, net in group.items():
        for name, t in net.items():
            for v in range(2):
                # The single ones are of networks that were averaged in single precision.
                expected = weighted(singles[part][name][v * 3 : v * 3 + 3])
                torch.testing.assert_close(t[v].double(), expected, rtol=1e-4, atol=1e-7)
    assert torch.equal(truth.images, of_each.images.view(2, 3 * batch, *of_each.images.shape[2:]))
    assert torch.equal(truth.labels, of_each.labels.view(2, 3 * batch))
    assert artifact.batch_size == 3 * batch
    assert (artifact.senders, artifact.images_per_client) == (3, batch)


def test_members_are_all_clients_and_weights_those_of_their_images(tmp_path):
    artifact, *_ = seen(tmp_path, batch=2)
    assert artifact.members.shape == (2, 3)
    assert bool(artifact.members.all())
    assert artifact.member_weights.tolist() == [[n / sum(SIZES) for n in SIZES]] * 2
    torch.testing.assert_close(artifact.image_weights.sum(1), torch.ones(2, dtype=torch.float64))
    assert artifact.image_weights[0].tolist() == [n / sum(SIZES) / 2 for n in SIZES for _ in range(2)]
    single, *_ = seen(tmp_path, defense="none")
    assert single.members.tolist() == [[True, False], [False, True]]
    assert single.image_weights is None


def test_generators_and_label_counts_are_seen_as_sums(tmp_path):
    artifact, _, shot, setup = seen(tmp_path, "fedmd-cg", aggregator="ave")
    for name, t in artifact.uploads["generator"].items():
        assert len(t) == 1
        torch.testing.assert_close(
            t[0].double(), weighted([u[0]["generator"][name] for u in shot.uploads]), rtol=1e-5, atol=1e-7
        )
    assert torch.equal(artifact.label_counts, setup.federation.label_counts().sum(0, keepdim=True))
    assert artifact.offers() == observe.offers(setup.method, summed=True)


@pytest.mark.parametrize("method", ["fedavg", "fedmd-cg"])
def test_files_hold_members_and_weights_and_give_the_same_artifact_back(method, tmp_path):
    artifact, truth, *_ = seen(tmp_path, method, **({"aggregator": "ave"} if method == "fedmd-cg" else {}))
    artifact_files.save(artifact, tmp_path / "observation")
    artifact_files.save_truth(truth, tmp_path / "truth.safetensors", tmp_path / "observation")
    table = json.loads((tmp_path / "observation" / "index.json").read_text())["rounds"][0]["messages"][0]
    assert table["members"] == [[0, 1, 2]] * 2
    assert table["weights"] == artifact.member_weights.tolist()
    back = artifact_files.load(tmp_path / "observation")
    assert torch.equal(back.member_weights, artifact.member_weights)
    assert back.member_weights.dtype == torch.float64
    assert torch.equal(back.gradients["classifier"]["fc1.bias"], artifact.gradients["classifier"]["fc1.bias"])
    assert (back.batch_size, back.client.tolist(), back.defense) == (3, [0, 0], artifact.defense)
    assert (back.label_counts is None) == (method == "fedavg")
    assert torch.equal(
        artifact_files.load_truth(tmp_path / "truth.safetensors", tmp_path / "observation").images, truth.images
    )
    assert back.select(torch.tensor([1])).member_weights.shape == (1, 3)


def rewritten(folder, change):
    """The observation with its first table changed, and valid digests; UserError where reading refuses it."""
    index = files.read(folder).index
    content = index.model_dump(mode="json", exclude_unset=True)
    change(content["rounds"][0]["messages"][0])
    identity = index_files.digest({name: content[name] for name in ("setup", "rounds")})
    files.write_content(folder, {"privbench": "observation", "version": 1, "id": identity, **content})
    return artifact_files.load(folder)


THIRDS = [[1 / 3] * 3] * 2


@pytest.mark.parametrize(("change", "fault"), [
    ({"weights": [[0.5, 0.5]] * 2}, "there should be a weight for each member of each message"),
    ({"weights": [[0.5, 0.5, 0.5]] * 2}, "the weights of a message's members should add up to 1"),
    ({"weights": [[1.5, -0.25, -0.25]] * 2}, "weights.0.0: Input should be less than or equal to 1"),
    ({"weights": [[1.0, 0.0, 0.0]] * 2}, "weights.0.1: Input should be greater than 0"),
    ({"weights": None}, "with the weight of each"),
    ({"members": [[0, 1, 3]] * 2, "weights": THIRDS}, "take sums over all of them"),
    ({"members": [[0]] * 2, "weights": [[1.0]] * 2}, "take sums over all of them"),
    ({"members": [[0, 2, 1]] * 2, "weights": THIRDS}, "the members of a message should ascend"),
    ({"batch_size": 4}, "sums of 4 images of 3 clients; .* as many images of each"),
])  # fmt: skip
def test_members_and_weights_that_do_not_fit_are_refused_in_one_line(change, fault, tmp_path):
    artifact, *_ = seen(tmp_path)
    artifact_files.save(artifact, tmp_path / "observation")
    with pytest.raises(UserError, match=fault) as error:
        rewritten(tmp_path / "observation", lambda table: table.update(change))
    assert "\n" not in str(error.value)


def test_a_file_without_weights_is_read_as_one_client_per_message_and_keeps_its_id(tmp_path):
    artifact, *_ = seen(tmp_path, defense="none")
    identity = artifact_files.save(artifact, tmp_path / "observation")
    stored = files.read(tmp_path / "observation")
    assert (
        "weights" not in json.loads((tmp_path / "observation" / "index.json").read_text())["rounds"][0]["messages"][0]
    )
    assert stored.id == identity
    assert artifact_files.load(tmp_path / "observation").member_weights is None


def test_scores_assign_reconstructions_to_the_originals_of_all_clients(tmp_path):
    artifact, truth, shot, _ = seen(tmp_path, batch=2)
    mixed = torch.stack([images[torch.tensor([5, 3, 0, 1, 4, 2])] for images in truth.images])
    zero = torch.zeros(2)
    reconstruction = Reconstruction(mixed, truth.labels, zero, zero[:, None], zero.long(), 0)
    scores = image_scores.score(reconstruction, truth, attack_cell._true_features(artifact, shot))
    assert bool((scores.psnr_db == 100).all())
    assert float(scores.feature_error.max()) < 1e-6


def test_features_of_a_sum_are_those_of_each_client_s_own_extractor(tmp_path):
    artifact, truth, shot, setup = seen(tmp_path, "fedsplit", batch=2)
    features = attack_cell._true_features(artifact, shot)(1, truth.images[1])
    for k in range(3):
        networks = knowledge.of_client(shot, k)
        alone, _ = setup.model.net("extractor").apply(
            networks.params["extractor"], networks.buffers["extractor"], truth.images[1, 2 * k : 2 * k + 2], train=True
        )
        torch.testing.assert_close(features[2 * k : 2 * k + 2], alone)
    assert knowledge.oracle(shot, artifact) is None
    assert knowledge.colluder(shot, artifact, setup.federation) is None


NOT_APPLICABLE = {
    "imprint", "feature-hijacking", "unsplit", "analytic-features", "surrogate", "aligned-surrogate", "joint",
    "initial-surrogate", "decoder", "calibrated", "chained", "collusion", "oracle", "oracle-decoder",
}  # fmt: skip


def cell(attack, method, **changes):
    train = presets.train_spec("smoke", "digits", method, clients=3, defense="secure-aggregation")
    return presets.cell_spec("smoke", train, attack, **changes)


def test_attacks_keyed_by_one_client_are_not_applicable_where_extractors_are_private(tmp_path):
    artifact, *_ = seen(tmp_path, "fedsplit")
    for name in registry.ATTACKS:
        plugin = registry.resolve("attack", name)
        if not plugin.needs <= artifact.offers() | set(knowledge.FIELDS):
            assert name not in NOT_APPLICABLE - {"feature-hijacking"}
            continue
        fault = applicability.exceeded_by(name, applicability.of(plugin), artifact)
        before = applicability.exceeded(name, applicability.of(plugin), cell(name, "fedsplit"))
        expected = name in NOT_APPLICABLE
        assert ("sums over all; try --attack staged" in fault) == ("sums over all" in before) == expected, name
    with pytest.raises(AttackRefused, match=r"^oracle attacks what one client sends, but under secure aggregation"):
        one_attack.attack_artifact("oracle", {}, artifact, Knowledge(), 0, CPU, lambda *_: None)


def test_attacks_on_single_images_are_not_applicable_to_sums():
    limits = applicability.of(registry.resolve("attack", "learned-inverse"))
    fault = applicability.exceeded("learned-inverse", limits, cell("learned-inverse", "fedavg"))
    assert fault == (
        "learned-inverse inverts gradients of at most 1 image(s), but sums of 3 images of 3 clients were asked for; "
        "try --attack staged"
    )
    shared = applicability.of(registry.resolve("attack", "unsplit"))
    assert applicability.exceeded("unsplit", shared, cell("unsplit", "fedavg")) == ""


def test_more_sums_than_the_smallest_client_has_batches_for_are_refused():
    federation = digits_federation(SIZES)
    chosen_victims.check_victims(federation, 10, 2, 0, summed=True)
    with pytest.raises(UserError, match=r"2 images each of every client, but the 3 clients .* have enough for 10"):
        chosen_victims.check_victims(federation, 11, 2, 0, summed=True)


def test_the_clock_is_the_run_s(tmp_path):
    artifact, _, _, setup = seen(tmp_path, "fedmd-cg", aggregator="ave", observe_loss="task")
    assert artifact.imitated == 3 * setup.method.imitated(RoundClock(2, 2))
