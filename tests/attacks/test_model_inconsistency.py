"""Model inconsistency: one client's gradient alone in a secure sum, its images read from it, and none from an honest sum."""

import json
from dataclasses import replace

import pytest
import torch

from attacks.common import labels, no_information
from attacks.crafted import classifiers, concentrated, dry_run, isolation
from attacks.imprint import Imprint
from attacks.model_inconsistency import ModelInconsistency
from attacks.staged import Staged
from privbench import presets, registry
from privbench.errors import AttackRefused, UserError
from privbench.execution import attack_cell, one_attack, preconditions
from privbench.methods.base import MiniBatch, RoundClock
from privbench.observation import active_server, artifact_files, client_message, knowledge, observe
from privbench.observation.format import files
from privbench.records.store import Store
from privbench.scoring.image_scores import psnr_of
from privbench.system import index_files
from privbench.training import checkpoint, harness
from privbench.types import Batch, Knowledge, Networks
from tests.builders.federations import digits_federation

CPU = torch.device("cpu")
SIZES = (40, 62, 52)
SETTINGS = {"target": 1, "rehearsal_images": 0}


def attacked(
    folder,
    defense="secure-aggregation",
    attack="model-inconsistency",
    *,
    victims=2,
    batch=1,
    labels_known=False,
    **settings,
):
    """(artifact, truth, snapshot, set-up, what the server knows) of untrained networks."""
    train = presets.train_spec("smoke", "digits", "fedavg", clients=len(SIZES), defense=defense)
    setup = harness.prepare(train, digits_federation(SIZES), CPU)
    checkpoint.save_snapshot(folder, train, harness.initial(setup))
    honest = checkpoint.load_snapshot(folder, train.id, 0)
    shot = honest
    if registry.is_active(attack):
        chosen = SETTINGS | settings if attack == "model-inconsistency" else settings
        cell = presets.cell_spec(
            "smoke", train, attack, round_="0", batch_size=batch, labels_known=labels_known, attack_settings=chosen
        )
        shot = active_server.sent(cell, setup, honest, None)
    seen, truth = observe.observe(
        shot, setup.federation, setup.model, setup.method, setup.defense, method_name="fedavg", dataset="digits",
        victims=victims, batch_size=batch, labels_known=labels_known, seed=0,
    )  # fmt: skip
    known = Knowledge(
        auxiliary=observe.auxiliary(setup.federation),
        broadcast=Networks(honest.server.params, honest.server.buffers),
    )
    return seen, truth, shot, setup, known


def alone_of(seen, truth, shot, setup, v):
    """The target's gradient of its batch by itself, at what it received."""
    batch = MiniBatch(truth.images[v], truth.labels[v], {})
    return client_message.client_gradient(
        setup.model, shot, seen.target, batch, setup.method, ("extractor", "classifier"), RoundClock(1, 1), train=False
    )


@pytest.mark.parametrize("batch", [1, 3])
def test_the_target_s_gradient_stands_alone_up_to_fixed_point_and_the_last_bias(batch, tmp_path):
    seen, truth, shot, setup, _ = attacked(tmp_path, batch=batch)
    weight = SIZES[1] / sum(SIZES)
    # Of the sum, and what storing it and its multiple in single precision rounds.
    error = setup.defense.fixed_point.error(SIZES) / weight
    stands = isolation.standing_alone(seen)
    for v in range(2):
        for part, net in alone_of(seen, truth, shot, setup, v).items():
            for name, t in net.items():
                gap = float((stands.gradients[part][name][v] - t).abs().max())
                if name == "fc3.bias":
                    # Read off the last weights: as near as the units before them are to those tried.
                    assert gap < 1e-2 * float(t.abs().max())
                else:
                    assert gap <= error + 3e-7 * float(t.abs().max()), name
    assert (stands.target, stands.member_weights, stands.batch_size) == (None, None, batch)
    assert isolation.standing_alone(stands) is stands


def test_the_others_add_to_the_last_bias_and_nothing_else(tmp_path):
    seen, truth, shot, setup, _ = attacked(tmp_path)
    clients = [0, 2]
    batch = MiniBatch(truth.images[0], truth.labels[0], {})
    for k in clients:
        gradient = client_message.client_gradient(
            setup.model, shot, k, batch, setup.method, ("extractor", "classifier"), RoundClock(1, 1), train=False
        )
        felt = {f"{p}/{n}" for p, net in gradient.items() for n, t in net.items() if bool((t != 0).any())}
        assert felt == {"classifier/fc3.bias"}
        uniform = torch.full((10,), 0.1)
        uniform[truth.labels[0]] -= 1
        torch.testing.assert_close(gradient["classifier"]["fc3.bias"], uniform)
    # What the attacker says is left equals what the others really add.
    others = (
        seen.gradients["classifier"]["fc3.bias"][0]
        - SIZES[1] / sum(SIZES) * (alone_of(seen, truth, shot, setup, 0)["classifier"]["fc3.bias"])
    )
    whole = sum(float(t[0].square().sum()) for net in seen.gradients.values() for t in net.values()) ** 0.5
    assert float(isolation.residual(seen)[0]) == pytest.approx(float(others.norm()) / whole, rel=0.05)


def test_images_come_out_of_a_sum_that_was_sent_inconsistently_and_not_out_of_an_honest_one(tmp_path):
    seen, truth, _, _, known = attacked(tmp_path / "active", victims=3)
    answer = ModelInconsistency(**SETTINGS).reconstruct(seen, known, 0)
    floor = float(psnr_of(no_information.class_mean(seen, known), truth).mean())
    recovered = psnr_of(answer, truth)
    assert torch.equal(answer.labels, truth.labels)
    assert float(recovered.min()) > floor + 10
    assert any("isolated client 1: the other clients' part of a sum" in note for note in answer.notes)
    honest, whole, *_ = attacked(tmp_path / "honest", attack="staged", victims=1)
    passive = Staged(steps=100, feature_steps=100).reconstruct(honest, known, 0)
    # The same image of the same client among those of all.
    assert torch.equal(whole.images[0, 1], truth.images[0, 0])
    assert float(psnr_of(passive, whole).mean()) < float(recovered.mean()) - 10


@pytest.mark.parametrize(("broken", "says"), [(1, "has 0."), (2, "is unknown, as no sum is finite")])
def test_the_note_is_of_the_sums_that_are_finite(broken, says, tmp_path, monkeypatch):
    seen, *_, known = attacked(tmp_path, victims=2)
    monkeypatch.setattr(Imprint, "reconstruct", lambda _, artifact, knowledge, seed, *__: no_information.grey(artifact))
    for net in seen.gradients.values():
        for t in net.values():
            t[:broken] = torch.nan
    (note,) = ModelInconsistency(**SETTINGS).reconstruct(seen, known, 0).notes
    assert says in note
    assert "nan" not in note


def test_noise_is_drowned_as_far_as_whole_numbers_reach(tmp_path):
    """Entries beyond what secure aggregation adds up are NaN: of a classifier saturated without bound, all of them."""
    seen, truth, *_, known = attacked(tmp_path, "gaussian:0.001+secure-aggregation", victims=2, batch=2)
    assert classifiers.is_saturated(seen.weights["classifier"])
    assert all(bool(t.isfinite().all()) for net in seen.gradients.values() for t in net.values())
    answer = ModelInconsistency(**SETTINGS).reconstruct(seen, known, 0)
    floor = float(psnr_of(no_information.class_mean(seen, known), truth).mean())
    assert float(psnr_of(answer, truth).mean()) > floor + 1


def test_a_batch_of_the_target_is_read_as_if_it_had_arrived_by_itself(tmp_path):
    seen, truth, shot, setup, known = attacked(tmp_path, victims=1, batch=4)
    answer = ModelInconsistency(**SETTINGS).reconstruct(seen, known, 0)
    exact = {p: {n: t[None] for n, t in net.items()} for p, net in alone_of(seen, truth, shot, setup, 0).items()}
    by_itself = replace(isolation.standing_alone(seen), gradients=exact, defense={"name": "none"})
    plain = Imprint(rehearsal_images=0).reconstruct(by_itself, known, 0)
    assert sorted(answer.labels[0].tolist()) == sorted(truth.labels[0].tolist())
    # Descents end where their starts lead, and the two differ in rounding.
    assert float(psnr_of(answer, truth).mean()) == pytest.approx(float(psnr_of(plain, truth).mean()), abs=0.5)
    floor = float(psnr_of(no_information.class_mean(seen, known), truth).mean())
    assert float(psnr_of(answer, truth).mean()) > floor + 1


def test_labels_and_floors_are_the_target_s(tmp_path):
    seen, truth, *_ = attacked(tmp_path, victims=8)
    assert torch.equal(labels.recover(seen), truth.labels)
    assert (seen.batch_size, seen.senders, seen.client.tolist()) == (1, 1, [1] * 8)
    assert truth.images.shape == (8, 1, 1, 32, 32)
    assert seen.image_weights is None
    assert "aggregate" in seen.offers()


def test_labels_of_a_batch_are_the_target_s_whatever_its_share_of_the_sum(tmp_path):
    seen, truth, *_ = attacked(tmp_path, victims=4, batch=8)
    assert torch.equal(labels.recover(seen), truth.labels.sort(1).values)
    assert torch.equal(labels.recover(seen), labels.recover(isolation.standing_alone(seen)))


def test_probabilities_under_noise_are_those_of_the_message_by_itself(tmp_path):
    seen, *_ = attacked(tmp_path, "gaussian:0.0001+secure-aggregation", victims=4)
    alone = labels.probabilities(isolation.standing_alone(seen))
    # The message is stored in single precision.
    torch.testing.assert_close(labels.probabilities(seen), alone, atol=1e-3, rtol=1e-3)


def test_the_last_bias_is_read_off_the_last_weights_by_how_noisy_they_are(tmp_path):
    seen, truth, shot, setup, _ = attacked(tmp_path, "gaussian:0.0001+secure-aggregation", victims=4)
    weight = SIZES[1] / sum(SIZES)
    exact = torch.stack([alone_of(seen, truth, shot, setup, v)["classifier"]["fc3.bias"] for v in range(4)])

    def error(one):
        return float((labels.of_target(one) / weight - exact).square().mean().sqrt())

    # Untrained units hardly differ from image to image: an estimate that takes the weights for exact leans on these differences,
    # and carries the noise many times over.
    known, unknown = (error(replace(seen, defense=each)) for each in (seen.defense, {"name": "none"}))
    assert known < unknown / 4
    assert known < 0.1 * float(exact.square().mean().sqrt())


def test_files_hold_both_broadcasts_and_give_the_same_artifact_back(tmp_path):
    seen, truth, *_ = attacked(tmp_path, batch=2)
    artifact_files.save(seen, tmp_path / "observation")
    artifact_files.save_truth(truth, tmp_path / "truth.safetensors", tmp_path / "observation")
    (entry,) = json.loads((tmp_path / "observation" / "index.json").read_text())["rounds"]
    assert entry["broadcasts"] == [{"name": "others", "clients": [0, 2]}]
    assert (entry["messages"][0]["target"], entry["messages"][0]["batch_size"]) == (1, 6)
    back = artifact_files.load(tmp_path / "observation")
    assert (back.target, back.batch_size, back.client.tolist()) == (1, 2, [1, 1])
    for group, other in ((back.others.params, seen.others.params), (back.weights, seen.weights)):
        assert all(torch.equal(t, other[p][n]) for p, net in group.items() for n, t in net.items())
    assert not torch.equal(back.others.params["classifier"]["fc2.bias"], back.weights["classifier"]["fc2.bias"])
    read = artifact_files.load_truth(tmp_path / "truth.safetensors", tmp_path / "observation")
    assert torch.equal(read.images, truth.images)


def rewritten(folder, change):
    """The observation with its round changed, and valid digests; UserError where reading refuses it."""
    content = files.read(folder).index.model_dump(mode="json", exclude_unset=True)
    change(content["rounds"][0])
    identity = index_files.digest({name: content[name] for name in ("setup", "rounds")})
    files.write_content(folder, {"privbench": "observation", "version": 1, "id": identity, **content})
    return artifact_files.load(folder)


def target(value):
    return lambda entry: entry["messages"][0].update({"target": value})


def others(**fields):
    return lambda entry: entry["broadcasts"][0].update(fields)


def smaller(entry):
    entry["tensors"]["others/parameters/classifier/fc3.bias"]["shape"] = [9]


def more(entry):
    entry["broadcasts"].append({"name": "others", "clients": [1]})


def twice(entry):
    entry["broadcasts"].append({"name": "more", "clients": [2]})


@pytest.mark.parametrize(("change", "fault"), [
    (target(3), "a target is a member of every sum, but 3 is none of these"),
    (target(-1), "target: Input should be greater than or equal to 0"),
    (target(None), "holds 2 broadcasts; attacks of this privbench take one to all clients, or one to the target"),
    (target(0), "holds 2 broadcasts"),
    (lambda entry: entry["messages"][0].update({"batch_size": 7}), "as many images of each member"),
    (lambda entry: entry["messages"][0].pop("weights"), "a target is a member of every sum"),
    (lambda entry: entry.pop("broadcasts"), "nothing is known of the tensor 'others/"),
    (others(clients=[2, 0]), "the clients of a broadcast should ascend"),
    (others(clients=[]), "broadcasts.0.clients: List should have at least 1 item"),
    (others(clients=[0]), "holds 2 broadcasts"),
    (others(clients=[0, 200_000]), "broadcasts.0.clients.1: Input should be less than 100000"),
    (others(name="broadcast"), "no broadcast to some clients is called 'broadcast'"),
    (others(name="gradient"), "broadcasts and tables of messages should differ"),
    (others(name="elsewhere"), "elsewhere should hold the same parts and shapes as broadcast"),
    (more, "broadcasts and tables of messages should differ"),
    (twice, "clients of several broadcasts should differ"),
    (smaller, r"others of classifier.fc3.bias should have shape \(10,\), but the file has shape \(9,\)"),
])  # fmt: skip
def test_broadcasts_and_targets_that_do_not_fit_are_refused_in_one_line(change, fault, tmp_path):
    seen, *_ = attacked(tmp_path, batch=2)
    artifact_files.save(seen, tmp_path / "observation")
    with pytest.raises(UserError, match=fault) as error:
        rewritten(tmp_path / "observation", change)
    assert "\n" not in str(error.value)


def test_an_attack_on_all_clients_refuses_such_a_sum_and_this_one_refuses_an_honest_one(tmp_path):
    seen, _, _, _, known = attacked(tmp_path / "active")
    with pytest.raises(AttackRefused, match=r"staged attacks sums .* try --attack model-inconsistency"):
        one_attack.attack_artifact("staged", {}, seen, known, 0, CPU, lambda *_: None)
    honest, *_ = attacked(tmp_path / "honest", attack="staged")
    with pytest.raises(AttackRefused, match="all clients received the same here"):
        one_attack.attack_artifact("model-inconsistency", {}, honest, known, 0, CPU, lambda *_: None)


@pytest.mark.parametrize(
    ("method", "defense", "changes", "message"),
    [
        ("fedavg", "none", {}, "takes clients' messages out of a sum, .* add --defense secure-aggregation"),
        ("fedsplit", "secure-aggregation", {}, "needs the gradient:extractor"),
        ("fedavg", "secure-aggregation", {"observe": "update"}, "holds whole local updates"),
        ("fedavg", "precode+secure-aggregation", {}, "before which there is a bottleneck"),
    ],
)
def test_where_it_does_not_apply_a_line_says_so_before_anything_is_trained(method, defense, changes, message):
    train = presets.train_spec("smoke", "digits", method, clients=3, defense=defense)
    cell = presets.cell_spec("smoke", train, "model-inconsistency", **changes)
    with pytest.raises(UserError, match=message):
        preconditions._check_attack(cell)


def test_a_target_that_is_no_client_is_refused(tmp_path):
    with pytest.raises(AttackRefused, match=r"target=3, but there are 3 clients"):
        attacked(tmp_path, target=3)
    train = presets.train_spec("smoke", "digits", "fedavg", clients=3, defense="secure-aggregation")
    for target in (2, 3):
        cell = presets.cell_spec("smoke", train, "model-inconsistency", attack_settings={"target": target}, victims=2)
        refused = preconditions.impossible(Store(tmp_path / "never"), [cell], None, workers=1)
        assert refused == (
            {cell.id: "model-inconsistency was given target=3, but there are 3 clients, from 0 on"}
            if target == 3
            else {}
        )


@pytest.fixture
def expected(monkeypatch):
    """The uploads that dry runs expect."""
    uploads, honest = [], dry_run.better_classifier

    def watched(model, broadcast, knowledge, *how):
        uploads.append(knowledge.expected)
        return honest(model, broadcast, knowledge, *how)

    monkeypatch.setattr(dry_run, "better_classifier", watched)
    return uploads


@pytest.mark.parametrize("defense", ["gaussian:0.0001", "dp-sgd:noise=0.5,clip=2"])
def test_the_dry_run_has_the_noise_of_all_messages(defense, tmp_path, expected):
    seen, _, _, setup, known = attacked(tmp_path, f"{defense}+secure-aggregation", batch=2)
    arriving = isolation.standing_alone(seen).defense["variance"]
    (upload,) = expected
    # 4 standard errors of a standard deviation of so many draws.
    few = 4 / 2**0.5
    assert dry_run.gradient_noise_std(upload, 0) == pytest.approx(arriving**0.5, rel=few / dry_run.NOISES**0.5)
    clients = Batch(*(t[:4].unflatten(0, (2, 2)) for t in observe.auxiliary(setup.federation)))
    noisy, fewer = (
        dry_run.observed(setup.model, known.broadcast, clients, upload._replace(noise_factor=factor), 0)
        for factor in (upload.noise_factor, 1.0)
    )
    assert noisy.defense["variance"] == pytest.approx(arriving)
    added = [t - fewer.gradients[p][n] for p, net in noisy.gradients.items() for n, t in net.items()]
    draws = torch.cat([t.flatten() for t in added]).double()
    std = (arriving - fewer.defense["variance"]) ** 0.5
    # Of the draws, and of the level that was found by sending zeros.
    assert float(draws.std()) == pytest.approx(std, rel=few / len(draws) ** 0.5 + few / dry_run.NOISES**0.5)


@pytest.mark.parametrize("told", [True, False])
def test_the_dry_run_is_told_labels_where_the_attack_is(told, tmp_path, expected):
    seen, *_ = attacked(tmp_path, labels_known=told)
    (upload,) = expected
    assert upload.labels_known == told == (seen.labels is not None)


def test_the_dry_run_rounds_to_a_fixed_point_as_fine_as_that_of_the_target_s_message(tmp_path, expected):
    *_, setup, _ = attacked(tmp_path)
    (upload,) = expected
    assert upload.weights == (setup.method.counts_for(len(setup.labels[SETTINGS["target"]])),)
    # Entries are off by half of 2^-32 over that number at most; a weight of one would make it so many times more.
    message = {"classifier": {"w": torch.rand(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))}}
    mean = upload.defense.aggregate([message], upload.weights, torch.Generator().manual_seed(0)).tensors
    error = (mean["classifier"]["w"] - message["classifier"]["w"]).abs().max()
    assert 0.9 < float(error) * 2 * upload.weights[0] * 2**32 < 1.1


def test_silent_units_are_zero_in_single_and_double_precision(tmp_path):
    *_, setup, known = attacked(tmp_path, attack="staged")
    sent = isolation.silent(setup.model, known.broadcast).params["classifier"]
    for dtype in (torch.float32, torch.float64):
        params = {n: t.to(dtype) for n, t in sent.items()}
        logits, inputs = setup.model.classifier.linear_layers(params, torch.rand(4, 400, dtype=dtype))
        assert not inputs["fc3"].any()
        assert not logits.any()


def test_true_features_are_those_of_the_target(tmp_path):
    seen, truth, shot, *_ = attacked(tmp_path, batch=2)
    features = attack_cell._true_features(seen, shot._replace(isolated=None))(0, truth.images[0])
    networks = knowledge.of_client(shot._replace(isolated=None), 1)
    expected, _ = seen.model.net("extractor").apply(networks.params["extractor"], {}, truth.images[0], train=True)
    torch.testing.assert_close(features, expected)


def test_a_client_isolated_under_clipping_and_noise_is_read_off_a_concentrated_classifier(tmp_path):
    defense = "dp-sgd:noise=1e-4,clip=0.3+secure-aggregation"
    seen, truth, shot, _, known = attacked(tmp_path, defense, victims=4)
    assert concentrated.is_concentrated(seen.weights["classifier"])
    read = concentrated.features_of(isolation.standing_alone(seen))
    nets = (shot.server.params["extractor"], shot.server.buffers["extractor"])
    h, _ = seen.model.net("extractor").apply(*nets, truth.images[:, 0], train=False)
    z = (read.h - h).flatten(1) / read.variance.sqrt()[:, None]
    # Of 1,600 numbers, and a scale of each image.
    assert 0.85 < float(z.square().mean()) < 1.2
    assert torch.equal(read.labels, truth.labels[:, 0])
    answer = ModelInconsistency(**SETTINGS).reconstruct(seen, known, 0)
    floor = psnr_of(no_information.class_mean(seen, known), truth)
    assert float((psnr_of(answer, truth) - floor).mean()) > 5


def test_a_clip_of_the_isolated_message_is_undone(tmp_path):
    """As of one that arrives by itself; a gradient that a clip has shortened tells no image where nobody undoes that."""
    seen, truth, _, setup, known = attacked(tmp_path, "clip:1+secure-aggregation")
    stands = isolation.standing_alone(seen)
    assert stands.defense == setup.defense.members[0].describe()
    whole = [t.double().flatten(1) for net in stands.gradients.values() for t in net.values()]
    norm = torch.stack([t.square().sum(1) for t in whole]).sum(0).sqrt()
    # Up to the last bias, which is read off the last weights.
    torch.testing.assert_close(norm, torch.ones_like(norm), rtol=1e-2, atol=0)
    attack = ModelInconsistency(**SETTINGS)
    score = float(psnr_of(attack.reconstruct(seen, known, 0), truth).mean())
    untold = replace(seen, defense={"name": "secure-aggregation", "exact": True})
    assert score > 20 > float(psnr_of(attack.reconstruct(untold, known, 0), truth).mean())
    assert knowledge.not_modelled(attack, seen) == []
