"""Writes and reads an observation: each round's file first, the index last; the index checked before any of them is opened."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import ValidationError

from privbench.errors import Damaged, Missing, UserError
from privbench.observation.format import limits, networks, schema
from privbench.observation.format.schema import FORMAT, VERSION, Index, Messages, Origin, RoundEntry, SetupEntry, Tensor
from privbench.system import files, index_files
from privbench.system.file_headers import read_header, short

INDEX = "index.json"
EXPANDED = 4  # levels of the index that have a line for each entry
OUTSIDE_INDEX = ("privbench", "version", "id", "sha256")  # fields of the file beside the Index


class NewRound(NamedTuple):
    """A round to be written."""

    number: int
    messages: tuple[Messages, ...]
    tensors: Mapping[str, torch.Tensor]
    broadcasts: tuple[schema.Broadcast, ...] = ()


@dataclass(frozen=True)
class Stored:
    """An observation on disk whose index is checked, and its files against it by size; their content when they are read."""

    folder: Path
    index: Index
    id: str  # the digest of what was seen: set-up and rounds


def write(
    folder: Path, setup: SetupEntry, rounds: Iterable[NewRound], origin: Origin | None, preset: str | None = None
) -> str:
    """Writes an observation and returns its id. One that is there is no observation any more until the new index is written.

    ValueError or UserError where it does not keep to the format.
    """
    path = folder / INDEX
    with files.writing(path):
        path.unlink(missing_ok=True)
    entries = [_write_round(folder, each) for each in rounds]
    optional = {} if preset is None else {"preset": preset}
    index = Index(setup=setup, rounds=entries, origin=origin, **optional)
    networks.check(index)
    write_index(folder, index)
    return observation_id(index)


def write_index(folder: Path, index: Index) -> None:
    """Writes index.json of rounds that are on disk."""
    fields = index.model_dump(mode="json", exclude_unset=True)
    content = {"privbench": FORMAT, "version": VERSION, "id": observation_id(index), **fields}
    write_content(folder, content)


def write_content(folder: Path, content: Mapping[str, Any]) -> None:
    """Writes index.json with the digest of its content."""
    files.write_bytes(folder / INDEX, (_readable({**content, "sha256": index_files.digest(content)}) + "\n").encode())


def read(folder: Path) -> Stored:
    """The checked index of an observation; UserError of one line where there is none, or it is not sound.

    Nothing that it declares has been allocated then, and no file of a round opened.
    """
    path = folder / INDEX
    if not files.no_way_out(path).is_file():
        raise Missing(_missing(folder))
    value = index_files.read(path, FORMAT, VERSION, limits.INDEX_BYTES, limits.INDEX_DEPTH)
    index = _checked(path, {name: entry for name, entry in value.items() if name not in OUTSIDE_INDEX})
    if value.get("id") != observation_id(index):
        raise Damaged(f"{path} is damaged (its id is not that of its content)")
    for each in index.rounds:
        _check_size(folder, each)
    return Stored(folder, index, observation_id(index))


def read_round(stored: Stored, entry: RoundEntry) -> dict[str, torch.Tensor]:
    """The tensors of one round by name; UserError where its file is not the one that the index describes."""
    path = stored.folder / entry.file
    _check_size(stored.folder, entry)
    try:
        declared = {name: _described(t.dtype, t.shape) for name, t in read_header(path).tensors.items()}
        if declared != entry.tensors:
            raise ValueError("its tensors are not those of the index")
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:
                raise ValueError("its content does not match the index")
        tensors, _ = files.read_tensors(path)
    except (OSError, ValueError) as error:
        raise Damaged(f"{path} is damaged or of another observation ({short(error)})") from error
    unfitting(path, lambda: _check_values(stored.index, tensors))
    return tensors


def are_classes(labels: torch.Tensor, classes: int) -> bool:
    """Whether all labels are numbers of classes."""
    return bool(((labels >= 0) & (labels < classes)).all())


def observation_id(index: Index) -> str:
    """SHA-256 of set-up and rounds as canonical JSON: the same wherever the observation lies."""
    return index_files.digest(index.model_dump(mode="json", include={"setup", "rounds"}, exclude_unset=True))


def unfitting(path: Path, check: Callable[[], Any]) -> Any:
    """What a check gives; its ValueError as a UserError of one line with the file's name."""
    try:
        return check()
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(str(part) for part in fault["loc"] if "function-" not in str(part))
        value = "" if fault["type"] in ("value_error", "missing") else f", but {fault['input']!r:.80} was given"
        message = f"{place}: {fault['msg'].removeprefix('Value error, ')}"
        raise UserError(f"{path} is no sound {FORMAT}: {short(message, 300)}{short(value)}") from error
    except (ValueError, UserError) as error:
        raise UserError(f"{path} is no sound {FORMAT}: {short(error, 400)}") from error


def _checked(path: Path, content: dict[str, Any]) -> Index:
    index: Index = unfitting(path, lambda: Index.model_validate(content, strict=True))
    unfitting(path, lambda: networks.check(index))
    return index


def _write_round(folder: Path, new: NewRound) -> RoundEntry:
    path = folder / schema.file_name(new.number)
    files.write_tensors(path, dict(new.tensors))
    with path.open("rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
    optional = {"broadcasts": list(new.broadcasts)} if new.broadcasts else {}
    return RoundEntry(
        round=new.number,
        file=path.name,
        bytes=path.stat().st_size,
        sha256=content,
        messages=list(new.messages),
        tensors={name: _described(t.dtype, t.shape) for name, t in sorted(new.tensors.items())},
        **optional,
    )


def _described(dtype: torch.dtype, shape: Iterable[int]) -> Tensor:
    return Tensor.model_validate({"dtype": str(dtype).removeprefix("torch."), "shape": list(shape)})


def _check_values(index: Index, tensors: dict[str, torch.Tensor]) -> None:
    """ValueError where labels are no classes or counts no counts. Other numbers are what clients sent, finite or not."""
    for name, t in tensors.items():
        if name.endswith("/labels") and schema.split(name) is None and not are_classes(t, index.setup.classes):
            raise ValueError(f"{name}: labels are numbers from 0 to {index.setup.classes - 1}")
    counts = tensors.get(schema.COUNTS)
    if counts is not None and not bool(((counts >= 0) & (counts <= limits.SAMPLES)).all()):
        raise ValueError(f"{schema.COUNTS} holds numbers below 0 or above {limits.SAMPLES}")


def _check_size(folder: Path, entry: RoundEntry) -> None:
    path = folder / entry.file
    if not files.no_way_out(path).is_file():
        raise Damaged(f"there is no {path}, which {folder / INDEX} names")
    if (size := path.stat().st_size) != entry.bytes:
        raise Damaged(f"{path} is damaged or of another observation ({size} bytes in place of {entry.bytes})")


def _readable(value: Any, level: int = 0) -> str:
    """JSON with a line for every message table and every tensor."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if level == EXPANDED or not any(isinstance(each, dict | list) for each in inner):
        return json.dumps(value)
    indent = "\n" + " " * (level + 1)
    if isinstance(value, dict):
        lines = [f"{json.dumps(name)}: {_readable(each, level + 1)}" for name, each in value.items()]
        return "{" + indent + f",{indent}".join(lines) + indent[:-1] + "}"
    return "[" + indent + f",{indent}".join(_readable(each, level + 1) for each in value) + indent[:-1] + "]"


def _missing(folder: Path) -> str:
    if folder.is_file():
        return (
            f"{folder} is no folder; an {FORMAT} is a folder with an {INDEX}, which today's `privbench attack` writes"
        )
    inner = next(iter(folder.glob(f"*/{INDEX}")), None) if folder.is_dir() else None
    hint = f"; did you mean {inner.parent}?" if inner else ""
    return f"there is no {FORMAT} at {folder}: it has no {INDEX}{hint}"
