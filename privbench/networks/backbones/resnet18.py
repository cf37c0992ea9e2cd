"""ResNet-18 (He et al., CVPR 2016), split after its second group of blocks (NFL-CGAN Table 2).

    E: Conv(c,64,7,/2) BN ReLU MaxPool(3,/2)  layer1 (64)  layer2 (128,/2) Sigmoid    [B, c, s, s] -> [B, 128, s/8, s/8]
    C: layer3 (256,/2)  layer4 (512,/2)  global average pool  Linear(512, Y)          -> [B, Y] logits
    layer = two blocks: Conv3 BN ReLU Conv3 BN, plus the input (through Conv1 BN where the shape changes), ReLU

s is 32 or 224, so features are [128, 4, 4] or [128, 28, 28]. Layers, initial values and names of parameters are torchvision's
(`resnet18(zero_init_residual=False)`); running statistics are called `mean` and `var`. Deviation from torchvision: the sigmoid
after layer2, which is the paper's. Images in [0, 1] are mapped to [-1, 1], as for LeNet-5.

Batch norm normalises with the statistics of the mini-batch in train mode, with running ones in eval mode; the running ones travel
with the part that they belong to, are averaged like its weights, and no defence acts on them. At 32x32 layer4 is left with one
value per image and channel, so a batch of ONE image has no statistics there (torch refuses it): see
privbench/observation/client_message.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from privbench.networks.layers import UNIT, normal_init, padded_conv, uniform_init
from privbench.networks.normalisation import named_norm, norm_init
from privbench.tensors import Params

IMAGE_SIZES = (32, 224)
FEATURE_RANGE = UNIT
LAST_INPUTS = (0.5, False)  # not what it is, 0.85 at first, but what every number so far was measured with
EXTRACTOR_LAYERS = {"layer1": (64, 64), "layer2": (64, 128)}  # channels (in, out); a layer that widens has stride 2
CLASSIFIER_LAYERS = {"layer3": (128, 256), "layer4": (256, 512)}
Convolution = tuple[str, str, int, int, int]  # its name, that of its batch norm, channels in, channels out, kernel


def feature_shape(image_size: int) -> tuple[int, int, int]:
    """[c, s, s] of the extractor's output: stem, pooling and layer2 halve the side each."""
    return (EXTRACTOR_LAYERS["layer2"][1], image_size // 8, image_size // 8)


@dataclass(frozen=True)
class Extractor:
    """E: images [B, channels, s, s] in [0, 1] -> features [B, 128, s/8, s/8] in [0.5, 1)."""

    channels: int
    norm: str = "batch"  # or "group"

    def init(self, rng: torch.Generator) -> tuple[Params, Params]:
        """torchvision's initialisation."""
        stem = ("conv1", "bn1", self.channels, EXTRACTOR_LAYERS["layer1"][0], 7)
        return _init([stem, *_convolutions(EXTRACTOR_LAYERS)], rng, self.norm)

    def apply(self, params: Params, buffers: Params, images: Tensor, *, train: bool) -> tuple[Tensor, Params]:
        """Features, and the running statistics after the call."""
        call = _Pass(params, buffers, train)
        h = F.relu(call.conv_norm(2 * images - 1, "conv1", "bn1", stride=2))
        h = F.max_pool2d(h, 3, stride=2, padding=1)
        for layer in EXTRACTOR_LAYERS:
            h = call.layer(h, layer)
        return self.end(h), call.after

    def end(self, h: Tensor) -> Tensor:
        """Features of what layer2 leaves [B, 128, s/8, s/8]."""
        return torch.sigmoid(h)


@dataclass(frozen=True)
class Classifier:
    """C: features [B, 128, s/8, s/8] -> logits [B, classes]."""

    classes: int
    norm: str = "batch"  # or "group"

    features_layer: ClassVar[str | None] = None
    logits_layer: ClassVar[str] = "fc"

    def init(self, rng: torch.Generator) -> tuple[Params, Params]:
        """torchvision's initialisation."""
        params, buffers = _init(_convolutions(CLASSIFIER_LAYERS), rng, self.norm)
        width = CLASSIFIER_LAYERS["layer4"][1]
        params["fc.weight"] = uniform_init((self.classes, width), width, rng)
        params["fc.bias"] = uniform_init((self.classes,), width, rng)
        return params, buffers

    def apply(self, params: Params, buffers: Params, features: Tensor, *, train: bool) -> tuple[Tensor, Params]:
        """Logits, and the running statistics after the call."""
        call, h = _Pass(params, buffers, train), features
        for layer in CLASSIFIER_LAYERS:
            h = call.layer(h, layer)
        return F.linear(h.mean((2, 3)), params["fc.weight"], params["fc.bias"]), call.after


@dataclass
class _Pass:
    """One call of a network; `after` gathers the running statistics that its batch norms leave behind."""

    params: Params
    buffers: Params
    train: bool
    after: Params = field(default_factory=dict)

    def conv_norm(self, x: Tensor, conv: str, norm: str, stride: int) -> Tensor:
        x = padded_conv(x, self.params[f"{conv}.weight"], stride)
        x, state = named_norm(x, norm, self.params, self.buffers, train=self.train)
        self.after |= state
        return x

    def layer(self, x: Tensor, name: str) -> Tensor:
        return self.block(self.block(x, f"{name}.0"), f"{name}.1")

    def block(self, x: Tensor, name: str) -> Tensor:
        widens = f"{name}.downsample.0.weight" in self.params
        stride = 2 if widens else 1
        h = F.relu(self.conv_norm(x, f"{name}.conv1", f"{name}.bn1", stride))
        h = self.conv_norm(h, f"{name}.conv2", f"{name}.bn2", 1)
        shortcut = self.conv_norm(x, f"{name}.downsample.0", f"{name}.downsample.1", stride) if widens else x
        return F.relu(h + shortcut)


def _convolutions(layers: dict[str, tuple[int, int]]) -> Iterator[Convolution]:
    """Every convolution of some layers."""
    for layer, (before, width) in layers.items():
        for block, entering in ((f"{layer}.0", before), (f"{layer}.1", width)):
            yield f"{block}.conv1", f"{block}.bn1", entering, width, 3
            yield f"{block}.conv2", f"{block}.bn2", width, width, 3
            if entering != width:
                yield f"{block}.downsample.0", f"{block}.downsample.1", entering, width, 1


def _init(convolutions: Iterable[Convolution], rng: torch.Generator, norm: str) -> tuple[Params, Params]:
    """Convolutions N(0, 2 / (channels out k^2)) (He et al. 2015), batch norms as torch's."""
    params: Params = {}
    buffers: Params = {}
    for conv, name, before, width, kernel in convolutions:
        deviation = math.sqrt(2 / (width * kernel**2))
        params[f"{conv}.weight"] = normal_init((width, before, kernel, kernel), rng, deviation)
        more, state = norm_init(name, width, norm)
        params |= more
        buffers |= state
    return params, buffers
