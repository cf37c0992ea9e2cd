"""A small vision transformer (Dosovitskiy et al., ICLR 2021, arXiv 2010.11929), split before its last layer.

    E: patches of 4x4 -> 64 numbers each, a class token in front, learned positions added
       four times  t + Attention(LN(t)), t + Linear(128, 64) GELU Linear(64, 128) LN(t);  LN of the class token
                                                                        [B, c, 32, 32] -> [B, 64, 1, 1]
    C: Linear(64, Y)                                                    -> [B, Y] logits

Attention has four heads. The order of layers is the paper's; the sizes are ours, for images of 32x32. Names of parameters are those
of torch.nn.TransformerEncoder, whose arithmetic it is. Initial values: Xavier for matrices, N(0, 0.02) for the class token and the
positions, torch's defaults for the patches' convolution, biases 0. Images in [0, 1] are mapped to [-1, 1], as for LeNet-5.

Attention is written out, since torch's fused kernels have no second derivative.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from privbench.networks.backbones.head import Head
from privbench.networks.layers import UNBOUNDED, named_linear, normal_init, uniform_init
from privbench.tensors import Params

IMAGE_SIZES = (32,)
FEATURE_RANGE = UNBOUNDED
LAST_INPUTS = (0.0, True)  # behind a layer norm
PATCH, WIDTH, HIDDEN, HEADS, DEPTH = 4, 64, 128, 4, 4
SPREAD = 0.02  # of the initial class token and positions


def feature_shape(image_size: int) -> tuple[int, int, int]:
    """[c, s, s] of the extractor's output."""
    return (WIDTH, 1, 1)


@dataclass(frozen=True)
class Extractor:
    """E: images [B, channels, 32, 32] in [0, 1] -> features [B, 64, 1, 1], of mean 0 and variance 1 at first."""

    channels: int

    def init(self, rng: torch.Generator) -> tuple[Params, Params]:
        """See above."""
        fan_in = self.channels * PATCH**2
        tokens = (IMAGE_SIZES[0] // PATCH) ** 2 + 1
        params = {
            "patches.weight": uniform_init((WIDTH, self.channels, PATCH, PATCH), fan_in, rng),
            "patches.bias": uniform_init((WIDTH,), fan_in, rng),
            "class_token": normal_init((1, 1, WIDTH), rng, SPREAD),
            "positions": normal_init((1, tokens, WIDTH), rng, SPREAD),
        }
        for i in range(DEPTH):
            layer = f"encoder.layers.{i}"
            shapes = {
                "self_attn.in_proj_": (3 * WIDTH, WIDTH),
                "self_attn.out_proj.": (WIDTH, WIDTH),
                "linear1.": (HIDDEN, WIDTH),
                "linear2.": (WIDTH, HIDDEN),
            }
            for name, shape in shapes.items():
                params[f"{layer}.{name}weight"] = _xavier(shape, rng)
                params[f"{layer}.{name}bias"] = torch.zeros(shape[0])
            for name in ("norm1", "norm2"):
                params |= _norm_init(f"{layer}.{name}")
        return params | _norm_init("encoder.norm"), {}

    def apply(self, params: Params, buffers: Params, images: Tensor, *, train: bool) -> tuple[Tensor, Params]:
        """Features; `train` makes no difference here."""
        patches = F.conv2d(2 * images - 1, params["patches.weight"], params["patches.bias"], stride=PATCH)
        tokens = patches.flatten(2).mT
        t = torch.cat([params["class_token"].expand(len(images), -1, -1), tokens], 1) + params["positions"]
        for i in range(DEPTH):
            layer = f"encoder.layers.{i}"
            t = t + _attention(params, f"{layer}.self_attn", _norm(params, f"{layer}.norm1", t))
            h = F.gelu(named_linear(params, f"{layer}.linear1", _norm(params, f"{layer}.norm2", t)))
            t = t + named_linear(params, f"{layer}.linear2", h)
        return _norm(params, "encoder.norm", t[:, 0])[:, :, None, None], buffers


@dataclass(frozen=True)
class Classifier(Head):
    """C: features [B, 64, 1, 1] -> logits [B, classes]."""

    layer: ClassVar[str] = "head"
    shape: ClassVar[tuple[int, int, int]] = feature_shape(IMAGE_SIZES[0])


def _attention(params: Params, name: str, t: Tensor) -> Tensor:
    """Softmax(q k' / sqrt(d)) v of each head, of tokens t [B, N, n]."""
    projected = F.linear(t, params[f"{name}.in_proj_weight"], params[f"{name}.in_proj_bias"])
    q, k, v = projected.unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
    weights = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1)
    return named_linear(params, f"{name}.out_proj", (weights @ v).transpose(1, 2).flatten(2))


def _norm(params: Params, name: str, t: Tensor) -> Tensor:
    return F.layer_norm(t, (WIDTH,), params[f"{name}.weight"], params[f"{name}.bias"])


def _norm_init(name: str) -> Params:
    return {f"{name}.weight": torch.ones(WIDTH), f"{name}.bias": torch.zeros(WIDTH)}


def _xavier(shape: tuple[int, int], rng: torch.Generator) -> Tensor:
    """Uniform in +-sqrt(6 / (fan in + fan out)) (Glorot, Bengio 2010)."""
    return math.sqrt(6 / sum(shape)) * (2 * torch.rand(shape, generator=rng) - 1)
