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
    sha256 = hashlib.sha256()
    _add(sha256, content)
    return sha256.hexdigest()


def _add(sha256: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        sha256.update(f"tensor {value.dtype} {tuple(value.shape)} ".encode())
        flat = value.detach().contiguous().flatten()
        sha256.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    elif isinstance(value, BaseModel):
        sha256.update(value.model_dump_json(serialize_as_any=True).encode())
    elif is_dataclass(value) and not isinstance(value, type):
        _add(sha256, {f.name: getattr(value, f.name) for f in fields(value)})
    elif hasattr(value, "_asdict"):
        _add(sha256, value._asdict())
    elif isinstance(value, Mapping):
        sha256.update(f"table {len(value)} ".encode())
        for name in sorted(value, key=str):
            sha256.update(f"{name!r}: ".encode(errors="surrogatepass"))
            _add(sha256, value[name])
    elif isinstance(value, list | tuple | set | frozenset):
        sha256.update(f"list {len(value)} ".encode())
        for each in sorted(value) if isinstance(value, set | frozenset) else value:
            _add(sha256, each)
    else:
        sha256.update(f"{value!r} ".encode(errors="surrogatepass"))
