"""Writes a capture: each round's file first, the index after it, both whole or not at all."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import Tensor

from privbench.capture import checking, limits, reading
from privbench.capture.index import (
    FORMAT,
    INDEX,
    VERSION,
    IndexedRound,
    Layout,
    Layouts,
    file_name,
    indexed,
    round_entry,
)
from privbench.capture.messages import BroadcastModel, CapturedRound, Message, TruthOfMessage
from privbench.capture.truth import write_truth
from privbench.errors import Busy, UserError
from privbench.system import files, index_files, locks
from privbench.system.file_headers import HEADER_BYTES, strict_json

LOG = logging.getLogger("privbench")
# The index is written anew with every round until it has so many rounds, then each time that it has grown by one in so many: so
# the time that this takes stays in proportion to the rounds. A process that is killed loses one round in so many, or one.
INDEX_GROWTH = 64


class CaptureWriter:
    """Rounds of one model into one folder, ascending. What the reader would refuse is refused here.

    From the first round until `close` no other writer has the folder: two would write over each other's rounds.
    """

    def __init__(self, folder: Path, model: Layout, *, append: bool = False) -> None:
        """A new capture, or with `append` the continuation of one.

        UserError where the folder holds a capture already, or with `append` one of another model.
        """
        self.folder = folder
        self._model = model
        self._layouts = Layouts(model)
        self._entries: list[dict[str, Any]] = []
        self._written = 0
        self.last: int | None = None  # the number of the last round
        self._held: ExitStack | None = None
        self._known = _state(folder / INDEX)
        if (folder / INDEX).exists():
            if not append:
                raise UserError(
                    f"{folder} holds a capture already; name another folder, or append=True to continue that one"
                )
            self._continue()

    def add(self, round_: CapturedRound, truth: Mapping[int, TruthOfMessage] | None = None) -> None:
        """Writes a round, and the truth of some of its messages, by their number, where it is to be kept.

        UserError where it does not keep to the format, does not come after the last round, or where another writer has the folder.
        """
        if self.last is not None and round_.number <= self.last:
            raise UserError(
                f"{self.folder} holds round {self.last} already, and round {round_.number} does not come after it; "
                "a capture is of one run, so name another folder for another run"
            )
        self.check(round_)
        self._hold()
        sha256 = self._write(round_)
        if truth:
            write_truth(self.folder, round_.number, sha256, truth)
        self.last = round_.number
        if len(self._entries) - self._written > self._written // INDEX_GROWTH:
            self._write_index()

    def check(self, round_: CapturedRound) -> None:
        """UserError where a round does not keep to the format; nothing is written."""
        size = sum(t.numel() * t.element_size() for _, t in _tensors(round_))
        try:
            # The size is not known before the file is there; the checks allow for a header.
            self._check(indexed(round_, size + HEADER_BYTES, "0" * 64))
        except (ValueError, TypeError) as error:
            raise UserError(f"round {round_.number} cannot be written to {self.folder}: {error}") from error

    def close(self) -> None:
        """Writes what the index lacks, and leaves the folder to others."""
        try:
            if self._written < len(self._entries):
                self._write_index()
        finally:
            if self._held is not None:
                self._held.close()
                self._held = None

    def _hold(self) -> None:
        """Takes the folder; UserError where another writer has it, or has written into it meanwhile."""
        if self._held is not None:
            return
        held, each = ExitStack(), "give each process a folder of its own"
        try:
            held.enter_context(locks.lock(self.folder, wait=False))
        except Busy as error:
            raise UserError(f"{error}; {each}") from error
        if _state(self.folder / INDEX) != self._known:
            held.close()
            raise UserError(f"{self.folder} holds a capture that was not there when this one began; {each}")
        self._held = held

    def _write(self, round_: CapturedRound) -> str:
        """Writes the file of a round that was checked, remembers its entry, and returns its digest."""
        path = self.folder / file_name(round_.number)
        files.write_tensors(files.no_way_out(path), dict(_tensors(round_)))
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        self._entries.append(round_entry(indexed(round_, path.stat().st_size, sha256), self._layouts))
        return sha256

    def _check(self, round_: IndexedRound) -> None:
        layouts = Layouts(self._model)
        entry = round_entry(round_, layouts)
        content = {"privbench": FORMAT, "version": VERSION, "layouts": layouts.entries, "rounds": [entry]}
        text = json.dumps(content, allow_nan=False)
        checking.index(strict_json(text, finite=True, depth=limits.INDEX_DEPTH))

    def _write_index(self) -> None:
        content = {
            "privbench": FORMAT,
            "version": VERSION,
            "layouts": self._layouts.entries,
            "rounds": self._entries,
        }
        text = _readable({**content, "sha256": index_files.digest(content)}).encode()
        if len(text) > limits.INDEX_BYTES or len(self._entries) > limits.ROUNDS:
            raise UserError(f"{self.folder} holds as many rounds as one capture can; name another folder")
        files.write_bytes(files.no_way_out(self.folder / INDEX), text)
        self._written = len(self._entries)
        self._known = _state(self.folder / INDEX)

    def _continue(self) -> None:
        before = reading.read(self.folder)
        if before.model != self._model:
            raise UserError(f"{self.folder} holds a capture of another model; name another folder")
        self._entries = [round_entry(each, self._layouts) for each in before.rounds]
        self._written = len(self._entries)
        self.last = before.rounds[-1].number if before.rounds else None


def _state(path: Path) -> tuple[int, int] | None:
    """What changes when a file is written again; None where there is none."""
    if not path.exists():
        return None
    state = path.stat()
    return state.st_mtime_ns, state.st_ino


def _tensors(round_: CapturedRound) -> Iterator[tuple[str, Tensor]]:
    """(name in the round's file, tensor)."""
    both: list[tuple[str, BroadcastModel | Message]] = [
        *((f"broadcast-{number}", each) for number, each in enumerate(round_.broadcasts)),
        *((f"message-{number}", each) for number, each in enumerate(round_.messages)),
    ]
    for prefix, sent in both:
        yield from ((f"{prefix}/parameters/{name}", t) for name, t in sent.parameters.items())
        yield from ((f"{prefix}/buffers/{name}", t) for name, t in sent.buffers.items())
    for number, message in enumerate(round_.messages):
        if message.labels is not None:
            yield f"message-{number}/labels", message.labels


def _readable(content: Mapping[str, Any]) -> str:
    """JSON with a line for each layout and each round."""
    lines = []
    for name, value in content.items():
        entries = ",\n  ".join(json.dumps(each, allow_nan=False) for each in value) if isinstance(value, list) else ""
        lines.append(f" {json.dumps(name)}: " + (f"[\n  {entries}\n ]" if entries else json.dumps(value)))
    return "{\n" + ",\n".join(lines) + "\n}\n"
