"""FedCG's conditional generator and discriminator of features (reference implementation, yankang18/FedCG).

    G: Embedding(Y,Y); [z; e(y)] -> ConvT(100+Y,512) BN LeakyReLU(.2)  ConvT(512,256) BN LeakyReLU(.2)
       ConvT(256,128) BN LeakyReLU(.2)  ConvT(128,c) Sigmoid                                      -> [B, c, s, s]
    D: Embedding(Y,Y) broadcast to s x s; [h; e(y)] -> SN-Conv(c+Y,128) BN LeakyReLU(.2)  SN-Conv(128,256) BN
       LeakyReLU(.2)  SN-Conv(256,512) BN LeakyReLU(.2)  SN-Conv(512,1)                           -> [B] LOGIT

c x s x s is the extractor's output. With LeNet-5 (16 x 5 x 5) all convolutions have kernel 2, stride 1 and no padding, as
published; for ResNet-18 the paper says that kernels and strides match the extractor, not which: see KERNELS, which also has the
backbones that the paper does not. Their features lie in other ranges, and G ends as their extractor does, without a sigmoid. D has
G's kernels, in reverse. No convolution has a bias. Initial weights: convolutions N(0, 0.02), batch-norm scale N(1, 0.02), shift 0,
embeddings N(0, 1) (torch's default). D returns the logit, not the sigmoid, so that the losses can use the stable form of
binary cross-entropy.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from privbench.networks.layers import as_matrix, conv_transpose2x2, direction_init, normal_init, patches2x2, within
from privbench.networks.normalisation import SpectralProduct, named_norm, norm_init, power_iteration, spectral_norm
from privbench.tensors import Params

NOISE_DIM = 100
SLOPE = 0.2
STEP = (2, 1, 0)
ONE = (1, 1, 0)
KERNELS = {  # side s of the features -> (kernel, stride, padding) of G's convolutions, from 1x1 to s x s
    1: (ONE, ONE, ONE, ONE),  # features without a place: linear layers
    3: (STEP, STEP, (3, 1, 1), (3, 1, 1)),  # ConvNet: 1 2 3 3 3
    8: (STEP, (4, 2, 1), (4, 2, 1), (3, 1, 1)),  # ResNet-18, 64x64 images: 1 2 4 8 8
    5: (STEP, STEP, STEP, STEP),  # LeNet-5: 1 2 3 4 5
    4: (STEP, STEP, STEP, (3, 1, 1)),  # ResNet-18, 32x32 images: 1 2 3 4 4
    28: ((4, 1, 0), (4, 1, 0), (4, 2, 1), (4, 2, 1)),  # ResNet-18, 224x224 images: 1 4 7 14 28
}


def _norm_init(name: str, width: int, rng: torch.Generator, norm: str = "batch") -> tuple[Params, Params]:
    params, buffers = norm_init(name, width, norm)
    return params | {f"{name}.weight": normal_init((width,), rng, 0.02, mean=1.0)}, buffers


def _norm(x: Tensor, name: str, params: Params, buffers: Params, train: bool) -> tuple[Tensor, Params]:
    x, state = named_norm(x, name, params, buffers, train=train)
    return F.leaky_relu(x, SLOPE), state


@dataclass(frozen=True)
class Generator:
    """G: noise [B, 100], labels [B] -> features [B, channels, side, side] within `limits`."""

    classes: int
    channels: int
    side: int
    limits: tuple[float, float] = (0.0, 1.0)

    def init(self, rng: torch.Generator) -> tuple[Params, Params]:
        """Weights N(0, 0.02), as the reference implementation."""
        params: Params = {"embed.weight": normal_init((self.classes, self.classes), rng)}
        buffers: Params = {}
        widths = (NOISE_DIM + self.classes, 512, 256, 128, self.channels)
        for i, (kernel, _, _) in enumerate(KERNELS[self.side]):
            params[f"up{i}.weight"] = normal_init((widths[i], widths[i + 1], kernel, kernel), rng, 0.02)
            if i < 3:
                more, state = _norm_init(f"norm{i}", widths[i + 1], rng)
                params |= more
                buffers |= state
        return params, buffers

    def before_norm(self, params: Params, noise: Tensor, labels: Tensor) -> Tensor:
        """The first convolution, up to its batch norm: [B, 512, k, k]."""
        x = torch.cat([noise, F.embedding(labels, params["embed.weight"])], 1)[:, :, None, None]
        return _conv_transpose(x, params["up0.weight"], KERNELS[self.side][0])

    def apply(
        self, params: Params, buffers: Params, noise: Tensor, labels: Tensor, *, train: bool
    ) -> tuple[Tensor, Params]:
        """Imitated features and the batch-norm statistics after the call."""
        x, after = self.before_norm(params, noise, labels), Params()
        for i, shape in enumerate(KERNELS[self.side]):
            if i > 0:
                x = _conv_transpose(x, params[f"up{i}.weight"], shape)
            if i < 3:
                x, state = _norm(x, f"norm{i}", params, buffers, train)
                after |= state
        return within(x, self.limits), after


@dataclass(frozen=True)
class Discriminator:
    """D: features [B, channels, side, side], labels [B] -> logit [B] that the features are real."""

    classes: int
    channels: int
    side: int
    norm: str = "batch"  # or "group"

    def init(self, rng: torch.Generator) -> tuple[Params, Params]:
        """Weights N(0, 0.02); the spectral-norm vectors u are unit Gaussian directions."""
        params: Params = {"embed.weight": normal_init((self.classes, self.classes), rng)}
        buffers: Params = {}
        widths = (self.channels + self.classes, 128, 256, 512, 1)
        for i, (kernel, _, _) in enumerate(reversed(KERNELS[self.side])):
            params[f"down{i}.weight"] = normal_init((widths[i + 1], widths[i], kernel, kernel), rng, 0.02)
            buffers[f"down{i}.u"] = direction_init(widths[i + 1], rng)
            if i < 3:
                more, state = _norm_init(f"norm{i}", widths[i + 1], rng, self.norm)
                params |= more
                buffers |= state
        return params, buffers

    def apply(
        self, params: Params, buffers: Params, features: Tensor, labels: Tensor, *, train: bool
    ) -> tuple[Tensor, Params]:
        """Logits, and the batch-norm and spectral-norm state after the call."""
        (logits,), after = self.apply_in_turn(params, buffers, (features,), labels, train=train)
        return logits, after

    def apply_in_turn(
        self, params: Params, buffers: Params, batches: Sequence[Tensor], labels: Tensor, *, train: bool
    ) -> tuple[tuple[Tensor, ...], Params]:
        """Logits of H batches of features, as from H calls in turn, and the state after the last.

        Each batch has statistics and, in train mode, a power iteration of its own; a layer's products are one.
        """
        planes = F.embedding(labels, params["embed.weight"])[:, None, None].expand(-1, self.side, self.side, -1)
        each = [torch.cat([features.permute(0, 2, 3, 1), planes], -1) for features in batches]
        x, turns = torch.cat(each).permute(0, 3, 1, 2), len(batches)
        after: Params = {}
        for i, shape in enumerate(reversed(KERNELS[self.side])):
            convolve = _spectral_product if shape == STEP else _spectral_conv
            u = buffers[f"down{i}.u"]
            x, after[f"down{i}.u"] = convolve(x, params[f"down{i}.weight"], u, shape, turns, train)
            if i < 3:
                state, normed = buffers, []
                for chunk in x.chunk(turns):
                    y, changed = _norm(chunk, f"norm{i}", params, state, train)
                    normed.append(y)
                    state = state | changed
                    after |= changed
                x = torch.cat(normed) if turns > 1 else normed[0]
        return x.flatten().chunk(turns), after


def _spectral_product(
    x: Tensor, weight: Tensor, u: Tensor, shape: tuple[int, int, int], turns: int, train: bool
) -> tuple[Tensor, Tensor]:
    """(2x2 convolution by W / sigma of H batches end to end, u after them)."""
    matrix = as_matrix(weight)
    iterations = [power_iteration(matrix, u, train=train)]
    while train and len(iterations) < turns:
        iterations.append(power_iteration(matrix, iterations[-1].u, train=True))
    us, vs, sigmas = (torch.stack(each) for each in zip(*iterations, strict=True))
    patches = patches2x2(x)
    rows = patches.view(len(iterations), -1, patches.shape[-1])
    product: Tensor = SpectralProduct.apply(rows, matrix, us, vs, sigmas)
    return product.view(*patches.shape[:3], -1).permute(0, 3, 1, 2), iterations[-1].u


def _spectral_conv(
    x: Tensor, weight: Tensor, u: Tensor, shape: tuple[int, int, int], turns: int, train: bool
) -> tuple[Tensor, Tensor]:
    """The same with kernel, stride and padding `shape`."""
    each = []
    for chunk in F.conv2d(x, weight, stride=shape[1], padding=shape[2]).chunk(turns):
        sigma, u = spectral_norm(weight, u, train=train)
        each.append(chunk / sigma)
    return torch.cat(each), u


def _conv_transpose(x: Tensor, weight: Tensor, shape: tuple[int, int, int]) -> Tensor:
    if shape == STEP:
        return conv_transpose2x2(x, weight)
    return F.conv_transpose2d(x, weight, stride=shape[1], padding=shape[2])
