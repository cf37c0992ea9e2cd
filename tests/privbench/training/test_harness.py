"""Rounds, selection and resuming."""

import math

import pytest
import torch

from benchmarks.chaos.life import content
from privbench import presets
from privbench.data.readers.resize import pixels
from privbench.errors import Damaged, Interrupted, UserError
from privbench.execution import cell_jobs as training
from privbench.records.store import Store
from privbench.system import machine
from privbench.training import checkpoint, evaluation, harness, history, phase_plans, restoration
from privbench.training.state import Replica, State
from tests.builders.federations import digits_federation

CPU = torch.device("cpu")


def smoke(method, **changes):
    defense = changes.pop("defense", "none")
    where = changes.pop("where", "step")
    # FedCG's convolutional generator takes most of a round, and nothing here depends on which one it is.
    settings = {"gan": "dense"} if method == "fedcg" else None
    return presets.train_spec(
        "smoke", "digits", method, clients=2, defense=defense, where=where, method_settings=settings, changes=changes
    )


def run(each, folder, progress=lambda *_: None, federation=None):
    harness.train([each], [federation or digits_federation()], [folder], CPU, "alone", progress)
    return checkpoint.history(folder, each.id)


def same_bits(a, b):
    """Whether two states hold the same networks, optimiser state and history."""
    for x, y in zip([a.server, *a.clients], [b.server, *b.clients], strict=True):
        for one, other in ((x.params, y.params), (x.buffers, y.buffers)):
            assert {p: set(net) for p, net in one.items()} == {p: set(net) for p, net in other.items()}
            if not all(torch.equal(t, other[p][n]) for p, net in one.items() for n, t in net.items()):
                return False
        assert set(x.moments) == set(y.moments)
        if not all(
            m.steps == y.moments[s].steps
            and torch.equal(m.mean, y.moments[s].mean)
            and torch.equal(m.square, y.moments[s].square)
            for s, m in x.moments.items()
        ):
            return False
    return without_times(a.history) == without_times(b.history)


def without_times(rounds):
    return [{k: v for k, v in entry.items() if k != "seconds"} for entry in rounds]


@pytest.mark.parametrize("method", ["fedavg", "fedgen", "fedcg", "fedmd-cg"])
def test_a_run_killed_in_the_middle_of_a_round_ends_with_the_same_numbers(method, tmp_path):
    each = smoke(method, rounds=3, local_epochs=2)
    whole = run(each, tmp_path / "whole")

    def kill_in_round_two(completed, total, what):
        if completed == 1 and ("epoch 2" in what or "discriminator" in what):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(each, tmp_path / "killed", kill_in_round_two)
    assert checkpoint.progress(tmp_path / "killed", each.id) == 1
    resumed = run(each, tmp_path / "killed")
    assert without_times(resumed) == without_times(whole)
    a, b = (checkpoint.load_snapshot(tmp_path / name, each.id, 3) for name in ("whole", "killed"))
    for x, y in zip([a.server, *a.clients], [b.server, *b.clients], strict=True):
        for part in x.params:
            for name in x.params[part]:
                assert torch.equal(x.params[part][name], y.params[part][name])


def test_only_shared_parts_leave_a_client_and_come_back():
    each = smoke("fedcg")
    setup = harness.prepare(each, digits_federation(), CPU)
    state = harness.initial(setup)
    harness.train_round([setup], [state], "alone")
    assert set(state.server.params) == {"classifier", "generator"}
    assert all(set(params) == {"classifier", "generator"} for params, _ in state.uploads)
    weights = [len(c.train.labels) for c in setup.federation.clients]
    private = [c.params["extractor"]["conv1.weight"] for c in state.clients]
    assert not torch.equal(*private)
    assert weights == [20, 20]


def test_networks_of_the_server_alone_are_sent_down_and_kept_by_nobody():
    setup = harness.prepare(smoke("fedgen"), digits_federation(), CPU)
    state = harness.initial(setup)
    before = state.server.params["generator"]["up3.weight"].clone()
    harness.train_round([setup], [state], "alone")
    assert not torch.equal(state.server.params["generator"]["up3.weight"], before)
    assert all(set(client.params) == {"extractor", "classifier"} for client in state.clients)
    assert all(set(params) == {"classifier"} for params, _ in state.uploads)
    classifier, generator = (
        sum(t.nbytes for group in setup.model.net(part).init(torch.Generator()) for t in group.values())
        for part in ("classifier", "generator")
    )
    assert state.history[0]["bytes_up"] == [classifier] * 2
    assert state.history[0]["bytes_down"] == [classifier + generator] * 2


def test_the_local_generator_of_fedmd_cg_survives_the_broadcast():
    """Its Adam takes steps of at most about lr, far less than the way from the server's generator back to a client's."""
    setup = harness.prepare(smoke("fedmd-cg"), digits_federation(), CPU)
    state = harness.initial(setup)
    harness.train_round([setup], [state], "alone")
    state.server.params["generator"] = {n: t + 1 for n, t in state.server.params["generator"].items()}
    state.server.params["classifier"] = {n: t + 1 for n, t in state.server.params["classifier"].items()}
    before_broadcast = [client.params for client in state.clients]
    harness.train_round([setup], [state], "alone")
    for before, client in zip(before_broadcast, state.clients, strict=True):
        moved = {
            p: (client.params[p][n] - before[p][n]).abs().max()
            for p, n in (("generator", "fc1.weight"), ("classifier", "fc1.weight"))
        }
        assert moved["generator"] < 0.01
        assert moved["classifier"] > 0.9


@pytest.mark.parametrize(("method", "up", "down"), [("fedmd-cg", 80, 80), ("fedcg", 80, 0)])
def test_label_counts_are_counted_in_the_bytes(method, up, down):
    each = presets.train_spec("smoke", "digits", method, clients=2, method_settings={"aggregator": "kdc"})
    setup = harness.prepare(each, digits_federation(), CPU)
    state = harness.initial(setup)
    harness.train_round([setup], [state], "alone")
    networks = sum(t.nbytes for group in state.uploads[0] for params in group.values() for t in params.values())
    assert (state.history[0]["bytes_up"], state.history[0]["bytes_down"]) == (
        [networks + up] * 2,
        [networks + down] * 2,
    )


def test_feddf_trains_its_server_on_every_public_image_and_never_sees_a_label():
    setup = harness.prepare(smoke("feddf", server_steps=3), digits_federation(), CPU)
    (phase,) = setup.method.server()
    plan = phase_plans.server_plan(setup, 1, phase)
    images = torch.cat([plan.images(step) for step in range(plan.steps)])
    seen = (images[:, None] == setup.federation.public.images / 255).flatten(2).all(2)
    assert images.shape == (48, 1, 32, 32)
    assert seen.any(1).all()
    assert seen.any(0).all()
    assert not plan.labels.any()


def test_feddf_distils_on_public_images_of_the_size_that_the_clients_train_on():
    large = presets.train_spec(
        "smoke", "photos", "feddf", clients=2, backbone="resnet18", image_size=224, changes={"server_steps": 1}
    )
    federation = digits_federation(channels=3)
    setup = harness.prepare(large, federation, CPU)
    client, server = setup.method.client()[0], setup.method.server()[0]
    batch = large.schedule.batch
    images = phase_plans.server_plan(setup, 1, server).images(0)
    assert images.shape == phase_plans.client_plan(setup, 0, 1, client, 0).images(0).shape == (batch, 3, 224, 224)
    enlarged = pixels(federation.public.images, 224)
    assert all((enlarged == image).flatten(1).all(1).any() for image in images)


@pytest.mark.parametrize(
    ("how", "way"),
    [("iid", "lower --per-client"), ("dirichlet", "lower --per-client"), ("domain", "choose a data set")],
)
def test_feddf_without_public_images_says_what_helps(how, way):
    each = presets.train_spec("smoke", "digits", "feddf", clients=2, partition=how)
    with pytest.raises(UserError, match=f"holds none out; {way}"):
        harness.prepare(each, digits_federation()._replace(public=None), CPU)


def test_local_training_sends_nothing():
    setup = harness.prepare(smoke("local"), digits_federation(), CPU)
    state = harness.initial(setup)
    harness.train_round([setup], [state], "alone")
    assert state.history[0]["bytes_up"] == [0, 0]
    assert state.server.params == {}


def test_fedavg_broadcasts_the_weighted_average_of_its_clients():
    setup = harness.prepare(smoke("fedavg"), digits_federation((10, 30)), CPU)
    state = harness.initial(setup)
    harness.train_round([setup], [state], "alone")
    a, b = (client.params["classifier"]["fc3.bias"] for client in state.clients)
    torch.testing.assert_close(state.server.params["classifier"]["fc3.bias"], 0.25 * a + 0.75 * b)


def test_mini_batches_show_every_sample_each_epoch():
    for samples in (1, 5, 16, 33):
        index = phase_plans.mini_batches(samples, 16, torch.Generator())
        assert index.shape == (math.ceil(samples / 16), 16)
        assert set(index.flatten().tolist()) == set(range(samples))


def test_training_leaves_chance_behind(tmp_path):
    each = presets.train_spec("smoke", "digits", "fedavg", clients=2, changes={"rounds": 5, "local_epochs": 8})
    rounds = run(each, tmp_path, federation=digits_federation((200, 200)))
    assert min(history.selected_accuracy(rounds)) >= 60


def test_the_accuracy_is_that_of_the_round_with_the_best_validation_accuracy_per_client():
    rounds = [
        {"round": 1, "validation_accuracy": [50.0, 80.0], "test_accuracy": [1.0, 2.0]},
        {"round": 2, "validation_accuracy": [70.0, 80.0], "test_accuracy": [3.0, 4.0]},
        {"round": 3, "validation_accuracy": [60.0, 10.0], "test_accuracy": [5.0, 6.0]},
    ]
    assert history.selected_accuracy(rounds) == [3.0, 2.0]
    assert history.best_round(rounds) == 2
    assert history.best_round([]) == 0


def test_training_stops_when_no_client_improves():
    schedule = smoke("fedavg", rounds=50, patience=2).schedule
    state = State(4, Replica({}, {}), [], [])
    state.history = [{"validation_accuracy": v} for v in ([1, 1], [5, 5], [4, 5], [5, 2])]
    assert harness.finished(state, schedule)
    state.history[-1]["validation_accuracy"] = [5, 6]
    assert not harness.finished(state, schedule)


@pytest.mark.parametrize("where", ["step", "update"])
def test_the_noise_enters_where_it_was_asked_to(where, monkeypatch):
    each = smoke("fedavg", defense="gaussian:0.01", where=where)
    setup = harness.prepare(each, digits_federation(), CPU)
    calls = []
    place = "step" if where == "step" else "message"
    original = getattr(type(setup.defense), place)

    def counted(self, tensors, rng):
        calls.append(sorted(tensors))
        return original(self, tensors, rng)

    monkeypatch.setattr(type(setup.defense), place, counted)
    state = harness.initial(setup)
    before = state.server.params["classifier"]["fc1.weight"]
    harness.train_round([setup], [state], "alone")
    steps = 2 * 2  # two clients, two mini-batches each
    assert calls == [["classifier", "extractor"]] * (steps if where == "step" else 2)
    change = state.uploads[0][0]["classifier"]["fc1.weight"] - before
    trained_change = state.clients[0].params["classifier"]["fc1.weight"] - before
    if where == "update":  # what was sent differs from what was trained by noise of the variance asked for
        assert (change - trained_change).var().item() == pytest.approx(0.01, rel=0.02)
    else:
        assert torch.equal(change, trained_change)


@pytest.mark.parametrize("damaged", [1, 2])
def test_a_run_goes_on_from_the_latest_checkpoint_that_is_whole(damaged, tmp_path, caplog):
    each = smoke("fedavg", rounds=3)

    def kill(completed, total, what):
        if completed == 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        run(each, tmp_path, kill)
    for name in (checkpoint.CHECKPOINT, checkpoint.PREVIOUS)[:damaged]:
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:1000])
    assert checkpoint.progress(tmp_path, each.id) == {1: 1, 2: None}[damaged]
    begun = []
    mended = run(each, tmp_path, lambda completed, *_: begun.append(completed))
    assert begun[0] == {1: 1, 2: 0}[damaged]
    assert [line.partition(" is damaged")[2] != "" for line in caplog.messages] == [True] * damaged
    undisturbed = run(each, tmp_path / "undisturbed")
    assert [e["test_accuracy"] for e in mended] == [e["test_accuracy"] for e in undisturbed]


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    setup = harness.prepare(smoke("fedavg"), digits_federation(), CPU)
    checkpoint.begin(tmp_path, smoke("fedavg"))
    checkpoint.save(tmp_path, smoke("fedavg"), harness.initial(setup))
    with pytest.raises(UserError, match="belongs to run"):
        checkpoint.load(tmp_path, smoke("fedavg", rounds=7), CPU)


def test_snapshots_hold_no_discriminator_and_no_shared_extractor(tmp_path):
    each = smoke("fedcg")
    run(each, tmp_path)
    shot = checkpoint.load_snapshot(tmp_path, each.id, 0)
    assert set(shot.server.params) == {"classifier", "generator"}
    assert all(set(client.params) == {"extractor"} for client in shot.clients)
    assert all(set(params) == {"generator"} for params, _ in shot.uploads)


def test_a_snapshot_is_checked_against_its_run_without_drawing_networks_each_time(tmp_path, monkeypatch):
    each = smoke("fedcg")
    setup = harness.prepare(each, digits_federation(), CPU)
    checkpoint.save_snapshot(tmp_path, each, harness.initial(setup))
    shot = checkpoint.load_snapshot(tmp_path, each.id, 0)
    assert harness.snapshot_of(setup, tmp_path, shot) is shot
    monkeypatch.setattr("privbench.networks.model.Model.net", lambda *_: pytest.fail("drawn again"))
    assert harness.snapshot_of(setup, tmp_path, shot) is shot
    params, buffers = shot.server.params, shot.server.buffers
    wide = params | {"classifier": {name: t.double() for name, t in params["classifier"].items()}}
    for spoilt in (shot._replace(server=Replica(wide, buffers)), shot._replace(clients=shot.clients[:1])):
        with pytest.raises(Damaged, match="is damaged"):
            harness.snapshot_of(setup, tmp_path, spoilt)


def full_rounds(folder):
    return sorted(int(path.stem.removeprefix("full-")) for path in folder.glob("full-*.safetensors"))


def test_a_long_run_keeps_whole_checkpoints_from_which_later_rounds_are_trained_again(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "LONG", 4)
    monkeypatch.setattr(checkpoint, "FULL_ROUNDS", (0, 1, 2))
    each = smoke("fedcg", rounds=5, keep_every=10)
    rounds = run(each, tmp_path)
    assert full_rounds(tmp_path) == sorted({0, 1, 2, 5, history.best_round(rounds)})
    assert not list(tmp_path.glob("checkpoint*"))

    setup = harness.prepare(each, digits_federation(), CPU)
    plain = harness.initial(setup)
    for _ in range(4):
        harness.train_round([setup], [plain], "alone")
    trained = []
    state = harness.state_at(setup, tmp_path, 4, lambda completed, *_: trained.append(completed))
    assert trained == list(range(max(n for n in full_rounds(tmp_path) if n <= 4), 4))
    assert state.round == 4
    assert {"task", "discriminator", "generator"} == set(state.clients[0].moments)
    assert same_bits(state, plain)
    last = checkpoint.full(tmp_path, each, 5, CPU)
    assert not same_bits(last, plain)
    harness.train_round([setup], [plain], "alone")
    assert same_bits(last, plain)
    assert checkpoint.full(tmp_path, each, 3, CPU) is None or history.best_round(rounds) == 3


def test_what_a_long_run_has_lost_is_made_again_to_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "LONG", 4)
    monkeypatch.setattr(checkpoint, "FULL_ROUNDS", (0, 1, 2))
    each = smoke("fedcg", rounds=4, keep_every=2)
    rounds = run(each, tmp_path)
    before = {path: content(path) for path in tmp_path.glob("*.safetensors")}
    names = ["full-0002.safetensors", "round-0002.safetensors", "round-0004.safetensors", "full-0004.safetensors"]
    for name in names:
        (tmp_path / name).unlink()
    assert {path.name for path in restoration.missing(tmp_path, each)} == set(names)
    restoration.restore(harness.prepare(each, digits_federation(), CPU), tmp_path)
    assert {path: content(path) for path in tmp_path.glob("*.safetensors")} == before
    assert restoration.lost(tmp_path, each) == []
    best = checkpoint.full_path(tmp_path, history.best_round(rounds))
    for path in tmp_path.glob("full-*.safetensors"):
        if path != best:
            path.unlink()
    # As an older run, which never had any; an attack on the networks that clients sent kept one.
    assert restoration.missing(tmp_path, each) == []
    best.unlink()
    assert restoration.missing(tmp_path, each) == []


def test_a_run_whose_end_was_removed_goes_on_from_its_last_whole_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "LONG", 1)
    monkeypatch.setattr(checkpoint, "FULL_ROUNDS", (0,))
    each = smoke("fedavg", rounds=3)
    rounds = run(each, tmp_path)
    before = {path: content(path) for path in tmp_path.glob("full-*")}
    (tmp_path / checkpoint.FINISHED).unlink()
    monkeypatch.setattr(harness, "train_round", lambda *_: pytest.fail("trained a round again"))
    assert run(each, tmp_path) == rounds
    assert {path: content(path) for path in tmp_path.glob("full-*")} == before


def test_a_kill_between_a_checkpoint_and_its_second_name_loses_no_whole_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "LONG", 1)
    monkeypatch.setattr(checkpoint, "FULL_ROUNDS", (0, 1))
    each, keep = smoke("fedavg", rounds=3), checkpoint._keep_checkpoint

    def killed(folder, round_):
        if round_ == 1:
            raise KeyboardInterrupt
        keep(folder, round_)

    monkeypatch.setattr(checkpoint, "_keep_checkpoint", killed)
    with pytest.raises(KeyboardInterrupt):
        run(each, tmp_path)
    monkeypatch.setattr(checkpoint, "_keep_checkpoint", keep)
    run(each, tmp_path)
    assert {0, 1, 3} <= set(full_rounds(tmp_path))


@pytest.mark.parametrize("method", ["feddf", "fedmd-cg", "fedgen"])
def test_a_server_of_no_steps_only_averages(method, tmp_path):
    """Its stage has no loss then; FedGen's generator stays as it was drawn."""
    assert "distillation" not in run(smoke(method, rounds=1, server_steps=0), tmp_path)[0]["loss"]


@pytest.mark.parametrize("method", ["fedcg", "fedgen"])
def test_a_mini_batch_of_one_image_has_no_diversity(method):
    setup = harness.prepare(smoke(method, rounds=1, batch=1, client_steps=2), digits_federation(), CPU)
    losses = harness.learn([setup], [harness.initial(setup)], "alone").losses
    assert all(math.isfinite(value) for each in losses.values() for value in each)


def test_a_short_run_keeps_no_whole_checkpoint(tmp_path):
    run(smoke("fedcg", rounds=3), tmp_path)
    assert (full_rounds(tmp_path), list(tmp_path.glob("checkpoint*"))) == ([], [])


def test_of_a_long_run_only_the_last_best_round_stays_besides_the_fixed_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "LONG", 1)
    monkeypatch.setattr(checkpoint, "FULL_ROUNDS", (0,))
    each = smoke("fedavg", rounds=4)
    setup = harness.prepare(each, digits_federation(), CPU)
    state = harness.initial(setup)
    checkpoint.begin(tmp_path, each)
    checkpoint.keep(tmp_path, each, state)
    for accuracy, rounds in ((50.0, [0, 1]), (40.0, [0, 1]), (60.0, [0, 3]), (60.0, [0, 3])):
        harness.train_round([setup], [state], "alone")
        state.history[-1]["validation_accuracy"] = [accuracy] * 2
        checkpoint.keep(tmp_path, each, state)
        assert full_rounds(tmp_path) == rounds
    checkpoint.finish(tmp_path, each, state)
    assert full_rounds(tmp_path) == [0, 3, 4]


@pytest.mark.parametrize("after", ["predictions", "finished"])
def test_a_kill_while_a_run_is_finished_leaves_nothing_but_what_stays(after, tmp_path, monkeypatch):
    """Killed after one of the last two files was written; asked again, the run is complete and its checkpoints are gone."""
    monkeypatch.setattr(checkpoint, "LONG", 1)
    each, write = smoke("fedavg", rounds=1), checkpoint.files.write_bytes

    def killed(path, data):
        write(path, data)
        if path.name.startswith(after):
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint.files, "write_bytes", killed)
    store, data_root = Store(tmp_path), None
    with pytest.raises(KeyboardInterrupt):
        training.train(store, [each], data_root, "cpu")
    folder = store.train(each)
    assert (folder / checkpoint.CHECKPOINT).exists()
    monkeypatch.setattr(checkpoint.files, "write_bytes", write)
    training.train(store, [each], data_root, "cpu")
    assert (full_rounds(folder), list(folder.glob("checkpoint*"))) == ([0, 1], [])
    assert len(checkpoint.history(folder, each.id)) == 1


def test_the_history_says_on_which_kinds_of_machine_the_rounds_were_trained(tmp_path, monkeypatch):
    each, real = smoke("fedavg", rounds=3), machine.trained_on
    elsewhere = {"processor": "another", "capability": "AVX2", "device": "cpu", "threads": 1, "torch": "2.13"}

    def moved_after_one_round(completed, total, what):
        monkeypatch.setattr(machine, "trained_on", real if completed == 0 else lambda _: elsewhere)

    rounds = run(each, tmp_path, moved_after_one_round)
    assert [entry["machine"] == elsewhere for entry in rounds] == [False, True, True]
    assert machine.kinds(rounds) == [real(CPU), elsewhere]
    assert history.Round(**rounds[1]).machine.processor == "another"
    assert machine.kinds([{"round": 1}]) == []


def noisy(where, measured="personal", method="fedavg"):
    """One round of two clients under noise: (its set-up, its state)."""
    each = presets.train_spec(
        "smoke",
        "digits",
        method,
        clients=2,
        defense="gaussian:0.1",
        where=where,
        measured=measured,
        changes={"rounds": 1},
    )
    setup = harness.prepare(each, digits_federation(), CPU)
    state = harness.initial(setup)
    harness.train_round([setup], [state], "alone")
    return setup, state


def same(one, other):
    return all(
        torch.equal(t, other.params[p][n]) for p, net in one.params.items() for n, t in net.items() if p in other.params
    )


def accuracy(setup, replica, images):
    features = setup.model.net("extractor").apply(
        replica.params["extractor"], {}, pixels(images.images, 32), train=False
    )[0]
    logits = setup.model.net("classifier").apply(replica.params["classifier"], {}, features, train=False)[0]
    return 100 * float((logits.argmax(1) == images.labels).double().mean())


def test_noise_on_the_update_is_in_what_is_uploaded_and_broadcast_and_not_in_the_personal_model():
    setup, state = noisy("update")
    models = evaluation.models(setup, state)
    for k, client in enumerate(state.clients):
        assert same(models["personal"][k], client)
        assert not same(models["uploaded"][k], client)
        assert same(models["uploaded"][k], Replica(state.uploads[k][0], {}))
        assert same(models["broadcast"][k], Replica(state.server.params, {}))
    noise = torch.cat([
        (models["uploaded"][0].params[p][n] - t).flatten() for p, net in state.clients[0].params.items() for n, t in net.items()
    ])  # fmt: skip
    # The standard error of a variance over this many coordinates is a hundredth of it.
    assert len(noise) > 20_000
    assert noise.var() == pytest.approx(0.1, rel=0.05)


@pytest.mark.parametrize("method", ["fedavg", "fedcg"])
def test_the_history_holds_the_accuracy_of_every_model_and_the_measured_one_counts(method):
    for measured in ("personal", "uploaded", "broadcast"):
        setup, state = noisy("update", measured, method)
        (entry,), models = state.history, evaluation.models(setup, state)
        for name, each in models.items():
            for part in ("validation", "test"):
                wanted = [
                    accuracy(setup, replica, getattr(client, part))
                    for replica, client in zip(each, setup.federation.clients, strict=True)
                ]
                assert entry["models"][name][part] == pytest.approx(wanted)
        assert entry["validation_accuracy"] == entry["models"][measured]["validation"]
        assert entry["test_accuracy"] == entry["models"][measured]["test"]
        assert [evaluation.right(p) for p in state.predictions] == entry["test_accuracy"]
        whole = evaluation.average_model(models[measured], setup.weights)
        tests = [client.test for client in setup.federation.clients]
        assert entry["global_accuracy"] == evaluation.pooled_accuracy(setup.model, whole, tests, CPU)


def test_noise_on_every_step_is_in_the_personal_model_which_is_what_is_uploaded():
    setup, state = noisy("step")
    models = evaluation.models(setup, state)
    assert all(same(a, b) for a, b in zip(models["personal"], models["uploaded"], strict=True))
    (entry,) = state.history
    assert entry["models"]["personal"] == entry["models"]["uploaded"]


def test_a_broadcast_model_has_the_clients_own_private_parts():
    setup, state = noisy("update", method="fedsplit")
    models = evaluation.models(setup, state)
    for k, client in enumerate(state.clients):
        one = models["broadcast"][k].params
        assert all(torch.equal(t, one["extractor"][n]) for n, t in client.params["extractor"].items())
        assert all(torch.equal(t, one["classifier"][n]) for n, t in state.server.params["classifier"].items())
    setup, state = noisy("update", method="local")
    assert len({id(each) for each in evaluation.models(setup, state).values()}) == 1


def test_which_model_is_measured_changes_no_training():
    one, other = noisy("update"), noisy("update", "broadcast")
    assert all(same(a, b) for a, b in zip(one[1].clients, other[1].clients, strict=True))
    assert one[1].history[0]["models"] == other[1].history[0]["models"]
