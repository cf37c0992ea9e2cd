"""All images become 32x32 (or 224x224), as in the papers; which filter they used is not said. Here: antialiased bilinear.

A data set is stored as bytes at 32x32. For 224x224 inputs, one whose originals are larger is stored at 224x224, resized from the
originals (its module says `LARGER_ORIGINALS = True` and its `load` takes a `side`); every other stays at 32x32 and is enlarged a
mini-batch at a time (`pixels`), so that it never lies in memory at 49 times its size.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from privbench.data.dataset import SIDE

PIXELS = 1024 * 32 * 32  # of one channel, that networks are given at once where nothing is trained


def to_32(images: Tensor) -> Tensor:
    """[N, C, H, W] uint8 -> [N, C, 32, 32] uint8."""
    return to_square(images, SIDE)


def pixels(images: Tensor, side: int) -> Tensor:
    """Stored images as networks and attacks see them: [N, C, s, s] uint8 -> [N, C, side, side] in [0, 1]."""
    images = images / 255
    if images.shape[-1] == side:
        return images
    return F.interpolate(images, (side, side), mode="bilinear", antialias=True, align_corners=False)


def to_square(images: Tensor, side: int) -> Tensor:
    """[N, C, H, W] uint8 -> [N, C, side, side] uint8."""
    if images.shape[-2:] == (side, side):
        return images
    pieces = []
    for part in images.split(500):  # small pieces stay in the cache
        resized = F.interpolate(part.float(), (side, side), mode="bilinear", antialias=True, align_corners=False)
        pieces.append(resized.round_().clamp_(0, 255).to(torch.uint8))
    return torch.cat(pieces)


def to_colour(images: Tensor) -> Tensor:
    """[N, 1, H, W] -> [N, 3, H, W] by repetition; colour images pass."""
    return images.expand(-1, 3, -1, -1).contiguous() if images.shape[1] == 1 else images
