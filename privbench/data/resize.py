"""All images become 32x32, as in the papers; which filter they used is not said. Here: antialiased bilinear."""

import torch
import torch.nn.functional as F
from torch import Tensor

SIDE = 32


def to_32(images: Tensor) -> Tensor:
    """[N, C, H, W] uint8 -> [N, C, 32, 32] uint8."""
    if images.shape[-2:] == (SIDE, SIDE):
        return images
    pieces = []
    for part in images.split(500):  # small pieces stay in the cache
        resized = F.interpolate(part.float(), (SIDE, SIDE), mode="bilinear", antialias=True, align_corners=False)
        pieces.append(resized.round_().clamp_(0, 255).to(torch.uint8))
    return torch.cat(pieces)


def to_colour(images: Tensor) -> Tensor:
    """[N, 1, H, W] -> [N, 3, H, W] by repetition; colour images pass."""
    return images.expand(-1, 3, -1, -1).contiguous() if images.shape[1] == 1 else images
