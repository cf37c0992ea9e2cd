"""C of a backbone whose extractor does all but the last layer: features -> Linear -> logits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from privbench.networks.layers import named_linear, uniform_init
from privbench.tensors import Params


@dataclass(frozen=True)
class Head:
    """C: features [B, c, s, s], flattened -> logits [B, classes]. A backbone says the shape of its features."""

    classes: int

    layer: ClassVar[str] = "linear"
    shape: ClassVar[tuple[int, int, int]]

    @property
    def features_layer(self) -> str | None:
        """The only one."""
        return self.layer

    @property
    def logits_layer(self) -> str:
        """The only one."""
        return self.layer

    def init(self, rng: torch.Generator) -> tuple[Params, Params]:
        """torch's default initialisation."""
        inputs = math.prod(self.shape)
        params = {f"{self.layer}.weight": uniform_init((self.classes, inputs), inputs, rng)}
        return params | {f"{self.layer}.bias": uniform_init((self.classes,), inputs, rng)}, {}

    def apply(self, params: Params, buffers: Params, features: Tensor, *, train: bool) -> tuple[Tensor, Params]:
        """Logits; `train` makes no difference here."""
        return self.linear_layers(params, features)[0], buffers

    def linear_layers(self, params: Params, features: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """(logits [B, Y], what enters the layer [B, n]); the bias may also come one per image, [B, Y]."""
        inputs = features.flatten(1)
        return named_linear(params, self.layer, inputs), {self.layer: inputs}
