"""What an attack trains is trained once per artifact and kept on disk: named by everything that it depends on.

A name is the hash of the settings and of the contents of the tensors that training looks at (the broadcast classifier, the
auxiliary images, closed-form features, ...), so that another choice of auxiliary images, another seed or another artifact
never meets a foreign file. Files are written whole or not at all; a damaged one is refused by name (privbench/storage.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from privbench import storage
from privbench.errors import UserError

REVISION = 2  # raised whenever training changes in a way that no setting tells


def kept(
    folder: Path | None,
    what: str,
    settings: Mapping[str, Any],
    depends_on: Iterable[Tensor],
    make: Callable[[], dict[str, Tensor]],
    device: torch.device,
) -> dict[str, Tensor]:
    """The tensors of `make`, read from `folder` where they have been made before; without a folder they are made anew.

    UserError: a damaged file.
    """
    if folder is None:
        return make()
    name = _name(what, settings, depends_on, device)
    path = folder / f"{what}-{name[:16]}.safetensors"
    if not path.exists():
        made = make()
        storage.save_tensors(path, "trained", made, {"what": what, "name": name, "settings": dict(settings)})
        return made
    try:
        tensors, info = storage.load_tensors(path, "trained")
    except UserError as error:
        raise UserError(f"{error}; remove it and run the same command again to train it anew") from error
    if info.get("name") != name:
        raise UserError(f"{path} was trained for something else; remove it and run the same command again")
    return {key: t.to(device) for key, t in tensors.items()}


def _name(what: str, settings: Mapping[str, Any], depends_on: Iterable[Tensor], device: torch.device) -> str:
    text = json.dumps([REVISION, what, dict(settings), device.type], sort_keys=True)
    digest = hashlib.sha256(text.encode())
    for t in depends_on:
        digest.update(f"{tuple(t.shape)}{t.dtype}".encode())
        digest.update(t.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
