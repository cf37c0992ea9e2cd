"""Flower's records as tensors and numbers by name, bit for bit. Nothing is unpickled: Flower's arrays are `.npy` without pickle."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from flwr.app import Array, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.common import Parameters, bytes_to_ndarray
from torch import Tensor

from privbench.capture.messages import Kind, LocalWork, Message
from privbench.capture.named import StateNames
from privbench.errors import UserError
from privbench.tensors import Params

ROUND = "server-round"  # under which a strategy tells clients the number of the round
EXAMPLES = ("num-examples", "num_examples")  # under which clients say how many training examples they have
NUMPY = "numpy.ndarray"  # how Flower says that an array is serialised as `.npy`
LEGACY_METRICS = "fitres.metrics"  # the record in which clients of the older interface send their metrics
Metrics = dict[str, float | tuple[float, ...]]


def arrays(content: RecordDict) -> Params:
    """The arrays of a message by name; of several records, with the record's name before a slash."""
    records = content.array_records
    several = len(records) > 1
    return {
        f"{record}/{name}" if several else name: _tensor(name, array)
        for record, each in records.items()
        for name, array in each.items()
        # The older interface marks an empty list of parameters by an array without bytes.
        if array.data
    }


def listed(parameters: Parameters) -> Params:
    """The parameters of the older interface, numbered from "0", as `arrays` has them of a message."""
    return {str(number): torch.from_numpy(bytes_to_ndarray(t)) for number, t in enumerate(parameters.tensors) if t}


def named(names: StateNames, tensors: Params) -> Params:
    """Tensors by the model's names where they are numbered alone, as NumPy clients send them."""
    if list(tensors) != [str(number) for number in range(len(tensors))]:
        return tensors
    return names.by_position(list(tensors.values())) or tensors


def metrics(content: RecordDict) -> Metrics:
    """The numbers that a message carries beside its arrays."""
    records: list[Mapping[str, Any]] = [*content.metric_records.values()]
    if LEGACY_METRICS in content.config_records:
        records.append(content.config_records[LEGACY_METRICS])
    return numbers({name: value for record in records for name, value in record.items()})


def numbers(values: Mapping[str, Any]) -> Metrics:
    """Those of some values that are numbers, or lists of numbers."""
    numbers: Metrics = {}
    for name, value in values.items():
        if isinstance(value, int | float):
            numbers[name] = _number(value)
        elif isinstance(value, list) and all(isinstance(each, int | float) for each in value):
            numbers[name] = tuple(map(_number, value))
    return numbers


def examples(values: Metrics) -> int | None:
    """How many training examples a client says that it has; None where it does not, or has none."""
    for name in EXAMPLES:
        count = values.get(name)
        if isinstance(count, int | float) and 0 < count < math.inf:
            return int(count)
    return None


def message(
    names: StateNames, kind: Kind, local: LocalWork | None, clients: Sequence[int], tensors: Params, values: Metrics
) -> Message:
    """A message as it is recorded, of one client or of the aggregate of several."""
    parameters, buffers = names.split(named(names, tensors))
    return Message(
        kind=kind,
        clients=tuple(sorted(clients)),
        of=len(clients),
        examples=examples(values),
        local=local,
        metrics=values,
        parameters=parameters,
        buffers=buffers,
    )


def round_of(received: FlowerMessage, last: int | None) -> int:
    """The number of the round that a message to a client belongs to; the one after the last where it does not say."""
    for record in received.content.config_records.values():
        if isinstance(number := record.get(ROUND), int):
            return number
    group = received.metadata.group_id
    return int(group) if group.isdecimal() else 1 if last is None else last + 1


def digest(tensors: Params) -> str:
    """SHA-256 of tensors with their names."""
    sha256 = hashlib.sha256()
    for name, t in tensors.items():
        sha256.update(f"{name} {t.dtype} {tuple(t.shape)} ".encode())
        sha256.update(t.contiguous().flatten().view(torch.uint8).numpy().data)
    return sha256.hexdigest()


def _tensor(name: str, array: Array) -> Tensor:
    if array.stype != NUMPY:
        raise UserError(
            f"the array '{name}' is serialised as '{array.stype}'; recorded is what Flower writes, '{NUMPY}'"
        )
    return torch.from_numpy(array.numpy())


def _number(value: float) -> float:
    return int(value) if isinstance(value, bool) else value
