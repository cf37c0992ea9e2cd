"""Which rows are numbers throughout: victims with one NaN or infinity are told apart from sound ones here alone."""

import torch
from torch import Tensor


def rows(*tensors: Tensor) -> Tensor:
    """Whether row v of every tensor [V, ...] is finite, [V] bool; at least one tensor."""
    return torch.stack([t.flatten(1).isfinite().all(1) for t in tensors]).all(0)
