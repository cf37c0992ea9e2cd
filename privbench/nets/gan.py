"""FedCG's conditional generator and discriminator of features (reference implementation, yankang18/FedCG).

    G: Embedding(Y,Y); [z; e(y)] -> ConvT(100+Y,512,2) BN LeakyReLU(.2)  ConvT(512,256,2) BN LeakyReLU(.2)
       ConvT(256,128,2) BN LeakyReLU(.2)  ConvT(128,16,2) Sigmoid                                 -> [B, 16, 5, 5]
    D: Embedding(Y,Y) broadcast to s x s; [h; e(y)] -> SN-Conv(16+Y,128,2) BN LeakyReLU(.2)  SN-Conv(128,256,2) BN
       LeakyReLU(.2)  SN-Conv(256,512,2) BN LeakyReLU(.2)  SN-Conv(512,1,2)                       -> [B] LOGIT

All convolutions have kernel 2, stride 1, no padding, no bias. Initial weights: convolutions N(0, 0.02), batch-norm scale
N(1, 0.02), shift 0, embeddings N(0, 1) (torch's default). D returns the logit, not the sigmoid, so that the losses can
use the stable form of binary cross-entropy.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from privbench.nets.layers import batch_norm, conv2x2, conv_transpose2x2, spectral_norm
from privbench.types import Params

NOISE_DIM = 100
SLOPE = 0.2


def _batch_norm_params(name: str, width: int, rng: torch.Generator) -> tuple[Params, Params]:
    params = {f"{name}.weight": 1 + 0.02 * torch.randn(width, generator=rng), f"{name}.bias": torch.zeros(width)}
    return params, {f"{name}.mean": torch.zeros(width), f"{name}.var": torch.ones(width)}


def _norm(x: Tensor, name: str, params: Params, buffers: Params, train: bool) -> tuple[Tensor, Params]:
    x, mean, var = batch_norm(
        x,
        params[f"{name}.weight"],
        params[f"{name}.bias"],
        buffers[f"{name}.mean"],
        buffers[f"{name}.var"],
        train=train,
    )
    return F.leaky_relu(x, SLOPE), {f"{name}.mean": mean, f"{name}.var": var}


@dataclass(frozen=True)
class Generator:
    """G: noise [B, 100], labels [B] -> features [B, channels, 5, 5] in (0, 1)."""

    classes: int
    channels: int

    def init(self, rng: torch.Generator) -> tuple[Params, Params]:
        """Weights N(0, 0.02), as the reference implementation."""
        params: Params = {"embed.weight": torch.randn(self.classes, self.classes, generator=rng)}
        buffers: Params = {}
        widths = (NOISE_DIM + self.classes, 512, 256, 128, self.channels)
        for i in range(4):
            params[f"up{i}.weight"] = 0.02 * torch.randn(widths[i], widths[i + 1], 2, 2, generator=rng)
            if i < 3:
                more, state = _batch_norm_params(f"norm{i}", widths[i + 1], rng)
                params |= more
                buffers |= state
        return params, buffers

    def apply(
        self, params: Params, buffers: Params, noise: Tensor, labels: Tensor, *, train: bool
    ) -> tuple[Tensor, Params]:
        """Imitated features and the batch-norm statistics after the call."""
        x = torch.cat([noise, params["embed.weight"][labels]], 1)[:, :, None, None]
        after: Params = {}
        for i in range(3):
            x, state = _norm(conv_transpose2x2(x, params[f"up{i}.weight"]), f"norm{i}", params, buffers, train)
            after |= state
        return torch.sigmoid(conv_transpose2x2(x, params["up3.weight"])), after


@dataclass(frozen=True)
class Discriminator:
    """D: features [B, channels, 5, 5], labels [B] -> logit [B] that the features are real."""

    classes: int
    channels: int

    def init(self, rng: torch.Generator) -> tuple[Params, Params]:
        """Weights N(0, 0.02); the spectral-norm vectors u are unit Gaussian directions."""
        params: Params = {"embed.weight": torch.randn(self.classes, self.classes, generator=rng)}
        buffers: Params = {}
        widths = (self.channels + self.classes, 128, 256, 512, 1)
        for i in range(4):
            params[f"down{i}.weight"] = 0.02 * torch.randn(widths[i + 1], widths[i], 2, 2, generator=rng)
            buffers[f"down{i}.u"] = F.normalize(torch.randn(widths[i + 1], generator=rng), dim=0)
            if i < 3:
                more, state = _batch_norm_params(f"norm{i}", widths[i + 1], rng)
                params |= more
                buffers |= state
        return params, buffers

    def apply(
        self, params: Params, buffers: Params, features: Tensor, labels: Tensor, *, train: bool
    ) -> tuple[Tensor, Params]:
        """Logits, and the batch-norm and spectral-norm state after the call."""
        side = features.shape[-1]
        planes = params["embed.weight"][labels][:, :, None, None].expand(-1, -1, side, side)
        x = torch.cat([features, planes], 1)
        after: Params = {}
        for i in range(4):
            weight = params[f"down{i}.weight"]
            sigma, after[f"down{i}.u"] = spectral_norm(weight, buffers[f"down{i}.u"], train=train)
            x = conv2x2(x, weight) / sigma
            if i < 3:
                x, state = _norm(x, f"norm{i}", params, buffers, train)
                after |= state
        return x.flatten(), after
