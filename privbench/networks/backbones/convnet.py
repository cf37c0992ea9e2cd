"""The ConvNet of the package `breaching`, 2.9 million parameters, split before its last layer.

    E: eight times Conv(3x3, padding 1) BN ReLU, to 64 128 128 256 256 256 | 256 256 channels, MaxPool(3) at the bar and at the end
                                                                        [B, c, 32, 32] -> [B, 256, 3, 3]
    C: Flatten  Linear(2304, Y)                                         -> [B, Y] logits

Layers, initial values (torch's) and names of parameters are those of `breaching` 0.1.2 (`ConvNet` of width 64, Geiping, Fowl and
others); running statistics are called `mean` and `var`. Images in [0, 1] are mapped to [-1, 1], as for LeNet-5. Batch norm: see
privbench/networks/backbones/resnet18.py.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from privbench.networks.backbones.head import Head
from privbench.networks.layers import POSITIVE, uniform_init
from privbench.networks.normalisation import named_norm, norm_init
from privbench.tensors import Params

IMAGE_SIZES = (32,)
FEATURE_RANGE = POSITIVE
LAST_INPUTS = (1.45, False)  # the mean over images of noise, of initial networks
WIDTH = 64
GROWTH = (1, 2, 2, 4, 4, 4, 4, 4)  # channels of each convolution, in widths
POOLED = (5, 7)  # the convolutions behind which there is a pooling
POOL = 3


def feature_shape(image_size: int) -> tuple[int, int, int]:
    """[c, s, s] of the extractor's output: 32 is pooled to 10, and 10 to 3."""
    side = image_size
    for _ in POOLED:
        side //= POOL
    return (GROWTH[-1] * WIDTH, side, side)


@dataclass(frozen=True)
class Extractor:
    """E: images [B, channels, 32, 32] in [0, 1] -> features [B, 256, 3, 3], none below 0."""

    channels: int
    norm: str = "batch"  # or "group"

    def init(self, rng: torch.Generator) -> tuple[Params, Params]:
        """torch's default initialisation."""
        params: Params = {}
        buffers: Params = {}
        before = self.channels
        for i, growth in enumerate(GROWTH):
            width, fan_in = growth * WIDTH, 9 * before
            params[f"conv{i}.weight"] = uniform_init((width, before, 3, 3), fan_in, rng)
            params[f"conv{i}.bias"] = uniform_init((width,), fan_in, rng)
            more, state = norm_init(f"bn{i}", width, self.norm)
            params |= more
            buffers |= state
            before = width
        return params, buffers

    def apply(self, params: Params, buffers: Params, images: Tensor, *, train: bool) -> tuple[Tensor, Params]:
        """Features, and the running statistics after the call."""
        h, after = 2 * images - 1, Params()
        for i in range(len(GROWTH)):
            h = F.conv2d(h, params[f"conv{i}.weight"], params[f"conv{i}.bias"], padding=1)
            h, state = named_norm(h, f"bn{i}", params, buffers, train=train)
            after |= state
            h = F.relu(h)
            if i in POOLED:
                h = F.max_pool2d(h, POOL)
        return h, after


@dataclass(frozen=True)
class Classifier(Head):
    """C: features [B, 256, 3, 3] -> logits [B, classes]."""

    shape: ClassVar[tuple[int, int, int]] = feature_shape(IMAGE_SIZES[0])
