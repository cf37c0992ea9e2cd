"""Of which kind the values are that a caller in Python gives an audit: UserError of one line where an option does not take it."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from pathlib import Path

import torch
from torch import Tensor

from privbench.errors import UserError


def batch_size(value: object) -> None:
    """UserError for what is no number of images."""
    if value is not None and (not isinstance(value, Integral) or value < 1):
        raise UserError(f"--batch-size takes a whole number from 1, but {value!r} was given")


def tensors(name: str, value: object) -> None:
    """UserError for what is neither tensors by name nor files."""
    if value is None or _is_file(value) or (name == "after" and _are_files(value)):
        return
    if not isinstance(value, Mapping):
        raise UserError(f"{name} takes tensors by name, or a file, but a {type(value).__name__} was given")
    for key, t in value.items():
        # A parameter without a gradient was not sent.
        if not isinstance(t, Tensor) and not (t is None and name == "gradients"):
            raise UserError(f"'{key}' of {name} is no tensor but a {type(t).__name__}; make one by torch.as_tensor")
        if t is not None:
            dense(f"'{key}' of {name}", t)


def dense(what: str, t: Tensor) -> None:
    """UserError for a tensor of complex numbers, or one that does not hold all its numbers."""
    if t.is_complex() or t.layout != torch.strided:
        raise UserError(f"{what} should hold real numbers, all of them, but it is {t.dtype} in the layout {t.layout}")


def floating(what: str, t: Tensor) -> None:
    """UserError for what is no tensor of floating-point numbers."""
    if not t.is_floating_point():
        raise UserError(f"{what} should hold floating-point numbers, but it is {t.dtype}")


def images(name: str, value: object, *, must_have_labels: bool) -> None:
    """UserError for what is neither a file nor (images, labels)."""
    if value is None or _is_file(value):
        return
    labels = (Tensor,) if must_have_labels else (Tensor, type(None))
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], Tensor) and isinstance(value[1], labels):
        return
    inner = f" of {', '.join(type(each).__name__ for each in value)}" if isinstance(value, tuple | list) else ""
    raise UserError(
        f"{name} takes a file, or a tuple of two tensors (images, labels), but a {type(value).__name__}{inner} was given"
    )


def _is_file(value: object) -> bool:
    return isinstance(value, str | Path)


def _are_files(value: object) -> bool:
    return isinstance(value, tuple | list) and all(map(_is_file, value))
