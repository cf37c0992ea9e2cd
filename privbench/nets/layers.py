"""Layers written as pure functions: what torch.nn keeps as hidden state is an argument and a result here.

`torch.nn.BatchNorm2d` buffers and `torch.nn.utils.spectral_norm` do not survive `vmap` in train mode; these do.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from privbench.types import Params

BN_MOMENTUM = 0.1  # torch's defaults, as the reference implementation uses
BN_EPS = 1e-5


def conv_then_average_pool(images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Convolution (stride 1, no padding) followed by 2x2 average pooling, as ONE convolution of stride 2.

    Pooling is linear, so the mean of four shifted kernels does both: exact, and a third faster on a CPU.
    images [B, C, H, W], weight [c, C, k, k] -> [B, c, (H-k+1)/2, (W-k+1)/2]; H-k+1 must be even.
    """
    shifted = (
        F.pad(weight, (0, 1, 0, 1))
        + F.pad(weight, (1, 0, 0, 1))
        + F.pad(weight, (0, 1, 1, 0))
        + F.pad(weight, (1, 0, 1, 0))
    )
    return F.conv2d(images, shifted / 4, bias, stride=2)


def conv2x2(x: Tensor, weight: Tensor) -> Tensor:
    """torch.nn.functional.conv2d with a 2x2 kernel, stride 1, no padding, as one matrix product.

    x [B, i, s, s], weight [o, i, 2, 2] -> [B, o, s-1, s-1]. Quicker than torch's convolution on a CPU
    where positions are few and channels many (docs/performance.md).
    """
    batch, side = len(x), x.shape[-1] - 1
    # Flattened by hand: torch's matmul would take one product per image, and lose what it is for.
    product = _pieces(x.permute(0, 2, 3, 1)).reshape(batch * side * side, -1) @ weight.flatten(1).T
    return product.view(batch, side, side, -1).permute(0, 3, 1, 2)


def _pieces(x: Tensor) -> Tensor:
    """The four pixels under a 2x2 kernel at each of its places: [B, s, s, i] -> [B, s-1, s-1, i, 4]."""
    return torch.stack([x[:, :-1, :-1], x[:, :-1, 1:], x[:, 1:, :-1], x[:, 1:, 1:]], -1)


def conv_transpose2x2(x: Tensor, weight: Tensor) -> Tensor:
    """torch.nn.functional.conv_transpose2d with a 2x2 kernel, stride 1, no padding, as one matrix product.

    x [B, i, s, s], weight [i, o, 2, 2] -> [B, o, s+1, s+1], channels last in memory where s > 1. Quicker than torch's on a
    CPU (docs/performance.md).
    """
    batch, channels, side, _ = x.shape
    if side == 1:  # one position: nothing overlaps
        return (x.flatten(1) @ weight.flatten(1)).view(batch, -1, 2, 2)
    product = x.permute(0, 2, 3, 1).reshape(batch * side * side, channels) @ weight.flatten(1)
    pieces = product.view(batch, side, side, -1, 4)
    added: Tensor = (Overlap.apply if pieces.requires_grad else Overlap.forward)(pieces)
    return added.permute(0, 3, 1, 2)


def channels_last(x: Tensor) -> Tensor:
    """The same values [B, c, s, s], laid out in memory as [B, s, s, c]; vmap refuses torch's own way of asking for it."""
    return x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


class Overlap(torch.autograd.Function):
    """Adds up 2x2 pieces where they overlap: [B, s, s, o, 4] -> [B, s+1, s+1, o]; in the order of torch's fold."""

    generate_vmap_rule = True

    @staticmethod
    def forward(pieces: Tensor) -> Tensor:
        """Two to three times as quick as fold, which walks channel by channel."""
        batch, side, _, channels, _ = pieces.shape
        top_left, top_right, bottom_left, bottom_right = pieces.unbind(-1)
        whole = pieces.new_zeros(batch, side + 1, side + 1, channels)
        whole[:, :-1, :-1] = top_left
        whole[:, :-1, 1:].add_(top_right)
        whole[:, 1:, :-1].add_(bottom_left)
        whole[:, 1:, 1:].add_(bottom_right)
        return whole

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        """Linear: nothing is kept."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Every piece is given the gradient of the places that it was added to."""
        return _pieces(grad)


def padded_conv(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """torch.nn.functional.conv2d of square images with an odd kernel, padding k // 2 and no bias.

    x [B, i, s, s], weight [o, i, k, k] -> [B, o, ceil(s / stride), ceil(s / stride)]. Where the kernel stands on one place only
    and sees the whole image, the other weights meet padding alone: one matrix product, a sixth of the time on a CPU.
    """
    side, kernel = x.shape[-1], weight.shape[-1]
    padding = kernel // 2
    if side + 2 * padding - kernel < stride and side + padding <= kernel:
        seen = weight[:, :, padding : padding + side, padding : padding + side]
        return (x.flatten(1) @ seen.flatten(1).T)[:, :, None, None]
    return F.conv2d(x, weight, stride=stride, padding=padding)


def batch_norm_init(name: str, width: int) -> tuple[Params, Params]:
    """(scale 1 and shift 0, running mean 0 and variance 1) of the batch norm `name`, as torch.nn.BatchNorm2d."""
    params = {f"{name}.weight": torch.ones(width), f"{name}.bias": torch.zeros(width)}
    return params, {f"{name}.mean": torch.zeros(width), f"{name}.var": torch.ones(width)}


def named_batch_norm(x: Tensor, name: str, params: Params, buffers: Params, *, train: bool) -> tuple[Tensor, Params]:
    """The batch norm `name` of a network: (output, its running statistics after the call)."""
    own = params[f"{name}.weight"], params[f"{name}.bias"], buffers[f"{name}.mean"], buffers[f"{name}.var"]
    x, mean, var = batch_norm(x, *own, train=train)
    return x, {f"{name}.mean": mean, f"{name}.var": var}


def batch_norm(
    x: Tensor, scale: Tensor, shift: Tensor, mean: Tensor, var: Tensor, *, train: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch normalisation of [B, c, ...]: (output, running mean, running variance), as torch.nn.BatchNorm2d.

    In train mode the batch statistics normalise and the running ones move towards them (unbiased variance); in eval
    mode the running ones normalise and are returned unchanged.
    """
    if not train:
        return F.batch_norm(x, mean, var, scale, shift, training=False, eps=BN_EPS), mean, var
    # Without running statistics of its own torch's batch norm changes nothing in place, which vmap would refuse.
    x, batch_mean, inverse_std = torch.native_batch_norm(x, scale, shift, None, None, True, BN_MOMENTUM, BN_EPS)
    count = x.numel() // x.shape[1]
    batch_var = (inverse_std.detach().square().reciprocal() - BN_EPS) * (count / max(count - 1, 1))
    return x, torch.lerp(mean, batch_mean.detach(), BN_MOMENTUM), torch.lerp(var, batch_var, BN_MOMENTUM)


def spectral_norm(weight: Tensor, u: Tensor, *, train: bool) -> tuple[Tensor, Tensor]:
    """(sigma, u'): Miyato et al. 2018, one power iteration a call in train mode, as torch.nn.utils.spectral_norm.

    sigma = u' W v is differentiated with u' and v held constant. weight [o, ...] is read as a matrix [o, rest]. A layer
    without bias divides its small output by sigma instead of its large weight: the same value, a third of the cost.
    """
    matrix = weight.flatten(1)
    v = _unit(matrix.detach().T @ u)
    product = matrix @ v
    u = _unit(product.detach()) if train else u
    return u @ product, u


def _unit(x: Tensor) -> Tensor:
    """x / max(|x|, 1e-12), as torch.nn.functional.normalize of a vector."""
    return x / torch.linalg.vector_norm(x).clamp_min(1e-12)
