"""LeNet-5's extractor inverted layer by layer: from features to image by equations instead of descent, one image per gradient.

Both convolutions see their input through 2x2 average pooling with stride 1 (here: pool), and all that the gradient says of the
activations a1 = sigmoid(z1) is linear in p = pool(a1), 1,014 values. C's gradient shows h and dL/dh in closed form, so dL/dz2, and
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

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.common.batched import Descent
from attacks.common.priors import GaussianPrior
from attacks.common.problem import InversionProblem
from attacks.features.equations import layer_equations
from attacks.features.equations.layer_equations import LatentImages, Layers, Victims
from attacks.features.equations.pooled_convolution import correlation, pool, sigmoid_slope, unpool
from privbench.types import Progress, no_progress

COMMON_STEPS = 4
SOLVED = 1e-6  # of the misfit of grey: below it the shared factor was enough
CLEAR = 1e-3  # pixels of a1 computed from p stay so far from 0 and 1
LEVELS = ("common", "rough", "finer", "pooled", "all")
FACTORS = {"rough": 1e3, "finer": 30.0, "pooled": 1.0, "all": 1.0}  # on the errors
MOST_HALVINGS = 10
ROUGH_GAIN, SMALL_GAIN = 0.1, 1e-3  # of F: ends a level, and the last, which alone decides where F's minimum is found
CHUNK = 32  # victims solved at once: about 15 MB each


def invert(
    posed: InversionProblem,
    h: Tensor,
    gaussian: GaussianPrior,
    iterations: int,
    progress: Progress = no_progress,
    levels: int = len(LEVELS),
    factor: float = 1.0,
) -> Descent:
    """The most probable image of every victim: x [V, 1, C, H, W], with F at the last level as loss and trace.

    h [V, c, s, s] are the closed-form features; `iterations` at most per level, and the first so many `levels`. The errors of
    all equations are `factor` times those of single precision. A victim whose equations cannot be solved keeps its last good
    image, grey at first.
    """
    layers = layer_equations.linear_maps(posed, gaussian, factor)
    ends = []
    for rows in torch.arange(len(h), device=h.device).split(CHUNK):
        progress(int(rows[0]), len(h), "layerwise inversion")
        shown = layer_equations.equations(posed, layers, h, rows, factor)
        ends.append(_solve(layers, shown, iterations, LEVELS[1:levels]))
    longest = max(end.trace.shape[1] for end in ends)
    trace = torch.cat([F.pad(t, (0, longest - t.shape[1]), "replicate") for t in (end.trace for end in ends)])
    x = (torch.einsum("kc,nkhw->nchw", gaussian.colours, torch.cat([end.x for end in ends])) + 1) / 2
    return Descent(x[:, None], trace[:, -1], trace, sum(end.evaluations for end in ends))


def _solve(layers: Layers, victims: Victims, iterations: int, levels: tuple[str, ...]) -> Descent:
    """The best u [n, C, H, W] of a chunk of victims; its trace: the best negative log posterior so far, after every iteration."""
    everyone = torch.arange(len(victims.first), device=victims.first.device)
    grey = layers.b1.new_zeros(len(everyone), *layers.gaussian.variance.shape)
    best, lowest = grey.clone(), neg_log_posterior(layers, victims, LatentImages(grey, grey))
    trace, evaluations = [lowest], len(everyone)

    def keep(rows: Tensor, objective: Tensor, now: LatentImages) -> None:
        nonlocal lowest, evaluations
        better = objective < lowest[rows]
        best[rows[better]] = now.u[better]
        lowest = lowest.index_put((rows[better],), objective[better])
        trace.append(lowest)
        evaluations += len(rows)

    p = layer_equations.pooled_by_gradient(victims)
    now = _common(layers, p)
    keep(everyone, neg_log_posterior(layers, victims, now), now)
    if levels:
        harder = ~(
            layer_equations.misfit(layers, victims, layer_equations.activations(layers, now.u))
            < SOLVED * layer_equations.misfit(layers, victims, layer_equations.activations(layers, grey))
        )
        normals = [layer_equations.pooled_normal(layers, one) for one in layer_equations.each(victims)]
        start = torch.logit((unpool(p) / unpool(torch.ones_like(p))).clamp(CLEAR, 1 - CLEAR))
        for v in torch.nonzero(harder)[:, 0].tolist():
            first = layer_equations.pick(victims, v)
            now.u[v], now.w[v] = _newton(layers, first, normals[v], start[v], now.u[v], FACTORS[levels[0]], False)
    for level in levels:
        rows = everyone if level == "all" else everyone[harder]
        for _ in range(iterations):
            if not len(rows):
                break
            under_way = layer_equations.pick(victims, rows)
            step, gain = _iterate(
                layers, under_way, [normals[v] for v in rows], LatentImages(now.u[rows], now.w[rows]), level
            )
            now.u[rows], now.w[rows] = step
            keep(rows, neg_log_posterior(layers, under_way, step), step)
            rows = rows[gain > (SMALL_GAIN if level == "all" else ROUGH_GAIN)]
    return Descent(best, lowest, torch.stack(trace, 1), evaluations)


def neg_log_posterior(layers: Layers, victims: Victims, images: LatentImages) -> Tensor:
    """Twice the negative logarithm of each image's probability given all equations, up to a constant, [n]."""
    return _objective(layers, victims, images, "all")


def _objective(layers: Layers, victims: Victims, images: LatentImages, level: str) -> Tensor:
    """F [n]: the misfits of a level's equations and u' Sigma^-1 u."""
    a = layer_equations.activations(layers, images.u)
    f = layer_equations.misfit(layers, victims, a) / FACTORS[level] ** 2 + (images.u * images.w).flatten(1).sum(1)
    if level != "all":
        return f
    gap = victims.first - layer_equations.first_gradient(layers, victims, a, images.u)
    return f + gap.square().flatten(1).sum(1) / victims.error


def _common(layers: Layers, p: Tensor) -> LatentImages:
    """Level 0: Gauss-Newton with the slopes at grey, for all p [n, 6, 13, 13] at once."""
    slope, z = sigmoid_slope(torch.sigmoid(layers.b1)), layers.b1.expand(len(p), -1, -1, -1)
    v = torch.zeros_like(z)
    for _ in range(COMMON_STEPS):
        gap = p - pool(torch.sigmoid(z) - slope * (z - layers.b1))
        v = slope * unpool(torch.cholesky_solve(gap.flatten(1).T, layers.common).T.view_as(p))
        z = layers.b1 + (v.flatten(1) @ layers.spread).view_as(z)
    return layer_equations.latent_images(layers, v, 0.0)


def _iterate(
    layers: Layers, victims: Victims, normals: list[tuple[Tensor, Tensor]], images: LatentImages, level: str
) -> tuple[LatentImages, Tensor]:
    """One Gauss-Newton step of F, halved until F falls: (images, relative gain [n])."""
    z, each = layer_equations.z1(layers, images.u), zip(layer_equations.each(victims), normals, strict=True)
    ends = [
        _newton(layers, one, normal, z[v], images.u[v], FACTORS[level], level == "all")
        for v, (one, normal) in enumerate(each)
    ]
    u, w = (torch.stack(t) for t in zip(*ends, strict=True))
    before = _objective(layers, victims, images, level)
    now, gain = LatentImages(images.u.clone(), images.w.clone()), torch.zeros_like(before)
    rows = torch.arange(len(z), device=z.device)
    for halving in range(MOST_HALVINGS):
        trial = LatentImages(
            *(old[rows].lerp(new[rows], 0.5**halving) for old, new in zip(images, (u, w), strict=True))
        )
        after = _objective(layers, layer_equations.pick(victims, rows), trial, level)
        lower = after < before[rows]
        now.u[rows[lower]], now.w[rows[lower]] = trial.u[lower], trial.w[lower]
        gain[rows[lower]] = (1 - after / before[rows])[lower]
        rows = rows[~lower]
        if not len(rows):
            break
    return now, gain


def _newton(
    layers: Layers, one: Victims, normal: tuple[Tensor, Tensor], z: Tensor, u: Tensor, factor: float, whole: bool
) -> LatentImages:
    """Where the equations of one victim are solved when linearised at z [6, 14, 14] and u [C, H, W]; NaN if singular.

    The equations are those of p, with their errors times `factor`, and with `whole` those of dL/dW1.
    """
    a, (noise, p) = torch.sigmoid(z), normal
    slope = sigmoid_slope(a)
    system = layer_equations.pooled_spread(layers.spread, slope).add_(noise, alpha=factor**2)
    gap = p - pool(a - slope * (z - layers.b1)).flatten()
    if not whole:
        v = slope * unpool(_solved(system, gap).view(len(z), z.shape[1] - 1, -1))
        return LatentImages(*(t[0] for t in layer_equations.latent_images(layers, v[None], 0.0)))
    d1 = correlation(one.back * slope, u.shape[-1]).unflatten(1, u.shape[1:])  # [6 25, H, W]
    bend = layer_equations.bend_of(layers, one, a, u)
    first_z, first_first = layer_equations.first_spread(layers, d1, bend)
    first_first.diagonal().add_(one.error)
    n, across = len(gap), pool((first_z * slope.flatten()).unflatten(1, z.shape)).flatten(1)
    whole_system = F.pad(system, (0, len(first_z), 0, len(first_z)))  # only the lower triangle is read
    whole_system[n:, :n], whole_system[n:, n:] = across, first_first
    first_gap = one.first + (bend @ (z - layers.b1).flatten(1)[:, :, None])[..., 0].unflatten(
        1, (len(u), -1)
    ).transpose(0, 1)
    v_and_weights = _solved(whole_system, torch.cat([gap, first_gap.flatten()]))
    weights = v_and_weights[n:].view_as(one.first)  # [C, 6, 25]
    v = slope * unpool(v_and_weights[:n].view(len(z), z.shape[1] - 1, -1))
    v = v + (weights.transpose(0, 1).flatten(1)[:, None] @ bend).view_as(v)
    return LatentImages(
        *(t[0] for t in layer_equations.latent_images(layers, v[None], (weights.flatten(1) @ d1.flatten(1)).view_as(u)))
    )


def _solved(system: Tensor, gap: Tensor) -> Tensor:
    """system^-1 gap, by the lower triangle; NaN where it is not positive definite."""
    root, failed = torch.linalg.cholesky_ex(system)
    return torch.cholesky_solve(gap[:, None], root)[:, 0].where(failed == 0, torch.nan)
