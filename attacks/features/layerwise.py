"""LeNet-5's extractor inverted layer by layer: from features to image by equations instead of descent, one image per gradient.

Both convolutions see their input through 2x2 average pooling with stride 1 (here: pool), and all that the gradient says of the
activations a1 = sigmoid(z1) is linear in p = pool(a1), 1,014 values. Features h in closed form and the label give dL/dz2, and
    dL/dW2  = D2 p        2,400 equations, D2 the correlation with dL/dz2, the same for every channel
    z2 - b2 = K2 p          400 equations
    z1 - b1 = K1 u        1,176 equations, K1 convolution and pooling as one linear map; u = 2x - 1
    dL/dW1  = D1(z1) u      450 equations, D1 the correlation with dL/dz1 = (pool' K2' dL/dz2) a1 (1 - a1)
R-GAP inverts layers so (Zhu and Blaschko, ICLR 2021, arXiv 2010.07733), by pseudo-inverses. These are about 1,460 independent
equations for a colour image of 3,072 values, so here a Gaussian prior, u ~ N(0, Sigma), fills in the rest: the image is the
most probable one given all equations, each with an error of the order of single precision.

The first two lines are solved for p by least squares, p ~ N(p^, N). Gauss-Newton for u then runs in the space of the equations
(Rodgers, Inverse Methods for Atmospheric Sounding, 2000, Eq. 5.10): with J the slope of pool(a1) and dL/dW1 over u and y - f
what they leave unexplained,
    u <- Sigma w   w = J' v   (J Sigma J' + errors) v = y - f(u) + J u
so that only M = K1 Sigma K1' is made once for all victims and each has one Cholesky factor of 1,014 or 1,464 rows a step.
LEVELS follow one another: (0) p alone with the slopes at grey, which all victims and steps share; sufficient where the network
is nearly linear, as untrained ones are. (1-3) the others: from z1 computed from p, p alone with errors taken as large first. (4)
everything. Images and dL/dW1 are kept in the prior's colours, of which it says that they are independent.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad

from attacks.common.descend import Descent, each_of
from attacks.common.priors import GaussianPrior
from attacks.common.problem import InversionProblem
from privbench.errors import UserError
from privbench.types import Progress, no_progress

ERROR = 3e-6  # of z2 and dL/dW2, relative to their root mean square
FIRST_ERROR = 3e-5  # of dL/dW1, whose coefficients D1 inherit the error of z1
FEATURE_ERROR = 1e-12  # absolute error of a feature near 0, beside ERROR relative to it
SATURATED = 1e-7  # features nearer to 1 are rounding
POOLED_SPREAD = 0.5  # of p around 1/2 before anything is known: keeps N finite
COMMON_ERROR = 3e-6  # of p while all victims share one factor
COMMON_STEPS = 4
SOLVED = 1e-6  # of the misfit of grey: below it the shared factor was enough
CLEAR = 1e-3  # pixels of a1 computed from p stay so far from 0 and 1
LEVELS = ("common", "rough", "finer", "pooled", "all")
FACTORS = {"rough": 1e3, "finer": 30.0, "pooled": 1.0, "all": 1.0}  # on the errors
MOST_HALVINGS = 10
ROUGH_GAIN, SMALL_GAIN = 0.1, 1e-3  # of F: ends a level, and the last, which alone decides where F's minimum is found
CHUNK = 32  # victims solved at once: about 15 MB each


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


def layers(posed: InversionProblem, gaussian: GaussianPrior) -> Layers:
    """The linear maps of the problem's extractor, and the prior seen through them; UserError unless it is LeNet-5's."""
    if posed.model.backbone != "lenet5":
        raise UserError(
            f"layerwise inversion solves LeNet-5's equations, but the networks are {posed.model.backbone}; try --attack staged"
        )
    e = posed.weights["extractor"]
    side, kernel = gaussian.variance.shape[-1], e["conv1.weight"].shape[-1]
    window = _unpool(torch.einsum("kc,ochw->okhw", gaussian.colours, e["conv1.weight"]))
    z_side = (side - kernel + 1) // 2
    k1 = _moved(window, side).view(-1, z_side, z_side, *gaussian.variance.shape)
    rows = k1[:, 0, :, :, : kernel + 1].permute(2, 0, 1, 3, 4).flatten(3).flatten(1, 2).mT
    smooth = gaussian.smooth(k1.flatten(0, 2))
    spread = torch.stack([_by_row(smooth[:, k], block) for k, block in enumerate(rows)]).sum(0)
    b1 = e["conv1.bias"][:, None, None].expand(-1, z_side, z_side).contiguous()
    k2 = _moved(e["conv2.weight"], z_side - 1)
    b2 = e["conv2.bias"].repeat_interleave(len(k2) // len(e["conv2.bias"]))
    grey = _pooled_spread(spread, _slope(torch.sigmoid(b1)))
    grey.diagonal().add_(COMMON_ERROR**2)
    return Layers(
        gaussian, kernel, window, rows, b1, e["conv2.weight"], k2, b2, spread, torch.linalg.cholesky_ex(grey).L
    )


def victims(posed: InversionProblem, own: Layers, h: Tensor, rows: Tensor) -> Victims:
    """The equations of the victims in `rows` [n]; h [V, c, s, s] are the features of all."""

    def loss(features: Tensor, label: Tensor) -> Tensor:
        logits, _ = posed.model.net("classifier").apply(posed.weights["classifier"], {}, features[None], train=True)
        return F.cross_entropy(logits, label)

    kept = h[rows].clamp(FEATURE_ERROR, 1 - SATURATED)
    delta = each_of(grad(loss))(h[rows], posed.labels[rows]) * _slope(kept)
    flat = kept.flatten(1)
    z2 = torch.logit(flat) - own.b2
    relative = (ERROR * flat + FEATURE_ERROR) / _slope(flat)
    certainty = (relative.square() + ERROR**2 * z2.square().mean(1, keepdim=True)).rsqrt()
    second, first = (posed.observed[f"extractor/{n}.weight"][rows] for n in ("conv2", "conv1"))
    error = (ERROR * _size(second))[:, None, None]
    d2 = _strided_correlation(delta, own.b1.shape[-1] - 1).flatten(-2).flatten(1, 3) / error
    c = second.transpose(1, 2).flatten(2).mT / error
    back = _unpool(F.conv_transpose2d(delta, own.second, stride=2))
    first = torch.einsum("kc,nochw->nkohw", own.gaussian.colours, first).flatten(3)
    return Victims(z2 * certainty, certainty, d2, c, back, first, (FIRST_ERROR * _size(first)).square())


def invert(
    posed: InversionProblem,
    h: Tensor,
    gaussian: GaussianPrior,
    iterations: int,
    progress: Progress = no_progress,
    levels: int = len(LEVELS),
) -> Descent:
    """The most probable image of every victim: x [V, 1, C, H, W], with F at the last level as loss and trace.

    h [V, c, s, s] are the closed-form features; `iterations` at most per level, and the first so many `levels`. A victim
    whose equations cannot be solved keeps its last good image, grey at first.
    """
    own = layers(posed, gaussian)
    ends = []
    for rows in torch.arange(len(h), device=h.device).split(CHUNK):
        progress(int(rows[0]), len(h), "layerwise inversion")
        ends.append(_solve(own, victims(posed, own, h, rows), iterations, LEVELS[1:levels]))
    longest = max(end.trace.shape[1] for end in ends)
    trace = torch.cat([F.pad(t, (0, longest - t.shape[1]), "replicate") for t in (end.trace for end in ends)])
    x = (torch.einsum("kc,nkhw->nchw", gaussian.colours, torch.cat([end.x for end in ends])) + 1) / 2
    return Descent(x[:, None], trace[:, -1], trace, sum(end.evaluations for end in ends))


def _solve(own: Layers, some: Victims, iterations: int, levels: tuple[str, ...]) -> Descent:
    """The best u [n, C, H, W] of a chunk of victims; its trace: the best negative log posterior so far, after every iteration."""
    everyone = torch.arange(len(some.first), device=some.first.device)
    grey = own.b1.new_zeros(len(everyone), *own.gaussian.variance.shape)
    best, lowest = grey.clone(), neg_log_posterior(own, some, LatentImages(grey, grey))
    trace, evaluations = [lowest], len(everyone)

    def keep(rows: Tensor, found: Tensor, now: LatentImages) -> None:
        nonlocal lowest, evaluations
        better = found < lowest[rows]
        best[rows[better]] = now.u[better]
        lowest = lowest.index_put((rows[better],), found[better])
        trace.append(lowest)
        evaluations += len(rows)

    p = _pooled(some)
    now = _common(own, p)
    keep(everyone, neg_log_posterior(own, some, now), now)
    if levels:
        harder = ~(_misfit(own, some, _activations(own, now.u)) < SOLVED * _misfit(own, some, _activations(own, grey)))
        normals = [_pooled_normal(own, one) for one in _each(some)]
        start = torch.logit((_unpool(p) / _unpool(torch.ones_like(p))).clamp(CLEAR, 1 - CLEAR))
        for v in torch.nonzero(harder)[:, 0].tolist():
            first = _pick(some, v)
            now.u[v], now.w[v] = _newton(own, first, normals[v], start[v], now.u[v], FACTORS[levels[0]], False)
    for level in levels:
        rows = everyone if level == "all" else everyone[harder]
        for _ in range(iterations):
            if not len(rows):
                break
            under_way = _pick(some, rows)
            step, gain = _iterate(
                own, under_way, [normals[v] for v in rows], LatentImages(now.u[rows], now.w[rows]), level
            )
            now.u[rows], now.w[rows] = step
            keep(rows, neg_log_posterior(own, under_way, step), step)
            rows = rows[gain > (SMALL_GAIN if level == "all" else ROUGH_GAIN)]
    return Descent(best, lowest, torch.stack(trace, 1), evaluations)


def _pick(some: Victims, rows: Tensor | int) -> Victims:
    return Victims(*(t[rows] for t in some))


def _each(some: Victims) -> list[Victims]:
    """The victims one by one, whose tensors have no axis n."""
    return [_pick(some, v) for v in range(len(some.first))]


def neg_log_posterior(own: Layers, some: Victims, images: LatentImages) -> Tensor:
    """Twice the negative logarithm of each image's probability given all equations, up to a constant, [n]."""
    return _objective(own, some, images, "all")


def _objective(own: Layers, some: Victims, images: LatentImages, level: str) -> Tensor:
    """F [n]: the misfits of a level's equations and u' Sigma^-1 u."""
    a = _activations(own, images.u)
    f = _misfit(own, some, a) / FACTORS[level] ** 2 + (images.u * images.w).flatten(1).sum(1)
    if level != "all":
        return f
    gap = some.first - _first(own, some, a, images.u)
    return f + gap.square().flatten(1).sum(1) / some.error


def _activations(own: Layers, u: Tensor) -> Tensor:
    return torch.sigmoid(_z1(own, u))


def _z1(own: Layers, u: Tensor) -> Tensor:
    """K1 u + b1, [n, 6, 14, 14]."""
    return F.conv2d(u, own.window, stride=2) + own.b1


def _misfit(own: Layers, some: Victims, a: Tensor) -> Tensor:
    """|K2 p - (z2 - b2)|^2 + |D2 p - dL/dW2|^2 over their errors, [n], of a [n, 6, 14, 14]."""
    p = _pool(a).flatten(2)
    of_z2 = (p.flatten(1) @ own.k2.T) * some.certainty - some.z2
    of_second = some.d2 @ p.mT - some.second
    return of_z2.square().sum(1) + of_second.square().flatten(1).sum(1)


def _first(own: Layers, some: Victims, a: Tensor, u: Tensor) -> Tensor:
    """D1 u, [n, C, 6, 25]."""
    delta = (some.back * _slope(a)).flatten(2)
    return delta[:, None] @ _patches(own, u).mT


def _patches(own: Layers, u: Tensor) -> Tensor:
    """The pooled image under each weight of the first convolution, [n, C, 25, 14 14]."""
    return F.unfold(_pool(u), own.kernel, stride=2).unflatten(1, (u.shape[1], -1))


def _pooled(some: Victims) -> Tensor:
    """p [n, 6, 13, 13] by dL/dW2 alone; NaN where that has no solution."""
    normal = some.d2.mT @ some.d2
    normal.diagonal(dim1=1, dim2=2).add_(POOLED_SPREAD**-2)
    root, failed = torch.linalg.cholesky_ex(normal)
    p = torch.cholesky_solve(some.d2.mT @ some.second + POOLED_SPREAD**-2 / 2, root)
    return p.where(failed[:, None, None] == 0, torch.nan).mT.unflatten(2, (round(p.shape[1] ** 0.5), -1))


def _pooled_normal(own: Layers, one: Victims) -> tuple[Tensor, Tensor]:
    """(N [np, np], p^ [np]) of one victim, by both equations of p."""
    z2, target = own.k2 * one.certainty[:, None], (one.d2.T @ one.second).T.flatten() + POOLED_SPREAD**-2 / 2
    normal = one.d2.T @ one.d2
    normal.diagonal().add_(POOLED_SPREAD**-2)
    noise = torch.cholesky_inverse(torch.linalg.cholesky_ex(normal).L)  # of one channel, by dL/dW2 alone
    seen = (z2.unflatten(1, (len(own.b1), -1)) @ noise).flatten(1)
    both = seen @ z2.T
    both.diagonal().add_(1)
    drop = torch.linalg.solve_triangular(torch.linalg.cholesky_ex(both).L, seen, upper=False)
    whole = torch.block_diag(*[noise] * len(own.b1)).addmm_(drop.T, drop, alpha=-1)
    return whole, whole @ (target + one.z2 @ z2)


def _common(own: Layers, p: Tensor) -> LatentImages:
    """Level 0: Gauss-Newton with the slopes at grey, for all p [n, 6, 13, 13] at once."""
    slope, z = _slope(torch.sigmoid(own.b1)), own.b1.expand(len(p), -1, -1, -1)
    v = torch.zeros_like(z)
    for _ in range(COMMON_STEPS):
        gap = p - _pool(torch.sigmoid(z) - slope * (z - own.b1))
        v = slope * _unpool(torch.cholesky_solve(gap.flatten(1).T, own.common).T.view_as(p))
        z = own.b1 + (v.flatten(1) @ own.spread).view_as(z)
    return _images(own, v, 0.0)


def _iterate(
    own: Layers, some: Victims, normals: list[tuple[Tensor, Tensor]], images: LatentImages, level: str
) -> tuple[LatentImages, Tensor]:
    """One Gauss-Newton step of F, halved until F falls: (images, relative gain [n])."""
    z, each = _z1(own, images.u), zip(_each(some), normals, strict=True)
    ends = [
        _newton(own, one, normal, z[v], images.u[v], FACTORS[level], level == "all")
        for v, (one, normal) in enumerate(each)
    ]
    u, w = (torch.stack(t) for t in zip(*ends, strict=True))
    before = _objective(own, some, images, level)
    now, gain = LatentImages(images.u.clone(), images.w.clone()), torch.zeros_like(before)
    rows = torch.arange(len(z), device=z.device)
    for halving in range(MOST_HALVINGS):
        trial = LatentImages(
            *(old[rows].lerp(new[rows], 0.5**halving) for old, new in zip(images, (u, w), strict=True))
        )
        after = _objective(own, _pick(some, rows), trial, level)
        lower = after < before[rows]
        now.u[rows[lower]], now.w[rows[lower]] = trial.u[lower], trial.w[lower]
        gain[rows[lower]] = (1 - after / before[rows])[lower]
        rows = rows[~lower]
        if not len(rows):
            break
    return now, gain


def _newton(
    own: Layers, one: Victims, normal: tuple[Tensor, Tensor], z: Tensor, u: Tensor, factor: float, whole: bool
) -> LatentImages:
    """Where the equations of one victim are solved when linearised at z [6, 14, 14] and u [C, H, W]; NaN if singular.

    The equations are those of p, with their errors times `factor`, and with `whole` those of dL/dW1.
    """
    a, (noise, p) = torch.sigmoid(z), normal
    slope = _slope(a)
    system = _pooled_spread(own.spread, slope).add_(noise, alpha=factor**2)
    gap = p - _pool(a - slope * (z - own.b1)).flatten()
    if not whole:
        v = slope * _unpool(_solved(system, gap).view(len(z), z.shape[1] - 1, -1))
        return LatentImages(*(t[0] for t in _images(own, v[None], 0.0)))
    d1 = _correlation(one.back * slope, u.shape[-1]).unflatten(1, u.shape[1:])  # [6 25, H, W]
    bend = _bend(own, one, a, u)
    first_z, first_first = _first_spread(own, d1, bend)
    first_first.diagonal().add_(one.error)
    n, across = len(gap), _pool((first_z * slope.flatten()).unflatten(1, z.shape)).flatten(1)
    whole_system = F.pad(system, (0, len(first_z), 0, len(first_z)))  # only the lower triangle is read
    whole_system[n:, :n], whole_system[n:, n:] = across, first_first
    first_gap = one.first + (bend @ (z - own.b1).flatten(1)[:, :, None])[..., 0].unflatten(1, (len(u), -1)).transpose(
        0, 1
    )
    found = _solved(whole_system, torch.cat([gap, first_gap.flatten()]))
    weights = found[n:].view_as(one.first)  # [C, 6, 25]
    v = slope * _unpool(found[:n].view(len(z), z.shape[1] - 1, -1))
    v = v + (weights.transpose(0, 1).flatten(1)[:, None] @ bend).view_as(v)
    return LatentImages(*(t[0] for t in _images(own, v[None], (weights.flatten(1) @ d1.flatten(1)).view_as(u))))


def _solved(system: Tensor, gap: Tensor) -> Tensor:
    """system^-1 gap, by the lower triangle; NaN where it is not positive definite."""
    root, failed = torch.linalg.cholesky_ex(system)
    return torch.cholesky_solve(gap[:, None], root)[:, 0].where(failed == 0, torch.nan)


def _images(own: Layers, v: Tensor, rest: Tensor | float) -> LatentImages:
    """w = K1' v + rest, and u = Sigma w, of v [n, 6, 14, 14]."""
    w = F.conv_transpose2d(v, own.window, stride=2) + rest
    return LatentImages(own.gaussian.smooth(w), w)


def _bend(own: Layers, one: Victims, a: Tensor, u: Tensor) -> Tensor:
    """The slope of D1(z) u over z, u held, of one victim: its blocks [6, C 25, 14 14], one for each channel of z."""
    bend = (one.back * _slope(a) * (1 - 2 * a)).flatten(1)
    return (_patches(own, u[None])[0] * bend[:, None, None]).flatten(1, 2)


def _first_spread(own: Layers, d1: Tensor, bend: Tensor) -> tuple[Tensor, Tensor]:
    """J1 Sigma K1' [C 6 25, n1] and J1 Sigma J1' [C 6 25, C 6 25], J1 = D1 + bend K1; d1 [6 25, H, W] on each colour."""
    (outputs, _, pixels), colours = bend.shape, len(own.rows)

    def by_equation(t: Tensor) -> Tensor:
        """[6, C 25, m] -> [C 6 25, m]."""
        return t.unflatten(1, (colours, -1)).transpose(0, 1).flatten(0, 2)

    def bent(t: Tensor) -> Tensor:
        """t bend', [C 6 25, n1] -> [C 6 25, C 6 25]."""
        return by_equation((t.unflatten(1, (outputs, pixels)).transpose(0, 1) @ bend.mT).mT).T

    smooth = own.gaussian.smooth(d1[:, None].expand(-1, colours, -1, -1))
    straight = torch.cat([_by_row(smooth[:, k], block) for k, block in enumerate(own.rows)])
    through = straight + by_equation(bend @ own.spread.unflatten(0, (outputs, pixels)))
    blocks = torch.block_diag(*(smooth.transpose(0, 1).flatten(2) @ d1.flatten(1).T))
    return through, blocks + bent(through) + bent(straight).T


def _pooled_spread(spread: Tensor, slope: Tensor) -> Tensor:
    """The covariance of p to first order, [np, np], of M and the slopes of the activations [6, 14, 14]."""
    both = (spread * slope.flatten()).mul_(slope.flatten()[:, None]).unflatten(1, slope.shape)
    return _pool(_pool(both).flatten(1).T.unflatten(1, slope.shape)).flatten(1)


def _by_row(t: Tensor, block: Tensor) -> Tensor:
    """K1 on images [n, H, W] of one colour, -> [n, n1], as one product for each row of z1; block is Layers.rows of it."""
    height = block.shape[0] // t.shape[-1]
    each = [t[:, y : y + height].flatten(1) @ block for y in range(0, t.shape[1] - height + 1, 2)]
    return torch.stack([row.unflatten(1, (-1, len(each))) for row in each], 2).flatten(1)


def _moved(window: Tensor, side: int) -> Tensor:
    """A window [c, C, k, k] that moves by 2 over a square, as a matrix: [c s s, C side side]."""
    size = window.shape[-1]
    ends = (side - size) // 2 + 1
    matrix = window.new_zeros(len(window), ends, ends, window.shape[1], side, side)
    for i, j in product(range(ends), repeat=2):
        matrix[:, i, j, :, 2 * i : 2 * i + size, 2 * j : 2 * j + size] = window
    return matrix.flatten(3).flatten(0, 2)


def _slope(a: Tensor) -> Tensor:
    """The sigmoid's slope where its value is a."""
    return a * (1 - a)


def _pool(t: Tensor) -> Tensor:
    """2x2 average pooling with stride 1, [..., s, s] -> [..., s - 1, s - 1]; faster in double precision than avg_pool2d."""
    down = t[..., 1:, :] + t[..., :-1, :]
    return (down[..., 1:] + down[..., :-1]).mul_(0.25)


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
