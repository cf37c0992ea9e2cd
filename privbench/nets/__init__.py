"""Networks as pure functions, written for one model: `net.apply(params, buffers, inputs, train=...) -> (output, buffers)`.

`Model` names the networks of one run; it is what an artifact and a checkpoint store instead of code.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from privbench.errors import UserError
from privbench.types import Params


class Net(Protocol):
    """A network without state of its own."""

    def init(self, rng: torch.Generator) -> tuple[Params, Params]:
        """Fresh (parameters, buffers)."""
        ...

    @property
    def apply(self) -> Callable[..., tuple[Tensor, Params]]:
        """(params, buffers, *inputs, train) -> (output, buffers after the call)."""
        ...


class LinearClassifier(Net, Protocol):
    """A classifier of linear layers, which can show what enters each of them."""

    def linear_layers(self, params: Params, features: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """(logits [B, Y], inputs [B, n] by layer); biases may come one per image."""
        ...


@dataclass(frozen=True)
class Model:
    """The networks of one run by name, and the sizes that fix their shapes."""

    backbone: str  # "lenet5"
    channels: int  # of the images
    classes: int
    gan: str = "conv"  # generator and discriminator: "conv" as FedCG's, "dense" as in FedMD-CG's comparison

    def __post_init__(self) -> None:
        """UserError for an unknown kind of GAN."""
        if self.gan not in ("conv", "dense"):
            raise UserError(f"unknown gan '{self.gan}'; known: conv, dense")

    @property
    def noise_dim(self) -> int:
        """How many numbers z the generator takes."""
        from privbench.nets import dense_gan, gan

        return {"conv": gan.NOISE_DIM, "dense": dense_gan.NOISE_DIM}[self.gan]

    @property
    def feature_shape(self) -> tuple[int, int, int]:
        """(c, s, s) of the extractor's output."""
        from privbench.nets import lenet5

        return {"lenet5": lenet5.FEATURE_SHAPE}[self.backbone]

    def net(self, part: str) -> Net:
        """The network of one part: extractor, classifier, generator or discriminator."""
        from privbench.nets import dense_gan, gan, lenet5

        if self.backbone != "lenet5":
            raise UserError(f"unknown backbone '{self.backbone}'; known: lenet5")
        if part == "extractor":
            return lenet5.Extractor(self.channels)
        if part == "classifier":
            return lenet5.Classifier(self.classes)
        if self.gan == "dense" and part == "generator":
            return dense_gan.Generator(self.classes, self.feature_shape)
        if self.gan == "dense" and part == "discriminator":
            return dense_gan.Discriminator(replace(self, classes=1).net("classifier"))
        if part == "generator":
            return gan.Generator(self.classes, self.feature_shape[0])
        if part == "discriminator":
            return gan.Discriminator(self.classes, self.feature_shape[0])
        raise UserError(f"unknown part '{part}'; known: extractor, classifier, generator, discriminator")


def uniform_init(shape: tuple[int, ...], fan_in: int, rng: torch.Generator) -> Tensor:
    """torch's default for linear and convolution layers: uniform in +-1/sqrt(fan_in)."""
    bound = 1 / math.sqrt(fan_in)
    return (2 * torch.rand(shape, generator=rng) - 1) * bound
