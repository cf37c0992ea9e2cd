"""The number format in which clients send: what does not fit into it is lost before any server sees it.

Gradients and updates are rounded to the format once, after the defence, and widened again: entries beyond its range become inf, as
the server gets them. Where a defence adds messages up, each is rounded before the sum. Secure aggregation has no whole number for
inf, so that this entry of the sum is NaN. Uploaded generators and the networks that an attacker has as `sent` are not rounded. What
the server sends down stays in single precision, and so does the clients' own arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from privbench.tensors import Parts

Format = Literal["float32", "bf16", "fp16"]
FORMATS = {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def rounded(parts: Parts, form: str) -> Parts:
    """What arrives of some single-precision tensors; whole numbers arrive as they are."""
    kind = FORMATS[form]
    return {
        part: {name: t.to(kind).to(t.dtype) if t.is_floating_point() else t for name, t in net.items()}
        for part, net in parts.items()
    }


def described(defense: Mapping[str, Any], form: str) -> dict[str, Any]:
    """A defence as the attacker knows it, with the format where that is not single precision.

    Without a defence it is named "rounded" then, so that no attack takes ranks and signs to be exact.
    """
    if form == "float32":
        return dict(defense)
    return {**defense, "name": "rounded" if defense.get("name") == "none" else defense["name"], "wire": form}


def spacing(defense: Mapping[str, Any]) -> float:
    """The relative spacing of the numbers that arrive, by a defence as `described` says it: 2^-23, of bf16 2^-7, of fp16 2^-10."""
    return torch.finfo(FORMATS[defense.get("wire", "float32")]).eps


def step(values: Tensor, defense: Mapping[str, Any]) -> Tensor:
    """By how much the numbers of a format around some values lie apart, of the same shape: `spacing` of their power of two.

    Below the least normal number they lie apart as above it.
    """
    kind = torch.finfo(FORMATS[defense.get("wire", "float32")])
    power = torch.exp2(torch.floor(torch.log2(values.abs().clamp_min(kind.smallest_normal))))
    return kind.eps * power
