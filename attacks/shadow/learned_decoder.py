"""A convolutional decoder D: features and label -> what an image is besides its class's mean.

    min over D of  mean over auxiliary (x, y) and extractors m of ||mu_y + D(E_m(x), y) - x||^2
mu_y is the mean of the class's auxiliary images. Trained on several extractors at once, D learns what can be read whichever of
them is right, and fades towards 0 where they disagree. Under noise it is trained on features with that of the victims, each
image's drawn to the mean as far as its noise is above what features vary by. Learned inverses: Dosovitskiy and Brox, CVPR 2016;
LTI (Wu et al., UAI 2023, arXiv 2210.10880) for gradients.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.common import gradient_distance
from attacks.features import inversion
from attacks.shadow import shadow_federation, surrogate_training
from attacks.shadow.shadow_federation import ServerView
from privbench.networks.layers import uniform_init
from privbench.seeds import stream
from privbench.tensors import Params

WIDTH = 96
GRID = 8  # D works on GRID x GRID positions, and every one paints its own patch; what exceeds the image is cut off
BATCH = 32
LR = 2e-3
NOISY_COPIES = 8  # of each extractor's features, where the gradient was noised


def feature_distance(view: ServerView, extractor: Params, image: Tensor, row: int) -> Tensor:
    """The relative distance [] of an answer's features [1, C, H, W] from those of one victim, through an extractor."""
    features = surrogate_training.extract(view.model, extractor, image)[0]
    return gradient_distance.feature_distance(features, view.h[row].to(features))


def class_means(view: ServerView) -> Tensor:
    """mu_y of the auxiliary images: [Y, C, H, W]."""
    like = view.auxiliary.images
    prior = inversion.learned(view.auxiliary, view.model.classes, like)
    return ((prior.means + 1) / 2).view(-1, *like.shape[1:])


def init(channels: int, classes: int, shape: tuple[int, int, int], rng: torch.Generator) -> Params:
    """Random weights of D for features of `channels` and images of `shape`; its last layer begins at zero."""
    patch = shape[0] * _patch_side(shape[1]) * _patch_side(shape[2])
    widths = (channels + classes, WIDTH, WIDTH, patch)
    params: Params = {}
    for i in range(3):
        fan = widths[i] * 9
        params[f"conv{i}.weight"] = uniform_init((widths[i + 1], widths[i], 3, 3), fan, rng) * math.sqrt(6)
        params[f"conv{i}.bias"] = torch.zeros(widths[i + 1])
    return {n: torch.zeros_like(t) if n.startswith("conv2") else t for n, t in params.items()}


def decode(params: Params, h: Tensor, labels: Tensor, classes: int, like: Tensor) -> Tensor:
    """D(h, y) [n, C, H, W], shaped as `like`, of features [n, c, s, s]."""
    h = (h - params["mean"]) / params["spread"]
    x = F.interpolate(h, (GRID, GRID), mode="bilinear", align_corners=True)
    planes = F.one_hot(labels, classes).to(h)[:, :, None, None].expand(-1, -1, GRID, GRID)
    x = torch.cat([x, planes], 1)
    for i in range(3):
        x = F.conv2d(x, params[f"conv{i}.weight"], params[f"conv{i}.bias"], padding=1)
        x = F.leaky_relu(x, 0.1) if i < 2 else x
    return F.pixel_shuffle(x, _patch_side(like.shape[-1]))[..., : like.shape[-2], : like.shape[-1]]


def _patch_side(side: int) -> int:
    """How many pixels wide the patch of each position is, so that all cover a square image."""
    return -(-side // GRID)


def shrunk(params: Params, h: Tensor, noise: Tensor | None) -> Tensor:
    """Features [n, c, s, s] as D reads them: with noise of variance [n] their expectation under the moments of D's own."""
    if noise is None:
        return h
    variance, expected = params["variance"].to(h), params["expected"].to(h)
    return expected + variance / (variance + noise.to(h)[:, None, None, None]) * (h - expected)


def with_noise(params: Params, view: ServerView, clean: Tensor, seed: int, name: str) -> list[Tensor]:
    """Clean features [n, c, s, s] as D reads them; under noise several copies, with that of the victims."""
    if view.noise is None:
        return [clean]
    copies = []
    for number in range(NOISY_COPIES):
        called = f"{name} {number}"
        levels = shadow_federation.noise_levels(view.noise, len(clean), seed, called)
        copies.append(shrunk(params, shadow_federation.noised(clean, levels, seed, called), levels))
    return copies


def train(view: ServerView, members: list[Params], steps: int, seed: int) -> Params:
    """D after `steps` of Adam with cosine decay, a surrogate and a mini-batch drawn at each."""
    return fitted(
        view, [surrogate_training.extract(view.model, member, view.auxiliary.images) for member in members], steps, seed
    )


def fitted(view: ServerView, seen: list[Tensor], steps: int, seed: int) -> Params:
    """The same of the features [N, c, s, s] that each of several extractors makes of the auxiliary images, without noise."""
    images, classes = view.auxiliary
    every = torch.cat(seen)
    moments = {} if view.noise is None else {"expected": every.mean(0), "variance": every.var(0)}
    seen = [h for clean in seen for h in with_noise(moments, view, clean, seed, f"decoder {view.name}")]
    every = torch.cat(seen)
    rng = stream(seed, "attacker", "decoder", view.name)
    shape = (int(images.shape[1]), int(images.shape[2]), int(images.shape[3]))
    fresh = init(int(every.shape[1]), view.model.classes, shape, rng)
    params = {n: t.to(images).requires_grad_() for n, t in fresh.items()}
    fixed = {"mean": every.mean((0, 2, 3))[:, None, None], "spread": every.std((0, 2, 3))[:, None, None] + 0.01}
    fixed |= moments
    means = class_means(view)
    optimiser = torch.optim.Adam(params.values(), lr=LR)
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = LR * (1 + math.cos(math.pi * step / steps)) / 2
        index = torch.randint(len(images), (BATCH,), generator=rng).to(images.device)
        h, y = seen[int(torch.randint(len(seen), (), generator=rng))][index], classes[index]
        answer = means[y] + decode({**params, **fixed}, h, y, view.model.classes, images)
        optimiser.zero_grad()
        F.mse_loss(answer, images[index]).backward()
        optimiser.step()
    return {n: t.detach() for n, t in {**params, **fixed}.items()}
