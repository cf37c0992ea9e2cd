"""An observation for people who attack it with code of their own: the same files without the run they come from, or NumPy's.

The run's seed reveals the defence's noise and the initial networks, so an observation for others should not name it.
"""

from __future__ import annotations

import hashlib
import io
import shutil
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from privbench.errors import UserError
from privbench.observation import artifact_files
from privbench.observation.format import files
from privbench.observation.format.schema import FORMAT, VERSION
from privbench.system import files as storage

Form = Literal["safetensors", "npz"]
NPZ = f"{FORMAT} in npz"  # what its index says that it is: arrays of NumPy, which privbench does not read again


def export(source: Path, into: Path, form: Form = "safetensors", truth: Path | None = None) -> list[Path]:
    """Writes the observation in `source` into an empty folder and, where there is one, its truth beside that; the files written.

    As safetensors it is an observation with the same id, so that its truth fits it too. UserError: no sound observation, a truth of
    another one, or a folder that is not empty, or lies in `source`.
    """
    stored = files.read(source)
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise UserError(f"{into} is not empty; an {FORMAT} is exported into a new folder")
    if into.resolve().is_relative_to(source.resolve()):
        raise UserError(f"{into} lies in the observation that is exported; name a folder outside it with --into")
    images = None if truth is None else artifact_files.load_truth(truth, source)
    write = _as_safetensors if form == "safetensors" else _as_npz
    written = write(stored, into)
    if truth is None or images is None:
        return written
    beside = into.resolve().with_name(f"{into.resolve().name}-truth.{form}")
    if form == "safetensors":
        with storage.writing(beside):
            shutil.copyfile(truth, beside)
    else:
        storage.write_bytes(beside, _archive({"images": images.images, "labels": images.labels}))
    return [*written, beside]


def _as_safetensors(stored: files.Stored, into: Path) -> list[Path]:
    for entry in stored.index.rounds:
        storage.write_tensors(into / entry.file, files.read_round(stored, entry))
    files.write_index(into, stored.index.model_copy(update={"origin": None}))
    return [into / files.INDEX, *(into / entry.file for entry in files.read(into).index.rounds)]


def _as_npz(stored: files.Stored, into: Path) -> list[Path]:
    """The index as it is, but for what it says of files: names, sizes, digests, and float32 in place of bfloat16."""
    index: dict[str, Any] = stored.index.model_dump(mode="json", exclude_unset=True) | {"origin": None}
    for entry, described in zip(stored.index.rounds, index["rounds"], strict=True):
        data = _archive(files.read_round(stored, entry))
        path = into / Path(entry.file).with_suffix(".npz").name
        storage.write_bytes(path, data)
        described |= {"file": path.name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for tensor in described["tensors"].values():
            tensor["dtype"] = tensor["dtype"].replace("bfloat16", "float32")
    files.write_content(into, {"privbench": NPZ, "version": VERSION, "id": stored.id, **index})
    return [into / files.INDEX, *(into / each["file"] for each in index["rounds"])]


def _archive(tensors: dict[str, torch.Tensor]) -> bytes:
    """The same tensors as NumPy's archive, which knows no bfloat16."""
    whole = {name: (t.float() if t.dtype == torch.bfloat16 else t).numpy() for name, t in tensors.items()}
    file = io.BytesIO()
    # Its stub takes every name for allow_pickle.
    np.savez(file, **whole)  # type: ignore[arg-type]
    return file.getvalue()
