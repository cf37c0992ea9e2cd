"""What is measured of trained networks, and that it is kept: consistency, global accuracy, predictions at the best round."""

import json
import math

import pytest
import torch

from privbench import presets
from privbench.cli import training_view
from privbench.errors import UserError
from privbench.execution import cell_jobs
from privbench.networks.model import Model
from privbench.records import schema, summary
from privbench.records.store import Store
from privbench.seeds import stream
from privbench.system import files
from privbench.training import checkpoint, evaluation, harness
from privbench.training.history import best_round, best_rounds, selected_accuracy
from privbench.training.state import Replica
from privbench.types import Images
from tests.builders.federations import digits_federation

CPU = torch.device("cpu")


def trained(method, rounds=1, sizes=(10, 30)):
    each = presets.train_spec("smoke", "digits", method, clients=2, changes={"rounds": rounds})
    setup = harness.prepare(each, digits_federation(sizes), CPU)
    state = harness.initial(setup)
    for _ in range(rounds):
        harness.train_round([setup], [state], "alone")
    return setup, state


@pytest.fixture(scope="module")
def fedcg():
    return trained("fedcg")


def test_the_consistency_loss_equals_a_plain_loop(fedcg, monkeypatch):
    setup, state = fedcg
    for k, client in enumerate(state.clients):
        rng = stream(setup.spec.seed, "client", k, "consistency")
        assert state.history[-1]["consistency"][k] == evaluation.consistency(setup.model, client, setup.labels[k], rng)
    monkeypatch.setattr(evaluation, "DRAWS", 16)
    for k, client in enumerate(state.clients):
        rng = stream(setup.spec.seed, "client", k, "consistency")
        z = torch.randn(evaluation.DRAWS, 100, generator=rng)
        labels = setup.federation.clients[k].train.labels
        y = labels[torch.randint(len(labels), (evaluation.DRAWS,), generator=rng)]
        total = 0.0
        with torch.no_grad():
            for one, label in zip(z, y, strict=True):
                generator, classifier = setup.model.net("generator"), setup.model.net("classifier")
                h, _ = generator.apply(
                    client.params["generator"], client.buffers["generator"], one[None], label[None], train=False
                )
                logits, _ = classifier.apply(client.params["classifier"], {}, h, train=False)
                total -= math.log(float(logits[0].double().exp()[label] / logits[0].double().exp().sum()))
        rng = stream(setup.spec.seed, "client", k, "consistency")
        consistency = evaluation.consistency(setup.model, client, setup.labels[k], rng)
        assert consistency == pytest.approx(total / evaluation.DRAWS, rel=1e-4)


def test_an_untrained_classifier_of_equal_logits_has_the_consistency_of_chance(fedcg):
    setup, state = fedcg
    client = state.clients[0]
    flat = {name: torch.zeros_like(t) for name, t in client.params["classifier"].items()}
    blind = Replica(client.params | {"classifier": flat}, client.buffers)
    consistency = evaluation.consistency(setup.model, blind, setup.labels[0], torch.Generator())
    assert consistency == pytest.approx(math.log(10))


@pytest.mark.parametrize("method", ["fedavg", "fedgen", "local"])
def test_clients_without_a_generator_have_no_consistency(method):
    assert trained(method)[1].history[-1]["consistency"] == []


@pytest.mark.parametrize("method", ["fedper", "local"])
def test_global_accuracy_is_that_of_the_weighted_average_of_private_parts_too(method):
    """Clients of 10 and 30 images: E and C of either are averaged 1:3 by hand."""
    setup, state = trained(method)
    a, b = (client.params for client in state.clients)
    assert not torch.equal(a["classifier"]["fc1.weight"], b["classifier"]["fc1.weight"])
    params = {p: {n: 0.25 * a[p][n] + 0.75 * b[p][n] for n in a[p]} for p in ("extractor", "classifier")}
    right = total = 0
    for split in setup.federation.clients:
        for image, label in zip(split.test.images, split.test.labels, strict=True):
            h, _ = setup.model.net("extractor").apply(params["extractor"], {}, image[None] / 255, train=False)
            logits, _ = setup.model.net("classifier").apply(params["classifier"], {}, h, train=False)
            right, total = right + int(logits.argmax() == label), total + 1
    assert total == 20
    assert state.history[-1]["global_accuracy"] == pytest.approx(100 * right / total)


def test_for_fedavg_global_accuracy_is_that_of_the_broadcast_network():
    setup, state = trained("fedavg")
    tests = [client.test for client in setup.federation.clients]
    accuracy = evaluation.pooled_accuracy(setup.model, state.server, tests, CPU)
    assert state.history[-1]["global_accuracy"] == accuracy


def finish(folder, progress=lambda *_: None):
    """FedMD-CG for five rounds at a rate so high that accuracy goes up and down."""
    each = presets.train_spec(
        "smoke", "digits", "fedmd-cg", clients=2, changes={"rounds": 5, "task": {"lr": 0.01}, "local_epochs": 3}
    )
    harness.train([each], [digits_federation()], [folder], CPU, "alone", progress)
    return each


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return finish(folder), folder


def test_predictions_are_kept_of_each_client_s_best_validation_round(whole):
    """Trained again round by round, and each round's predictions set beside the ones kept."""
    each, folder = whole
    rounds, predictions = checkpoint.history(folder, each.id), checkpoint.predictions(folder, each.id)
    best = best_rounds(rounds)
    assert min(best) < 5  # a later round did not overwrite them
    setup = harness.prepare(each, digits_federation(), CPU)
    state = harness.initial(setup)
    for round_ in range(1, 6):
        harness.train_round([setup], [state], "alone")
        for k, prediction in enumerate(evaluation.predictions(setup, state)):
            assert torch.equal(predictions[k].logits, prediction.logits) == (round_ == best[k])
    assert [evaluation.right(p) for p in predictions] == selected_accuracy(rounds)


def test_a_killed_run_ends_with_the_same_metrics(whole, tmp_path):
    each, folder = whole

    def kill(completed, total, what):
        if completed == 3 and "generator" in what:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finish(tmp_path, kill)
    assert checkpoint.progress(tmp_path, each.id) == 3
    finish(tmp_path)
    one, other = summary.training(folder, each.id), summary.training(tmp_path, each.id)

    def numbers(training):
        return [r.model_dump(exclude={"seconds"}) for r in training.rounds], training.clients

    assert numbers(one) == numbers(other)


def test_the_training_part_of_a_record_says_what_the_history_says(whole):
    each, folder = whole
    rounds, training = checkpoint.history(folder, each.id), summary.training(folder, each.id)
    assert [r.test_accuracy for r in training.rounds] == [e["test_accuracy"] for e in rounds]
    assert [c.accuracy for c in training.clients] == selected_accuracy(rounds)
    assert [c.consistency for c in training.clients] == [
        rounds[c.round - 1]["consistency"][k] for k, c in enumerate(training.clients)
    ]
    assert training.global_accuracy == rounds[best_round(rounds) - 1]["global_accuracy"]
    assert set(training.rounds[0].loss) == {"task", "generator", "distillation"}
    assert [len(losses) for losses in training.rounds[0].loss.values()] == [2, 2, 1]


def test_a_run_that_was_trained_anew_in_its_folder_is_read_anew(whole, tmp_path):
    """As after an edit of a method of the user's own, whose runs keep their ids, within one session of Python."""
    each, folder = whole
    for name in (checkpoint.SPEC, checkpoint.FINISHED, checkpoint.PREDICTIONS):
        files.write_bytes(tmp_path / name, (folder / name).read_bytes())
    before = summary.training(tmp_path, each.id)
    assert summary.training(tmp_path, each.id) is before
    finished = files.read_digested(tmp_path / checkpoint.FINISHED)
    for entry in finished["history"]:
        entry["global_accuracy"] = 12.5
    files.write_digested(tmp_path / checkpoint.FINISHED, finished)
    assert summary.training(tmp_path, each.id).global_accuracy == 12.5
    assert before.global_accuracy != 12.5


def test_a_run_without_its_predictions_is_named(whole, tmp_path):
    each, folder = whole
    for name in (checkpoint.SPEC, checkpoint.FINISHED):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(UserError, match=r"there is no predictions at .*predictions\.safetensors"):
        summary.training(tmp_path, each.id)
    (tmp_path / checkpoint.FINISHED).unlink()
    with pytest.raises(UserError, match=f"run {each.id} is not trained to the end"):
        summary.training(tmp_path, each.id)


def accuracy_cell(method, rounds, **settings):
    changes = {"rounds": rounds, "keep_every": 9}
    train = presets.train_spec("smoke", "digits", method, clients=2, changes=changes, method_settings=settings)
    return presets.cell_spec("smoke", train, None)


@pytest.mark.parametrize("rounds", [0, 2])
def test_an_accuracy_cell_is_trained_measured_and_recorded(rounds, tmp_path):
    cell, store = accuracy_cell("local", rounds), Store(tmp_path)
    outcomes = []
    for _ in range(2):
        assert (
            cell_jobs.run_cells([cell], tmp_path, None, "cpu", lambda *_: None, lambda *each: outcomes.append(each))
            == []
        )
    assert len(outcomes) == 1  # the second time there was nothing to do
    record = schema.read(store.record(cell))
    assert type(record) is schema.Record
    assert record.cell.attack is None
    (training,) = record.training
    assert record.accuracy.per_client == [[c.accuracy for c in training.clients]]
    assert len(training.rounds) == rounds
    assert all(r.bytes_up == [0, 0] for r in training.rounds)
    assert (training.global_accuracy is None) == (rounds == 0)
    assert [sum(client) for client in record.label_counts[0]] == [32, 32]
    assert store.cells() == [cell]
    assert not (tmp_path / "artifacts").exists()


def test_the_record_of_a_run_that_was_moved_notes_its_kinds_of_machine(tmp_path):
    cell, store = accuracy_cell("fedavg", 3), Store(tmp_path)
    assert cell_jobs.run_cells([cell], tmp_path, None, "cpu", lambda *_: None, lambda *_: None) == []
    assert schema.read(store.record(cell)).notes == []
    finished = store.train(cell.train) / checkpoint.FINISHED
    state = json.loads(finished.read_text())
    for processor, entry in zip("aba", state["history"], strict=True):
        entry["machine"] = {"processor": processor, "capability": "AVX2", "device": "cpu", "threads": 1, "torch": "2"}
    files.write_digested(finished, state)
    summary.finish_cell(store, cell)
    (note,) = schema.read(store.record(cell)).notes
    assert note == (
        "seed 100 was trained on 2 kinds of machine (processor a, capability AVX2, device cpu, threads 1, torch 2; "
        "processor b, capability AVX2, device cpu, threads 1, torch 2)"
    )


@pytest.mark.parametrize(("settings", "notes"), [
    ({}, ["FedMD-CG: L_div2 of means over dimensions"]),
    ({"diversity": 0, "diversity_scale": "literal"}, ["FedMD-CG: L_div0 of norms as printed"]),
    ({"without": "div"}, []),
])  # fmt: skip
def test_a_record_says_which_diversity_loss_was_descended_on_by_default_too(settings, notes, tmp_path):
    cell = accuracy_cell("fedmd-cg", 0, **settings)
    assert cell_jobs.run_cells([cell], tmp_path, None, "cpu", lambda *_: None, lambda *_: None) == []
    assert schema.read(Store(tmp_path).record(cell)).notes == notes


def test_the_view_of_training_shows_every_metric_of_a_run(whole):
    each, folder = whole
    training = summary.training(folder, each.id)
    columns, rows = training_view.clients([training])
    assert columns[2:] == list(training_view.METRICS)
    assert [row[0] for row in rows] == ["1", "2", "mean"]
    assert rows[0][2] == f"{training.clients[0].accuracy:.2f}"
    columns, rows = training_view.rounds([training, training])
    assert len(rows) == 5
    by_name = dict(zip(columns, rows[2], strict=True))
    assert by_name["bytes up"] == f"{training.rounds[2].bytes_up[0]:,}"
    assert by_name["distillation loss"] == f"{training.rounds[2].loss['distillation'][0]:.4f}"
    assert by_name["task loss"] == f"{sum(training.rounds[2].loss['task']) / 2:.4f}"
    columns, rows = training_view.confusion([training], list("0123456789"))
    assert sum(int(cell) for row in rows for cell in row[1:-1]) == 20
    long = training.model_copy(
        update={"rounds": [training.rounds[0].model_copy(update={"round": r + 1}) for r in range(100)]}
    )
    shown = [int(row[0]) for row in training_view.rounds([long])[1]]
    assert len(shown) <= training_view.MOST_ROUNDS + 1
    assert (shown[0], shown[-1]) == (1, 100)


def test_a_loss_that_diverged_is_none_in_the_record(whole, tmp_path):
    each, folder = whole
    for path in folder.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    value = json.loads((tmp_path / checkpoint.FINISHED).read_text())
    value["history"][1]["loss"]["task"][0] = math.nan
    files.write_digested(tmp_path / checkpoint.FINISHED, value)
    training = summary.training(tmp_path, each.id)
    assert training.rounds[1].loss["task"][0] is None
    _, rows = training_view.rounds([training])
    assert rows[1][1] == "-"


def test_logits_do_not_depend_on_the_number_of_threads():
    # In single precision and of many images, where operations are split over threads.
    model, rng = Model("lenet5", 1, 10), stream(0, "threads")
    params = {part: model.net(part).init(rng)[0] for part in ("extractor", "classifier")}
    replica = Replica(params, {"extractor": {}, "classifier": {}})
    images = Images(torch.randint(256, (1000, 1, 32, 32), generator=rng, dtype=torch.uint8), torch.zeros(1000).long())
    before, logits = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            logits.append(evaluation.predict(model, replica, images, CPU).logits)
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*logits)
