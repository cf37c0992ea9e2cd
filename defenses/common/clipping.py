"""Norms over several networks at once, and the clipping that bounds what one image or one client can add.

Abadi et al., CCS 2016, arXiv 1607.00133: g / max(1, ||g||_2 / C), with one norm over all parameters. A gradient that is not finite
counts as zero: whatever an image does, it adds at most C.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from privbench.errors import UserError
from privbench.tensors import Parts


def check_norm(name: str, bound: float) -> None:
    """UserError unless a bound of a norm is positive and finite."""
    if not (math.isfinite(bound) and bound > 0):
        raise UserError(f"the defence {name} needs a clip above 0, but {bound:g} was given")


def norms(gradients: Parts) -> Tensor:
    """||g||_2 of each of B gradients over all parts and parameters: part -> parameter -> [B, ...] to [B], in double precision."""
    squares = [t.double().square().reshape(len(t), -1).sum(1) for params in gradients.values() for t in params.values()]
    return torch.stack(squares).sum(0).sqrt()


def factors(gradients: Parts, bound: float) -> Tensor:
    """min(1, C / ||g||) of each of B gradients: [B]; 0 where a gradient is not finite."""
    each = norms(gradients)
    return torch.where(each.isfinite(), (bound / each.clamp_min(torch.finfo(each.dtype).tiny)).clamp(max=1), 0.0)


def clipped_sum(gradients: Parts, included: Tensor, bound: float) -> Parts:
    """sum_b g_b min(1, C / ||g_b||) over the rows that are `included` [B] bool."""
    weight = factors(gradients, bound)
    weight = weight * included.to(weight)

    def total(t: Tensor) -> Tensor:
        return torch.tensordot(weight.to(t), t.nan_to_num(0.0, 0.0, 0.0), 1)

    return {part: {name: total(t) for name, t in params.items()} for part, params in gradients.items()}


def clipped(tensors: Parts, bound: float) -> Parts:
    """t min(1, C / ||t||), one norm over all parts."""
    single = {part: {name: t[None] for name, t in params.items()} for part, params in tensors.items()}
    return clipped_sum(single, torch.ones(1, dtype=torch.bool), bound)


def noised(tensors: Parts, std: float, rng: torch.Generator) -> Parts:
    """t + N(0, std^2) on every coordinate, drawn on the CPU in float32; parts and parameters in their order."""
    return {
        part: {name: t + std * torch.randn(t.shape, generator=rng).to(t) for name, t in params.items()}
        for part, params in tensors.items()
    }
