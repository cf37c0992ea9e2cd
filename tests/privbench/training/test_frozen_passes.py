"""Passes through frozen networks: of many mini-batches at once as of each by itself, and the same numbers ahead of time."""

import threading

import pytest
import torch

from privbench import presets, registry
from privbench.methods.base import MiniBatch, RoundClock
from privbench.methods.fedcg import received_features
from privbench.training import harness, phase_plans
from privbench.training.engine import frozen_passes
from privbench.training.engine.plan import PhaseRun, StageContext
from tests.builders.federations import digits_federation, learn_round

# Round 2 is the first in which all of them compare with what they received.
ROUNDS = 2
FROZEN = ("fedcg", "feddf", "fedgen", "fedmd-cg", "nfl-cgan")
SETTINGS = {"nfl-cgan": {"gan": "dense"}, "fedcg": {"gan": "dense"}, "fedgen": {"gan": "dense"}}


def prepared(method, settings=None):
    settings = SETTINGS.get(method) if settings is None else settings
    train = presets.train_spec("smoke", "digits", method, clients=2, seed=0, method_settings=settings)
    return harness.prepare(train, digits_federation((40, 24), False), torch.device("cpu"))


def trained(method, settings=None):
    """All networks after some rounds, as one vector."""
    setup = prepared(method, settings)
    state = harness.initial(setup)
    for _ in range(ROUNDS):
        learn_round([setup], [state], "alone")
    replicas = [state.server, *state.clients]
    return torch.cat([t.flatten() for r in replicas for part in r.params.values() for t in part.values()])


def test_these_are_the_methods_that_have_frozen_passes():
    every = {name: prepared(name).method for name in registry.METHODS if name != "lg-fedavg"}
    phases = {name: (*method.client(), *method.server()) for name, method in every.items()}
    with_passes = {n for n, each in phases.items() if any(stage.frozen for phase in each for stage in phase.stages)}
    assert with_passes == set(FROZEN)


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("method", FROZEN)
def test_of_many_mini_batches_at_once_as_of_each_by_itself(method, monkeypatch):
    together = trained(method)
    monkeypatch.setattr(frozen_passes, "ROWS", 1)
    apart = trained(method)
    assert float((together - apart).norm() / apart.norm()) < 1e-9


@pytest.mark.parametrize(("method", "settings"), [*((m, None) for m in FROZEN), ("fedcg", {"aggregator": "kdc"})])
def test_no_step_makes_a_pass_that_was_declared(method, settings, monkeypatch):
    asked = []

    def passed(batch, through, nets):
        asked.append(through.__name__)
        return batch.frozen[through.__name__]

    monkeypatch.setattr(MiniBatch, "passed", passed)
    trained(method, settings)
    assert asked


@pytest.mark.parametrize("method", ["fedcg", "feddf"])
def test_ahead_in_a_thread_to_the_same_bits(method, monkeypatch):
    # Blocks of one or two mini-batches, so that there are several.
    monkeypatch.setattr(frozen_passes, "ROWS", 16)
    used, before = [], torch.get_num_threads()
    one_ahead = frozen_passes._one_ahead
    monkeypatch.setattr(frozen_passes, "_one_ahead", lambda *given: used.append(given) or one_ahead(*given))
    try:
        torch.set_num_threads(1)
        alone = trained(method)
        assert not used
        torch.set_num_threads(2)
        assert torch.equal(trained(method), alone)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert used


def blocks(pass_, ahead, monkeypatch):
    """The mini-batches of FedCG's distillation, with one frozen pass in place of its own."""
    monkeypatch.setattr(frozen_passes, "ROWS", 1)
    setup = prepared("fedcg")
    state = harness.initial(setup)
    (phase,) = setup.method.server()
    (stage,) = phase.stages
    object.__setattr__(stage, "frozen", (pass_,))
    plan = phase_plans.server_plan(setup, 1, phase)
    assert plan.steps > 1
    around = StageContext(None, tuple((c.params, c.buffers) for c in state.clients), setup.weights)
    return frozen_passes.mini_batches(
        PhaseRun(setup.model, phase, RoundClock(1, 1), {}), plan, around, ahead=ahead
    ), plan.steps


@pytest.mark.parametrize("ahead", [False, True])
def test_an_error_of_a_pass_reaches_the_training_and_leaves_no_thread(ahead, monkeypatch):
    calls = []

    def fails_later(nets, batch):
        calls.append(len(batch.labels))
        if len(calls) > 1:
            raise ZeroDivisionError
        return batch.noise["z"]

    steps, _ = blocks(fails_later, ahead, monkeypatch)
    assert len(next(steps)) == 1
    with pytest.raises(ZeroDivisionError):
        list(steps)
    assert not any("ThreadPool" in thread.name for thread in threading.enumerate())


@pytest.mark.parametrize("ahead", [False, True])
def test_every_step_has_its_own_rows_in_order(ahead, monkeypatch):
    def its_noise(nets, batch):
        return 2 * batch.noise["z"]

    steps, count = blocks(its_noise, ahead, monkeypatch)
    each = list(steps)
    assert len(each) == count
    assert all(torch.equal(batch.frozen["its_noise"], 2 * batch.noise["z"]) for (batch,) in each)


def test_a_training_that_stops_leaves_no_thread(monkeypatch):
    steps, _ = blocks(lambda nets, batch: batch.noise["z"], True, monkeypatch)
    next(steps)
    steps.close()
    assert not any("ThreadPool" in thread.name for thread in threading.enumerate())


def test_a_pass_reaches_no_network_that_is_trained(monkeypatch):
    def through_the_student(nets, batch):
        return nets.generator(batch.noise["z"], batch.noise["y"])

    with pytest.raises(KeyError, match="generator"):
        list(blocks(through_the_student, False, monkeypatch)[0])


def test_a_loss_without_an_engine_makes_its_own_pass():
    setup = prepared("fedcg")
    state = harness.initial(setup)
    nets = frozen_passes.nets_of(
        setup.model, {}, {}, (), StageContext((state.server.params, state.server.buffers), (), None)
    )
    rng = torch.Generator().manual_seed(0)
    noise = {"z": torch.randn(3, setup.model.noise_dim, generator=rng)}
    batch = MiniBatch(torch.zeros(0), torch.tensor([1, 0, 2]), noise)
    expected = nets.received.generator(batch.noise["z"], batch.labels)
    assert torch.equal(batch.passed(received_features, nets), expected)
    brought = batch._replace(frozen={"received_features": expected + 1})
    assert torch.equal(brought.passed(received_features, nets), expected + 1)
