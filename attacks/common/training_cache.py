"""What an attack trains is trained once and kept on disk: named by everything that it depends on.

A name is the hash of the settings and of the contents of the tensors that training uses (the broadcast classifier, the
auxiliary images, closed-form features, ...), so that another choice of auxiliary images, another seed or another artifact
never meets a foreign file. Files are written whole or not at all; a damaged one is made anew. What takes seconds alone, and is
asked for again and again, is named in the same way and stays in memory.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from privbench.errors import Damaged, UserError
from privbench.system import files, locks

LOG = logging.getLogger("privbench")
REVISION = 2  # raised whenever training changes in a way that no setting tells

Result = TypeVar("Result")


class Remembered(Generic[Result]):
    """The last few results of one kind, in memory; nobody may change one."""

    def __init__(self, what: str, most: int) -> None:
        """Nothing yet of `what`, and never more than the last `most`."""
        self.what, self.most = what, most
        self.kept: OrderedDict[str, Result] = OrderedDict()

    def of(
        self,
        settings: Mapping[str, Any],
        depends_on: Iterable[Tensor],
        make: Callable[[], Result],
        device: torch.device,
    ) -> Result:
        """What `make` returns, made once for the same settings, contents of tensors and device."""
        name = _name(self.what, {**settings, "device": str(device)}, depends_on, device)
        if name not in self.kept:
            self.kept[name] = make()
        self.kept.move_to_end(name)
        while len(self.kept) > self.most:
            self.kept.popitem(last=False)
        return self.kept[name]


def cached(
    folder: Path | None,
    what: str,
    settings: Mapping[str, Any],
    depends_on: Iterable[Tensor],
    make: Callable[[], dict[str, Tensor]],
    device: torch.device,
) -> dict[str, Tensor]:
    """The tensors of `make`, read from `folder` where they have been made before; without a folder they are made anew.

    A damaged file is made anew, with a line; another process that needs the same waits for this one. UserError: a file that was
    trained for something else.
    """
    if folder is None:
        return make()
    name = _name(what, settings, depends_on, device)
    path = folder / f"{what}-{name[:16]}.safetensors"
    with locks.lock(folder, wait=True, name=path.stem):
        stored = _read(path)
        if stored is None:
            result = make()
            files.save_tensors(path, "trained", result, {"what": what, "name": name, "settings": dict(settings)})
            return result
    tensors, info = stored
    if info.get("name") != name:
        raise UserError(f"{path} was trained for something else; remove it and run the same command again")
    return {key: t.to(device) for key, t in tensors.items()}


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """What was kept, or None where there is nothing whole."""
    if not path.exists():
        return None
    try:
        return files.load_tensors(path, "trained")
    except Damaged as error:
        LOG.warning("%s; it is made anew", error)
        return None


def _name(what: str, settings: Mapping[str, Any], depends_on: Iterable[Tensor], device: torch.device) -> str:
    text = json.dumps([REVISION, what, dict(settings), device.type], sort_keys=True)
    digest = hashlib.sha256(text.encode())
    for t in depends_on:
        digest.update(f"{tuple(t.shape)}{t.dtype}".encode())
        digest.update(t.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
