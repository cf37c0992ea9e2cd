"""Clients side by side, each in a process of its own, have the numbers that they have one after the other."""

from dataclasses import replace

import pytest
import torch
from loky import get_reusable_executor

from defenses.dp_sgd import DPSGD
from privbench import presets
from privbench.errors import UserError
from privbench.system import cpu, side_by_side
from privbench.training import harness, local_training
from privbench.training.local_training import Learner
from tests.builders.federations import digits_federation


@pytest.fixture
def calls(monkeypatch):
    """Makes every round long enough for processes; gives of each round the calls, how many at a time, and the processes."""
    counts = []
    call_each = side_by_side.call_each

    def counted(function, arguments, processes, *rest):
        results = call_each(function, arguments, processes, *rest)
        counts.append((len(arguments), processes, set(get_reusable_executor(reuse=True)._processes)))
        return results

    monkeypatch.setattr(local_training, "LONG_ROUND", 0)
    monkeypatch.setattr(local_training, "LONG_RUN", 0)
    monkeypatch.setattr(side_by_side, "call_each", counted)
    return counts


def trained(monkeypatch, threads, method="fedavg", defense="none", where="update", rounds=2, settings=None):
    monkeypatch.setattr(cpu, "threads", lambda alone: threads)
    spec = presets.train_spec(
        "smoke", "digits", method, clients=3, defense=defense, where=where, method_settings=settings
    )
    setup = harness.prepare(spec, digits_federation((20, 37, 16), flip=True), torch.device("cpu"))
    state = harness.initial(setup)
    for _ in range(rounds):
        harness.train_round([setup], [state], "alone")
    return state


def everything(state):
    """All tensors and losses of a state, by name."""
    for who, replica in enumerate((state.server, *state.clients)):
        for part in replica.params:
            for name, t in (replica.params[part] | replica.buffers[part]).items():
                yield (who, part, name), t
        for stage, moments in replica.moments.items():
            yield (who, stage, "mean"), moments.mean
            yield (who, stage, "square"), moments.square
            yield (who, stage, "steps"), torch.tensor(moments.steps)
    for entry in state.history:
        yield (
            ("loss", entry["round"]),
            torch.tensor([v for stage in sorted(entry["loss"]) for v in entry["loss"][stage]]),
        )
        yield ("accuracy", entry["round"]), torch.tensor(entry["validation_accuracy"])


@pytest.mark.parametrize(
    ("method", "defense", "where", "rounds", "settings"),
    [
        ("fedcg", "none", "update", 2, {"gan": "dense", "aggregator": "kdc"}),
        ("fedper", "gaussian:0.1", "step", 2, None),
        ("fedavg", "dp-sgd:epsilon=8", "step", 1, None),
    ],
)
def test_clients_in_processes_have_the_numbers_of_clients_one_after_the_other(
    method, defense, where, rounds, settings, calls, monkeypatch
):
    # In place of the noise that epsilon asks for, which takes seconds to solve for. Processes get the plan, and would solve anew.
    monkeypatch.setattr(DPSGD, "planned", lambda self, every: replace(self, epsilon=None, noise=1.0))
    apart = dict(everything(trained(monkeypatch, 2, method, defense, where, rounds, settings)))
    assert {(clients, at_once) for clients, at_once, _ in calls} == {(3, 2)}
    # Processes stay from round to round: a start takes as long as many mini-batches.
    assert len(calls[0][2]) == 2
    assert all(each == calls[0][2] for *_, each in calls)
    before = len(calls)
    together = dict(everything(trained(monkeypatch, 1, method, defense, where, rounds, settings)))
    assert len(calls) == before
    assert apart.keys() == together.keys()
    different = [name for name, t in together.items() if not torch.equal(t, apart[name])]
    assert different == []


@pytest.mark.usefixtures("double_precision")
def test_processes_compute_in_the_precision_of_the_one_that_asks(calls, monkeypatch):
    states = [trained(monkeypatch, threads, rounds=1) for threads in (2, 1)]
    assert len(calls) >= 1
    a, b = (dict(everything(state)) for state in states)
    assert {t.dtype for name, t in a.items() if name[2:3] == ("mean",)} == {torch.float64}
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_short_runs_stay_in_one_process(monkeypatch):
    asked = []
    monkeypatch.setattr(side_by_side, "call_each", lambda *arguments: asked.append(arguments))
    assert trained(monkeypatch, 2, rounds=1).round == 1
    assert asked == []


def test_a_client_takes_nothing_of_the_others_along():
    spec = presets.train_spec("smoke", "digits", "fedavg", clients=3)
    setup = harness.prepare(spec, digits_federation((20, 37, 16)), torch.device("cpu"))
    state = harness.initial(setup)
    own = Learner(setup, 1, state.server, state.clients[1]).by_itself()
    assert [len(images) for images in own.setup.images] == [0, 37, 0]
    assert [len(labels) for labels in own.setup.labels] == [0, 37, 0]
    assert own.setup.federation.clients == ()
    assert own.steps(1, setup.method.client()) == Learner(setup, 1, state.server, state.clients[1]).steps(
        1, setup.method.client()
    )


def test_an_error_of_a_client_is_raised_as_it_is(calls, monkeypatch):
    def wrong(*_):
        raise UserError("this client cannot")

    monkeypatch.setattr(local_training, "_elsewhere", wrong)
    with pytest.raises(UserError, match="this client cannot"):
        trained(monkeypatch, 2, rounds=1)
