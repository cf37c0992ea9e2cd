"""A conditional generator and discriminator of whole images, 32x32: DCGAN, small enough for a CPU.

    G: [z; onehot(y)] -> Linear(100+Y, 128*4*4) BN ReLU  ConvT(128,64) BN ReLU  ConvT(64,32) BN ReLU  ConvT(32,c) Sigmoid
                                                                                             [B, 100], [B] -> [B, c, 32, 32]
    D: Conv(c,32) LeakyReLU(.2)  Conv(32,64) norm LeakyReLU(.2)  Conv(64,128) norm LeakyReLU(.2)  f = Flatten
       logit = w f + b + e_y f                                                               [B, c, 32, 32], [B] -> [B] LOGIT

norm is group norm, not the usual batch norm: D sees real and generated images in batches of their own, so that in train mode
their statistics alone would distinguish them. G's step then descends through D in eval mode, which knows them no more, and learns
to deceive a discriminator that there is not. Each image treated alone, D says the same of it in both steps; under differential
privacy it has to be so anyway.

All convolutions have kernel 4, stride 2, padding 1 (Radford, Metz, Chintala, ICLR 2016, arXiv 1511.06434). D reads the label by
projection (Miyato, Koyama, ICLR 2018, arXiv 1802.05637). SecureGAN does not say which networks it uses; these are ours. Initial
weights N(0, 0.02), scales 1, shifts 0. Images in [0, 1] are mapped to [-1, 1] before D.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from privbench.networks.layers import normal_init
from privbench.networks.normalisation import named_norm, norm_init
from privbench.tensors import Params

NOISE_DIM = 100
SIDE, FIRST = 32, 4
WIDTHS = (128, 64, 32)
SLOPE = 0.2
DEVIATION = 0.02


@dataclass(frozen=True)
class Generator:
    """G: noise [B, 100], labels [B] -> images [B, channels, 32, 32] in (0, 1)."""

    classes: int
    channels: int

    def init(self, rng: torch.Generator) -> tuple[Params, Params]:
        """Weights N(0, 0.02)."""
        params: Params = {"fc.weight": normal_init((WIDTHS[0] * FIRST**2, NOISE_DIM + self.classes), rng, DEVIATION)}
        buffers: Params = {}
        for i, (before, after) in enumerate(zip(WIDTHS, (*WIDTHS[1:], self.channels), strict=True)):
            params[f"up{i}.weight"] = normal_init((before, after, 4, 4), rng, DEVIATION)
            more, state = norm_init(f"norm{i}", before)
            params |= more
            buffers |= state
        params[f"up{len(WIDTHS) - 1}.bias"] = torch.zeros(self.channels)
        return params, buffers

    def before_norm(self, params: Params, noise: Tensor, labels: Tensor) -> Tensor:
        """The linear layer, up to its batch norm: [B, 128, 4, 4]."""
        classes = torch.eye(self.classes, dtype=noise.dtype, device=noise.device)[labels]
        return F.linear(torch.cat([noise, classes], 1), params["fc.weight"]).unflatten(1, (WIDTHS[0], FIRST, FIRST))

    def apply(
        self, params: Params, buffers: Params, noise: Tensor, labels: Tensor, *, train: bool
    ) -> tuple[Tensor, Params]:
        """Images, and the batch-norm statistics after the call."""
        x, after = self.before_norm(params, noise, labels), Params()
        for i in range(len(WIDTHS)):
            x, state = named_norm(x, f"norm{i}", params, buffers, train=train)
            after |= state
            weight, bias = params[f"up{i}.weight"], params.get(f"up{i}.bias")
            x = F.conv_transpose2d(F.relu(x), weight, bias, stride=2, padding=1)
        return torch.sigmoid(x), after


@dataclass(frozen=True)
class Discriminator:
    """D: images [B, channels, 32, 32] in [0, 1], labels [B] -> logit [B] that the images are real."""

    classes: int
    channels: int

    def init(self, rng: torch.Generator) -> tuple[Params, Params]:
        """Weights N(0, 0.02)."""
        params: Params = {}
        widths = (self.channels, *reversed(WIDTHS))
        for i, (before, after) in enumerate(pairwise(widths)):
            params[f"down{i}.weight"] = normal_init((after, before, 4, 4), rng, DEVIATION)
            if i:
                params |= norm_init(f"norm{i}", after, "group")[0]
            else:
                params[f"down{i}.bias"] = torch.zeros(after)
        width = WIDTHS[0] * FIRST**2
        params["fc.weight"] = normal_init((1, width), rng, DEVIATION)
        params["fc.bias"] = torch.zeros(1)
        params["embed.weight"] = normal_init((self.classes, width), rng, DEVIATION)
        return params, {}

    def apply(
        self, params: Params, buffers: Params, images: Tensor, labels: Tensor, *, train: bool
    ) -> tuple[Tensor, Params]:
        """Logits; there is no state."""
        x = 2 * images - 1
        for i in range(len(WIDTHS)):
            x = F.conv2d(x, params[f"down{i}.weight"], params.get(f"down{i}.bias"), stride=2, padding=1)
            if i:
                x, _ = named_norm(x, f"norm{i}", params, buffers, train=train)
            x = F.leaky_relu(x, SLOPE)
        f = x.flatten(1)
        projection = (F.embedding(labels, params["embed.weight"]) * f).sum(1)
        return F.linear(f, params["fc.weight"], params["fc.bias"])[:, 0] + projection, {}

    def apply_in_turn(
        self, params: Params, buffers: Params, batches: Sequence[Tensor], labels: Tensor, *, train: bool
    ) -> tuple[tuple[Tensor, ...], Params]:
        """Logits of H batches of images, as from H calls."""
        return tuple(self.apply(params, buffers, images, labels, train=train)[0] for images in batches), {}
