"""Flower: what a ClientApp sends, recorded by a mod, and what a strategy receives, recorded around it (docs/capture.md).

    client = ClientApp(client_fn, mods=[CaptureMod(Net(), "run/"), LocalDpMod(...)])   # first in the list: outside of all others
    strategy = capturing(DifferentialPrivacyServerSideFixedClipping(FedAvg(), ...), Net(), "run/")

Written for Flower 1.42 (https://flower.ai): `flwr.clientapp.typing.Mod`, `flwr.serverapp.strategy.Strategy`, and the older
`flwr.server.strategy.Strategy`, which NumPy clients and the SecAgg+ workflow use. Under SecAgg+ a client sends no arrays in
the clear, so its mod records nothing, and the server gets the aggregate alone (`flwr.server.workflow.SecAggPlusWorkflow`).

Rounds have Flower's own numbers, from 1; clients are Flower's node ids. Recorded are the arrays and metrics of training; not the
metrics of evaluation, and not what a message holds as text or bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.app import Message as FlowerMessage
from flwr.common import Parameters
from flwr.server.strategy import Strategy as LegacyStrategy
from flwr.serverapp.strategy import Strategy
from torch import nn

from privbench.capture import flower_records as records
from privbench.capture.messages import BroadcastModel, CapturedRound, Kind, LocalWork, Message
from privbench.capture.named import StateNames
from privbench.capture.writing import CaptureWriter
from privbench.errors import UserError
from privbench.tensors import Params

TRAIN = "train"  # the type of the messages that are recorded, or what stands before a dot in it


class CaptureMod:
    """A client mod that records what this client receives and sends in training, in `folder`/client-NODE.

    It belongs at the beginning of `mods`: what stands behind it, such as differential privacy or compression, has acted by then.
    Several clients may share a folder, in one process or in several.
    """

    def __init__(
        self, model: nn.Module, folder: str | Path, *, kind: Kind = "weights", local: LocalWork | None = None
    ) -> None:
        """The model is asked for its names alone.

        Args:
            model: As the client trains it.
            folder: Where to write; of a path that is not absolute, seen from where this is called.
            kind: "weights" where clients send weights, "update" where they send the difference, "gradient" for a gradient.
            local: Steps, batch size and optimiser, where the server knows them.
        """
        self.names = StateNames.of(model)
        self.folder = Path(folder).absolute()
        self.kind = kind
        self.local = local

    def __call__(
        self, msg: FlowerMessage, context: Context, call_next: Callable[[FlowerMessage, Context], FlowerMessage]
    ) -> FlowerMessage:
        """Passes a message on, and its answer back, unchanged.

        Raises:
            UserError: The round is recorded already: the folder is that of another run.
        """
        if msg.metadata.message_type.partition(".")[0] != TRAIN:
            return call_next(msg, context)
        writer = CaptureWriter(self.folder / f"client-{context.node_id}", self.names.layout, append=True)
        number = records.round_of(msg, writer.last)
        if writer.last is not None and number <= writer.last:
            raise UserError(f"{writer.folder} holds round {number} already; name another folder for another run")
        # Before the client is called, which may take the arrays out of the message.
        received = records.named(self.names, records.arrays(msg.content))
        reply = call_next(msg, context)
        sent = records.arrays(reply.content) if reply.has_content() else {}
        if received and sent:
            values = records.metrics(reply.content)
            message = records.message(self.names, self.kind, self.local, [context.node_id], sent, values)
            writer.add(CapturedRound(number, (BroadcastModel(*self.names.split(received)),), (message,)))
            writer.close()
        return reply


def capturing(
    strategy: Strategy | LegacyStrategy, model: nn.Module, folder: str | Path, *, kind: Kind = "weights",
    local: LocalWork | None = None,
) -> CapturingStrategy | CapturingLegacyStrategy:  # fmt: skip
    """A strategy that does what `strategy` does, and records what the server sends and receives in training.

    It belongs around everything else: what a strategy for differential privacy does on the server acts behind it.

    Args:
        strategy: Of `flwr.serverapp.strategy` or of `flwr.server.strategy`.
        model: As the clients train it; asked for its names alone.
        folder: Where to write.
        kind: As of `CaptureMod`.
        local: Steps, batch size and optimiser, where the server knows them.

    Raises:
        UserError: The folder holds a capture already.
    """
    record = _ServerRecord(model, folder, kind, local)
    if isinstance(strategy, LegacyStrategy):
        return CapturingLegacyStrategy(strategy, record)
    return CapturingStrategy(strategy, record)


class CapturingStrategy(Strategy):
    """Around a strategy of `flwr.serverapp.strategy`; made by `capturing`."""

    def __init__(self, strategy: Strategy, record: _ServerRecord) -> None:
        self.strategy = strategy
        self._record = record

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any
    ) -> list[FlowerMessage]:
        """What the strategy sends."""
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        # Strategies give all messages one content, which is read once then.
        read = {id(m.content): records.arrays(m.content) for m in messages}
        self._record.sent({m.metadata.dst_node_id: read[id(m.content)] for m in messages})
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[FlowerMessage]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What the strategy makes of the answers, which are recorded as they came: it may change them."""
        replies = list(replies)
        self._record.received(
            server_round,
            [
                (m.metadata.src_node_id, records.arrays(m.content), records.metrics(m.content))
                for m in replies
                if m.has_content()
            ],
        )
        return self.strategy.aggregate_train(server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any
    ) -> Iterable[FlowerMessage]:
        """The strategy's."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[FlowerMessage]) -> MetricRecord | None:
        """The strategy's."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """The strategy's."""
        self.strategy.summary()


class CapturingLegacyStrategy(LegacyStrategy):
    """Around a strategy of `flwr.server.strategy`; made by `capturing`. Of secure aggregation it records the aggregate."""

    def __init__(self, strategy: LegacyStrategy, record: _ServerRecord) -> None:
        self.strategy = strategy
        self._record = record

    def configure_fit(self, server_round: int, parameters: Parameters, client_manager: Any) -> list[tuple[Any, Any]]:
        """What the strategy sends."""
        instructions = self.strategy.configure_fit(server_round, parameters, client_manager)
        read = {id(fit.parameters): records.listed(fit.parameters) for _, fit in instructions}
        self._record.sent({proxy.node_id: read[id(fit.parameters)] for proxy, fit in instructions})
        return instructions

    def aggregate_fit(
        self, server_round: int, results: list[tuple[Any, Any]], failures: list[Any]
    ) -> tuple[Parameters | None, dict[str, Any]]:
        """What the strategy makes of the results, which are recorded as they came."""
        values = [records.numbers({"num_examples": fit.num_examples, **fit.metrics}) for _, fit in results]
        clients = [proxy.node_id for proxy, _ in results]
        # The workflows of secure aggregation give every result the one aggregate in place of what its client sent.
        if len(results) > 1 and len({id(fit.parameters) for _, fit in results}) == 1:
            self._record.aggregated(server_round, clients, records.listed(results[0][1].parameters), values)
        else:
            sent = [records.listed(fit.parameters) for _, fit in results]
            self._record.received(server_round, list(zip(clients, sent, values, strict=True)))
        return self.strategy.aggregate_fit(server_round, results, failures)

    def initialize_parameters(self, client_manager: Any) -> Parameters | None:
        """The strategy's."""
        return self.strategy.initialize_parameters(client_manager)

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: Any
    ) -> list[tuple[Any, Any]]:
        """The strategy's."""
        return self.strategy.configure_evaluate(server_round, parameters, client_manager)

    def aggregate_evaluate(
        self, server_round: int, results: list[tuple[Any, Any]], failures: list[Any]
    ) -> tuple[float | None, dict[str, Any]]:
        """The strategy's."""
        return self.strategy.aggregate_evaluate(server_round, results, failures)

    def evaluate(self, server_round: int, parameters: Parameters) -> tuple[float, dict[str, Any]] | None:
        """The strategy's."""
        return self.strategy.evaluate(server_round, parameters)


class _ServerRecord:
    """What a server sends and receives, a round at a time."""

    def __init__(self, model: nn.Module, folder: str | Path, kind: Kind, local: LocalWork | None) -> None:
        self.names = StateNames.of(model)
        self.writer = CaptureWriter(Path(folder), self.names.layout)
        self.kind = kind
        self.local = local
        self._broadcasts: tuple[BroadcastModel, ...] = ()
        self._received: dict[int, int] = {}

    def sent(self, arrays: Mapping[int, Params]) -> None:
        """What each client is sent: one broadcast of all, or that of most and those of the others."""
        digests = {id(each): records.digest(each) for each in arrays.values()}
        of = {client: digests[id(each)] for client, each in arrays.items()}
        broadcasts = []
        ordered = [name for name, _ in Counter(of.values()).most_common()]
        for number, name in enumerate(ordered):
            clients = tuple(sorted(client for client, each in of.items() if each == name))
            tensors = self.names.split(records.named(self.names, arrays[clients[0]]))
            broadcasts.append(BroadcastModel(*tensors, None if number == 0 else clients))
        self._broadcasts = tuple(broadcasts)
        self._received = {client: ordered.index(name) for client, name in of.items()}

    def received(self, number: int, answers: Sequence[tuple[int, Params, records.Metrics]]) -> None:
        """(client, arrays, metrics) of each answer."""
        sent = [([client], arrays, values) for client, arrays, values in answers if arrays]
        self._write(number, [self._message(*each) for each in sent])

    def aggregated(
        self, number: int, clients: Sequence[int], arrays: Params, values: Sequence[records.Metrics]
    ) -> None:
        """The aggregate of some clients, and the numbers that each of them sent beside it, in the order of their ids."""
        ordered = [each for _, each in sorted(zip(clients, values, strict=True), key=lambda pair: pair[0])]
        shared = sorted(set.intersection(*(set(each) for each in ordered)))
        counts = [records.examples(each) for each in ordered]
        message = self._message(
            clients, arrays, records.numbers({name: [each[name] for each in ordered] for name in shared})
        )
        total = None if None in counts else sum(n for n in counts if n is not None)
        self._write(number, [replace(message, examples=total)])

    def _message(self, clients: Sequence[int], arrays: Params, values: records.Metrics) -> Message:
        message = records.message(self.names, self.kind, self.local, clients, arrays, values)
        received = {self._received.get(client) for client in clients}
        return replace(message, broadcast=received.pop() if len(received) == 1 else None)

    def _write(self, number: int, messages: Sequence[Message]) -> None:
        if messages and self._broadcasts:
            self.writer.add(CapturedRound(number, self._broadcasts, tuple(messages)))
            self.writer.close()
