"""LeNet-5's extractor peeled layer by layer: from features to image by equations instead of descent, one image per gradient.

Features h in closed form and the label give dL/dz2, and with it (K: convolution and pooling as one linear map; u = 2x - 1)
    z2 - b2 = K2 a1        400 equations
    dL/dW2  = D2 a1      2,400 equations, D2 the correlation with dL/dz2: both LINEAR in the activations a1 = sigmoid(z1)
    z1 - b1 = K1 u       1,176 equations
    dL/dW1  = D1(z1) u     450 equations, D1 the correlation with dL/dz1 = (K2' dL/dz2) a1 (1 - a1): linear in u, given z1
R-GAP peels layers so (Zhu and Blaschko, ICLR 2021, arXiv 2010.07733), by pseudo-inverses. Pooling leaves fewer independent
equations (about 1,460) than a colour image has values (3,072), so here a Gaussian prior, u ~ N(0, Sigma), fills in the rest:
the image is the most probable one given all equations, each with an error of the order of single precision.

Given z = z1 the image is u = T (z - b1) + what dL/dW1 adds, so Gauss-Newton runs over z alone, on
    F(z) = |B a(z) - c|^2 + (z - b1)' M^-1 (z - b1) + e(z)' S(z)^-1 e(z)
    M = K1 Sigma K1' + error   T = Sigma K1' M^-1   e = dL/dW1 - D1 T (z - b1)   S = D1 (Sigma - T M T') D1' + error
with [B, c] the first two blocks of equations over their errors. It starts at z = b1 (grey); errors are taken as large first.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad

from attacks.case import Case
from attacks.descend import Descent
from attacks.prior import Gaussian
from privbench.errors import UserError
from privbench.types import Params, Report, no_report

ERROR = 3e-6  # of z2 and dL/dW2, relative to their root mean square
FIRST_ERROR = 3e-5  # of dL/dW1, whose coefficients D1 inherit the error of z1
IMAGE_ERROR = 1e-5  # of z1 = K1 u + b1: keeps M regular where z1 has more values than the image
FEATURE_ERROR = 1e-12  # absolute error of a feature near 0, beside ERROR relative to it
SATURATED = 1e-7  # features nearer to 1 are rounding
LEVELS = ((1e3, 0.0), (30.0, 0.0), (1.0, 0.0), (1.0, 100.0), (1.0, 1.0))  # factors on the errors; 0: without dL/dW1
MOST_HALVINGS = 10
SMALL_GAIN = 1e-3  # of F: ends a level


class Layers(NamedTuple):
    """What the victims of one network share; n1 = 6 14 14, D = C H W."""

    extractor: Params
    gaussian: Gaussian
    shape: tuple[int, int, int]  # of z1
    k1: Tensor  # K1 [n1, D]
    k2: Tensor  # K2 [n2, n1]
    b1: Tensor  # [n1]
    b2: Tensor  # [n2]
    spread: Tensor  # M [n1, n1]
    precision: Tensor  # M^-1 [n1, n1]
    carry: Tensor  # T [D, n1]


class Victim(NamedTuple):
    """One victim's equations on a1 as normal equations, and on u."""

    normal: Tensor  # B'B [n1, n1]
    right: Tensor  # B'c [n1]
    square: Tensor  # c'c
    back: Tensor  # K2' dL/dz2 [n1]
    first: Tensor  # dL/dW1 [C, 6 25]
    error: Tensor  # its variance


def layers(case: Case, gaussian: Gaussian) -> Layers:
    """The linear maps of the case's extractor, and the prior seen through them; UserError unless it is LeNet-5's."""
    if case.model.backbone != "lenet5":
        raise UserError(
            f"peeling solves LeNet-5's equations, but the networks are {case.model.backbone}; try --attack staged"
        )
    e = case.weights["extractor"]
    side = gaussian.variance.shape[-1]
    k1 = _pooled_convolution(e["conv1.weight"], side)
    z_side = (side - e["conv1.weight"].shape[-1] + 1) // 2
    shape = (e["conv1.weight"].shape[0], z_side, z_side)
    smooth_k1 = gaussian.covariance(k1)
    spread = smooth_k1 @ k1.T
    spread.diagonal().add_(IMAGE_ERROR**2 * spread.diagonal().mean())
    precision = torch.linalg.inv_ex(spread).inverse
    carry = smooth_k1.T @ precision
    k2 = _pooled_convolution(e["conv2.weight"], z_side)
    b1 = e["conv1.bias"].repeat_interleave(z_side**2)
    b2 = e["conv2.bias"].repeat_interleave(len(k2) // len(e["conv2.bias"]))
    return Layers(e, gaussian, shape, k1, k2, b1, b2, spread, precision, carry)


def victim(case: Case, own: Layers, h: Tensor, v: int) -> Victim:
    """The equations of victim v with the features h [c, s, s]."""

    def loss(features: Tensor) -> Tensor:
        logits, _ = case.model.net("classifier").apply(case.weights["classifier"], {}, features[None], train=True)
        return F.cross_entropy(logits, case.labels[v])

    kept = h.clamp(FEATURE_ERROR, 1 - SATURATED)
    slope = (kept * (1 - kept)).flatten()
    delta = grad(loss)(h) * kept * (1 - kept)
    z2 = torch.logit(kept).flatten() - own.b2
    error2 = ((ERROR * kept.flatten() + FEATURE_ERROR) / slope).square() + ERROR**2 * z2.square().mean()
    second, first = (case.observed[f"extractor/{n}.weight"][v] for n in ("conv2", "conv1"))
    d2 = _correlation(delta, own.shape[1]) / (ERROR * _size(second))
    c = second.transpose(0, 1).flatten(1) / (ERROR * _size(second))  # [6, 16 25], one row per channel of a1
    normal = (own.k2.T / error2) @ own.k2 + torch.block_diag(*[d2.T @ d2] * len(c))
    right = own.k2.T @ (z2 / error2) + (c @ d2).flatten()
    square = (z2.square() / error2).sum() + c.square().sum()
    back = delta.flatten() @ own.k2
    return Victim(normal, right, square, back, first.transpose(0, 1).flatten(1), (FIRST_ERROR * _size(first)) ** 2)


def peel(case: Case, h: Tensor, gaussian: Gaussian, iterations: int, report: Report = no_report) -> Descent:
    """The most probable image of every victim: x [V, 1, C, H, W], with F at the last level as loss and trace.

    h [V, c, s, s] are the closed-form features; `iterations` at most per level. A victim whose equations cannot be solved
    keeps its last good image, grey at first.
    """
    own = layers(case, gaussian)
    ends = []
    for v in range(len(h)):
        report(v, len(h), "peeling layers")
        ends.append(_solve(own, victim(case, own, h[v], v), iterations))
    longest = max(len(trace) for _, trace in ends)
    trace = torch.stack([torch.stack(t + t[-1:] * (longest - len(t))) for _, t in ends])
    x = torch.stack([(u + 1) / 2 for u, _ in ends]).unflatten(1, (1, *gaussian.variance.shape))
    return Descent(x, trace[:, -1], trace, sum(len(t) for _, t in ends))


def _solve(own: Layers, one: Victim, iterations: int) -> tuple[Tensor, list[Tensor]]:
    """(u [D], surprise of the best image so far after every iteration)."""
    z = own.b1
    best = torch.zeros(own.k1.shape[1]).to(z)
    trace = [surprise(own, one, best)]
    for factor, first_factor in LEVELS:
        for _ in range(iterations):
            z, u, gain = _iterate(own, one, z, factor, first_factor)
            found = surprise(own, one, u)
            best = u if found < trace[-1] else best
            trace.append(torch.minimum(found.nan_to_num(nan=torch.inf), trace[-1]))
            if not gain > SMALL_GAIN:
                break
    return best, trace


def surprise(own: Layers, one: Victim, u: Tensor) -> Tensor:
    """Twice the negative logarithm of an image's probability given all equations, up to a constant."""
    z = own.k1 @ u + own.b1
    a = torch.sigmoid(z)
    e = one.first - u.unflatten(0, (len(one.first), -1)) @ _first_correlation(own, one, a).T
    return _misfit(one, a) + e.square().sum() / one.error + u @ own.gaussian.precision(u[None])[0]


def _iterate(own: Layers, one: Victim, z: Tensor, factor: float, first_factor: float) -> tuple[Tensor, Tensor, float]:
    """One Gauss-Newton step of F with S held: (z, the image of z, relative gain)."""
    a = torch.sigmoid(z)
    slope = a * (1 - a)
    gradient = slope * (one.normal @ a - one.right) / factor**2 + own.precision @ (z - own.b1)
    hessian = slope[:, None] * one.normal * slope / factor**2 + own.precision
    root = None
    if first_factor:
        d1 = _first_correlation(own, one, a)
        rows = torch.block_diag(*[d1] * len(one.first))
        through_z = (d1 @ own.carry.unflatten(0, (len(one.first), -1))).flatten(0, 1)  # rows @ carry
        s = own.gaussian.covariance(rows) @ rows.T - through_z @ own.spread @ through_z.T
        s.diagonal().add_(first_factor**2 * one.error)
        root, failed = torch.linalg.cholesky_ex(s)
        if failed:
            return z, own.carry @ (z - own.b1), 0.0
        slopes = torch.linalg.solve_triangular(root, through_z + _curvature(own, one, z, a), upper=False)
        gradient -= slopes.T @ _whitened_gap(own, one, z, a, root)
        hessian += slopes.T @ slopes
    triangle, failed = torch.linalg.cholesky_ex(hessian)
    if failed:  # rounding made it indefinite
        step = -torch.linalg.solve_ex(hessian, gradient).result
    else:
        step = -torch.cholesky_solve(gradient[:, None], triangle)[:, 0]
    before = _objective(own, one, z, factor, root)
    gain = 0.0
    for halving in range(MOST_HALVINGS):
        trial = z + step / 2**halving
        after = _objective(own, one, trial, factor, root)
        if after < before:
            z, gain = trial, float((before - after) / before)
            break
    return z, _image(own, one, z, root), gain


def _objective(own: Layers, one: Victim, z: Tensor, factor: float, root: Tensor | None) -> Tensor:
    """F(z), with S = root root'; without its last term if there is no root."""
    a = torch.sigmoid(z)
    f = _misfit(one, a) / factor**2 + (z - own.b1) @ own.precision @ (z - own.b1)
    return f if root is None else f + _whitened_gap(own, one, z, a, root).square().sum()


def _image(own: Layers, one: Victim, z: Tensor, root: Tensor | None) -> Tensor:
    """The most probable u given z, and given dL/dW1 if there is a root of S."""
    u = own.carry @ (z - own.b1)
    if root is None:
        return u
    a = torch.sigmoid(z)
    weights = torch.linalg.solve_triangular(root.T, _whitened_gap(own, one, z, a, root)[:, None], upper=True)
    pull = (weights.view(one.first.shape) @ _first_correlation(own, one, a)).flatten()
    return u + own.gaussian.covariance(pull[None])[0] - own.carry @ (own.spread @ (own.carry.T @ pull))


def _misfit(one: Victim, a: Tensor) -> Tensor:
    return a @ one.normal @ a - 2 * a @ one.right + one.square


def _whitened_gap(own: Layers, one: Victim, z: Tensor, a: Tensor, root: Tensor) -> Tensor:
    """root^-1 (dL/dW1 - D1 T (z - b1)), [C 6 25]."""
    u = (own.carry @ (z - own.b1)).unflatten(0, (len(one.first), -1))
    gap = one.first - u @ _first_correlation(own, one, a).T
    return torch.linalg.solve_triangular(root, gap.reshape(-1, 1), upper=False)[:, 0]


def _first_correlation(own: Layers, one: Victim, a: Tensor) -> Tensor:
    """D1 on one image channel, [6 25, H W]."""
    return _correlation((one.back * a * (1 - a)).view(own.shape), own.gaussian.variance.shape[-1])


def _curvature(own: Layers, one: Victim, z: Tensor, a: Tensor) -> Tensor:
    """The slope of D1(z) u over z, with u = T (z - b1) held: [C 6 25, n1]."""
    u = (own.carry @ (z - own.b1)).view(1, *own.gaussian.variance.shape)
    patches = F.unfold(F.avg_pool2d(u, 2, stride=1), own.extractor["conv1.weight"].shape[-1], stride=2)
    patches = patches.view(len(one.first), -1, patches.shape[-1])  # [C, 25, 14 14]
    bend = (one.back * a * (1 - a) * (1 - 2 * a)).view(own.shape[0], -1)
    channels = torch.eye(own.shape[0]).to(z)
    return torch.einsum("cip,op,oq->coiqp", patches, bend, channels).reshape(one.first.numel(), -1)


def _pooled_convolution(weight: Tensor, side: int) -> Tensor:
    """Convolution and 2x2 average pooling as one matrix, [c s s, C side side]."""
    pooled = (side - weight.shape[-1] + 1) // 2
    spread = _correlation(torch.eye(pooled**2).to(weight).view(-1, pooled, pooled), side)  # [s s k k, side side]
    return (
        torch.einsum("pkx,ock->opcx", spread.unflatten(0, (pooled**2, -1)), weight.flatten(2)).flatten(2).flatten(0, 1)
    )


def _correlation(delta: Tensor, side: int) -> Tensor:
    """The weight gradient of a convolution with 2x2 average pooling, as a matrix on one input channel.

    delta [c, s, s] is the gradient of the pooled output; -> [c k k, side side], k = side - 2 s + 1.
    """
    spread = delta.repeat_interleave(2, 1).repeat_interleave(2, 2) / 4
    n = spread.shape[-1]
    k = side - n + 1
    matrix = delta.new_zeros(len(delta), k, k, side, side)
    for i in range(k):
        for j in range(k):
            matrix[:, i, j, i : i + n, j : j + n] = spread
    return matrix.reshape(len(delta) * k * k, side**2)


def _size(t: Tensor) -> Tensor:
    """Root mean square."""
    return t.square().mean().sqrt().clamp_min(1e-300)
