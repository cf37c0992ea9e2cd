"""The multilayer perceptron "2NN" of FedAvg's paper (McMahan et al., AISTATS 2017, arXiv 1602.05629), split before its last layer.

    E: Flatten  Linear(c 32 32, 200) ReLU  Linear(200, 200) ReLU        [B, c, 32, 32] -> [B, 200, 1, 1]
    C: Linear(200, Y)                                                   -> [B, Y] logits

Images in [0, 1] are mapped to [-1, 1], as for LeNet-5. The paper's images are 28x28, which gives its 199,210 parameters; those of
this suite are 32x32.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from privbench.networks.backbones.head import Head
from privbench.networks.layers import POSITIVE, named_linear, uniform_init
from privbench.tensors import Params

IMAGE_SIZES = (32,)
FEATURE_RANGE = POSITIVE
LAST_INPUTS = (0.05, False)  # the mean over images of noise, of initial networks
WIDTH = 200


def feature_shape(image_size: int) -> tuple[int, int, int]:
    """[c, s, s] of the extractor's output."""
    return (WIDTH, 1, 1)


@dataclass(frozen=True)
class Extractor:
    """E: images [B, channels, 32, 32] in [0, 1] -> features [B, 200, 1, 1], none below 0."""

    channels: int

    def init(self, rng: torch.Generator) -> tuple[Params, Params]:
        """torch's default initialisation."""
        params: Params = {}
        for name, inputs in (("fc1", self.channels * IMAGE_SIZES[0] ** 2), ("fc2", WIDTH)):
            params[f"{name}.weight"] = uniform_init((WIDTH, inputs), inputs, rng)
            params[f"{name}.bias"] = uniform_init((WIDTH,), inputs, rng)
        return params, {}

    def apply(self, params: Params, buffers: Params, images: Tensor, *, train: bool) -> tuple[Tensor, Params]:
        """Features; `train` makes no difference here."""
        h = F.relu(named_linear(params, "fc1", (2 * images - 1).flatten(1)))
        return F.relu(named_linear(params, "fc2", h))[:, :, None, None], buffers


@dataclass(frozen=True)
class Classifier(Head):
    """C: features [B, 200, 1, 1] -> logits [B, classes]."""

    layer: ClassVar[str] = "fc3"
    shape: ClassVar[tuple[int, int, int]] = feature_shape(IMAGE_SIZES[0])
