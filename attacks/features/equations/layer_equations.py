"""What one gradient of LeNet-5 says of the activations behind its first convolution, as equations with their errors.

The equations, and what their symbols mean, stand in attacks/features/layerwise.py, which solves them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.common import problem
from attacks.common.priors import GaussianPrior
from attacks.common.problem import InversionProblem
from attacks.features.equations.pooled_convolution import (
    pool,
    pooled_correlation,
    response_rows,
    sigmoid_slope,
    strided_matrix,
    unpool,
)
from privbench.errors import UserError

ERROR = 3e-6  # of z2 and dL/dW2, relative to their root mean square
FIRST_ERROR = 3e-5  # of dL/dW1, whose coefficients D1 inherit the error of z1
FEATURE_ERROR = 1e-12  # absolute error of a feature near 0, beside ERROR relative to it
SATURATED = 1e-7  # features nearer to 1 are rounding
POOLED_SPREAD = 0.5  # of p around 1/2 before anything is known: keeps N finite
COMMON_ERROR = 3e-6  # of p while all victims share one factor


class Layers(NamedTuple):
    """What the victims of one network share; n1 = 6 14 14, np = 6 13 13; images [C, H, W] are in the prior's colours."""

    gaussian: GaussianPrior
    kernel: int
    window: Tensor  # of K1: [6, C, 6, 6], moved by 2
    rows: Tensor  # the same for a whole row of z1: [C, 6 W, 6 14]
    b1: Tensor  # [6, 14, 14]
    second: Tensor  # W2 [16, 6, 5, 5]
    k2: Tensor  # K2 [n2, np]
    b2: Tensor  # [n2]
    spread: Tensor  # M [n1, n1]
    common: Tensor  # Cholesky factor of J Sigma J' + errors for p alone at grey [np, np]


class Victims(NamedTuple):
    """The equations of n victims; those of p are divided by their error."""

    z2: Tensor  # (z2 - b2) / its error [n, n2]
    certainty: Tensor  # 1 / its error [n, n2]
    d2: Tensor  # D2 on one channel of p [n, 16 25, 13 13]
    second: Tensor  # dL/dW2 [n, 16 25, 6]
    back: Tensor  # pool' K2' dL/dz2 [n, 6, 14, 14]
    first: Tensor  # dL/dW1 [n, C, 6, 25]
    error: Tensor  # its variance [n]


class LatentImages(NamedTuple):
    """u = Sigma w of n victims, both [n, C, H, W]; u' Sigma^-1 u = u' w."""

    u: Tensor
    w: Tensor


def linear_maps(posed: InversionProblem, gaussian: GaussianPrior, factor: float = 1.0) -> Layers:
    """The linear maps of the problem's extractor, and the prior seen through them; UserError unless it is LeNet-5's.

    `factor` is that of `equations`.
    """
    if posed.model.backbone != "lenet5":
        raise UserError(
            f"layerwise inversion solves LeNet-5's equations, but the networks are {posed.model.backbone}; try --attack staged"
        )
    e = posed.weights["extractor"]
    side, kernel = gaussian.variance.shape[-1], e["conv1.weight"].shape[-1]
    window = unpool(torch.einsum("kc,ochw->okhw", gaussian.colours, e["conv1.weight"]))
    z_side = (side - kernel + 1) // 2
    k1 = strided_matrix(window, side).view(-1, z_side, z_side, *gaussian.variance.shape)
    rows = k1[:, 0, :, :, : kernel + 1].permute(2, 0, 1, 3, 4).flatten(3).flatten(1, 2).mT
    smooth = gaussian.smooth(k1.flatten(0, 2))
    spread = torch.stack([response_rows(smooth[:, k], block) for k, block in enumerate(rows)]).sum(0)
    b1 = e["conv1.bias"][:, None, None].expand(-1, z_side, z_side).contiguous()
    k2 = strided_matrix(e["conv2.weight"], z_side - 1)
    b2 = e["conv2.bias"].repeat_interleave(len(k2) // len(e["conv2.bias"]))
    grey = pooled_spread(spread, sigmoid_slope(torch.sigmoid(b1)))
    grey.diagonal().add_((factor * COMMON_ERROR) ** 2)
    return Layers(
        gaussian, kernel, window, rows, b1, e["conv2.weight"], k2, b2, spread, torch.linalg.cholesky_ex(grey).L
    )


def equations(posed: InversionProblem, layers: Layers, h: Tensor, rows: Tensor, factor: float = 1.0) -> Victims:
    """The equations of the victims in `rows` [n]; h [V, c, s, s] are the features of all.

    All relative errors are `factor` times those of single precision.
    """
    own, first_own = factor * ERROR, factor * FIRST_ERROR
    inside = h[rows].clamp(FEATURE_ERROR, 1 - SATURATED)
    delta = problem.feature_slope(posed)[rows] * sigmoid_slope(inside)
    flat = inside.flatten(1)
    z2 = torch.logit(flat) - layers.b2
    relative = (own * flat + FEATURE_ERROR) / sigmoid_slope(flat)
    certainty = (relative.square() + own**2 * z2.square().mean(1, keepdim=True)).rsqrt()
    second, first = (posed.observed[f"extractor/{n}.weight"][rows] for n in ("conv2", "conv1"))
    error = (own * _size(second))[:, None, None]
    d2 = pooled_correlation(delta, layers.b1.shape[-1] - 1).flatten(-2).flatten(1, 3) / error
    c = second.transpose(1, 2).flatten(2).mT / error
    back = unpool(F.conv_transpose2d(delta, layers.second, stride=2))
    first = torch.einsum("kc,nochw->nkohw", layers.gaussian.colours, first).flatten(3)
    return Victims(z2 * certainty, certainty, d2, c, back, first, (first_own * _size(first)).square())


def pick(victims: Victims, rows: Tensor | int) -> Victims:
    """The equations of the victims in `rows`; of one number, without the axis n."""
    return Victims(*(t[rows] for t in victims))


def each(victims: Victims) -> list[Victims]:
    """The victims one by one, whose tensors have no axis n."""
    return [pick(victims, v) for v in range(len(victims.first))]


def activations(layers: Layers, u: Tensor) -> Tensor:
    """a1 = sigmoid(K1 u + b1), [n, 6, 14, 14]."""
    return torch.sigmoid(z1(layers, u))


def z1(layers: Layers, u: Tensor) -> Tensor:
    """K1 u + b1, [n, 6, 14, 14]."""
    return F.conv2d(u, layers.window, stride=2) + layers.b1


def misfit(layers: Layers, victims: Victims, a: Tensor) -> Tensor:
    """|K2 p - (z2 - b2)|^2 + |D2 p - dL/dW2|^2 over their errors, [n], of a [n, 6, 14, 14]."""
    p = pool(a).flatten(2)
    of_z2 = (p.flatten(1) @ layers.k2.T) * victims.certainty - victims.z2
    of_second = victims.d2 @ p.mT - victims.second
    return of_z2.square().sum(1) + of_second.square().flatten(1).sum(1)


def first_gradient(layers: Layers, victims: Victims, a: Tensor, u: Tensor) -> Tensor:
    """D1 u, [n, C, 6, 25]."""
    delta = (victims.back * sigmoid_slope(a)).flatten(2)
    return delta[:, None] @ patches(layers, u).mT


def patches(layers: Layers, u: Tensor) -> Tensor:
    """The pooled image under each weight of the first convolution, [n, C, 25, 14 14]."""
    return F.unfold(pool(u), layers.kernel, stride=2).unflatten(1, (u.shape[1], -1))


def pooled_by_gradient(victims: Victims) -> Tensor:
    """p [n, 6, 13, 13] by dL/dW2 alone; NaN where that has no solution."""
    normal = victims.d2.mT @ victims.d2
    normal.diagonal(dim1=1, dim2=2).add_(POOLED_SPREAD**-2)
    root, failed = torch.linalg.cholesky_ex(normal)
    p = torch.cholesky_solve(victims.d2.mT @ victims.second + POOLED_SPREAD**-2 / 2, root)
    return p.where(failed[:, None, None] == 0, torch.nan).mT.unflatten(2, (round(p.shape[1] ** 0.5), -1))


def pooled_normal(layers: Layers, one: Victims) -> tuple[Tensor, Tensor]:
    """(N [np, np], p^ [np]) of one victim, by both equations of p."""
    z2, target = layers.k2 * one.certainty[:, None], (one.d2.T @ one.second).T.flatten() + POOLED_SPREAD**-2 / 2
    normal = one.d2.T @ one.d2
    normal.diagonal().add_(POOLED_SPREAD**-2)
    noise = torch.cholesky_inverse(torch.linalg.cholesky_ex(normal).L)  # of one channel, by dL/dW2 alone
    seen = (z2.unflatten(1, (len(layers.b1), -1)) @ noise).flatten(1)
    both = seen @ z2.T
    both.diagonal().add_(1)
    drop = torch.linalg.solve_triangular(torch.linalg.cholesky_ex(both).L, seen, upper=False)
    whole = torch.block_diag(*[noise] * len(layers.b1)).addmm_(drop.T, drop, alpha=-1)
    return whole, whole @ (target + one.z2 @ z2)


def latent_images(layers: Layers, v: Tensor, offset: Tensor | float) -> LatentImages:
    """w = K1' v + rest, and u = Sigma w, of v [n, 6, 14, 14]."""
    w = F.conv_transpose2d(v, layers.window, stride=2) + offset
    return LatentImages(layers.gaussian.smooth(w), w)


def bend_of(layers: Layers, one: Victims, a: Tensor, u: Tensor) -> Tensor:
    """The slope of D1(z) u over z, u held, of one victim: its blocks [6, C 25, 14 14], one for each channel of z."""
    bend = (one.back * sigmoid_slope(a) * (1 - 2 * a)).flatten(1)
    return (patches(layers, u[None])[0] * bend[:, None, None]).flatten(1, 2)


def first_spread(layers: Layers, d1: Tensor, bend: Tensor) -> tuple[Tensor, Tensor]:
    """J1 Sigma K1' [C 6 25, n1] and J1 Sigma J1' [C 6 25, C 6 25], J1 = D1 + bend K1; d1 [6 25, H, W] on each colour."""
    (outputs, _, pixels), colours = bend.shape, len(layers.rows)

    def by_equation(t: Tensor) -> Tensor:
        """[6, C 25, m] -> [C 6 25, m]."""
        return t.unflatten(1, (colours, -1)).transpose(0, 1).flatten(0, 2)

    def bent(t: Tensor) -> Tensor:
        """t bend', [C 6 25, n1] -> [C 6 25, C 6 25]."""
        return by_equation((t.unflatten(1, (outputs, pixels)).transpose(0, 1) @ bend.mT).mT).T

    smooth = layers.gaussian.smooth(d1[:, None].expand(-1, colours, -1, -1))
    straight = torch.cat([response_rows(smooth[:, k], block) for k, block in enumerate(layers.rows)])
    through = straight + by_equation(bend @ layers.spread.unflatten(0, (outputs, pixels)))
    blocks = torch.block_diag(*(smooth.transpose(0, 1).flatten(2) @ d1.flatten(1).T))
    return through, blocks + bent(through) + bent(straight).T


def pooled_spread(spread: Tensor, slope: Tensor) -> Tensor:
    """The covariance of p to first order, [np, np], of M and the slopes of the activations [6, 14, 14]."""
    both = (spread * slope.flatten()).mul_(slope.flatten()[:, None]).unflatten(1, slope.shape)
    return pool(pool(both).flatten(1).T.unflatten(1, slope.shape)).flatten(1)


def _size(t: Tensor) -> Tensor:
    """Root mean square of each victim's tensor, [n]."""
    return t.square().flatten(1).mean(1).sqrt().clamp_min(1e-300)
