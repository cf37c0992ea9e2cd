"""Do the tensors that a round announces fit the networks that its set-up names? Compared by shape, without allocating any."""

from __future__ import annotations

from functools import lru_cache
from typing import cast

import torch

from privbench import registry
from privbench.networks.model import Model
from privbench.observation.format import limits
from privbench.observation.format.schema import (
    COUNTS,
    DOWN,
    FLOATS,
    Index,
    Messages,
    NetworksEntry,
    RoundEntry,
    Tensor,
    under,
)
from privbench.types import CLASSIFICATION

PARTS = (*CLASSIFICATION, "generator", "discriminator")
Shapes = dict[str, tuple[int, ...]]  # by parameter or buffer


def model_of(networks: NetworksEntry) -> Model:
    """The networks of a set-up; UserError where a backbone does not take images of that size."""
    return registry.model(**networks.model_dump())


@lru_cache(maxsize=64)
def shapes(model: Model, part: str) -> tuple[Shapes, Shapes]:
    """Shapes of the (parameters, buffers) of one part, as its `init` makes them, on torch's device without memory.

    Remembered, as every table of every file is compared with them. ValueError where the part would be larger than any of ours.
    """
    with torch.device("meta"):
        # No generator draws there, and nothing is drawn.
        params, buffers = model.net(part).init(cast("torch.Generator", None))
    if sum(t.numel() for t in params.values()) > limits.PARAMETERS:
        raise ValueError(f"its {part} would have more than {limits.PARAMETERS} parameters")
    return {n: tuple(t.shape) for n, t in params.items()}, {n: tuple(t.shape) for n, t in buffers.items()}


def check(index: Index) -> None:
    """Every round of an index against its set-up; ValueError names the first tensor that does not fit."""
    model = None if index.setup.networks is None else model_of(index.setup.networks)
    for each in index.rounds:
        _Check(index, each, model).run()


class _Check:
    """Of one round: every tensor is accounted for once."""

    def __init__(self, index: Index, round_: RoundEntry, model: Model | None) -> None:
        self.setup, self.round, self.model = index.setup, round_, model
        self.left = dict(round_.tensors)
        self.where = f"round {round_.round}"

    def run(self) -> None:
        down = self._table(DOWN, ())
        for each in self.round.broadcasts or ():
            if self._table(each.name, ()) != down:
                raise ValueError(f"{self.where}: {each.name} should hold the same parts and shapes as {DOWN}")
        for table in self.round.messages:
            sent = self._table(table.name, (len(table.members),))
            if not sent:
                raise ValueError(f"{self.where}: no tensors of the messages '{table.name}'")
            self._check_parts(table, sent, down)
            self._take_labels(table)
        counts = self.left.pop(COUNTS, None)
        # Counts are added up with the messages.
        each_client = [each for t in self.round.messages if t.weights is None for each in t.members if len(each) == 1]
        clients = max((k for each in each_client for k in each), default=-1)
        if counts is not None and (
            counts.dtype != "int64"
            or len(counts.shape) != 2
            or counts.shape[1] != self.setup.classes
            or not clients < counts.shape[0] <= limits.CLIENTS
        ):
            raise ValueError(f"{self.where}: {COUNTS} should be whole numbers of clients x {self.setup.classes}")
        if self.left:
            raise ValueError(f"{self.where}: nothing is known of the tensor '{min(self.left)}'")

    def _table(self, table: str, leading: tuple[int, ...]) -> dict[str, Shapes]:
        """The parameters of each part of a table, without the leading axis; takes them and their buffers."""
        parameters = self._group(table, "parameters", leading)
        buffers = self._group(table, "buffers", leading)
        if extra := buffers.keys() - parameters.keys():
            raise ValueError(f"{self.where}: {table} has buffers of the {min(extra)}, but no parameters")
        for part in parameters:
            if self.model is None:
                continue
            if part not in PARTS:
                raise ValueError(f"{self.where}: {self.setup.networks} have no part '{part}'")
            params, state = shapes(self.model, part)
            self._compare(table, part, parameters[part], params, leading)
            if not leading or buffers.get(part):
                self._compare(table, part, buffers.get(part, {}), state, leading)
        return parameters

    def _group(self, table: str, group: str, leading: tuple[int, ...]) -> dict[str, Shapes]:
        parts: dict[str, Shapes] = {}
        for part, entry, tensor in under(self.round.tensors, table, group):
            name = f"{table}/{group}/{part}/{entry}"
            del self.left[name]
            if tensor.dtype not in FLOATS and not (group == "buffers" and tensor.dtype == "int64"):
                raise ValueError(f"{self.where}: {name} is of {tensor.dtype}; {group} are of {', '.join(FLOATS)}")
            if tuple(tensor.shape[: len(leading)]) != leading:
                raise ValueError(f"{self.where}: {name} should begin with {leading[0]} messages, not {tensor.shape}")
            parts.setdefault(part, {})[entry] = tuple(tensor.shape[len(leading) :])
        return parts

    def _compare(self, table: str, part: str, declared: Shapes, expected: Shapes, leading: tuple[int, ...]) -> None:
        for name in sorted(declared.keys() | expected.keys()):
            if declared.get(name) != expected.get(name):
                has = f"shape {(*leading, *declared[name])}" if name in declared else "nothing"
                should = f"shape {(*leading, *expected[name])}" if name in expected else "not be there"
                raise ValueError(f"{self.where}: {table} of {part}.{name} should have {should}, but the file has {has}")

    def _check_parts(self, table: Messages, sent: dict[str, Shapes], down: dict[str, Shapes]) -> None:
        for part, params in sent.items():
            if part not in self.setup.shared_parts:
                raise ValueError(f"{self.where}: {table.name} holds the {part}, which is no shared part")
            if self.model is not None and (part in CLASSIFICATION) != (table.kind != "weights"):
                raise ValueError(f"{self.where}: the {part} is not sent as {table.kind}")
            if table.kind != "weights" and params != down.get(part):
                raise ValueError(f"{self.where}: {table.name} and {DOWN} differ in the parameters of the {part}")

    def _take_labels(self, table: Messages) -> None:
        labels: Tensor | None = self.left.pop(f"{table.name}/labels", None)
        if labels is None:
            return
        if table.batch_size is None or labels.dtype != "int64":
            raise ValueError(f"{self.where}: {table.name}/labels should be whole numbers of a known batch size")
        if labels.shape != [table.scored, table.attacked_images]:
            raise ValueError(
                f"{self.where}: {table.name}/labels should have shape {(table.scored, table.attacked_images)}, "
                f"but the file has {tuple(labels.shape)}"
            )
