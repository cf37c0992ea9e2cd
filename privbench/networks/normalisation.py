"""Normalisations of features and of weights as pure functions: what torch.nn keeps as state is an argument and a result here.

`torch.nn.BatchNorm2d` buffers and `torch.nn.utils.spectral_norm` do not survive `vmap` in train mode; these do.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from privbench.networks.layers import Function, times
from privbench.tensors import Params

BN_MOMENTUM = 0.1  # torch's defaults, as the reference implementation uses
BN_EPS = 1e-5
GROUPS = 32
_WITH_SLOPES = ContextVar("whether running statistics have slopes", default=False)


@contextmanager
def statistics_with_slopes() -> Iterator[None]:
    """Within, running statistics after a call depend on its input for derivatives, too; training takes none of them."""
    before = _WITH_SLOPES.set(True)
    try:
        yield
    finally:
        _WITH_SLOPES.reset(before)


def norm_init(name: str, width: int, norm: str = "batch") -> tuple[Params, Params]:
    """Scale 1 and shift 0 of the normalisation `name`, as torch.nn.BatchNorm2d.

    A "batch" norm has running mean 0 and variance 1, too; a "group" norm has no running statistics.
    """
    params = {f"{name}.weight": torch.ones(width), f"{name}.bias": torch.zeros(width)}
    if norm == "group":
        return params, {}
    return params, {f"{name}.mean": torch.zeros(width), f"{name}.var": torch.ones(width)}


def named_norm(x: Tensor, name: str, params: Params, buffers: Params, *, train: bool) -> tuple[Tensor, Params]:
    """The normalisation `name` of a network: (output, its running statistics after the call).

    Without running statistics it is group norm (Wu, He, ECCV 2018, arXiv 1803.08494) of GROUPS groups, which treats every image
    alone.
    """
    scale, shift = params[f"{name}.weight"], params[f"{name}.bias"]
    if f"{name}.mean" not in buffers:
        return group_norm(x, math.gcd(GROUPS, x.shape[1]), scale, shift), {}
    x, mean, var = batch_norm(x, scale, shift, buffers[f"{name}.mean"], buffers[f"{name}.var"], train=train)
    return x, {f"{name}.mean": mean, f"{name}.var": var}


def group_norm(x: Tensor, groups: int, scale: Tensor, shift: Tensor) -> Tensor:
    """torch's group norm of [B, c, ...], in operations that vmap takes in any memory layout."""
    grouped = x.reshape(len(x), groups, -1)
    variance, mean = torch.var_mean(grouped, 2, correction=0, keepdim=True)
    normal = ((grouped - mean) * torch.rsqrt(variance + BN_EPS)).reshape(x.shape)
    wide = (-1, *(1,) * (x.ndim - 2))
    return normal * scale.view(wide) + shift.view(wide)


def batch_norm(
    x: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    mean: Tensor,
    var: Tensor,
    *,
    train: bool,
    momentum: float | Tensor = BN_MOMENTUM,
    eps: float = BN_EPS,
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch normalisation of [B, c, ...]: (output, running mean, running variance), as torch.nn.BatchNorm2d.

    In train mode the batch statistics normalise and the running ones move towards them (unbiased variance); in eval
    mode the running ones normalise and are returned unchanged. Without `scale` and `shift` the output is normalised alone.
    """
    if not train:
        return F.batch_norm(x, mean, var, scale, shift, training=False, eps=eps), mean, var
    count = x.numel() // x.shape[1]
    # Without running statistics of its own torch's batch norm changes nothing in place, which vmap would refuse.
    normal, batch_mean, inverse_std = torch.native_batch_norm(x, scale, shift, None, None, True, BN_MOMENTUM, eps)
    if _WITH_SLOPES.get():
        batch_var, batch_mean = torch.var_mean(x.transpose(0, 1).flatten(1), 1, correction=min(1, count - 1))
    else:
        batch_mean = batch_mean.detach()
        batch_var = (inverse_std.detach().square().reciprocal() - eps) * (count / max(count - 1, 1))
    return normal, torch.lerp(mean, batch_mean, momentum), torch.lerp(var, batch_var, momentum)


class PowerIteration(NamedTuple):
    """What spectral norm knows of a weight read as a matrix [o, k]."""

    u: Tensor  # [o] left direction after the call, of length 1
    v: Tensor  # [k] right direction, of length 1
    sigma: Tensor  # [] u' W v, the estimate of the largest singular value


def power_iteration(matrix: Tensor, u: Tensor, *, train: bool) -> PowerIteration:
    """Miyato et al. 2018: one iteration a call in train mode, as torch.nn.utils.spectral_norm, and half of one in eval mode.

    There u stays and v follows the weights, where torch keeps the v of the last call in train mode. Without derivatives; that of
    sigma over W, with u and v held constant, is u v'.
    """
    matrix = matrix.detach()
    v = _unit(matrix.mT @ u)
    product = matrix @ v
    u = _unit(product) if train else u
    return PowerIteration(u, v, u @ product)


def spectral_norm(weight: Tensor, u: Tensor, *, train: bool) -> tuple[Tensor, Tensor]:
    """(sigma, u'), sigma differentiated with u' and v held constant. weight [o, ...] is read as a matrix [o, rest].

    A layer without bias divides its small output by sigma instead of its large weight: the same value, a third of the cost.
    """
    matrix = weight.flatten(1)
    iteration = power_iteration(matrix, u, train=train)
    return iteration.u @ (matrix @ iteration.v), iteration.u


class SpectralProduct(Function):
    """y = x W' / sigma for H batches of rows, each with a sigma of its own: [H, M, k], [o, k] -> [H, M, o].

    Takes the power iterations' u [H, o], v [H, k] and sigma [H]; sigma's derivative over W is in the one over W, as H further
    rows of the product that makes it. There is no second derivative.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, u: Tensor, v: Tensor, sigma: Tensor) -> Tensor:
        """One product for all batches."""
        return times(x.flatten(0, 1), weight.mT).view(*x.shape[:2], -1) / sigma[:, None, None]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        """Inputs and output are kept."""
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        """Over x: g W / sigma. Over W: sum_h (g' x - (g . y) u v') / sigma."""
        x, weight, u, v, sigma, y = ctx.saved_tensors
        over_x, over_weight, *_ = ctx.needs_input_grad
        scaled = grad / sigma[:, None, None]
        rows = scaled.flatten(0, 1)
        x_grad = times(rows, weight).view(x.shape) if over_x else None
        weight_grad = None
        if over_weight:
            along = -(scaled * y).sum((1, 2))
            left, right = torch.cat([rows, along[:, None] * u]), torch.cat([x.flatten(0, 1), v])
            weight_grad = times(left.mT, right)
        return x_grad, weight_grad, None, None, None


def _unit(x: Tensor) -> Tensor:
    """x / max(|x|, 1e-12), as torch.nn.functional.normalize of a vector."""
    return x / torch.linalg.vector_norm(x).clamp_min(1e-12)
