"""Real simulations of three clients: what is captured is, bit for bit, what the server's strategy received, and what a client sent.

Each starts a runtime of its own, which takes seconds.
"""

import math
import sys

import federation
import numpy as np
import pytest
import torch
from federation import CLIENTS, ROUNDS, FloatNet, Net, initial, noted, simulate, started
from flwr.client.mod import secaggplus_mod
from flwr.clientapp.mod import LocalDpMod
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import LegacyContext, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from privbench import capture
from privbench.capture.flower import CaptureMod, capturing
from privbench.errors import UserError

CLIPPING, SENSITIVITY, EPSILON, DELTA = 5.0, 0.1, 50.0, 1e-5


class Spy(FedAvg):
    """Notes what it is given, byte for byte."""

    def __init__(self, fraction_evaluate=0.0):
        super().__init__(fraction_evaluate=fraction_evaluate, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
        self.given = {}
        self.sent = {}

    def configure_train(self, server_round, arrays, config, grid):
        messages = list(super().configure_train(server_round, arrays, config, grid))
        for message in messages:
            self.sent[server_round, message.metadata.dst_node_id] = arrays_of(message.content["arrays"])
        return messages

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        for reply in replies:
            self.given[server_round, reply.metadata.src_node_id] = arrays_of(reply.content["arrays"])
        return super().aggregate_train(server_round, replies)


class LegacySpy(LegacyFedAvg):
    def __init__(self, model):
        state = [t.numpy() for t in model.state_dict().values()]
        super().__init__(
            fraction_evaluate=0.0, min_fit_clients=CLIENTS, min_available_clients=CLIENTS,
            initial_parameters=ndarrays_to_parameters(state), on_fit_config_fn=lambda number: {"round": number},
        )  # fmt: skip
        self.given = {}
        self.counts = []

    def aggregate_fit(self, server_round, results, failures):
        for proxy, fit in results:
            self.given[server_round, proxy.node_id] = parameters_to_ndarrays(fit.parameters)
        self.counts.append(len(results))
        return super().aggregate_fit(server_round, results, failures)


def arrays_of(record):
    return {name: array.numpy().copy() for name, array in record.items()}


def both(sent):
    return sent.parameters | sent.buffers


def same(tensors, arrays):
    """Bit for bit, with types and shapes, by the same names."""
    pairs = {name: (t.numpy() if isinstance(t, torch.Tensor) else t) for name, t in arrays.items()}
    return tensors.keys() == pairs.keys() and all(
        t.numpy().dtype == pairs[name].dtype
        and t.numpy().shape == pairs[name].shape
        and t.numpy().tobytes() == pairs[name].tobytes()
        for name, t in tensors.items()
    )


def messages(folder):
    """(round, client) -> (round, message) of a capture whose messages are of one client each."""
    captured = capture.read(folder)
    assert [each.number for each in captured.rounds] == [*range(1, ROUNDS + 1)]
    return {(r.number, *m.clients): (r, m) for r in captured for m in r.messages}


def of_clients(folder):
    """The same of the captures of all clients."""
    merged = {}
    for each in folder.iterdir():
        merged |= messages(each)
    return merged


@pytest.fixture(scope="module")
def undefended(tmp_path_factory):
    """Today's interface, without a defence: (folder, the strategy that noted what it was given)."""
    folder = tmp_path_factory.mktemp("undefended")
    spy, model = Spy(fraction_evaluate=1.0), initial(Net)
    strategy = capturing(spy, model, folder / "server")
    mods = [CaptureMod(Net(), folder / "mod")]
    simulate(started(strategy, model), federation.message_app(Net, folder / "noted", mods))
    return folder, spy


@pytest.fixture(scope="module")
def private(tmp_path_factory):
    """The same behind Flower's mod for local differential privacy, which takes no evaluation; a second mod stands behind it."""
    folder = tmp_path_factory.mktemp("private")
    spy, model = Spy(), initial(FloatNet)
    outside, inside = (CaptureMod(FloatNet(), folder / name) for name in ("mod", "inside"))
    mods = [outside, LocalDpMod(CLIPPING, SENSITIVITY, EPSILON, DELTA), inside]
    strategy = capturing(spy, model, folder / "server")
    simulate(started(strategy, model), federation.message_app(FloatNet, folder / "noted", mods))
    return folder, spy


@pytest.mark.parametrize("case", ["undefended", "private"])
def test_what_is_captured_is_what_the_strategy_received_and_what_each_client_sent(case, request):
    folder, spy = request.getfixturevalue(case)
    server, clients = messages(folder / "server"), of_clients(folder / "mod")
    assert server.keys() == clients.keys() == spy.given.keys()
    assert len(server) == CLIENTS * ROUNDS
    for at, (round_, message) in server.items():
        sent_round, sent = clients[at]
        assert same(both(message), spy.given[at])
        assert same(both(sent), spy.given[at])
        assert same(both(round_.broadcasts[message.broadcast]), spy.sent[at])
        assert same(both(sent_round.broadcasts[0]), spy.sent[at])
        assert (message.kind, message.of, message.aggregate) == ("weights", 1, False)
        assert message.examples == sent.examples == message.metrics["num-examples"]
        assert math.isnan(message.metrics["train-loss"])
    assert {m.examples for _, m in server.values()} == {4, 8, 12}


def test_without_a_defence_the_server_receives_what_the_client_trained(undefended):
    folder, _ = undefended
    server, before = messages(folder / "server"), noted(folder / "noted")
    assert server.keys() == before.keys()
    assert all(same(both(message), before[at]) for at, (_, message) in server.items())
    _, message = next(iter(server.values()))
    assert [*message.buffers] == ["norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]
    assert message.buffers["norm.num_batches_tracked"].dtype == torch.int64


def test_local_differential_privacy_has_acted_on_what_is_captured_outside_of_it_and_not_inside(private):
    folder, _ = private
    before, outside, inside = noted(folder / "noted"), of_clients(folder / "mod"), of_clients(folder / "inside")
    assert len(before) == CLIENTS * ROUNDS
    std = SENSITIVITY * math.sqrt(2 * math.log(1.25 / DELTA)) / EPSILON
    for at, state in before.items():
        assert same(both(inside[at][1]), state)
        noise = {name: outside[at][1].parameters[name] - t for name, t in state.items()}
        assert all((t != 0).any() for t in noise.values())
        # 62,000 numbers; the updates are shorter than the bound, so that nothing is clipped but by rounding.
        assert float(torch.cat([t.flatten() for t in noise.values()]).std()) == pytest.approx(std, rel=0.05)


def test_what_a_strategy_does_on_the_server_acts_behind_what_is_captured(tmp_path):
    spy, model = Spy(), initial(FloatNet)
    strategy = capturing(
        DifferentialPrivacyServerSideFixedClipping(spy, 1.0, 1e-3, CLIENTS), model, tmp_path / "server"
    )
    simulate(started(strategy, model), federation.message_app(FloatNet, tmp_path / "noted", []))
    before = noted(tmp_path / "noted")
    assert len(before) == CLIENTS * ROUNDS
    for at, (_, message) in messages(tmp_path / "server").items():
        assert same(both(message), before[at])
        assert not same(both(message), spy.given[at])


def test_parameters_of_numpy_clients_have_the_names_of_the_model(tmp_path):
    spy, model = LegacySpy(initial(Net)), initial(Net)
    strategy = capturing(spy, model, tmp_path / "server")
    app = ServerApp(server_fn=lambda _: ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=ROUNDS)))
    simulate(app, federation.numpy_app(Net, tmp_path / "noted", [CaptureMod(Net(), tmp_path / "mod")]))
    server, clients, before = messages(tmp_path / "server"), of_clients(tmp_path / "mod"), noted(tmp_path / "noted")
    assert server.keys() == clients.keys() == before.keys() == spy.given.keys()
    assert len(server) == CLIENTS * ROUNDS
    for at, (round_, message) in server.items():
        assert [t.tobytes() for t in spy.given[at]] == [both(message)[n].numpy().tobytes() for n in model.state_dict()]
        assert same(both(message), before[at])
        assert same(both(clients[at][1]), before[at])
        if round_.number == 1:
            assert same(both(round_.broadcasts[0]), model.state_dict())
        assert message.metrics == {"num_examples": message.examples, "loss": 0.5} == clients[at][1].metrics


def test_of_secure_aggregation_the_aggregate_alone_is_captured(tmp_path):
    spy, model = LegacySpy(initial(FloatNet)), initial(FloatNet)
    app = ServerApp()

    @app.main()
    def main(grid, context):
        strategy = capturing(spy, model, tmp_path / "server")
        legacy = LegacyContext(context=context, config=ServerConfig(num_rounds=ROUNDS), strategy=strategy)
        fit = SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2)
        DefaultWorkflow(fit_workflow=fit)(grid, legacy)

    mods = [CaptureMod(FloatNet(), tmp_path / "mod"), secaggplus_mod]
    simulate(app, federation.numpy_app(FloatNet, tmp_path / "noted", mods))
    captured, before = capture.read(tmp_path / "server"), noted(tmp_path / "noted")
    assert spy.counts == [CLIENTS] * ROUNDS
    assert [each.number for each in captured.rounds] == [1, 2]
    for round_ in captured:
        (message,) = round_.messages
        states = {node: state for (number, node), state in before.items() if number == round_.number}
        assert (message.clients, message.of, message.aggregate) == (tuple(sorted(states)), 3, True)
        assert (message.examples, sorted(message.metrics["num_examples"])) == (24, [4, 8, 12])
        given = spy.given[round_.number, message.clients[0]]
        assert same(both(message), dict(zip(model.state_dict(), given, strict=True)))
        sizes = dict(zip(message.clients, message.metrics["num_examples"], strict=True))
        for name, t in message.parameters.items():
            mean = sum(sizes[node] * state[name].double() for node, state in states.items()) / 24
            # Each client rounds its share, n/1000 of a number from -8 to 8, to one of 2^22 levels; the sum is divided by 24/1000.
            assert torch.allclose(t.double(), mean, rtol=1e-5, atol=CLIENTS * 16 / 2**22 * 1000 / 24)
            assert not any(np.array_equal(t.numpy(), state[name].numpy()) for state in states.values())
    # A client's mod sees masks and keys alone.
    assert not (tmp_path / "mod").exists()


def test_a_folder_is_of_one_run(tmp_path):
    capturing(FedAvg(), Net(), tmp_path).aggregate_train(1, [])
    with capture.Capture(Net(), tmp_path) as seen:
        seen.broadcast()
        seen.update()
    with pytest.raises(UserError, match="holds a capture already"):
        capturing(FedAvg(), Net(), tmp_path)


def test_the_rest_of_privbench_is_not_needed():
    """Nor installed here."""
    assert "pandas" not in sys.modules
    with pytest.raises(ModuleNotFoundError):
        import pandas  # noqa: F401
