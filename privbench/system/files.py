"""Files that survive a kill and say so when they did not: safetensors plus JSON, versioned, digested, written atomically.

No pickle anywhere: a file from a stranger can be refused, but cannot run code. What is written here says what it belongs to (run,
round, cell), and who reads it checks that (`check_identity`), so that an intact file in the wrong place is refused. A digest
detects an accident: who edits a file on purpose can compute it anew.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from privbench.errors import AGAIN, Damaged, Missing, UserError
from privbench.system import interrupts, processes
from privbench.system.file_headers import JSON_BYTES, Declared, read_header, short, strict_json
from privbench.tensors import Parts

LOG = logging.getLogger("privbench")
VERSION = 2  # 2: a model knows the size of its images
DIGEST = "digest"  # the name under which a JSON file holds the digest of its other content
IDENTITY = {"spec": "run"}  # what a name in a file is called in messages, where it is not called by its name


def inside(folder: Path, name: str) -> Path:
    """`folder`/`name`, where the name is built from the content of a file.

    UserError for a name that is not that of one entry of the folder: with a separator, "", "." or "..", or with characters that are
    not printed; and for a link that leads elsewhere. Every path that is built from ids and from names of data sets, attacks,
    rounds, studies or layouts goes through here.
    """
    if name in ("", ".", "..") or "/" in name or os.sep in name or not name.isprintable():
        raise UserError(f"{name!r} cannot be the name of a file in {folder}; a file that names it comes from elsewhere")
    return no_way_out(folder / name)


def no_way_out(path: Path) -> Path:
    """The same path; UserError where it is a link that leads out of the folder that it lies in.

    Such links come with results of somebody else's: privbench writes none. What is read or written under `--out` is asked first.
    """
    if path.is_symlink():
        try:
            leads_out = not path.resolve().is_relative_to(path.parent.resolve())
        except (OSError, RuntimeError):
            # A link to itself.
            leads_out = True
        if leads_out:
            raise UserError(
                f"{path} is a link that leads out of its folder, and such links are not followed; remove it, or put what it leads "
                "to in its place"
            )
    return path


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
        raise UserError(f"cannot write {path}: {error.strerror or error}; choose another folder") from error


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a whole file or nothing: a temporary neighbour, flushed to disk, renamed over the target."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Opened plainly, so that it gets the user's usual rights; exclusively, as a link of that name, in a folder of somebody
        # else's, would lead elsewhere.
        temporary = path.with_name(f".{path.name}{processes.mark()}")
        temporary.unlink(missing_ok=True)
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


def remove(path: Path) -> None:
    """Removes a file where it is there; UserError where that cannot be done."""
    with writing(path):
        path.unlink(missing_ok=True)


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
    """The value; Damaged names a file that does not parse, or is larger or nests deeper than any of ours."""
    no_way_out(path)
    try:
        # Whoever opens a pipe waits until somebody writes into it.
        if path.exists() and not path.is_file():
            raise OSError(errno.EINVAL, "it is no regular file")
        if path.stat().st_size > JSON_BYTES:
            raise ValueError(f"it has more than {JSON_BYTES} bytes")
        return strict_json(path.read_bytes())
    except ValueError as error:
        raise Damaged(f"{path} is damaged (not valid JSON: {short(error)}); {AGAIN}") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


def content_digest(content: Mapping[str, Any]) -> str:
    """SHA-256 of some content as canonical JSON: names sorted, no spaces, without the digest itself."""
    digested = {name: value for name, value in content.items() if name != DIGEST}
    return hashlib.sha256(json.dumps(digested, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def write_digested(path: Path, content: Mapping[str, Any]) -> None:
    """Atomic JSON with the digest of its content beside it."""
    write_json(path, {**content, DIGEST: content_digest(content)})


def read_digested(path: Path) -> dict[str, Any]:
    """The content of a JSON file, without its digest; Damaged names a damaged or altered one. Older files have no digest."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise Damaged(f"{path} is damaged (no JSON object); {AGAIN}")
    if DIGEST in value and value[DIGEST] != content_digest(value):
        raise Damaged(
            f"{path} was altered or damaged after it was written: its digest does not fit its content; remove it and run the same "
            "command again"
        )
    return {name: each for name, each in value.items() if name != DIGEST}


def to_write(path: Path) -> bool:
    """Whether a JSON file that can be written again has to be: it is not there, or it is damaged, which is logged."""
    try:
        if path.exists():
            read_digested(path)
            return False
    except Damaged:
        LOG.warning("%s was damaged; it is written again", path)
    return True


def check_identity(path: Path, stored: Mapping[str, Any], **expected: Any) -> None:
    """UserError where a file says that it belongs to another run, round, seed or cell than it was read for.

    A name that the file does not hold, as older files do not hold all, is passed over.
    """
    for name, value in expected.items():
        if name in stored and stored[name] != value:
            word = IDENTITY.get(name, name)
            other = short(repr(stored[name]))
            raise UserError(
                f"{path} belongs to {word} {other}, not to {word} {value!r}: an intact file in the wrong place; {AGAIN}"
            )


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
    whole = _whole(tensors)
    header = {
        "privbench": kind,
        "version": str(VERSION),
        "info": json.dumps(info),
        "sha256": _digest(whole, info),
    }
    write_bytes(path, to_bytes(whole, metadata=header))


def load_tensors(path: Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(tensors on the CPU, info). UserError names a missing, foreign or newer file, Damaged a truncated or altered one.

    The header is read and checked first, so that nothing is allocated for a file that is not whole. Signals wait until the file is
    read: safetensors takes what they raise for a fault of the file.
    """
    _, info = load_header(path, kind)
    with _reading(path, kind):
        tensors, header = read_tensors(path)
    if header.get("sha256") != _digest(tensors, info):
        raise Damaged(f"{path} is damaged (its contents do not match their checksum)")
    return tensors, info


def load_header(path: Path, kind: str) -> tuple[dict[str, Declared], dict[str, Any]]:
    """(the tensors that a file announces, its info) without the tensors themselves, whose checksum is therefore not checked.

    UserError as `load_tensors`.
    """
    if not no_way_out(path).is_file():
        raise Missing(f"there is no {kind} at {path}")
    with _reading(path, kind):
        tensors, header = read_header(path)
    if header.get("privbench") != kind:
        raise UserError(f"{path} is not a privbench {kind} but {short(header.get('privbench', 'a foreign file'))}")
    if header.get("version") != str(VERSION):
        raise UserError(
            f"{path} has format version {short(header.get('version'))}; this privbench reads version {VERSION}"
        )
    try:
        info = strict_json(header["info"])
    except (KeyError, ValueError) as error:
        raise Damaged(f"{path} is damaged (its header does not parse)") from error
    if not isinstance(info, dict):
        raise Damaged(f"{path} is damaged (its header does not parse)")
    return tensors, info


@contextmanager
def _reading(path: Path, kind: str) -> Iterator[None]:
    """One line for a file that cannot be read (UserError) or whose bytes are none of ours (Damaged)."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise Damaged(f"{path} is damaged or is no {kind} ({short(_first_line(error))})") from error


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Tensors alone, in a file that has the same bytes wherever they are written."""
    write_bytes(path, to_bytes(_whole(tensors)))


def read_tensors(path: Path, names: Collection[str] | None = None) -> tuple[dict[str, Tensor], dict[str, str]]:
    """(tensors on the CPU, metadata) of a file whose header is checked; with `names`, these of its tensors alone.

    OSError or ValueError where it cannot be read.
    """
    try:
        with interrupts.delayed(), safe_open(path, framework="pt") as file:
            wanted = file.keys() if names is None else names
            return {name: file.get_tensor(name) for name in wanted}, file.metadata() or {}
    except SafetensorError as error:
        raise ValueError(_first_line(error)) from error


def _whole(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}


def _digest(tensors: dict[str, Tensor], info: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(info, sort_keys=True).encode())
    for name in sorted(tensors):
        t = tensors[name]
        digest.update(f"{name}{tuple(t.shape)}{t.dtype}".encode())
        digest.update(t.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
