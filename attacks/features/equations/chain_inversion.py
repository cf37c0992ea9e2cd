"""Any chain of affine layers and activations with an inverse, inverted by the equations of one image's gradient.

With a_0 = x, z_l = A_l(a_{l-1}) and a_l = phi_l(z_l), the features h and their gradient dL/dh, which the head shows in closed form,
    z_L                = phi_L^-1(h)                      or, where pooling ends the network, A_L(a_{L-1}) = h
    dL/dW_l            = D_l(dL/dz_l) a_{l-1}             of every weight; dL/dz_L = phi_L'(z_L) dL/dh
    dL/dz_{l-1}        = phi_{l-1}'(z_{l-1}) A_l' dL/dz_l
R-GAP (Zhu and Blaschko, ICLR 2021, arXiv 2010.07733) solves each layer's two lines for its input, from the last layer to the first,
by pseudo-inverses. What one layer's equations leave open is lost there. Here the layers are solved together for the image, and a
Gaussian prior, u = 2x - 1 ~ N(0, Sigma), fills in what all of them leave open: the image is the most probable one given all
equations, each with an error of the order of single precision. The gradients of biases are left out: they repeat these.

F(u) = sum of (misfit / error)^2 + u' Sigma^-1 u is minimised by Gauss-Newton from grey, over c = Sigma^-1/2 u, of which each step
solves (J' J + 1) d = -(J' r + c). Level by level (LEVELS) errors shrink from 100,000 times to once, since far from the solution the
slopes are wrong; and kinks, at which F jumps, are rounded less and less. On LeNet-5 this is the F of attacks/features/layerwise.py,
which is faster there, since it is written for those layers.

The levels were chosen on CIFAR-10 training images 50-53, in grey at 16x16, and three leaky networks, untrained and trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vjp

from attacks.common import problem
from attacks.common.batched import Descent, each_of
from attacks.common.priors import GaussianPrior
from attacks.common.problem import InversionProblem
from privbench.errors import UserError
from privbench.networks import layer_chain
from privbench.networks.layer_chain import Block
from privbench.tensors import Params
from privbench.types import Progress, no_progress

ERROR = 3e-6  # of h, z_L and dL/dW_L, relative; of the last two to their root mean square
LOWER_ERROR = 3e-5  # of the other weights' gradients, whose coefficients inherit the error of dL/dz_L
FEATURE_ERROR = 1e-12  # absolute error of a feature near 0
# One after another: the factor on all errors, and how wide kinks are rounded, relative to the root mean square of the top.
LEVELS = ((1e5, 1.0), (1e4, 0.3), (1e3, 0.1), (300.0, 0.03), (100.0, 0.01), (30.0, 0.003), (1.0, 0.0))
MOST_HALVINGS = 10
ROUGH_GAIN, SMALL_GAIN = 0.1, 1e-3  # of F: ends a level, and the last
DIRECTIONS = 128  # in which slopes are taken at once
MOST_SLOPES = 2**26  # equations x numbers of an image; in double precision 0.5 GB


Level = tuple[float, float]


class Equations(NamedTuple):
    """What one victim's gradient says."""

    top: Tensor  # z_L, or h where the last block has no activation, [1, ...]
    top_error: Tensor  # [1, ...]
    back: Tensor  # dL/dz_L [1, ...]
    gradients: Params  # dL/dW of weights, of two axes or more
    errors: Params  # a number each


def invert(
    posed: InversionProblem,
    h: Tensor,
    gaussian: GaussianPrior,
    steps: int,
    levels: int = len(LEVELS),
    progress: Progress = no_progress,
) -> Descent:
    """The most probable image of every victim: x [V, 1, C, H, W], with F as loss and trace.

    h [V, c, s, s] are the closed-form features; at most so many `steps` at each of the first `levels`. A victim whose equations
    cannot be solved keeps its last good image, grey at first. UserError: an extractor that is no such chain, or is too large.
    """
    params, shape = posed.weights["extractor"], (*gaussian.variance.shape[:1], *gaussian.variance.shape[-2:])
    net, buffers = posed.model.net("extractor"), posed.buffers["extractor"]
    blocks = layer_chain.chain_of(net, params, buffers, shape, train=posed.train)
    ends, slopes = [], problem.feature_slope(posed)
    for v, features in enumerate(h.split(1)):
        progress(v, len(h), "layerwise inversion")
        gradients = {n: posed.observed[f"extractor/{n}"][v] for n in params}
        grey = features.new_full((1, *shape), 0.5)
        shown = equations(blocks, params, features, slopes[v : v + 1], gradients, grey)
        ends.append(ImagePosterior(blocks, params, shown, gaussian, shape).solve(steps, LEVELS[:levels]))
    longest = max(len(trace) for _, trace in ends)
    trace = torch.stack([F.pad(t, (0, longest - len(t)), value=float(t[-1])) for _, t in ends])
    return Descent(torch.stack([x for x, _ in ends]), trace[:, -1], trace, sum(len(t) for _, t in ends))


def equations(
    blocks: Sequence[Block], params: Params, h: Tensor, back: Tensor, gradients: Params, image: Tensor
) -> Equations:
    """The equations of features h and back = dL/dh, both [1, c, s, s], and of the extractor's gradients by parameter.

    `image` is any [1, C, H, W].
    """
    last, entered = blocks[-1], forward(blocks, params, image)[-1].entered
    offset = last.affine(params, torch.zeros_like(entered))
    h, back = h.view_as(offset), back.view_as(offset)
    z, slope = h, torch.ones_like(h)
    if last.activation is not None:
        z = last.activation.inverse(h)
        slope = vjp(last.activation.forward, z)[1](slope)[0]
    own = (ERROR * h.abs() + FEATURE_ERROR) / slope
    error = (own.square() + ERROR**2 * (z - offset).square().mean()).sqrt()
    weights = {n: gradients[n] for block in blocks for n in block.names if gradients[n].ndim > 1}
    errors = {n: (ERROR if n in last.names else LOWER_ERROR) * _size(t) for n, t in weights.items()}
    return Equations(z, error, back * slope, weights, errors)


class Layer(NamedTuple):
    """What an image makes of a block."""

    entered: Tensor  # a_{l-1}
    z: Tensor


def forward(blocks: Sequence[Block], params: Params, x: Tensor, width: Tensor | None = None) -> list[Layer]:
    """The layers of an image x [1, C, H, W]; kinks are rounded by `width`."""
    layers: list[Layer] = []
    for n, block in enumerate(blocks):
        entered = _activated(blocks[n - 1], layers[-1].z, width) if n else x
        layers.append(Layer(entered, block.affine(params, entered)))
    return layers


def residuals(
    blocks: Sequence[Block], params: Params, shown: Equations, x: Tensor, width: Tensor | None = None
) -> Tensor:
    """What an image x [1, C, H, W] leaves unexplained of every equation, over its error, [m]; kinks are rounded by `width`."""
    layers = forward(blocks, params, x, width)
    left, delta = [(layers[-1].z - shown.top) / shown.top_error], shown.back
    for n in reversed(range(len(blocks))):
        own = {name: params[name] for name in blocks[n].names if name in shown.gradients}
        gradient, delta = vjp(partial(_applied, blocks[n], params), own, layers[n].entered)[1](delta)
        left += [(gradient[name] - shown.gradients[name]) / shown.errors[name] for name in own]
        if n:
            (delta,) = vjp(partial(_activated, blocks[n - 1], width=width), layers[n - 1].z)[1](delta)
    return torch.cat([t.flatten() for t in left])


@dataclass(frozen=True)
class ImagePosterior:
    """F of one victim."""

    blocks: Sequence[Block]
    params: Params
    shown: Equations
    gaussian: GaussianPrior
    shape: tuple[int, ...]

    def image(self, c: Tensor) -> Tensor:
        """x [1, C, H, W] of c [D]."""
        return (self.gaussian.root(c[None]).view(1, *self.shape) + 1) / 2

    def residuals(self, c: Tensor, level: Level) -> Tensor:
        """Those of all equations, over their errors at a level."""
        width = level[1] * _size(self.shown.top) if level[1] else None
        return residuals(self.blocks, self.params, self.shown, self.image(c), width) / level[0]

    def objective(self, c: Tensor, level: Level) -> Tensor:
        """F at a level."""
        return self.residuals(c, level).square().sum() + c.square().sum()

    def solve(self, steps: int, levels: Sequence[Level]) -> tuple[Tensor, Tensor]:
        """(the most probable image [1, C, H, W], the lowest F so far after every step, with the errors as they are)."""
        c = self.shown.top.new_zeros(self.gaussian.variance.numel())
        equations = len(self.residuals(c, LEVELS[-1]))
        if equations * len(c) > MOST_SLOPES:
            raise UserError(
                f"not applicable: {equations:,} equations of {len(c):,} numbers are more than this attack solves"
            )
        best, trace = c, [self.objective(c, LEVELS[-1])]
        for level in levels:
            for stepped in self._steps(c, steps, level):
                c, objective = stepped, self.objective(stepped, LEVELS[-1])
                best = c if objective < trace[-1] else best
                trace.append(torch.minimum(objective, trace[-1]))
        return self.image(best), torch.stack(trace)

    def _steps(self, c: Tensor, steps: int, level: Level) -> Iterator[Tensor]:
        """c after every step of Gauss-Newton at a level, each halved until F falls."""
        now = self.objective(c, level)
        for _ in range(steps):
            step = self.newton(c, level)
            for halving in range(MOST_HALVINGS):
                trial = c + 0.5**halving * step
                after = self.objective(trial, level)
                if after < now:
                    break
            else:
                return
            c, gain, now = trial, 1 - after / now, after
            yield c
            if gain < (SMALL_GAIN if level == LEVELS[-1] else ROUGH_GAIN):
                return

    def newton(self, c: Tensor, level: Level) -> Tensor:
        """The step of Gauss-Newton; NaN where the system is singular."""
        left, back = vjp(partial(self.residuals, level=level), c)[:2]
        slopes = _slopes(back, c, left)
        system = slopes @ slopes.mT
        system.diagonal().add_(1)
        root, failed = torch.linalg.cholesky_ex(system)
        return -torch.cholesky_solve((slopes @ left + c)[:, None], root)[:, 0].where(failed == 0, torch.nan)


def _slopes(back: Callable[[Tensor], tuple[Tensor]], c: Tensor, left: Tensor) -> Tensor:
    """J' [D, m] of m residuals over c [D], where back(u) = (J' u,).

    By the residuals, or by the numbers of c, each of which takes twice as long: J d is the slope of u' J d over u. Forward mode
    would do for these, but torch compiles it by what it deprecates.
    """
    slopes = left.new_empty(len(c), len(left))
    if len(left) < 2 * len(c):
        for rows in torch.arange(len(left), device=c.device).split(DIRECTIONS):
            slopes[:, rows] = each_of(lambda u: back(u)[0])(F.one_hot(rows, len(left)).to(c)).mT
        return slopes
    forth = vjp(lambda u: back(u)[0], torch.zeros_like(left))[1]
    for rows in torch.arange(len(c), device=c.device).split(DIRECTIONS):
        slopes[rows] = each_of(lambda d: forth(d)[0])(F.one_hot(rows, len(c)).to(c))
    return slopes


def _applied(block: Block, params: Params, own: Params, a: Tensor) -> Tensor:
    return block.affine(params | own, a)


def _activated(block: Block, z: Tensor, width: Tensor | None) -> Tensor:
    if block.activation is None:
        return z
    if width is None or block.activation.rounded is None:
        return block.activation.forward(z)
    return block.activation.rounded(z, width)


def _size(t: Tensor) -> Tensor:
    """Root mean square."""
    return t.square().mean().sqrt().clamp_min(1e-300)
