"""The index of a capture as JSON; privbench/capture/checking.py reads it strictly.

index.json
  privbench, version    "capture", 1
  layouts               unlike sets of tensors: parameters and buffers, each with dtype and shape by name. The first is the model's
  rounds                ascending; of each: round, file, bytes, sha256, broadcasts (layout, clients) and messages (their facts,
                        layout, and dtype and shape of declared labels)
  sha256                of all other fields, as canonical JSON

A round's file holds `broadcast-0/parameters/NAME`, `broadcast-0/buffers/NAME`, `message-0/parameters/NAME`,
`message-0/buffers/NAME` and `message-0/labels`, numbered as in the index.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from privbench.capture.messages import CapturedRound, MessageFacts
from privbench.system.file_headers import DTYPES, Declared, short
from privbench.tensors import Params

FORMAT = "capture"
VERSION = 1
INDEX = "index.json"
NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES.values()}
NOT_FINITE = ("nan", "inf", "-inf")  # how JSON holds what is no finite number


@dataclass(frozen=True)
class Layout:
    """Which tensors there are: type and shape by name."""

    parameters: dict[str, Declared]
    buffers: dict[str, Declared]

    # Counted once, as many messages share a layout.
    @cached_property
    def count(self) -> int:
        """How many tensors there are."""
        return len(self.parameters) + len(self.buffers)

    @cached_property
    def nbytes(self) -> int:
        """How much they take."""
        return sum(tensor.nbytes for tensor in (*self.parameters.values(), *self.buffers.values()))

    def tensors(self, prefix: str) -> Iterator[tuple[str, Declared]]:
        """(name in a round's file, tensor) of each."""
        for name, tensor in self.parameters.items():
            yield f"{prefix}/parameters/{name}", tensor
        for name, tensor in self.buffers.items():
            yield f"{prefix}/buffers/{name}", tensor


@dataclass(frozen=True)
class IndexedBroadcast:
    """A broadcast without its tensors."""

    layout: Layout
    clients: tuple[int, ...] | None


@dataclass(frozen=True)
class IndexedMessage:
    """A message without its tensors."""

    facts: MessageFacts
    layout: Layout
    labels: Declared | None


@dataclass(frozen=True)
class IndexedRound:
    """A round without its tensors: what the index says of it."""

    number: int
    bytes: int  # of its file
    sha256: str
    broadcasts: tuple[IndexedBroadcast, ...]
    messages: tuple[IndexedMessage, ...]

    @property
    def file(self) -> str:
        """The name of its file."""
        return file_name(self.number)

    def tensors(self) -> dict[str, Declared]:
        """What its file has to hold."""
        declared: dict[str, Declared] = {}
        for number, broadcast in enumerate(self.broadcasts):
            declared.update(broadcast.layout.tensors(f"broadcast-{number}"))
        for number, message in enumerate(self.messages):
            declared.update(message.layout.tensors(f"message-{number}"))
            if message.labels is not None:
                declared[f"message-{number}/labels"] = message.labels
        return declared


def file_name(number: int) -> str:
    """Of one round."""
    return f"round-{number:06d}.safetensors"


def layout_of(parameters: Params, buffers: Params) -> Layout:
    """The layout of some tensors; ValueError where they are none that a file can hold."""
    return Layout(
        {name: declared(name, t) for name, t in parameters.items()},
        {name: declared(name, t) for name, t in buffers.items()},
    )


def declared(name: str, t: Tensor) -> Declared:
    """Type and shape of one tensor; ValueError where no file can hold it."""
    if str(t.dtype).removeprefix("torch.") not in NAMES:
        raise ValueError(f"'{short(name)}' is of {t.dtype}; known: {', '.join(NAMES)}")
    return Declared(t.dtype, tuple(t.shape))


def indexed(round_: CapturedRound, size: int, sha256: str) -> IndexedRound:
    """What the index says of a round."""
    return IndexedRound(
        round_.number,
        size,
        sha256,
        tuple(IndexedBroadcast(layout_of(b.parameters, b.buffers), b.clients) for b in round_.broadcasts),
        tuple(
            IndexedMessage(
                m.facts,
                layout_of(m.parameters, m.buffers),
                None if m.labels is None else declared("labels", m.labels),
            )
            for m in round_.messages
        ),
    )


class Layouts:
    """The unlike layouts of a capture, numbered in the order in which they came; the first is the model's."""

    def __init__(self, model: Layout) -> None:
        self.entries: list[dict[str, Any]] = []
        self._numbers: dict[str, int] = {}
        self.number(model)

    def number(self, layout: Layout) -> int:
        """Of a layout, which becomes a new entry where it is there for the first time."""
        entry = {
            "parameters": {name: _tensor(t) for name, t in layout.parameters.items()},
            "buffers": {name: _tensor(t) for name, t in layout.buffers.items()},
        }
        number = self._numbers.setdefault(repr(entry), len(self.entries))
        if number == len(self.entries):
            self.entries.append(entry)
        return number


def round_entry(round_: IndexedRound, layouts: Layouts) -> dict[str, Any]:
    """One round as JSON."""
    return {
        "round": round_.number,
        "file": round_.file,
        "bytes": round_.bytes,
        "sha256": round_.sha256,
        "broadcasts": [
            {"layout": layouts.number(b.layout), "clients": None if b.clients is None else list(b.clients)}
            for b in round_.broadcasts
        ],
        "messages": [_message(m, layouts.number(m.layout)) for m in round_.messages],
    }


def _message(message: IndexedMessage, layout: int) -> dict[str, Any]:
    facts = message.facts
    local = facts.local
    return {
        "kind": facts.kind,
        "clients": list(facts.clients),
        "of": facts.of,
        "examples": facts.examples,
        "broadcast": facts.broadcast,
        "training": facts.training,
        "local": None
        if local is None
        else {
            "steps": local.steps,
            "batch_size": local.batch_size,
            "optimizer": local.optimizer,
            "settings": {
                name: list(value) if isinstance(value, tuple) else value for name, value in local.settings.items()
            },
        },
        "metrics": {
            name: [_number(each) for each in value] if isinstance(value, tuple) else _number(value)
            for name, value in facts.metrics.items()
        },
        "layout": layout,
        "labels": None if message.labels is None else _tensor(message.labels),
    }


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(float(value))


def _tensor(tensor: Declared) -> dict[str, Any]:
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
