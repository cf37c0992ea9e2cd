"""Files that survive a kill and say so when they did not: safetensors plus JSON, versioned, digested, written atomically.

No pickle anywhere: a file from a stranger can be refused, but cannot run code.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from privbench import interrupts, processes
from privbench.errors import Damaged, UserError
from privbench.types import Parts

LOG = logging.getLogger("privbench")
VERSION = 2  # 2: a model knows the size of its images


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns a full disk, a missing right or a read-only place into one clear line."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"the disk is full: could not write {path}; free some space and run the same command again"
            ) from error
        raise UserError(f"cannot write {path}: {error.strerror or error}; choose another folder with --out") from error


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a whole file or nothing: a temporary neighbour, flushed to disk, renamed over the target."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Opened plainly, so that it gets the user's usual rights.
        temporary = path.with_name(f".{path.name}{processes.mark()}")
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


def sweep(folder: Path, now: float) -> None:
    """Removes what processes that were killed left in a folder half-written; `now` is the file system's own time, in seconds."""
    for path in folder.glob(".*"):
        with suppress(OSError):
            if processes.left_behind(path.name, now - path.stat().st_mtime):
                path.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Atomic JSON, indented by one space."""
    write_bytes(path, (json.dumps(value, indent=1) + "\n").encode())


def read_json(path: Path) -> Any:
    """The value; Damaged names a file that does not parse, UserError one that cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path} is damaged (not valid JSON); remove it and run the same command again") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


def to_write(path: Path) -> bool:
    """Whether a JSON file that can be written again has to be: it is not there, or it is damaged, which is told."""
    try:
        if path.exists():
            read_json(path)
            return False
    except Damaged:
        LOG.warning("%s was damaged; it is written again", path)
    return True


def flatten(parts: Parts, prefix: str) -> dict[str, Tensor]:
    """{"<prefix>/<part>/<name>": tensor}."""
    return {f"{prefix}/{part}/{name}": t for part, params in parts.items() for name, t in params.items()}


def unflatten(tensors: dict[str, Tensor], prefix: str) -> Parts:
    """The inverse of `flatten`; other prefixes are ignored."""
    parts: Parts = {}
    for key, tensor in tensors.items():
        if key.startswith(prefix + "/"):
            part, _, name = key.removeprefix(prefix + "/").partition("/")
            parts.setdefault(part, {})[name] = tensor
    return parts


def save_tensors(path: Path, kind: str, tensors: dict[str, Tensor], info: dict[str, Any]) -> None:
    """Tensors with a JSON header that names kind, version and digest."""
    whole = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    header = {
        "privbench": kind,
        "version": str(VERSION),
        "info": json.dumps(info),
        "sha256": _digest(whole, info),
    }
    write_bytes(path, to_bytes(whole, metadata=header))


def load_tensors(path: Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(tensors on the CPU, info). UserError names a missing, foreign or newer file, Damaged a truncated or altered one.

    Signals wait until the file is read: safetensors takes what they raise for a fault of the file.
    """
    if not path.is_file():
        raise UserError(f"there is no {kind} at {path}")
    try:
        with interrupts.held(), safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise UserError(f"cannot read {path}: {error.strerror}") from error
        raise Damaged(f"{path} is damaged or is no {kind} ({_first_line(error)})") from error
    if header.get("privbench") != kind:
        raise UserError(f"{path} is not a privbench {kind} but {header.get('privbench', 'a foreign file')}")
    if header.get("version") != str(VERSION):
        raise UserError(f"{path} has format version {header.get('version')}; this privbench reads version {VERSION}")
    try:
        info = json.loads(header["info"])
    except (KeyError, ValueError) as error:
        raise Damaged(f"{path} is damaged (its header does not parse)") from error
    if header.get("sha256") != _digest(tensors, info):
        raise Damaged(f"{path} is damaged (its contents do not match their checksum)")
    return tensors, info


def _digest(tensors: dict[str, Tensor], info: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(info, sort_keys=True).encode())
    for name in sorted(tensors):
        t = tensors[name]
        digest.update(f"{name}{tuple(t.shape)}{t.dtype}".encode())
        digest.update(t.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
