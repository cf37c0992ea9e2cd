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

What depends on the weights alone is made once: M, T, and Sigma - T M T', what z leaves open. The victims of a chunk share
products with these, and each has its own Newton matrices, one victim at a time. D1 and D2 have stride 2 behind pooling with
stride 1, so that D1 falls apart into four blocks, one for each pair of parities of rows and columns of the pooled image.
"""

from __future__ import annotations

from itertools import product, repeat
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad

from attacks.case import Case
from attacks.descend import Descent, each_of
from attacks.prior import Gaussian
from privbench.errors import UserError
from privbench.types import Report, no_report

ERROR = 3e-6  # of z2 and dL/dW2, relative to their root mean square
FIRST_ERROR = 3e-5  # of dL/dW1, whose coefficients D1 inherit the error of z1
IMAGE_ERROR = 1e-5  # of z1 = K1 u + b1: keeps M regular where z1 has more values than the image
FEATURE_ERROR = 1e-12  # absolute error of a feature near 0, beside ERROR relative to it
SATURATED = 1e-7  # features nearer to 1 are rounding
LEVELS = ((1e3, 0.0), (30.0, 0.0), (1.0, 0.0), (1.0, 100.0), (1.0, 1.0))  # factors on the errors; 0: without dL/dW1
MOST_HALVINGS = 10
ROUGH_GAIN, SMALL_GAIN = 0.1, 1e-3  # of F: ends a level, and the last, which alone decides where F's minimum is found
CHUNK = 32  # victims solved at once: about 20 MB each, beside 0.9 GB for what they share
GROUP = 4  # victims whose D1 T and S are made in one product: about 25 MB each
GRAM_BLOCK = 196  # columns: five eighths of a full product, in blocks that a processor still multiplies at full speed
PARITIES = tuple(product((0, 1), (0, 1)))


class Layers(NamedTuple):
    """What the victims of one network share; n1 = 6 14 14, D = C H W, m = H - 1, the side of the pooled image."""

    gaussian: Gaussian
    shape: tuple[int, int, int]  # of z1
    kernel: int
    k1: Tensor  # K1 [n1, D]
    k2: Tensor  # K2 [n2, n1]
    window: Tensor  # the values of K2 that are not 0, the same for every pixel of an output channel: [16, 6, 6, 6]
    b1: Tensor  # [n1]
    b2: Tensor  # [n2]
    precision: Tensor  # M^-1 [n1, n1]
    carry: Tensor  # T [D, n1]
    known: Tensor  # R [n1, D] with R'R = T M T'
    lattices: tuple[Tensor, ...]  # rows of [T, Sigma - T M T'] of each parity: [C, about m m / 4, n1 + columns]
    order: Tensor  # the equations of dL/dW1, [C 6 25], parity by parity


class Victims(NamedTuple):
    """The equations of n victims: on a1, each divided by its error, and on u."""

    z2: Tensor  # z2 - b2 [n, n2]
    certainty: Tensor  # 1 / its error [n, n2]
    d2: Tensor  # D2 on one channel of a1 [n, 16 25, 14 14]
    second: Tensor  # dL/dW2 [n, 6, 16 25]
    back: Tensor  # K2' dL/dz2 [n, n1]
    first: Tensor  # dL/dW1 [n, C, 6 25]
    error: Tensor  # its variance [n]


def layers(case: Case, gaussian: Gaussian) -> Layers:
    """The linear maps of the case's extractor, and the prior seen through them; UserError unless it is LeNet-5's."""
    if case.model.backbone != "lenet5":
        raise UserError(
            f"peeling solves LeNet-5's equations, but the networks are {case.model.backbone}; try --attack staged"
        )
    e = case.weights["extractor"]
    side, kernel = gaussian.variance.shape[-1], e["conv1.weight"].shape[-1]
    k1 = _pooled_convolution(e["conv1.weight"], side)
    z_side = (side - kernel + 1) // 2
    shape = (e["conv1.weight"].shape[0], z_side, z_side)
    k2 = _pooled_convolution(e["conv2.weight"], z_side)
    b1 = e["conv1.bias"].repeat_interleave(z_side**2)
    b2 = e["conv2.bias"].repeat_interleave(len(k2) // len(e["conv2.bias"]))
    smooth_k1 = gaussian.covariance(k1)
    spread = smooth_k1 @ k1.T
    spread.diagonal().add_(IMAGE_ERROR**2 * spread.diagonal().mean())
    root = torch.linalg.cholesky_ex(spread).L
    known = torch.linalg.solve_triangular(root, smooth_k1, upper=False)
    carry = torch.linalg.solve_triangular(root.T, known, upper=True).T
    precision = torch.cholesky_inverse(root)
    lattices = _lattices(gaussian, known, carry)
    index = torch.arange(gaussian.variance.shape[0] * e["conv1.weight"][:, 0].numel(), device=k1.device)
    index = index.view(-1, shape[0], kernel, kernel)
    order = torch.cat([index[..., i::2, j::2].flatten() for i, j in PARITIES])
    return Layers(
        gaussian, shape, kernel, k1, k2, _unpool(e["conv2.weight"]), b1, b2, precision, carry, known, lattices, order
    )


def _lattices(gaussian: Gaussian, known: Tensor, carry: Tensor) -> tuple[Tensor, ...]:
    """Layers.lattices; the columns of Sigma - T M T', too, go parity by parity, and end with the rows' own parity.

    Only the lower triangle of S is ever read.
    """
    channels, side, _ = gaussian.variance.shape
    m = side - 1

    def pool(t: Tensor) -> Tensor:
        return F.avg_pool2d(t.unflatten(1, gaussian.variance.shape), 2, stride=1).flatten(1)

    index = torch.arange(channels * m**2, device=known.device).view(channels, m, m)
    parts = [index[:, i::2, j::2].flatten() for i, j in PARITIES]
    order, sizes = torch.cat(parts), [len(part) for part in parts]
    pooling = _unpool(torch.eye(len(order)).to(known)[order].view(-1, channels, m, m)).flatten(1)
    smooth = pool(gaussian.covariance(pooling))[:, order]
    pooled_known, pooled_carry = pool(known)[:, order], pool(carry.T).T[order]
    found, end = [], 0
    for size in sizes:
        rows, end = slice(end, end + size), end + size
        rest = torch.addmm(smooth[rows, :end], pooled_known[:, rows].T, pooled_known[:, :end], alpha=-1)
        found.append(torch.cat([pooled_carry[rows], rest], 1).unflatten(0, (channels, -1)))
    return tuple(found)


def victims(case: Case, own: Layers, h: Tensor, rows: Tensor) -> Victims:
    """The equations of the victims in `rows` [n]; h [V, c, s, s] are the features of all."""

    def loss(features: Tensor, label: Tensor) -> Tensor:
        logits, _ = case.model.net("classifier").apply(case.weights["classifier"], {}, features[None], train=True)
        return F.cross_entropy(logits, label)

    kept = h[rows].clamp(FEATURE_ERROR, 1 - SATURATED)
    delta = each_of(grad(loss))(h[rows], case.labels[rows]) * kept * (1 - kept)
    flat = kept.flatten(1)
    z2 = torch.logit(flat) - own.b2
    relative = (ERROR * flat + FEATURE_ERROR) / (flat * (1 - flat))
    certainty = (relative.square() + ERROR**2 * z2.square().mean(1, keepdim=True)).rsqrt()
    second, first = (case.observed[f"extractor/{n}.weight"][rows] for n in ("conv2", "conv1"))
    error = (ERROR * _size(second))[:, None, None]
    d2 = _correlation(delta, own.shape[1]) / error
    c = second.transpose(1, 2).flatten(2) / error
    first_error = (FIRST_ERROR * _size(first)).square()
    return Victims(z2, certainty, d2, c, delta.flatten(1) @ own.k2, first.transpose(1, 2).flatten(2), first_error)


def _normal(own: Layers, certainty: Tensor, d2: Tensor) -> Tensor:
    """One victim's B'B [n1, n1]."""
    channels, side, _ = own.shape
    size = own.window.shape[-1]
    normal = torch.block_diag(*[d2.T @ d2] * channels).view(*own.shape, *own.shape)
    window = own.window.flatten(1)
    outputs = certainty.square().view(len(window), -1)  # one column per pixel of z2
    starts = product(range(0, side - size + 1, 2), repeat=2)
    for weights, (i, j) in zip(outputs.T, starts, strict=True):
        y, x = slice(i, i + size), slice(j, j + size)
        normal[:, y, x, :, y, x] += ((window.T * weights) @ window).view(own.window.shape[1:] * 2)
    return normal.reshape(own.b1.numel(), -1)


def peel(case: Case, h: Tensor, gaussian: Gaussian, iterations: int, report: Report = no_report) -> Descent:
    """The most probable image of every victim: x [V, 1, C, H, W], with F at the last level as loss and trace.

    h [V, c, s, s] are the closed-form features; `iterations` at most per level. A victim whose equations cannot be solved
    keeps its last good image, grey at first.
    """
    own = layers(case, gaussian)
    ends = []
    for rows in torch.arange(len(h), device=h.device).split(CHUNK):
        report(int(rows[0]), len(h), "peeling layers")
        ends.append(_solve(own, victims(case, own, h, rows), iterations))
    longest = max(end.trace.shape[1] for end in ends)
    trace = torch.cat([F.pad(t, (0, longest - t.shape[1]), "replicate") for t in (end.trace for end in ends)])
    x = (torch.cat([end.x for end in ends]) + 1) / 2
    x = x.unflatten(1, (1, *gaussian.variance.shape))
    return Descent(x, trace[:, -1], trace, sum(end.evaluations for end in ends))


def _solve(own: Layers, some: Victims, iterations: int) -> Descent:
    """The best u [n, D] of a chunk of victims; its trace is the surprise of the best so far after every iteration."""
    everyone = torch.arange(len(some.first), device=some.first.device)
    normals = [_normal(own, certainty, d2) for certainty, d2 in zip(some.certainty, some.d2, strict=True)]
    z = own.b1.repeat(len(everyone), 1)
    best = z.new_zeros(len(everyone), own.k1.shape[1])
    lowest = surprise(own, some, best)
    trace, evaluations = [lowest], len(everyone)
    for factor, first_factor in LEVELS:
        rows, least = everyone, SMALL_GAIN if factor == first_factor else ROUGH_GAIN
        for _ in range(iterations):
            under_way = _pick(some, rows)
            z[rows], u, gain = _iterate(own, under_way, [normals[v] for v in rows], z[rows], factor, first_factor)
            found = surprise(own, under_way, u)
            better = found < lowest[rows]
            best[rows[better]] = u[better]
            lowest = lowest.index_put((rows[better],), found[better])
            trace.append(lowest)
            evaluations += len(rows)
            rows = rows[gain > least]
            if not len(rows):
                break
    return Descent(best, lowest, torch.stack(trace, 1), evaluations)


def _pick(some: Victims, rows: Tensor) -> Victims:
    return Victims(*(t[rows] for t in some))


def surprise(own: Layers, some: Victims, u: Tensor) -> Tensor:
    """Twice the negative logarithm of each image's probability given all equations, up to a constant: u [n, D] -> [n]."""
    a = torch.sigmoid(u @ own.k1.T + own.b1)
    first = _gap(own, some, a, u).square().sum(1) / some.error
    return _misfit(own, some, a) + first + (u * own.gaussian.precision(u)).sum(1)


def _iterate(
    own: Layers, some: Victims, normals: list[Tensor], z: Tensor, factor: float, first_factor: float
) -> tuple[Tensor, Tensor, Tensor]:
    """One Gauss-Newton step of F with S held, from z [n, n1]: (z, the image of z [n, D], relative gain [n])."""
    each = []
    for rows in torch.arange(len(z), device=z.device).split(GROUP):
        a = torch.sigmoid(z[rows])
        firsts = zip(*_first_spread(own, some.back[rows] * a * (1 - a)), strict=True) if first_factor else repeat(None)
        for v, first in zip(rows.tolist(), firsts, strict=False):
            one = Victims(*(t[v] for t in some))
            each.append(_newton(own, one, normals[v], z[v], factor, first_factor, first))
    step, root = (torch.stack(t) for t in zip(*each, strict=True))
    before = _objective(own, some, z, factor, root)
    z, gain = z.clone(), torch.zeros_like(before)
    rows = torch.arange(len(z), device=z.device)
    for halving in range(MOST_HALVINGS):
        trial = z[rows] + step[rows] / 2**halving
        after = _objective(own, _pick(some, rows), trial, factor, root[rows])
        lower = after < before[rows]
        z[rows[lower]] = trial[lower]
        gain[rows[lower]] = (1 - after / before[rows])[lower]
        rows = rows[~lower]
        if not len(rows):
            break
    return z, _image(own, some, z, root), gain


def _newton(
    own: Layers,
    one: Victims,
    normal: Tensor,
    z: Tensor,
    factor: float,
    first_factor: float,
    first: tuple[Tensor, Tensor] | None,
) -> tuple[Tensor, Tensor]:
    """(step [n1], root of S [C 6 25, C 6 25], or [0, 0] without dL/dW1) of one victim, whose tensors have no axis n.

    `first` is what _first_spread says of the victim.
    """
    a = torch.sigmoid(z)
    slope = a * (1 - a) / factor
    gradient = slope / factor * _misfit_gradient(own, one, a) + own.precision @ (z - own.b1)
    hessian = (normal * slope).mul_(slope[:, None]).add_(own.precision)
    root = z.new_zeros(0, 0)
    if first:
        through, s = first
        slopes = through.add_(_curvature(own, one, z, a)[own.order])
        s.diagonal().add_(first_factor**2 * one.error)
        root, failed = torch.linalg.cholesky_ex(s)
        root = root.where(failed == 0, torch.nan)  # then no step is taken
        slopes = torch.linalg.solve_triangular(root, slopes, upper=False)
        gradient -= _whitened_gap(own, one, z, a, root) @ slopes
        for k in range(0, len(z), GRAM_BLOCK):  # only the lower triangle is read
            hessian[k:, k : k + GRAM_BLOCK].addmm_(slopes[:, k:].T, slopes[:, k : k + GRAM_BLOCK])
    triangle, failed = torch.linalg.cholesky_ex(hessian)
    if failed:  # rounding made it indefinite
        whole = hessian.tril() + hessian.tril(-1).T
        return -torch.linalg.solve_ex(whole, gradient).result, root
    return -torch.cholesky_solve(gradient[:, None], triangle)[:, 0], root


def _objective(own: Layers, some: Victims, z: Tensor, factor: float, root: Tensor) -> Tensor:
    """F(z) [n], with S = root root'; without its last term if the root is empty."""
    a, offset = torch.sigmoid(z), z - own.b1
    f = _misfit(own, some, a) / factor**2 + ((offset @ own.precision) * offset).sum(1)
    return f if not root.numel() else f + _whitened_gap(own, some, z, a, root).square().sum(1)


def _image(own: Layers, some: Victims, z: Tensor, root: Tensor) -> Tensor:
    """The most probable u [n, D] given z, and given dL/dW1 if there is a root of S."""
    u = (z - own.b1) @ own.carry.T
    if not root.numel():
        return u
    a = torch.sigmoid(z)
    weights = torch.linalg.solve_triangular(root.mT, _whitened_gap(own, some, z, a, root)[..., None], upper=True)
    weights = weights[:, own.order.argsort(), 0].view_as(some.first)
    pull = _first_adjoint(own, some.back * a * (1 - a), weights)
    return u + own.gaussian.covariance(pull) - (pull @ own.known.T) @ own.known


def _misfits(own: Layers, some: Victims, a: Tensor) -> tuple[Tensor, Tensor]:
    """B a - c over the errors: of z2 [..., n2], and of dL/dW2 [..., 16 25, 6]."""
    channels = a.unflatten(-1, (own.shape[0], -1)).mT
    return (a @ own.k2.T - some.z2) * some.certainty, some.d2 @ channels - some.second.mT


def _misfit(own: Layers, some: Victims, a: Tensor) -> Tensor:
    """|B a - c|^2, [n]."""
    return sum((t.square().flatten(1).sum(1) for t in _misfits(own, some, a)), a.new_zeros(len(a)))


def _misfit_gradient(own: Layers, some: Victims, a: Tensor) -> Tensor:
    """B' (B a - c), [..., n1]."""
    of_z2, of_second = _misfits(own, some, a)
    return (of_z2 * some.certainty) @ own.k2 + (some.d2.mT @ of_second).mT.flatten(-2)


def _gap(own: Layers, some: Victims, a: Tensor, u: Tensor) -> Tensor:
    """dL/dW1 - D1 u, [..., C 6 25]."""
    delta = (some.back * a * (1 - a)).unflatten(-1, (own.shape[0], -1))
    patches = _patches(own, u).unflatten(-2, (some.first.shape[-2], -1))  # [..., C, 25, 14 14]
    return some.first.flatten(-2) - (delta[..., None, :, :] @ patches.mT).flatten(-3)


def _whitened_gap(own: Layers, some: Victims, z: Tensor, a: Tensor, root: Tensor) -> Tensor:
    """root^-1 (dL/dW1 - D1 T (z - b1)), [..., C 6 25], in own.order as the root is."""
    gap = _gap(own, some, a, (z - own.b1) @ own.carry.T)[..., own.order]
    return torch.linalg.solve_triangular(root, gap[..., None], upper=False)[..., 0]


def _patches(own: Layers, u: Tensor) -> Tensor:
    """The pooled image under each weight of the first convolution, [..., C 25, 14 14]."""
    pooled = F.avg_pool2d(u.unflatten(-1, own.gaussian.variance.shape), 2, stride=1)
    return F.unfold(pooled, own.kernel, stride=2)


def _first_adjoint(own: Layers, delta: Tensor, weights: Tensor) -> Tensor:
    """D1' weights, [n, D], of delta [n, n1] and weights [n, C, 6 25]."""
    weights = weights.unflatten(2, (own.shape[0], -1)).transpose(2, 3).flatten(1, 2)  # [n, C 25, 6]
    patches = weights @ delta.unflatten(1, (own.shape[0], -1))
    side = own.gaussian.variance.shape[-1] - 1
    return _unpool(F.fold(patches, side, own.kernel, stride=2)).flatten(1)


def _first_spread(own: Layers, delta: Tensor) -> tuple[Tensor, Tensor]:
    """D1 T [n, C 6 25, n1], and of D1 (Sigma - T M T') D1' the lower triangle, [n, C 6 25, C 6 25]; delta [n, n1].

    The equations are in own.order.
    """
    (n, n1), (channels, side, _) = delta.shape, own.gaussian.variance.shape
    d1 = _strided_correlation(delta.unflatten(1, own.shape), side - 1)
    blocks = [d1[..., i::2, j::2, i::2, j::2].flatten(-2).flatten(1, 3) for i, j in PARITIES]  # [n, 6 9 to 6 4, pixels]
    equations = [channels * block.shape[1] for block in blocks]
    through, s = delta.new_empty(n, sum(equations), n1), delta.new_zeros(n, sum(equations), sum(equations))
    through_rows, s_rows = through.split(equations, 1), s.split(equations, 1)
    for row, (block, lattice) in enumerate(zip(blocks, own.lattices, strict=True)):
        found = block.flatten(0, 1) @ lattice  # one product for all victims: small ones are slow
        found = found.unflatten(1, (n, -1)).transpose(0, 1)  # [n, C, equations of a channel, n1 + columns]
        through_rows[row].view(*found.shape[:3], n1).copy_(found[..., :n1])
        columns = found[..., n1:].split([channels * b.shape[2] for b in blocks[: row + 1]], -1)
        for other, part, target in zip(blocks, columns, s_rows[row].split(equations, 2), strict=False):
            pixels = part.unflatten(-1, (channels, -1)).transpose(2, 3)  # [n, C, C, equations, pixels]
            both = (pixels @ other.mT[:, None, None]).transpose(2, 3)
            target.copy_(both.flatten(3).flatten(1, 2))
    return through, s


def _curvature(own: Layers, one: Victims, z: Tensor, a: Tensor) -> Tensor:
    """The slope of D1(z) u over z, with u = T (z - b1) held: [C 6 25, n1], of one victim."""
    patches = _patches(own, own.carry @ (z - own.b1)).unflatten(0, (len(one.first), -1))  # [C, 25, 14 14]
    bend = (one.back * a * (1 - a) * (1 - 2 * a)).view(own.shape[0], -1)
    channels = torch.eye(own.shape[0]).to(z)
    return torch.einsum("cip,op,oq->coiqp", patches, bend, channels).reshape(one.first.numel(), -1)


def _pooled_convolution(weight: Tensor, side: int) -> Tensor:
    """Convolution and 2x2 average pooling as one matrix, [c s s, C side side]: a window that moves by 2."""
    window = _unpool(weight)
    pooled = (side - weight.shape[-1] + 1) // 2
    matrix = weight.new_zeros(len(weight), pooled, pooled, weight.shape[1], side, side)
    for i, j in product(range(pooled), repeat=2):
        y, x = slice(2 * i, 2 * i + window.shape[-1]), slice(2 * j, 2 * j + window.shape[-1])
        matrix[:, i, j, :, y, x] = window
    return matrix.flatten(3).flatten(0, 2)


def _correlation(delta: Tensor, side: int) -> Tensor:
    """The weight gradient of a convolution with 2x2 average pooling, as a matrix on one input channel.

    delta [..., c, s, s] is the gradient of the pooled output; -> [..., c k k, side side], k = side - 2 s + 1.
    """
    return _unpool(_strided_correlation(delta, side - 1)).flatten(-2).flatten(-4, -2)


def _strided_correlation(delta: Tensor, side: int) -> Tensor:
    """The same on an input channel that was pooled before the convolution, with stride 1: [..., c, k, k, side, side]."""
    n = 2 * delta.shape[-1]
    k = side - n + 2
    matrix = delta.new_zeros(*delta.shape[:-2], k, k, side, side)
    for i, j in product(range(k), repeat=2):
        matrix[..., i, j, i : i + n : 2, j : j + n : 2] = delta
    return matrix


def _unpool(t: Tensor) -> Tensor:
    """The adjoint of 2x2 average pooling with stride 1: [..., s, s] -> [..., s + 1, s + 1]."""
    padded = F.pad(t, (1, 1, 1, 1))
    return (padded[..., 1:, 1:] + padded[..., 1:, :-1] + padded[..., :-1, 1:] + padded[..., :-1, :-1]) / 4


def _size(t: Tensor) -> Tensor:
    """Root mean square of each victim's tensor, [n]."""
    return t.square().flatten(1).mean(1).sqrt().clamp_min(1e-300)
