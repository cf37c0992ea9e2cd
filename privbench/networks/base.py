"""What a network is: the protocols that extractors, classifiers, generators and discriminators follow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from privbench.tensors import Params


class Net(Protocol):
    """A network without state of its own."""

    def init(self, rng: torch.Generator) -> tuple[Params, Params]:
        """Fresh (parameters, buffers)."""
        ...

    @property
    def apply(self) -> Callable[..., tuple[Tensor, Params]]:
        """(params, buffers, *inputs, train) -> (output, buffers after the call)."""
        ...


class Discriminator(Net, Protocol):
    """D of features."""

    def apply_in_turn(
        self, params: Params, buffers: Params, batches: Sequence[Tensor], labels: Tensor, *, train: bool
    ) -> tuple[tuple[Tensor, ...], Params]:
        """(logits [B] of each of several batches of features, buffers), as from one call after another."""
        ...


@runtime_checkable
class Generator(Net, Protocol):
    """G: noise and labels, mixed by a linear layer, which a batch norm called "norm0" follows."""

    def before_norm(self, params: Params, noise: Tensor, labels: Tensor) -> Tensor:
        """What enters that batch norm: noise [B, n], labels [B] -> [B, c, ...]."""
        ...


@runtime_checkable
class ExtractorWithSlopes(Net, Protocol):
    """An extractor that says how steeply its features depend on the image."""

    def slopes(self, params: Params, images: Tensor) -> Tensor:
        """||dh_i/dx||_2 of every feature: images [B, C, H, W] -> [B, n]."""
        ...


class Classifier(Net, Protocol):
    """C of one backbone."""

    @property
    def features_layer(self) -> str | None:
        """The linear layer that the features enter; None where they enter a convolution."""
        ...

    @property
    def logits_layer(self) -> str:
        """The linear layer whose bias is added to the logits."""
        ...


@runtime_checkable
class LinearClassifier(Classifier, Protocol):
    """A classifier of linear layers, which can show what enters each of them."""

    def linear_layers(self, params: Params, features: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """(logits [B, Y], inputs [B, n] by layer); biases may come one per image."""
        ...
