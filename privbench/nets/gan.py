"""FedCG's conditional generator and discriminator of features (reference implementation, yankang18/FedCG).

    G: Embedding(Y,Y); [z; e(y)] -> ConvT(100+Y,512) BN LeakyReLU(.2)  ConvT(512,256) BN LeakyReLU(.2)
       ConvT(256,128) BN LeakyReLU(.2)  ConvT(128,c) Sigmoid                                      -> [B, c, s, s]
    D: Embedding(Y,Y) broadcast to s x s; [h; e(y)] -> SN-Conv(c+Y,128) BN LeakyReLU(.2)  SN-Conv(128,256) BN
       LeakyReLU(.2)  SN-Conv(256,512) BN LeakyReLU(.2)  SN-Conv(512,1)                           -> [B] LOGIT

c x s x s is the extractor's output. With LeNet-5 (16 x 5 x 5) all convolutions have kernel 2, stride 1 and no padding, as
published; for ResNet-18 the paper says that kernels and strides match the extractor, not which: see KERNELS. D has G's, in
reverse. No convolution has a bias. Initial weights: convolutions N(0, 0.02), batch-norm scale N(1, 0.02), shift 0,
embeddings N(0, 1) (torch's default). D returns the logit, not the sigmoid, so that the losses can use the stable form of
binary cross-entropy.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from privbench.nets.layers import (
    batch_norm_init,
    channels_last,
    conv2x2,
    conv_transpose2x2,
    named_batch_norm,
    spectral_norm,
)
from privbench.types import Params

NOISE_DIM = 100
SLOPE = 0.2
STEP = (2, 1, 0)
KERNELS = {  # side s of the features -> (kernel, stride, padding) of G's convolutions, from 1x1 to s x s
    5: (STEP, STEP, STEP, STEP),  # LeNet-5: 1 2 3 4 5
    4: (STEP, STEP, STEP, (3, 1, 1)),  # ResNet-18, 32x32 images: 1 2 3 4 4
    28: ((4, 1, 0), (4, 1, 0), (4, 2, 1), (4, 2, 1)),  # ResNet-18, 224x224 images: 1 4 7 14 28
}


def _norm_init(name: str, width: int, rng: torch.Generator) -> tuple[Params, Params]:
    params, buffers = batch_norm_init(name, width)
    return params | {f"{name}.weight": 1 + 0.02 * torch.randn(width, generator=rng)}, buffers


def _norm(x: Tensor, name: str, params: Params, buffers: Params, train: bool) -> tuple[Tensor, Params]:
    x, state = named_batch_norm(x, name, params, buffers, train=train)
    return F.leaky_relu(x, SLOPE), state


@dataclass(frozen=True)
class Generator:
    """G: noise [B, 100], labels [B] -> features [B, channels, side, side] in (0, 1)."""

    classes: int
    channels: int
    side: int

    def init(self, rng: torch.Generator) -> tuple[Params, Params]:
        """Weights N(0, 0.02), as the reference implementation."""
        params: Params = {"embed.weight": torch.randn(self.classes, self.classes, generator=rng)}
        buffers: Params = {}
        widths = (NOISE_DIM + self.classes, 512, 256, 128, self.channels)
        for i, (kernel, _, _) in enumerate(KERNELS[self.side]):
            params[f"up{i}.weight"] = 0.02 * torch.randn(widths[i], widths[i + 1], kernel, kernel, generator=rng)
            if i < 3:
                more, state = _norm_init(f"norm{i}", widths[i + 1], rng)
                params |= more
                buffers |= state
        return params, buffers

    def apply(
        self, params: Params, buffers: Params, noise: Tensor, labels: Tensor, *, train: bool
    ) -> tuple[Tensor, Params]:
        """Imitated features and the batch-norm statistics after the call."""
        x = torch.cat([noise, params["embed.weight"][labels]], 1)[:, :, None, None]
        after: Params = {}
        for i, shape in enumerate(KERNELS[self.side]):
            x = _conv_transpose(x, params[f"up{i}.weight"], shape)
            if i < 3:
                # Channels last is quicker, but torch adds up batch statistics in another order there, to other last bits.
                x = channels_last(x) if shape == STEP and not train else x.contiguous()
                x, state = _norm(x, f"norm{i}", params, buffers, train)
                after |= state
        return torch.sigmoid(x.contiguous()), after


@dataclass(frozen=True)
class Discriminator:
    """D: features [B, channels, side, side], labels [B] -> logit [B] that the features are real."""

    classes: int
    channels: int
    side: int

    def init(self, rng: torch.Generator) -> tuple[Params, Params]:
        """Weights N(0, 0.02); the spectral-norm vectors u are unit Gaussian directions."""
        params: Params = {"embed.weight": torch.randn(self.classes, self.classes, generator=rng)}
        buffers: Params = {}
        widths = (self.channels + self.classes, 128, 256, 512, 1)
        for i, (kernel, _, _) in enumerate(reversed(KERNELS[self.side])):
            params[f"down{i}.weight"] = 0.02 * torch.randn(widths[i + 1], widths[i], kernel, kernel, generator=rng)
            buffers[f"down{i}.u"] = F.normalize(torch.randn(widths[i + 1], generator=rng), dim=0)
            if i < 3:
                more, state = _norm_init(f"norm{i}", widths[i + 1], rng)
                params |= more
                buffers |= state
        return params, buffers

    def apply(
        self, params: Params, buffers: Params, features: Tensor, labels: Tensor, *, train: bool
    ) -> tuple[Tensor, Params]:
        """Logits, and the batch-norm and spectral-norm state after the call."""
        planes = params["embed.weight"][labels][:, :, None, None].expand(-1, -1, self.side, self.side)
        x = torch.cat([features, planes], 1)
        after: Params = {}
        for i, shape in enumerate(reversed(KERNELS[self.side])):
            weight = params[f"down{i}.weight"]
            sigma, after[f"down{i}.u"] = spectral_norm(weight, buffers[f"down{i}.u"], train=train)
            x = _conv(x, weight, shape) / sigma
            if i < 3:
                x, state = _norm(x, f"norm{i}", params, buffers, train)
                after |= state
        return x.flatten(), after


def _conv(x: Tensor, weight: Tensor, shape: tuple[int, int, int]) -> Tensor:
    return conv2x2(x, weight) if shape == STEP else F.conv2d(x, weight, stride=shape[1], padding=shape[2])


def _conv_transpose(x: Tensor, weight: Tensor, shape: tuple[int, int, int]) -> Tensor:
    if shape == STEP:
        return conv_transpose2x2(x, weight)
    return F.conv_transpose2d(x.contiguous(), weight, stride=shape[1], padding=shape[2])
