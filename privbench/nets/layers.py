"""Layers written as pure functions: what torch.nn keeps as hidden state is an argument and a result here.

`torch.nn.BatchNorm2d` buffers and `torch.nn.utils.spectral_norm` do not survive `vmap` in train mode; these do.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

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


def batch_norm(
    x: Tensor, scale: Tensor, shift: Tensor, mean: Tensor, var: Tensor, *, train: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch normalisation of [B, c, ...]: (output, running mean, running variance), as torch.nn.BatchNorm2d.

    In train mode the batch statistics normalise and the running ones move towards them (unbiased variance); in eval
    mode the running ones normalise and are returned unchanged.
    """
    shape = (1, -1) + (1,) * (x.ndim - 2)
    if train:
        axes = [d for d in range(x.ndim) if d != 1]
        batch_mean = x.mean(axes)
        batch_var = (x - batch_mean.view(shape)).square().mean(axes)
        count = x.numel() // x.shape[1]
        unbiased = batch_var.detach() * (count / max(count - 1, 1))
        mean, var, used_mean, used_var = (
            torch.lerp(mean, batch_mean.detach(), BN_MOMENTUM),
            torch.lerp(var, unbiased, BN_MOMENTUM),
            batch_mean,
            batch_var,
        )
    else:
        used_mean, used_var = mean, var
    gain = scale * torch.rsqrt(used_var + BN_EPS)
    return x * gain.view(shape) + (shift - used_mean * gain).view(shape), mean, var


def spectral_norm(weight: Tensor, u: Tensor, *, train: bool) -> tuple[Tensor, Tensor]:
    """(sigma, u'): Miyato et al. 2018, one power iteration a call in train mode, as torch.nn.utils.spectral_norm.

    sigma = u' W v is differentiated with u' and v held constant. weight [o, ...] is read as a matrix [o, rest]. A layer
    without bias divides its small output by sigma instead of its large weight: the same value, a third of the cost.
    """
    matrix = weight.flatten(1)
    with torch.no_grad():
        v = F.normalize(matrix.detach().T @ u, dim=0, eps=1e-12)
        if train:
            u = F.normalize(matrix.detach() @ v, dim=0, eps=1e-12)
    return u @ (matrix @ v), u
