"""Single messages, without a simulation: what they may hold, and what is made of it."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity
from torch import nn

from privbench.capture import LocalWork, flower_records, read
from privbench.capture.flower import CaptureMod, capturing
from privbench.errors import UserError


@pytest.fixture(autouse=True)
def in_a_run(monkeypatch):
    """Flower makes messages in a run alone."""
    monkeypatch.setattr(TaskIdentity, "_run_id", 1)
    monkeypatch.setattr(TaskIdentity, "_node_id", 1)
    monkeypatch.setattr(TaskIdentity, "_task_id", 1)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


def sent(number=None, node=5, kind="train", **content):
    """A message of a server."""
    config = {} if number is None else {"server-round": number}
    records = {"arrays": ArrayRecord(network().state_dict()), "config": ConfigRecord(config), **content}
    return Message(content=RecordDict(records), dst_node_id=node, message_type=kind)


def context(node=5):
    return Context(run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config={})


def answering(**content):
    """A client that sends just that."""
    return lambda message, _: Message(content=RecordDict(content), reply_to=message)


def captured(folder):
    (round_,) = read(folder)
    (message,) = round_.messages
    return round_, message


HALF = {"0.weight": np.arange(6, dtype=np.float16).reshape(2, 3)}


def test_compressed_arrays_are_recorded_in_the_type_and_with_the_names_that_they_were_sent_with(tmp_path):
    arrays = ArrayRecord({name: Array(t) for name, t in HALF.items()} | {"sizes": Array(np.array([1, 2], np.int32))})
    mod = CaptureMod(network(), tmp_path, kind="update", local=LocalWork(steps=3))
    reply = mod(sent(4), context(), answering(sparse=arrays))
    assert reply.content["sparse"] == arrays
    round_, message = captured(tmp_path / "client-5")
    assert (round_.number, message.kind, message.clients, message.local.steps) == (4, "update", (5,), 3)
    assert {name: t.dtype for name, t in message.parameters.items()} == {
        "0.weight": torch.float16,
        "sizes": torch.int32,
    }
    assert message.parameters["0.weight"].numpy().tobytes() == HALF["0.weight"].tobytes()
    assert [*round_.broadcasts[0].buffers] == ["1.running_mean", "1.running_var", "1.num_batches_tracked"]


def test_arrays_of_several_records_have_the_records_names(tmp_path):
    records = {name: ArrayRecord({"0.weight": Array(HALF["0.weight"])}) for name in ("model", "momentum")}
    CaptureMod(network(), tmp_path)(sent(1), context(), answering(**records))
    assert [*captured(tmp_path / "client-5")[1].parameters] == ["model/0.weight", "momentum/0.weight"]


def test_numbers_are_recorded_and_text_is_not(tmp_path):
    numbers = MetricRecord({"num-examples": 7, "loss": float("inf"), "counts": [3, 4]})
    content = {"arrays": ArrayRecord(network().state_dict()), "numbers": numbers, "text": ConfigRecord({"who": "x"})}
    CaptureMod(network(), tmp_path)(sent(1), context(), answering(**content))
    _, message = captured(tmp_path / "client-5")
    assert message.metrics == {"num-examples": 7, "loss": float("inf"), "counts": (3, 4)}
    assert message.examples == 7


@pytest.mark.parametrize("count", [float("inf"), float("-inf"), float("nan"), 0, -3])
def test_a_number_of_examples_that_is_none_is_not_taken(count):
    """It comes from a client, so that an error would end the server's run."""
    assert flower_records.examples({"num-examples": count}) is None
    assert flower_records.examples({"num-examples": 2.0}) == 2


def test_messages_of_other_types_failures_and_messages_without_arrays_are_passed_on(tmp_path):
    mod, arrays = CaptureMod(network(), tmp_path), ArrayRecord(network().state_dict())
    mod(sent(1, kind="evaluate"), context(), answering(arrays=arrays))
    mod(sent(1), context(), answering(numbers=MetricRecord({"a": 1})))
    assert not tmp_path.exists() or [*tmp_path.iterdir()] == []
    mod(sent(1, kind="train.custom"), context(), answering(arrays=arrays))
    assert captured(tmp_path / "client-5")[0].number == 1


def test_rounds_that_nobody_numbers_are_counted_and_a_second_run_is_refused_before_it_trains(tmp_path):
    mod, arrays = CaptureMod(network(), tmp_path), ArrayRecord(network().state_dict())
    for _ in range(2):
        mod(sent(), context(), answering(arrays=arrays))
    assert [each.number for each in read(tmp_path / "client-5").rounds] == [1, 2]
    with pytest.raises(UserError, match="holds round 1 already"):
        mod(sent(1), context(), lambda *_: pytest.fail("it trained"))


def test_an_array_that_flower_did_not_write_is_refused(tmp_path):
    array = Array("x", (1,), "pickle", b"x")
    with pytest.raises(UserError, match="is serialised as 'pickle'"):
        CaptureMod(network(), tmp_path)(sent(1), context(), answering(arrays=ArrayRecord({"a": array})))


class Personal(FedAvg):
    """Sends one client something else."""

    def configure_train(self, server_round, arrays, config, grid):
        other = ArrayRecord({name: Array(np.asarray(a.numpy() * 2)) for name, a in arrays.items()})
        return [
            Message(
                content=RecordDict({"arrays": other if node == 7 else arrays}), dst_node_id=node, message_type="train"
            )
            for node in (8, 7, 6)
        ]


def test_what_a_server_does_not_send_to_all_is_recorded_for_those_that_received_it(tmp_path):
    state = ArrayRecord(network().state_dict())
    strategy = capturing(Personal(), network(), tmp_path)
    down = strategy.configure_train(1, state, ConfigRecord(), None)
    numbers = MetricRecord({"num-examples": 2})
    up = [Message(content=RecordDict({"arrays": state, "numbers": numbers}), reply_to=each) for each in down]
    arrays, _ = strategy.aggregate_train(1, iter(up))
    assert [*arrays] == [*state]
    (round_,) = read(tmp_path)
    assert [(m.clients, m.broadcast) for m in round_.messages] == [((8,), 0), ((7,), 1), ((6,), 0)]
    assert [each.clients for each in round_.broadcasts] == [None, (7,)]
    usual, other = (each.parameters["0.weight"] for each in round_.broadcasts)
    assert torch.equal(2 * usual, other)


class Proxy:
    def __init__(self, node_id):
        self.node_id = node_id


class Instructed(LegacyFedAvg):
    def configure_fit(self, server_round, parameters, client_manager):
        return [(Proxy(node), FitIns(parameters, {})) for node in (9, 3)]


@pytest.mark.parametrize("shared", [False, True])
def test_results_that_share_their_parameters_are_an_aggregate_and_equal_ones_are_not(shared, tmp_path):
    state = [t.numpy() for t in network().state_dict().values()]
    strategy = capturing(Instructed(), network(), tmp_path)
    strategy.configure_fit(1, ndarrays_to_parameters(state), None)
    one = ndarrays_to_parameters(state)
    results = [
        (
            Proxy(node),
            FitRes(Status(Code.OK, ""), one if shared else ndarrays_to_parameters(state), node, {"loss": 1.0}),
        )
        for node in (9, 3)
    ]
    strategy.aggregate_fit(1, results, [])
    (round_,) = read(tmp_path)
    said = [(m.clients, m.of, m.examples, m.metrics["num_examples"], m.broadcast) for m in round_.messages]
    alone = [((9,), 1, 9, 9, 0), ((3,), 1, 3, 3, 0)]
    assert said == ([((3, 9), 2, 12, (3, 9), 0)] if shared else alone)
    assert [*round_.messages[0].parameters] == ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_a_list_of_parameters_alone_has_their_names_and_another_list_keeps_its_numbers(tmp_path):
    weights = [t.detach().numpy() for t in network().parameters()]
    CaptureMod(network(), tmp_path / "a")(sent(1), context(), answering(arrays=ArrayRecord(weights)))
    assert [*captured(tmp_path / "a" / "client-5")[1].parameters] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    CaptureMod(network(), tmp_path / "b")(sent(1), context(), answering(arrays=ArrayRecord(weights[:3])))
    assert [*captured(tmp_path / "b" / "client-5")[1].parameters] == ["0", "1", "2"]
