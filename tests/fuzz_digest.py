"""A digest of whatever a reader gives, so that two contents can be compared: equal exactly where every value and every bit is."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from pydantic import BaseModel
from torch import Tensor


def digest(content: Any) -> str:
    """SHA-256."""
    found = hashlib.sha256()
    _add(found, content)
    return found.hexdigest()


def _add(found: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        found.update(f"tensor {value.dtype} {tuple(value.shape)} ".encode())
        flat = value.detach().contiguous().flatten()
        found.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    elif isinstance(value, BaseModel):
        found.update(value.model_dump_json(serialize_as_any=True).encode())
    elif is_dataclass(value) and not isinstance(value, type):
        _add(found, {f.name: getattr(value, f.name) for f in fields(value)})
    elif hasattr(value, "_asdict"):
        _add(found, value._asdict())
    elif isinstance(value, Mapping):
        found.update(f"table {len(value)} ".encode())
        for name in sorted(value, key=str):
            found.update(f"{name!r}: ".encode(errors="surrogatepass"))
            _add(found, value[name])
    elif isinstance(value, list | tuple | set | frozenset):
        found.update(f"list {len(value)} ".encode())
        for each in sorted(value) if isinstance(value, set | frozenset) else value:
            _add(found, each)
    else:
        found.update(f"{value!r} ".encode(errors="surrogatepass"))
