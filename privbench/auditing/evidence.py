"""What an attacker knows of a reconstruction without the truth: how much of what was observed the images explain.

    explained = 1 - ||g(x~) - G||^2 / ||G||^2      in percent
g is the gradient, or the change by the local steps, of the images clipped to [0, 1].
100 is an image that explains everything, which need not be the true one. The reference is how much images of grey pixels explain,
with the same labels: much of a message may depend on the labels alone.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from privbench.observation.simulated_steps import after_steps
from privbench.tensors import Parts
from privbench.types import CLASSIFICATION, Artifact, Reconstruction

GREY = 0.5  # a pixel's value


class Explanation(NamedTuple):
    """How well what some images give fits what was observed."""

    explained: Tensor  # [V] percent
    multiple: Tensor  # [V] the number by which what they give comes nearest to what was observed
    explained_then: Tensor  # [V] percent, at that multiple


def explained(seen: Artifact, reconstruction: Reconstruction) -> Tensor | None:
    """In percent, [V]; None where a network is private.

    NaN where an image is not finite, a label unknown, or all that was observed zero.
    """
    images = reconstruction.images
    whole = explanation(seen, images.clamp(0, 1).where(images.isfinite(), torch.nan), reconstruction.labels)
    return None if whole is None else whole.explained


def explanation(seen: Artifact, images: Tensor, labels: Tensor) -> Explanation | None:
    """That of images [V, B, C, H, W] in the unit range with labels [V, B]; None and NaN as `explained` has them."""
    if not set(CLASSIFICATION) <= seen.weights.keys():
        return None
    each = [_of_victim(seen, v, x.detach().double(), y) for v, (x, y) in enumerate(zip(images, labels, strict=True))]
    return Explanation(*(torch.tensor(numbers, dtype=torch.float64) for numbers in zip(*each, strict=True)))


def _of_victim(seen: Artifact, victim: int, images: Tensor, labels: Tensor) -> tuple[float, float, float]:
    """The same of one victim's images [B, C, H, W] and labels [B]."""
    nothing = (math.nan,) * 3
    if not bool(images.isfinite().all()) or bool((labels < 0).any()):
        return nothing
    given, observed = _simulated(seen, images, labels), seen.updates or seen.gradients
    names = [(part, name) for part, net in observed.items() for name in net]
    g = torch.cat([given[p][n].flatten() for p, n in names])
    t = torch.cat([observed[p][n][victim].double().flatten() for p, n in names])
    size, own, cross = float(t @ t), float(g @ g), float(g @ t)
    if not size:
        return nothing
    explained_percent = 100 * (1 - float((g - t).square().sum()) / size)
    return (explained_percent, cross / own, 100 * cross**2 / (own * size)) if own else (explained_percent, *nothing[1:])


def explained_by_grey(seen: Artifact, reconstruction: Reconstruction) -> Tensor | None:
    """The same of images of which every pixel is grey, with the labels of the reconstruction."""
    grey = torch.full_like(reconstruction.images, GREY)
    return explained(seen, reconstruction._replace(images=grey.where(reconstruction.images.isfinite(), torch.nan)))


def _simulated(seen: Artifact, images: Tensor, labels: Tensor) -> Parts:
    """The gradient of some images [B, C, H, W], or the change of the networks by as many local steps as the client took.

    Each step is on all images at once, whatever the client's mini-batches.
    """
    received = {p: {n: t.double() for n, t in seen.weights[p].items()} for p in CLASSIFICATION}
    if seen.local is None:
        return _gradient(seen, received, images, labels)
    after, _ = after_steps(
        seen.local, received, {}, lambda params, moved: (_gradient(seen, params, images, labels), moved)
    )
    return {p: {n: t - received[p][n] for n, t in net.items()} for p, net in after.items()}


def _gradient(seen: Artifact, params: Parts, images: Tensor, labels: Tensor) -> Parts:
    model, train = seen.model, seen.model.train_mode(len(images))
    params = {p: {n: t.detach().requires_grad_() for n, t in net.items()} for p, net in params.items()}
    buffers = {p: {n: t.double() for n, t in seen.buffers.get(p, {}).items()} for p in CLASSIFICATION}
    h, _ = model.net("extractor").apply(params["extractor"], buffers["extractor"], images, train=train)
    outputs, _ = model.net("classifier").apply(params["classifier"], buffers["classifier"], h, train=train)
    leaves = [t for net in params.values() for t in net.values()]
    gradients = iter(torch.autograd.grad(model.loss(outputs, labels), leaves, allow_unused=True))
    parts: Parts = {p: {} for p in params}
    for part, net in params.items():
        for name, t in net.items():
            gradient = next(gradients)
            parts[part][name] = torch.zeros_like(t) if gradient is None else gradient
    return parts
