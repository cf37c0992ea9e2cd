"""torchvision's downloads into the default data folder; torchvision is imported only when one is needed."""

from __future__ import annotations

import importlib
import shutil
import socket
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from privbench.errors import UserError
from privbench.system import files as storage
from privbench.system import places

TIMEOUT_SECONDS = 10.0  # of each connection and each read, not of the whole download
UNFINISHED = ".download-"  # what a folder's name begins with while files arrive in it
MANY = 3  # from so many files on, a line names the first one's address alone
NO_HEAD = (403, 405, 501)  # answers of a server that does not report sizes


# Signatures of the compiled operators that torchvision's import refers to without looking whether they are there.
OPERATORS = {name: f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor" for name in ("nms", "qnms")}
_signatures: list[torch.library.Library] = []  # a collected handle would unregister its operator


def torchvision_datasets() -> Any:
    """torchvision.datasets, also beside a CPU build of torch, where torchvision's compiled operators do not load.

    Its extension is built for CUDA and is skipped silently when it does not load; the import then stops at the first
    operator that is not registered. Data sets need no operator, so the bare signatures are enough for it to succeed.
    """
    for name, signature in OPERATORS.items():
        try:
            return importlib.import_module("torchvision.datasets")
        except RuntimeError as error:
            if f"torchvision::{name} does not exist" not in str(error):
                raise
            library = torch.library.Library("torchvision", "FRAGMENT")
            library.define(signature)
            _signatures.append(library)
    return importlib.import_module("torchvision.datasets")


def into(root: Path, fetch: Callable[[Path], None], complete: Callable[[], bool]) -> None:
    """Downloads into a folder, which must be the default one, by one process at a time and whole or not at all.

    UserError: another folder, which is a user's own and is only read; whatever `fetch` says.
    """
    if root.resolve() != places.data().resolve():
        raise UserError(
            f"downloads go to {places.data()} alone; leave out --data-dir and PRIVBENCH_DATA to have it there"
        )
    with storage.writing(root):
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / ".lock"):
            if complete():
                return
            for unfinished in root.glob(f"{UNFINISHED}*"):  # of a process that was killed
                shutil.rmtree(unfinished, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=root, prefix=UNFINISHED) as folder:
                fetch(Path(folder))
                _move(Path(folder), root)


def _move(source: Path, target: Path) -> None:
    """Moves every file below one folder to the same place below another, on the same disk."""
    for path in sorted(source.rglob("*")):
        if path.is_file():
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            path.replace(place)


def attempt(name: str, sources: Callable[[Any], Sequence[Sequence[str]]], download: Callable[[Any], object]) -> None:
    """Runs a torchvision download after a line that says what, how much and from where.

    `sources` are the addresses of every file, each with its mirrors. Whatever goes wrong becomes a UserError of one line.
    """
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT_SECONDS)
    try:
        datasets = torchvision_datasets()
        files = [_reached(mirrors) for mirrors in sources(datasets)]
        sizes = [size for _, size in files]
        much = _in_words(sum(size for size in sizes if size is not None)) if None not in sizes else "of unknown size"
        hosts = (
            ", ".join(dict.fromkeys(url for url, _ in files))
            if len(files) < MANY
            else f"{files[0][0]} and its neighbours"
        )
        print(f"downloading {name} ({much}) from {hosts} to {places.data()}", file=sys.stderr, flush=True)
        download(datasets)
    except Exception as error:  # a network has many ways to fail, and none of them is worth a traceback
        line = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"{name} could not be downloaded: {line}") from error
    finally:
        socket.setdefaulttimeout(before)


def mirrors(data_set: Any) -> list[list[str]]:
    """The addresses of every file of one of torchvision's data sets that has mirrors."""
    return [[mirror + name for mirror in data_set.mirrors] for name, _ in data_set.resources]


def _reached(mirrors: Sequence[str]) -> tuple[str, int | None]:
    """The first address that answers, and how many bytes it says it has; raises what the last one did."""
    for url in mirrors:
        try:
            request = urllib.request.Request(url, method="HEAD", headers={"User-Agent": "privbench"})
            with urllib.request.urlopen(request) as answer:
                length = answer.headers.get("Content-Length")
                return url, int(length) if length else None
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in NO_HEAD:
                return url, None
            failure: Exception = error
        except OSError as error:
            failure = error
    raise failure


def _in_words(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
