"""A denoiser of images, trained on the attacker's own: what he believes of images where a Gaussian prior ends.

    D(u, sigma) = mu + S (u - mu) + sigma / (1 + sigma) f(u, mu + S (u - mu), sigma),     S = Sigma (Sigma + sigma^2)^-1
    min over f of  mean over auxiliary images u, noise n and sigma of ||D(u + sigma n, sigma) - u||^2 / (sigma / (1 + sigma))^2
mu + S (u - mu) is the best linear estimate under the Gaussian prior N(mu, Sigma) of an image's class (Wiener); f, a small
convolutional network whose last layer begins at zero, learns what that lacks. Images are u = 2x - 1. Steps end where a tenth of the
images, held out, is met best, so that with few images D stays near Wiener's estimate.

f is FFDNet (Zhang, Zuo, Zhang, IEEE TIP 2018), far smaller: it works on 2x2 blocks as channels, and sigma is one of its inputs.
The least squares make D the posterior mean of an image under white noise (Miyasawa 1961; Robbins 1956).
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.common import training_cache
from attacks.common.priors import GaussianPrior
from attacks.features.inversion import ClassPrior
from privbench.networks.layers import uniform_init
from privbench.seeds import stream
from privbench.tensors import Params
from privbench.types import Batch

NOISE = (0.03, 1.0)  # sigma is drawn between these, its logarithm uniformly
WIDTH = 32
LAYERS = 3
STEPS = 400
BATCH = 32
LR = 3e-3
HELD_OUT = 10  # every tenth image
EVERY = 50  # steps between two looks at them
FEWEST = 20  # images without which D is Wiener's estimate


def trained(images: Batch, learned: ClassPrior, seed: int, cache: Path | None) -> Params:
    """f after the best of STEPS steps of Adam, kept in `cache`; `learned` is the prior of the same images."""
    return training_cache.cached(
        cache, "denoiser", {"seed": seed, "steps": STEPS}, [*images], lambda: _fitted(images, learned, seed),
        images.images.device,
    )  # fmt: skip


def wiener(gaussian: GaussianPrior, mean: Tensor, u: Tensor, sigma: Tensor) -> Tensor:
    """mu + S (u - mu) of images [n, D], each under noise of its own sigma [n]."""
    squares = sigma.square()[:, None, None, None]
    return mean + gaussian._replace(variance=gaussian.variance / (gaussian.variance + squares)).covariance(u - mean)


def denoised(f: Params, gaussian: GaussianPrior, mean: Tensor, u: Tensor, sigma: Tensor) -> Tensor:
    """D(u, sigma) of images [n, D] about their means [n, D]; f is computed in single precision."""
    linear = wiener(gaussian, mean, u, sigma)
    shape = gaussian.variance.shape[-3:]
    inputs = torch.cat([t.unflatten(1, shape) for t in (u, linear)], 1).float()
    return linear + (_weight(sigma) * _network(f, inputs, sigma.float()).to(u)).flatten(1)


def _weight(sigma: Tensor) -> Tensor:
    return (sigma / (1 + sigma))[:, None, None, None]


def _network(f: Params, images: Tensor, sigma: Tensor) -> Tensor:
    """f [n, C, s, s] of two images each [n, 2 C, s, s]."""
    side = images.shape[-1]
    even = F.pad(images, (0, side % 2, 0, side % 2), mode="replicate")
    x = F.pixel_unshuffle(even, 2)
    x = torch.cat([x, sigma.log()[:, None, None, None].expand(-1, 1, *x.shape[2:])], 1)
    for i in range(LAYERS):
        x = F.conv2d(x, f[f"conv{i}.weight"], f[f"conv{i}.bias"], padding=1)
        x = F.silu(x) if i < LAYERS - 1 else x
    return F.pixel_shuffle(x, 2)[..., :side, :side]


def _initial(channels: int, rng: torch.Generator) -> Params:
    widths = (8 * channels + 1, *[WIDTH] * (LAYERS - 1), 4 * channels)
    f: Params = {}
    for i in range(LAYERS):
        fan = 9 * widths[i]
        last = float(i < LAYERS - 1)
        f[f"conv{i}.weight"] = uniform_init((widths[i + 1], widths[i], 3, 3), fan, rng) * math.sqrt(3) * last
        f[f"conv{i}.bias"] = torch.zeros(widths[i + 1])
    return f


def _fitted(images: Batch, learned: ClassPrior, seed: int) -> Params:
    """f of the steps at which the held-out images' error was least, 0 among them."""
    rng = stream(seed, "attacker", "denoiser")
    clean = 2 * images.images.float() - 1
    fresh = {n: t.to(clean) for n, t in _initial(clean.shape[1], rng).items()}
    if len(clean) < FEWEST:
        return fresh
    gaussian = GaussianPrior(*(t.float() for t in learned.gaussian))
    u, means = clean.flatten(1), learned.means.float()[images.labels]
    low, high = (math.log(each) for each in NOISE)

    def drawn(rows: Tensor) -> tuple[Tensor, Tensor]:
        sigma = torch.exp(low + (high - low) * torch.rand(len(rows), generator=rng)).to(u)
        noise = torch.randn(len(rows), u.shape[1], generator=rng).to(u)
        return u[rows] + sigma[:, None] * noise, sigma

    def error(f: Params, rows: Tensor, noisy: Tensor, sigma: Tensor) -> Tensor:
        gap = denoised(f, gaussian, means[rows], noisy, sigma) - u[rows]
        return (gap.square().mean(1) / _weight(sigma).flatten().square()).mean()

    held_out = torch.arange(len(u), device=u.device) % HELD_OUT == HELD_OUT - 1
    test, fitted = torch.nonzero(held_out)[:, 0], torch.nonzero(~held_out)[:, 0]
    looked_at = drawn(test)
    leaves = {n: t.requires_grad_() for n, t in fresh.items()}
    optimiser = torch.optim.Adam(leaves.values(), LR)
    least, best = math.inf, leaves
    for step in range(STEPS + 1):
        if step % EVERY == 0:
            with torch.no_grad():
                now = float(error(leaves, test, *looked_at))
            if now < least:
                least, best = now, {n: t.detach().clone() for n, t in leaves.items()}
        if step == STEPS:
            break
        optimiser.param_groups[0]["lr"] = LR * (1 + math.cos(math.pi * step / STEPS)) / 2
        rows = fitted[torch.randint(len(fitted), (BATCH,), generator=rng).to(u.device)]
        optimiser.zero_grad()
        error(leaves, rows, *drawn(rows)).backward()
        optimiser.step()
    return best
