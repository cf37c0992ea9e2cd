"""LeNet-5 with average pooling and sigmoids, split after the second convolution (FedCG; NFL-CGAN Table 1).

    E: Conv(c,6,5) AvgPool2 Sigmoid  Conv(6,16,5) AvgPool2 Sigmoid              [B, c, 32, 32] -> [B, 16, 5, 5]
    C: Flatten  Linear(400,120) Sigmoid  Linear(120,84) Sigmoid  Linear(84,Y)   -> [B, Y] logits

Images are in [0, 1] and are first mapped to [-1, 1]; the papers do not say how they normalise. The same constants for
every data set reveal nothing about a client's data to the server.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from privbench.networks.layers import UNIT, conv_then_average_pool, named_linear, pooled_kernel, uniform_init
from privbench.tensors import Params

IMAGE_SIZES = (32,)
FEATURE_RANGE = UNIT
LAST_INPUTS = (0.5, False)  # behind a sigmoid


def feature_shape(image_size: int) -> tuple[int, int, int]:
    """[c, s, s] of the extractor's output."""
    return (16, 5, 5)


@dataclass(frozen=True)
class Extractor:
    """E: images [B, channels, 32, 32] in [0, 1] -> features [B, 16, 5, 5] in (0, 1)."""

    channels: int

    def init(self, rng: torch.Generator) -> tuple[Params, Params]:
        """torch's default initialisation."""
        fan1, fan2 = self.channels * 25, 6 * 25
        params = {
            "conv1.weight": uniform_init((6, self.channels, 5, 5), fan1, rng),
            "conv1.bias": uniform_init((6,), fan1, rng),
            "conv2.weight": uniform_init((16, 6, 5, 5), fan2, rng),
            "conv2.bias": uniform_init((16,), fan2, rng),
        }
        return params, {}

    def apply(self, params: Params, buffers: Params, images: Tensor, *, train: bool) -> tuple[Tensor, Params]:
        """Features; `train` makes no difference here."""
        h = torch.sigmoid(conv_then_average_pool(2 * images - 1, params["conv1.weight"], params["conv1.bias"]))
        h = torch.sigmoid(conv_then_average_pool(h, params["conv2.weight"], params["conv2.bias"]))
        return h, buffers

    def slopes(self, params: Params, images: Tensor) -> Tensor:
        """||dh_i/dx||_2 of every feature: images [B, channels, 32, 32] -> [B, 400].

        dh_i/dx = h_i (1 - h_i) 2 T' v_i, where v_i [216] is the second kernel times the first sigmoid's slopes in its window, and T
        the first convolution on a window, the same everywhere. So the norm is that of v_i under T T'.
        """
        first, second = pooled_kernel(params["conv1.weight"]), pooled_kernel(params["conv2.weight"])
        a = torch.sigmoid(F.conv2d(2 * images - 1, first, params["conv1.bias"], stride=2))
        h = torch.sigmoid(F.conv2d(a, second, params["conv2.bias"], stride=2))
        size = second[0].numel()
        windows = F.unfold(a * (1 - a), second.shape[-1], stride=2).mT[:, None]
        v = (windows * second.flatten(1)[:, None]).flatten(0, 2)
        each = torch.eye(size, dtype=first.dtype, device=first.device).view(size, *second.shape[1:])
        t = F.conv_transpose2d(each, first, stride=2).flatten(1)
        norm = ((v @ (t @ t.mT)) * v).sum(1).clamp_min(0).sqrt().view(len(images), -1)
        h = h.flatten(1)
        return 2 * h * (1 - h) * norm


@dataclass(frozen=True)
class Classifier:
    """C: features [B, 16, 5, 5] -> logits [B, classes]."""

    classes: int

    features_layer: ClassVar[str | None] = "fc1"
    logits_layer: ClassVar[str] = "fc3"

    def init(self, rng: torch.Generator) -> tuple[Params, Params]:
        """torch's default initialisation."""
        params: Params = {}
        for name, (fan_in, fan_out) in {"fc1": (400, 120), "fc2": (120, 84), "fc3": (84, self.classes)}.items():
            params[f"{name}.weight"] = uniform_init((fan_out, fan_in), fan_in, rng)
            params[f"{name}.bias"] = uniform_init((fan_out,), fan_in, rng)
        return params, {}

    def apply(self, params: Params, buffers: Params, features: Tensor, *, train: bool) -> tuple[Tensor, Params]:
        """Logits; `train` makes no difference here."""
        return self.linear_layers(params, features)[0], buffers

    def linear_layers(self, params: Params, features: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """(logits [B, Y], what enters each linear layer [B, n]).

        Biases may also come one per image, [B, m]: the gradient over them is then each image's own dL/dz.
        """
        inputs = {"fc1": features.flatten(1)}
        inputs["fc2"] = torch.sigmoid(named_linear(params, "fc1", inputs["fc1"]))
        inputs["fc3"] = torch.sigmoid(named_linear(params, "fc2", inputs["fc2"]))
        return named_linear(params, "fc3", inputs["fc3"]), inputs
