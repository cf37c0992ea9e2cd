"""`Model` names the networks of one run; it is what an observation and a checkpoint store instead of code."""

from __future__ import annotations

import difflib
import importlib
import math
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor

from privbench.errors import UserError
from privbench.networks import conv_gan, dense_gan, image_gan
from privbench.networks.base import Classifier, LinearClassifier, Net
from privbench.networks.bottleneck import Bottleneck, LinearBottleneck
from privbench.networks.layers import UNIT

GANS = {
    "conv": conv_gan.NOISE_DIM,
    "dense": dense_gan.NOISE_DIM,
    "image": image_gan.NOISE_DIM,
}  # how many numbers z has
# Modules of backbones/ by name.
BACKBONES = {
    "lenet5": "lenet5",
    "resnet18": "resnet18",
    "mlp": "mlp",
    "convnet": "convnet",
    "resnet18-torchvision": "torchvision_resnet18",
    "vit": "vit",
}


class LastInputs(NamedTuple):
    """What is known, of any image, of what enters the layer that makes the logits."""

    mean: float  # over its entries
    negative: bool  # whether an entry may lie below 0


def check_backbone(backbone: str, image_size: int) -> None:
    """Raises UserError for a backbone that there is not, or one that does not take images of this size."""
    if backbone not in BACKBONES:
        near = difflib.get_close_matches(backbone, BACKBONES, n=1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(BACKBONES)}"
        raise UserError(f"unknown backbone '{backbone}'; {hint}")
    sizes = backbone_module(backbone).IMAGE_SIZES
    if image_size not in sizes:
        takes = " or ".join(f"{size}x{size}" for size in sizes)
        raise UserError(f"{backbone} takes images of {takes}, but {image_size}x{image_size} was asked for")


def backbone_module(name: str) -> Any:
    """The module of a backbone of the suite: IMAGE_SIZES, FEATURE_RANGE, LAST_INPUTS, feature_shape, Extractor, Classifier."""
    return importlib.import_module(f"privbench.networks.backbones.{BACKBONES[name]}")


@dataclass(frozen=True)
class Model:
    """The networks of one run by name, and the sizes that fix their shapes. Unknown names and sizes raise UserError."""

    backbone: str  # one of BACKBONES
    channels: int  # of the images
    classes: int
    image_size: int = 32  # their side
    # Generator and discriminator: of features, "conv" as FedCG's or "dense" as in FedMD-CG's comparison; of images, "image".
    gan: str = "conv"
    dropout: float = 0.0  # p, of the features before the classifier while it is trained: 0.2 in NFL-CGAN's CNN
    # Of extractor, classifier and discriminator, where they normalise: "batch", or "group", which treats every image alone. The
    # discriminator of images always has the second.
    norm: str = "batch"
    bottleneck: int = 0  # k, numbers in the variational bottleneck before the classifier; 0: there is none
    kl_weight: float = 0.0  # beta, of the bottleneck's divergence in every loss that trains the classifier

    def __post_init__(self) -> None:
        """Refuses a backbone or a kind of GAN that there is not, a rate of dropout that is none, and a bottleneck that is none."""
        self.check()
        if self.gan not in GANS:
            raise UserError(f"unknown gan '{self.gan}'; known: {', '.join(GANS)}")
        if self.gan == "image" and self.image_size != image_gan.SIDE:
            side = image_gan.SIDE
            raise UserError(f"a GAN of images makes {side}x{side} ones, not {self.image_size}x{self.image_size}")
        if self.norm not in ("batch", "group"):
            raise UserError(f"unknown norm '{self.norm}'; known: batch, group")
        if not 0 <= self.dropout < 1:
            raise UserError(f"dropout should be at least 0 and below 1, but {self.dropout} was given")
        if self.bottleneck < 0 or not 0 <= self.kl_weight < math.inf:
            raise UserError(
                f"a bottleneck has a size and a weight of at least 0, but {self.bottleneck} and {self.kl_weight} were given"
            )

    def check(self) -> None:
        """UserError for a backbone that there is not, or one that does not take images of this size."""
        check_backbone(self.backbone, self.image_size)

    def written(self) -> dict[str, Any]:
        """What an observation stores: the fields of this class, whatever a subclass has besides."""
        return {field.name: getattr(self, field.name) for field in fields(Model)}

    @property
    def noise_dim(self) -> int:
        """How many numbers z the generator takes."""
        return GANS[self.gan]

    @property
    def feature_shape(self) -> tuple[int, int, int]:
        """(c, s, s) of the extractor's output."""
        shape: tuple[int, int, int] = backbone_module(self.backbone).feature_shape(self.image_size)
        return shape

    @property
    def feature_range(self) -> tuple[float, float]:
        """Between which values features lie; one of layers.UNIT, POSITIVE and UNBOUNDED."""
        values: tuple[float, float] = backbone_module(self.backbone).FEATURE_RANGE
        return values

    def net(self, part: str) -> Net:
        """The network of one part: extractor, classifier, generator or discriminator."""
        if part == "extractor":
            return self.extractor
        if part == "classifier":
            return self.classifier
        if self.gan == "dense" and part == "generator":
            return dense_gan.Generator(self.classes, self.feature_shape, self.feature_range)
        if self.gan == "dense" and part == "discriminator":
            return dense_gan.Discriminator(replace(self, classes=1, bottleneck=0).net("classifier"))
        if self.gan == "image" and part == "generator":
            return image_gan.Generator(self.classes, self.channels)
        if self.gan == "image" and part == "discriminator":
            return image_gan.Discriminator(self.classes, self.channels)
        channels, side, width = self.feature_shape
        if part in ("generator", "discriminator") and (side != width or side not in conv_gan.KERNELS):
            sides = ", ".join(f"{each}x{each}" for each in sorted(conv_gan.KERNELS))
            raise UserError(
                f"the generator of FedCG makes features of {sides}, but those of {self.backbone} are {side}x{width}; "
                "try --set gan=dense"
            )
        if part == "generator":
            return conv_gan.Generator(self.classes, channels, side, self.feature_range)
        if part == "discriminator":
            return conv_gan.Discriminator(self.classes, channels, side, self.norm)
        raise UserError(f"unknown part '{part}'; known: extractor, classifier, generator, discriminator")

    def train_mode(self, batch_size: int) -> bool:
        """Whether a client takes the gradient of this many images in train mode, as in training.

        It does so in privbench/observation/client_message.py. One image has no batch statistics: at 32x32 ResNet-18 leaves a
        single value per channel, whose normalisation is 0 whatever the image (and which torch refuses). So its gradient is taken in
        eval mode.
        """
        return batch_size > 1

    def loss(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        """The mean cross-entropy of B images, or their sum by `weights` [B]; labels are classes [B] or probabilities [B, Y]."""
        if weights is None:
            return F.cross_entropy(logits, labels)
        return (weights * F.cross_entropy(logits, labels, reduction="none")).sum()

    @property
    def is_smooth(self) -> bool:
        """Whether it has no kinks, so that grey, which enters as zero, has a slope."""
        return self.backbone == "lenet5"

    @property
    def has_sigmoid_features(self) -> bool:
        """Whether the extractor ends in a sigmoid, so that features lie in (0, 1)."""
        return self.feature_range == UNIT

    def images_of(self, features: Tensor) -> Tensor | None:
        """The images [..., C, H, W] that have these features [..., c, s, s], where features are the image itself; else None."""
        return None

    @property
    def last_inputs(self) -> LastInputs | None:
        """What enters the layer of the logits; None where its gradient does not show the labels."""
        return LastInputs(*backbone_module(self.backbone).LAST_INPUTS)

    @property
    def extractor(self) -> Net:
        """E."""
        extractor: Net = self._normalised(backbone_module(self.backbone).Extractor, self.channels)
        return extractor

    @property
    def plain_classifier(self) -> Classifier:
        """C as the backbone has it."""
        classifier: Classifier = self._normalised(backbone_module(self.backbone).Classifier, self.classes)
        return classifier

    @property
    def classifier(self) -> Classifier:
        """C, behind a bottleneck where there is one."""
        classifier = self.plain_classifier
        if not self.bottleneck:
            return classifier
        if isinstance(classifier, LinearClassifier):
            return LinearBottleneck(classifier, self.feature_shape, self.bottleneck)
        return Bottleneck(classifier, self.feature_shape, self.bottleneck)

    def _normalised(self, network: Any, size: int) -> Any:
        """A network with this model's norm, if it normalises at all (LeNet-5 does not)."""
        return network(size, norm=self.norm) if "norm" in network.__dataclass_fields__ else network(size)
