"""What an attack trains is trained once and kept on disk: named by everything that it depends on.

A name is the hash of the settings and of the contents of the tensors that training uses (the broadcast classifier, the
auxiliary images, closed-form features, ...), so that another choice of auxiliary images, another seed or another artifact
never meets a foreign file. Files are written whole or not at all; a damaged one is made anew.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from privbench.errors import Damaged, UserError
from privbench.system import files, locks
from privbench.types import Artifact, Attack, Knowledge, Progress, Reconstruction, no_progress

LOG = logging.getLogger("privbench")
REVISION = 2  # raised whenever training changes in a way that no setting shows
TENSORS, SPENT, OUTCOME = Reconstruction._fields[:5], "gradient_evaluations", "outcome"


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
        found = _read(path)
        if found is None:
            made = make()
            files.save_tensors(path, "trained", made, {"what": what, "name": name, "settings": dict(settings)})
            return made
    tensors, info = found
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


def reconstructed(
    attack: Attack, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
) -> Reconstruction:
    """What an attack makes of an artifact with some auxiliary images, or none; read back where another attack has asked for it."""
    settings = {field.name: getattr(attack, field.name) for field in fields(attack)}  # type: ignore[arg-type]
    if revision := getattr(attack, "revision", 0):
        settings["revision"] = revision
    settings |= {"model": str(artifact.model), "round": artifact.round, "batch_size": artifact.batch_size}
    parts = (artifact.weights, artifact.buffers, artifact.gradients, artifact.uploads, artifact.upload_buffers)
    found = cached(
        knowledge.cache,
        type(attack).__name__.lower(),
        settings | {"seed": seed, "defense": dict(artifact.defense)},
        [
            *(t for each in parts for net in each.values() for t in net.values()),
            *(() if artifact.labels is None else (artifact.labels,)),
            *(knowledge.auxiliary or ()),
        ],
        lambda: _packed(attack.reconstruct(artifact, knowledge, seed, progress)),
        artifact.client.device,
    )
    images, y, loss, trace, restart = (found[name] for name in TENSORS)
    return Reconstruction(images, y, loss, trace, restart, int(found[SPENT]), outcome=found.get(OUTCOME))


def _packed(found: Reconstruction) -> dict[str, Tensor]:
    assert not found.notes, "notes have no place in the file"
    outcome = {} if found.outcome is None else {OUTCOME: found.outcome}
    return dict(zip(TENSORS, found[:5], strict=True)) | {SPENT: torch.tensor(found.gradient_evaluations)} | outcome


def _name(what: str, settings: Mapping[str, Any], depends_on: Iterable[Tensor], device: torch.device) -> str:
    text = json.dumps([REVISION, what, dict(settings), device.type], sort_keys=True)
    digest = hashlib.sha256(text.encode())
    for t in depends_on:
        digest.update(f"{tuple(t.shape)}{t.dtype}".encode())
        digest.update(t.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
