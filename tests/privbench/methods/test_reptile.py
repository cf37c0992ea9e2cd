"""Reptile against a plain loop, alone against stacked, and what it learns of classes that no client has."""

import dataclasses

import pytest
import torch

from attacks.imprint import Imprint
from privbench import presets, registry
from privbench.data import partition
from privbench.data.dataset import Dataset, Domain
from privbench.errors import UserError
from privbench.execution import one_attack, preconditions
from privbench.methods.base import RoundClock
from privbench.methods.reptile import Reptile
from privbench.observation import active_server, local_update, observe
from privbench.seeds import stream
from privbench.spec import SGD
from privbench.tensors import average
from privbench.training import (
    aggregation,
    defended,
    evaluation,
    federation,
    harness,
    phase_plans,
    task_evaluation,
)
from privbench.training.engine.alone import run_alone
from privbench.training.state import Snapshot
from privbench.types import Images, Knowledge, LocalSteps, Networks
from tests.builders.federations import learn_round

CPU = torch.device("cpu")


def patterns(classes, per_class, first):
    """Grids of black and white squares, one for each class, and grey noise on top of each image."""
    rng = stream(0, "patterns", first)
    images, labels = [], []
    for one in range(first, first + classes):
        grid = (torch.rand(4, 4, generator=stream(0, "grid", one)) < 0.5).float()
        whole = grid.repeat_interleave(8, 0).repeat_interleave(8, 1)
        noise = torch.rand(per_class, 1, 32, 32, generator=rng)
        images.append((255 * (0.6 * whole + 0.4 * noise)).to(torch.uint8))
        labels += [one] * per_class
    return Images(torch.cat(images), torch.tensor(labels))


def made(clients=3):
    """A federation that is split by class: nine classes train, four validate, four test."""
    domain = Domain(patterns(9, 12, 0), patterns(4, 12, 13), patterns(4, 12, 9))
    data = Dataset("patterns", tuple(map(str, range(17))), {"all": domain}, flip=False, source="", by_class=True)
    return partition.federate(data, clients=clients, per_client=100, how="classes", seed=0)


def prepared(defense="none", changes=None, clients=3, **settings):
    settings = {"ways": 3, "shots": 2, "tasks": 4, "tuning_steps": 5} | settings
    changes = {"rounds": 4, "client_steps": 3, "task.beta1": 0.0} | (changes or {})
    spec = presets.train_spec(
        "smoke", "glyphs", "reptile", clients=clients, defense=defense, changes=changes, method_settings=settings
    )
    return harness.prepare(spec, made(clients), CPU)


def theta(state):
    return {f"{p}.{n}": t for p, params in state.server.params.items() for n, t in params.items()}


def test_the_server_moves_towards_the_mean_of_what_clients_reached():
    setup = prepared(meta_lr=0.8)
    state = harness.initial(setup)
    for round_ in (1, 2):
        before = {name: t.clone() for name, t in theta(state).items()}
        harness.learn([setup], [state], "alone")
        state.round = round_
        rate = 0.8 * (1 - (round_ - 1) / 4)
        for name, t in theta(state).items():
            part, _, parameter = name.partition(".")
            total = torch.zeros_like(t)
            for client in state.clients:  # plain loop of Algorithm 2
                total += client.params[part][parameter] - before[name]
            torch.testing.assert_close(t, before[name] + rate * total / len(state.clients), rtol=1e-5, atol=1e-6)
            assert not torch.equal(t, before[name])


@pytest.mark.usefixtures("double_precision")
def test_a_client_takes_plain_steps_on_its_support_set_from_the_broadcast():
    changes = {"task": SGD(kind="sgd", lr=0.5).model_dump(), "batch": 4}
    spec = presets.train_spec(
        "smoke", "glyphs", "reptile", clients=3, method_settings={"ways": 3, "shots": 2, "tasks": 1},
        changes={"rounds": 4, "client_steps": 3, **changes},
    )  # fmt: skip
    setup = harness.prepare(spec, made(), CPU)
    state = harness.initial(setup)
    start = {p: {n: t.clone() for n, t in params.items()} for p, params in state.server.params.items()}
    harness.learn([setup], [state], "alone")
    for k, client in enumerate(state.clients):
        known = phase_plans.of_round(setup, k, 1)
        assert (len(known.rows), known.batch, known.steps) == (6, 4, 3)
        nets = {p: {n: t.clone().requires_grad_() for n, t in params.items()} for p, params in start.items()}
        plan = phase_plans.client_plan(setup, k, 1, setup.method.client()[0], 0)
        support = setup.images[k][known.rows] / 255
        for step in range(3):
            x = plan.images(step)
            match = (x[:, None] == support[None]).flatten(2).all(2)
            assert match.sum(1).tolist() == [1] * 4
            assert torch.equal(known.labels[match.int().argmax(1)], plan.labels[step])
            h, _ = setup.model.net("extractor").apply(nets["extractor"], {}, x, train=True)
            logits, _ = setup.model.net("classifier").apply(nets["classifier"], {}, h, train=True)
            loss = torch.nn.functional.cross_entropy(logits, plan.labels[step])
            leaves = [t for params in nets.values() for t in params.values()]
            for t, g in zip(leaves, torch.autograd.grad(loss, leaves), strict=True):
                t.data -= 0.5 * g
        for part, params in nets.items():
            for name, t in params.items():
                torch.testing.assert_close(client.params[part][name], t.detach())


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("defense", ["none", "dp-sgd:noise=1,clip=1"])
def test_stacked_equals_alone(defense):
    setup = prepared(defense)
    alone, stacked = harness.initial(setup), harness.initial(setup)
    for execution, state in (("alone", alone), ("stacked", stacked)):
        for round_ in (1, 2):
            harness.learn([setup], [state], execution)
            state.round = round_
    for name, t in theta(alone).items():
        torch.testing.assert_close(theta(stacked)[name], t)


@pytest.mark.usefixtures("double_precision")
def test_tasks_tuned_together_are_those_tuned_alone(monkeypatch):
    setup = prepared()
    state = harness.initial(setup)
    together = task_evaluation.predictions(setup, state.server, "test")
    monkeypatch.setattr(task_evaluation, "AT_ONCE", 5)
    again = task_evaluation.predictions(setup, state.server, "test")
    for a, b in zip(together, again, strict=True):
        torch.testing.assert_close(a.logits, b.logits)
    monkeypatch.setattr(task_evaluation, "run_stacked", run_alone)
    for a, b in zip(together, task_evaluation.predictions(setup, state.server, "test"), strict=True):
        torch.testing.assert_close(a.logits, b.logits)
        assert torch.equal(a.labels, b.labels)


def test_meta_learning_beats_random_networks_on_classes_that_no_client_has():
    changes = {"client_steps": 20, "task.lr": 1e-2}
    setup = prepared(changes=changes, train_shots=6, tasks=8)
    state = harness.initial(setup)
    untrained = evaluation.predictions(setup, state)
    # Test tasks are measured after the first and the last round, which takes longer than the rounds.
    for train_round in (harness.train_round, learn_round, learn_round, harness.train_round):
        train_round([setup], [state], "alone")
    entry = state.history[-1]["tasks"]
    assert entry["tasks"] == 3 * 8
    scores = task_evaluation.scores(setup, untrained)
    assert entry["untrained_accuracy"] == pytest.approx(sum(scores) / len(scores))
    assert entry["accuracy"] > entry["untrained_accuracy"] + entry["half_width"] + entry["untrained_half_width"]
    assert entry["accuracy"] == pytest.approx(state.history[-1]["global_accuracy"])
    assert state.history[-1]["test_accuracy"] == [
        evaluation.right(p) for p in task_evaluation.predictions(setup, state.server, "test")
    ]
    losses = [sum(one["loss"]["task"]) for one in state.history]
    assert losses[-1] < 0.5 * losses[0]


def test_a_round_draws_other_tasks_and_names_classes_anew():
    setup = prepared()
    drawn = [phase_plans.of_round(setup, 0, round_) for round_ in range(1, 30)]
    names = {
        tuple(sorted((int(setup.labels[0][row]), int(name)) for row, name in zip(d.rows, d.labels, strict=True)))
        for d in drawn
    }
    assert len(names) > 4
    assert all(torch.bincount(d.labels).tolist() == [2, 2, 2] for d in drawn)
    assert all(len(d.rows.unique()) == 6 for d in drawn)


def test_clients_count_alike_however_many_images_they_have():
    setup = prepared(clients=2)
    assert len(setup.labels[0]) != len(setup.labels[1])
    assert setup.weights.tolist() == [0.5, 0.5]


def test_a_sum_over_clients_is_all_that_the_server_needs():
    plain, summed = prepared(), prepared("secure-aggregation:masks")
    states = [harness.initial(setup) for setup in (plain, summed)]
    for setup, state in zip((plain, summed), states, strict=True):
        (whole,) = harness.learn([setup], [state], "alone").sums
        assert (whole is not None) == aggregation.sums(setup, setup.taking_part(1))
    for name, t in theta(states[0]).items():
        torch.testing.assert_close(theta(states[1])[name], t, rtol=0, atol=1e-5)


def test_in_two_phases_all_are_added_up_once_and_then_one_client_after_another_moves_the_meta_learner():
    setup = prepared("secure-aggregation:masks", {"rounds": 5}, turns=True)
    assert [setup.taking_part(r) for r in range(1, 6)] == [(0, 1, 2), (0,), (1,), (2,), (0,)]
    assert "in the clear" in setup.method.notes()[-1]
    state = harness.initial(setup)
    for round_ in (1, 2, 3):
        before = {name: t.clone() for name, t in theta(state).items()}
        (whole,) = harness.learn([setup], [state], "alone").sums
        state.round = round_
        assert (whole is not None) == (round_ == 1)
        if round_ == 1:
            continue
        rate, sender = 1 - (round_ - 1) / 5, state.clients[round_ - 2]
        for name, t in theta(state).items():
            part, _, parameter = name.partition(".")
            expected = before[name] + rate * (sender.params[part][parameter] - before[name])
            torch.testing.assert_close(t, expected, rtol=1e-5, atol=1e-6)


def test_in_two_phases_the_server_sees_a_sum_first_and_then_the_gradient_of_one_client():
    setup = prepared("secure-aggregation:masks", turns=True)
    first, _ = observed(setup, 2, 2)
    assert first.senders == 3
    state = harness.initial(setup)
    harness.learn([setup], [state], "alone")
    shot = Snapshot(2, state.server, state.clients, [({}, {})] * len(state.clients))
    later, truth = observed(setup, 2, 2, shot=shot)
    # Round 3 is the second client's.
    assert (later.senders, later.member_weights, later.client.tolist()) == (1, None, [1, 1])
    assert truth.labels.shape == (2, 2)


@pytest.mark.parametrize(("round_", "weights"), [(0, (1, 1, 1)), (2, None)])
def test_in_two_phases_an_active_server_expects_a_sum_first_and_then_one_message(round_, weights, monkeypatch):
    setup, told = prepared("clip:1+secure-aggregation:masks", turns=True), []
    monkeypatch.setattr(Imprint, "craft", lambda *given: told.append(given[3].expected) or Networks({}, {}))
    cell = presets.cell_spec("smoke", setup.spec, registry.typed("attack", "imprint"), round_=str(round_), batch_size=2)
    state = harness.initial(setup)
    shot = Snapshot(round_, state.server, state.clients, [({}, {})] * len(state.clients))
    active_server.sent(cell, setup, shot, None)
    seen, truth = observed(setup, 2, 2, shot=shot)
    (expected,) = told
    assert expected.weights == weights
    assert expected.batch_size == truth.labels.shape[1] == (2 if weights is None else 6)
    # One client's message was clipped, and nothing added it up.
    assert ("clip" in seen.defense) == (weights is None)
    assert (seen.member_weights is None) == (weights is None)


@pytest.mark.parametrize("attack", ["model-inconsistency", "client-rows"])
def test_in_two_phases_nothing_is_taken_out_of_sums_that_never_come(attack):
    setup = prepared("secure-aggregation:masks", turns=True)
    cells = {r: presets.cell_spec("smoke", setup.spec, attack, round_=r) for r in ("0", "2", "best")}
    for round_, cell in cells.items():
        lacking = active_server.lacking(cell, setup.method)
        assert ("aggregate" in lacking) == (round_ != "0")
        if round_ == "0":
            continue
        with pytest.raises(UserError, match=f"{attack} takes .* from round 1 on one client of reptile sends alone"):
            preconditions._check_attack(cell)


def test_a_defence_of_every_image_draws_from_all_images_of_the_classes_and_says_so():
    setup = prepared("dp-sgd:noise=1,clip=1")
    assert [defended.examples(setup.method, labels) for labels in setup.labels] == [36, 36, 36]
    for round_ in range(1, 6):
        known = phase_plans.of_round(setup, 1, round_)
        assert torch.bincount(known.labels).tolist() == [12] * 3
        assert known.batch == 6
    (stage,) = (facts := defended.facts(setup.method, setup.spec.schedule, 36, 4, ())).stages
    assert (facts.examples, facts.rounds, stage.batch, stage.steps) == (36, 4, 6, 3)
    assert "classes of its images and how many it has of each" in facts.besides
    guarantee = defended.guarantees(setup, 4)[0]
    # The same as of plain training on 36 images with as many steps at the same rate.
    plain = setup.defense.guarantee(facts._replace(besides=()))
    assert guarantee.epsilon == plain.epsilon
    assert set(guarantee.leaves_out) - set(plain.leaves_out) == {*facts.besides} - {"batch-norm statistics"}


def observed(setup, victims, batch, shot=None, **more):
    state = harness.initial(setup)
    shot = shot or Snapshot(0, state.server, state.clients, [({}, {})] * len(state.clients))
    return observe.observe(
        shot, setup.federation, setup.model, setup.method, setup.defense, method_name="reptile", dataset="patterns",
        victims=victims, batch_size=batch, labels_known=False, seed=1, **more,
    )  # fmt: skip


def test_a_victim_is_a_support_set_with_the_names_of_its_task():
    setup = prepared()
    seen, truth = observed(setup, 6, 6)
    assert seen.model.classes == 3
    assert seen.client.tolist() == [0, 1, 2, 0, 1, 2]
    for v, k in enumerate(seen.client.tolist()):
        assert torch.bincount(truth.labels[v]).tolist() == [2, 2, 2]
        images, client = (truth.images[v] * 255).round().to(torch.uint8), setup.federation.clients[k].train
        match = (images[:, None] == client.images[None]).flatten(2).all(2)
        classes = client.labels[match.int().argmax(1)]
        for name in range(3):
            assert len(classes[truth.labels[v] == name].unique()) == 1
    flat = truth.images.flatten(0, 1).flatten(1)
    assert len(flat.unique(dim=0)) == 36
    one, truth_of_one = observed(setup, 6, 1)
    assert torch.equal(truth_of_one.images[:, 0], truth.images[:, 0])  # of the same tasks
    assert one.gradients["classifier"]["fc3.bias"].shape == (6, 3)


def test_the_update_of_a_support_set_is_what_a_client_would_send():
    setup = prepared()
    local = LocalSteps(2, SGD(kind="sgd", lr=0.1).model_dump())
    seen, truth = observed(setup, 2, 6, local=local)
    gradients = observed(setup, 2, 6)[0].gradients
    assert set(seen.updates) == {"extractor", "classifier"}
    bias = seen.updates["classifier"]["fc3.bias"]
    assert bias.shape == (2, 3)
    # The first of the two steps goes along the gradient.
    assert torch.cosine_similarity(bias, -gradients["classifier"]["fc3.bias"]).min() > 0.95
    assert truth.images.shape == (2, 6, 1, 32, 32)


def test_local_training_on_tasks_is_known_by_the_size_of_a_support_set():
    setup = prepared()
    known = local_update.local_training(setup.spec.schedule, [100, 30], setup.method.client_tasks)
    assert (known.batch, known.steps) == (6, 3)
    epochs = setup.spec.schedule.model_copy(update={"client_steps": None, "batch": 4})
    assert local_update.local_training(epochs, [100, 30], setup.method.client_tasks).steps == 2


@pytest.mark.usefixtures("small_shadows")
@pytest.mark.parametrize(
    ("name", "settings"),
    [("class-mean", {}), ("nearest-auxiliary", {}), ("dlg", {"steps": 3}), ("inverting-gradients", {"steps": 3}),
     ("staged", {"steps": 3, "exact_steps": 4}), ("grnn", {"steps": 2}), ("learned-inverse", {"train_steps": 2})],
)  # fmt: skip
def test_attacks_on_support_sets_are_those_on_any_gradient(name, settings):
    setup = prepared()
    seen, _ = observed(setup, 2, 1)
    known = Knowledge(auxiliary=observe.auxiliary(federation.as_known(setup.spec, setup.federation)))
    attack = registry.resolve("attack", name)
    fields = {field.name for field in dataclasses.fields(attack)}
    settings = {one: value for one, value in settings.items() if one in fields}
    made = one_attack.attack_artifact(name, settings, seen, known, 0, CPU, lambda *_: None)
    assert made.images.shape == (2, 1, 1, 32, 32)
    assert 0 <= int(made.labels.min()) <= int(made.labels.max()) < 3


def test_an_active_server_crafts_for_the_classes_of_a_task():
    setup = prepared()
    state = harness.initial(setup)
    cell = presets.cell_spec("smoke", setup.spec, "imprint", victims=2, attack_settings={"rehearsal_images": 0})
    made = active_server.crafted(cell, setup, state.server, 0, None, None)
    assert made.params["classifier"]["fc3.weight"].shape[0] == 3
    before, after = (each.params["classifier"]["fc1.weight"] for each in (state.server, made))
    assert not torch.equal(before, after)


@pytest.mark.parametrize(
    ("victims", "batch", "line"),
    [(1, 7, "the support set of a 3-way 2-shot task has 6 images"), (20, 6, "give 18 support sets")],
)
def test_more_victims_or_images_than_tasks_have_are_refused(victims, batch, line):
    setup = prepared()
    with pytest.raises(UserError, match=line) as raised:
        observed(setup, victims, batch)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "line"),
    [({"shots": 0}, "shots should be at least 1"), ({"ways": 1}, "ways should be at least 2"),
     ({"tasks": 0}, "tasks should be at least 1"), ({"meta_lr": -1.0}, "meta_lr should be at least 0"),
     ({"train_shots": -1}, "train_shots should be at least 0")],
)  # fmt: skip
def test_settings_out_of_range_are_refused_in_one_line(settings, line):
    with pytest.raises(ValueError, match=line):
        Reptile(**settings)


def test_more_ways_than_a_client_has_classes_and_other_methods_on_split_classes_are_refused(monkeypatch):
    monkeypatch.setattr(federation, "laid_out", lambda *_: (made(), ""))
    spec = presets.train_spec("smoke", "glyphs", "reptile", clients=3, method_settings={"ways": 4})
    with pytest.raises(UserError, match=r"4-way 1-shot tasks need 4 classes, but only 3"):
        federation.of(spec, None)
    spec = presets.train_spec("smoke", "glyphs", "reptile", clients=3, method_settings={"ways": 3, "shots": 12})
    with pytest.raises(UserError, match=r"3-way 12-shot tasks need 3 classes, but only 0"):
        federation.of(spec, None)
    spec = presets.train_spec("smoke", "glyphs", "fedavg", clients=3)
    with pytest.raises(UserError, match=r"glyphs is split by class, .*--method reptile"):
        federation.of(spec, None)
    assert federation.of_data(spec, None)[0].by_class  # to be drawn
    spec = presets.train_spec("smoke", "glyphs", "reptile", clients=3, method_settings={"ways": 3})
    assert federation.of(spec, None)[1] == ""
    monkeypatch.setattr(federation, "laid_out", lambda *_: (made()._replace(by_class=False), ""))
    assert "test tasks are of classes that clients train on" in federation.of(spec, None)[1]


def test_the_rate_falls_linearly_and_other_methods_go_all_the_way():
    rates = [Reptile(meta_lr=0.5).server_rate(RoundClock(r, 4)) for r in (1, 2, 3, 4)]
    assert rates == [0.5, 0.375, 0.25, 0.125]
    setup = prepared(meta_lr=0.0)
    state = harness.initial(setup)
    before = theta(state)
    harness.learn([setup], [state], "alone")
    assert all(torch.equal(t, before[name]) for name, t in theta(state).items())
    plain = harness.prepare(presets.train_spec("smoke", "digits", "fedavg", clients=3), made(), CPU)
    state = harness.initial(plain)
    harness.learn([plain], [state], "alone")
    for part in ("extractor", "classifier"):
        mean = average([upload[0][part] for upload in state.uploads], plain.weights)
        assert all(torch.equal(state.server.params[part][n], t) for n, t in mean.items())


def test_moments_are_of_one_task():
    setup = prepared()
    state = harness.initial(setup)
    harness.learn([setup], [state], "alone")
    state.round = 1
    for client in state.clients:
        client.moments = {name: replace_square(m) for name, m in client.moments.items()}
    harness.learn([setup], [state], "alone")
    assert all(m.steps == 3 for client in state.clients for m in client.moments.values())


def replace_square(moments):
    return moments._replace(square=moments.square + 1e6)
