"""The reconstructor r of a secret decoder: from features to images, linear plus one hidden layer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from privbench.tensors import Params

HIDDEN_UNITS, SLOPE = 256, 0.1


def initial(h: Tensor, images: Tensor, rng: torch.Generator) -> Params:
    """One that begins near the mean image, for features like h [N, n] and images like these [N, C, H, W]."""
    n, out = h.shape[1], images[0].numel()
    first = torch.randn(HIDDEN_UNITS, n, generator=rng) * (2 / n) ** 0.5
    second = torch.randn(out, HIDDEN_UNITS, generator=rng) * 0.1 * (2 / HIDDEN_UNITS) ** 0.5
    return {
        "middle": h.mean(0),
        "spread": h.std(0, correction=0).clamp_min(1e-3),
        "mean": images.flatten(1).mean(0),
        "linear": h.new_zeros(out, n).requires_grad_(),
        "w0": first.to(h).requires_grad_(),
        "b0": h.new_zeros(HIDDEN_UNITS).requires_grad_(),
        "w1": second.to(h).requires_grad_(),
        "b1": h.new_zeros(out).requires_grad_(),
    }


def trained(reconstructor: Params) -> list[Tensor]:
    """What of it is trained."""
    return [t for t in reconstructor.values() if t.requires_grad]


def decoded(reconstructor: Params, h: Tensor) -> Tensor:
    """r(h): features [N, n] -> flat images [N, D]."""
    r = reconstructor
    z = (h - r["middle"]) / r["spread"]
    hidden = F.leaky_relu(F.linear(z, r["w0"], r["b0"]), SLOPE)
    return r["mean"] + F.linear(z, r["linear"], r["b1"]) + F.linear(hidden, r["w1"])
