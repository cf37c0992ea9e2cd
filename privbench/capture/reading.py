"""Reads a capture, which may come from a stranger: the index by itself, then each file against it, before any tensor is allocated.

Nothing is unpickled, nothing that a file names is imported or opened but the files of its own rounds, and no link leads out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from privbench.capture import checking, limits
from privbench.capture.index import FORMAT, INDEX, VERSION, IndexedRound, Layout
from privbench.capture.messages import BroadcastModel, CapturedRound
from privbench.errors import Damaged, Missing, UserError
from privbench.system import files, index_files
from privbench.system.file_headers import read_header, short
from privbench.tensors import Params


@dataclass(frozen=True)
class Captured:
    """A capture on disk whose index is checked, and its files against it by size; their tensors when a round is read.

    model    parameters and buffers of the module that was captured, with type and shape by name
    rounds   ascending, without tensors
    """

    folder: Path
    model: Layout
    rounds: tuple[IndexedRound, ...]

    def indexed(self, number: int) -> IndexedRound:
        """A round without its tensors; UserError where there is none of this number."""
        for each in self.rounds:
            if each.number == number:
                return each
        available = f"rounds {self.rounds[0].number} to {self.rounds[-1].number}" if self.rounds else "no round"
        raise UserError(f"{self.folder} has no round {number}, but {available}")

    def round(self, number: int) -> CapturedRound:
        """A round with its tensors, on the CPU. UserError of one line where its file is not the one that the index describes."""
        return _round(self.indexed(number), _tensors(self.folder, self.indexed(number)))

    def __iter__(self) -> Iterator[CapturedRound]:
        """Rounds with their tensors, each read when it is asked for."""
        return (_round(each, _tensors(self.folder, each)) for each in self.rounds)


def read(folder: Path | str) -> Captured:
    """The checked index of a capture; UserError of one line where there is none, or it is not sound.

    Nothing that it declares has been allocated then, and no file of a round opened.
    """
    folder = Path(folder)
    path = folder / INDEX
    if not files.no_way_out(path).is_file():
        raise Missing(f"there is no {FORMAT} at {folder}: it has no {INDEX}")
    value = index_files.read(path, FORMAT, VERSION, limits.INDEX_BYTES, limits.INDEX_DEPTH)
    content = {name: entry for name, entry in value.items() if name != index_files.SHA256}
    try:
        model, rounds = checking.index(content)
    except ValueError as error:
        raise UserError(f"{path} is no sound {FORMAT}: {short(error, 400)}") from error
    for each in rounds:
        _check_size(folder, each)
    return Captured(folder, model, rounds)


def _check_size(folder: Path, entry: IndexedRound) -> None:
    path = folder / entry.file
    if not files.no_way_out(path).is_file():
        raise Damaged(f"there is no {path}, which {folder / INDEX} names")
    if (size := path.stat().st_size) != entry.bytes:
        raise Damaged(f"{path} is damaged or of another {FORMAT} ({size} bytes in place of {entry.bytes})")


def _tensors(folder: Path, entry: IndexedRound) -> dict[str, Tensor]:
    _check_size(folder, entry)
    path = folder / entry.file
    try:
        if read_header(path).tensors != entry.tensors():
            raise ValueError("its tensors are not those of the index")
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:
                raise ValueError("its content does not match the index")
        return files.read_tensors(path)[0]
    except (OSError, ValueError) as error:
        raise Damaged(f"{path} is damaged or of another {FORMAT} ({short(error)})") from error


def _round(entry: IndexedRound, tensors: dict[str, Tensor]) -> CapturedRound:
    return CapturedRound(
        entry.number,
        tuple(
            BroadcastModel(*_groups(tensors, each.layout, f"broadcast-{number}"), each.clients)
            for number, each in enumerate(entry.broadcasts)
        ),
        tuple(
            each.facts.with_tensors(
                *_groups(tensors, each.layout, f"message-{number}"), tensors.get(f"message-{number}/labels")
            )
            for number, each in enumerate(entry.messages)
        ),
    )


def _groups(tensors: dict[str, Tensor], layout: Layout, prefix: str) -> tuple[Params, Params]:
    """(parameters, buffers) by their own names."""
    return (
        {name: tensors[f"{prefix}/parameters/{name}"] for name in layout.parameters},
        {name: tensors[f"{prefix}/buffers/{name}"] for name in layout.buffers},
    )
