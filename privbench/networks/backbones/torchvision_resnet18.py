"""torchvision's ResNet-18 unchanged, split after its second group of blocks.

C(E(x)) is `torchvision.models.resnet18(...)` of 2 x - 1. Layers, initial values and names of parameters are those of
privbench/networks/backbones/resnet18.py, whose features go through a sigmoid besides; here they are as layer2 leaves them, none
below 0. torchvision leaves it to its caller how images in [0, 1] are normalised: they are mapped to [-1, 1], as for LeNet-5.
"""

from dataclasses import dataclass

from torch import Tensor

from privbench.networks.backbones import resnet18
from privbench.networks.backbones.resnet18 import Classifier, feature_shape
from privbench.networks.layers import POSITIVE

__all__ = ["FEATURE_RANGE", "IMAGE_SIZES", "LAST_INPUTS", "Classifier", "Extractor", "feature_shape"]

IMAGE_SIZES = (32, 64, 224)
FEATURE_RANGE = POSITIVE
LAST_INPUTS = (0.85, False)  # the mean over images of noise, of initial networks


@dataclass(frozen=True)
class Extractor(resnet18.Extractor):
    """E: images [B, channels, s, s] in [0, 1] -> features [B, 128, s/8, s/8], none below 0."""

    def end(self, h: Tensor) -> Tensor:
        """Features, as layer2 leaves them."""
        return h
