"""`Model` names the networks of one run; it is what an observation and a checkpoint store instead of code."""

from __future__ import annotations

import difflib
import importlib
from dataclasses import dataclass, replace
from typing import Any

from privbench.errors import UserError
from privbench.networks import conv_gan, dense_gan
from privbench.networks.base import Classifier, Net

BACKBONES = ("lenet5", "resnet18")  # modules of this package: IMAGE_SIZES, feature_shape, Extractor, Classifier


def check_backbone(backbone: str, image_size: int) -> None:
    """Raises UserError for a backbone that there is not, or one that does not take images of this size."""
    if backbone not in BACKBONES:
        near = difflib.get_close_matches(backbone, BACKBONES, n=1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(BACKBONES)}"
        raise UserError(f"unknown backbone '{backbone}'; {hint}")
    sizes = _backbone(backbone).IMAGE_SIZES
    if image_size not in sizes:
        takes = " or ".join(f"{size}x{size}" for size in sizes)
        raise UserError(f"{backbone} takes images of {takes}, but {image_size}x{image_size} was asked for")


def _backbone(name: str) -> Any:
    return importlib.import_module(f"privbench.networks.{name}")


@dataclass(frozen=True)
class Model:
    """The networks of one run by name, and the sizes that fix their shapes. Unknown names and sizes raise UserError."""

    backbone: str  # "lenet5" or "resnet18"
    channels: int  # of the images
    classes: int
    image_size: int = 32  # their side
    gan: str = "conv"  # generator and discriminator: "conv" as FedCG's, "dense" as in FedMD-CG's comparison
    dropout: float = 0.0  # p, of the features before the classifier while it is trained: 0.2 in NFL-CGAN's CNN

    def __post_init__(self) -> None:
        """Refuses a backbone or a kind of GAN that there is not, and a rate of dropout that is none."""
        check_backbone(self.backbone, self.image_size)
        if self.gan not in ("conv", "dense"):
            raise UserError(f"unknown gan '{self.gan}'; known: conv, dense")
        if not 0 <= self.dropout < 1:
            raise UserError(f"dropout should be at least 0 and below 1, but {self.dropout} was given")

    @property
    def noise_dim(self) -> int:
        """How many numbers z the generator takes."""
        return {"conv": conv_gan.NOISE_DIM, "dense": dense_gan.NOISE_DIM}[self.gan]

    @property
    def feature_shape(self) -> tuple[int, int, int]:
        """(c, s, s) of the extractor's output."""
        shape: tuple[int, int, int] = _backbone(self.backbone).feature_shape(self.image_size)
        return shape

    def net(self, part: str) -> Net:
        """The network of one part: extractor, classifier, generator or discriminator."""
        if part == "extractor":
            extractor: Net = _backbone(self.backbone).Extractor(self.channels)
            return extractor
        if part == "classifier":
            return self.classifier
        if self.gan == "dense" and part == "generator":
            return dense_gan.Generator(self.classes, self.feature_shape)
        if self.gan == "dense" and part == "discriminator":
            return dense_gan.Discriminator(replace(self, classes=1).net("classifier"))
        channels, side, _ = self.feature_shape
        if part == "generator":
            return conv_gan.Generator(self.classes, channels, side)
        if part == "discriminator":
            return conv_gan.Discriminator(self.classes, channels, side)
        raise UserError(f"unknown part '{part}'; known: extractor, classifier, generator, discriminator")

    @property
    def classifier(self) -> Classifier:
        """C."""
        classifier: Classifier = _backbone(self.backbone).Classifier(self.classes)
        return classifier


def train_mode(batch_size: int) -> bool:
    """Whether a client takes the gradient of this many images in train mode, as in training (privbench/observation/observe.py).

    One image has no batch statistics: at 32x32 ResNet-18 leaves a single value per channel, whose normalisation is 0 whatever the
    image (and which torch refuses). So its gradient is taken in eval mode.
    """
    return batch_size > 1
