"""What an attacker believes about images before seeing anything: they are smooth, and lie in [0, 1]."""

import torch
from torch import Tensor


def total_variation(x: Tensor) -> Tensor:
    """Mean squared difference of neighbouring pixels, x [B, C, H, W]."""
    across, down = x[..., :, 1:] - x[..., :, :-1], x[..., 1:, :] - x[..., :-1, :]
    return across.square().mean() + down.square().mean()


def edge_variation(x: Tensor, knee: float = 0.02) -> Tensor:
    """Mean smoothed absolute difference of neighbouring pixels: as total variation, but kinder to edges."""
    across, down = x[..., :, 1:] - x[..., :, :-1], x[..., 1:, :] - x[..., :-1, :]
    return ((across.square() + knee**2).sqrt() - knee).mean() + ((down.square() + knee**2).sqrt() - knee).mean()


def outside_box(x: Tensor) -> Tensor:
    """Mean squared distance of pixels from [0, 1]."""
    return (x - x.clamp(0, 1)).square().mean()


def l2(x: Tensor) -> Tensor:
    """Mean squared distance of pixels from grey."""
    return torch.square(x - 0.5).mean()
