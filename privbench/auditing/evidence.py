"""What an attacker knows of a reconstruction without the truth: how much of what was observed the images explain.

    explained = 1 - ||g(x~) - G||^2 / ||G||^2      in percent
g is the gradient, or the change by the local steps, of the images clipped to [0, 1].
100 is an image that explains everything, which need not be the true one. The reference is how much images of grey pixels explain,
with the same labels: much of a message may depend on the labels alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from privbench.observation.simulated_steps import after_steps
from privbench.tensors import Parts
from privbench.types import CLASSIFICATION, Artifact, Reconstruction

GREY = 0.5  # a pixel's value


def explained(seen: Artifact, reconstruction: Reconstruction) -> Tensor | None:
    """In percent, [V]; None where a network is private.

    NaN where an image is not finite, a label unknown, or all that was observed zero.
    """
    if not set(CLASSIFICATION) <= seen.weights.keys():
        return None
    observed = seen.updates or seen.gradients
    shares = []
    for v in range(seen.victims):
        images, labels = reconstruction.images[v].detach().double(), reconstruction.labels[v]
        if not bool(images.isfinite().all()) or bool((labels < 0).any()):
            shares.append(torch.tensor(torch.nan, dtype=torch.float64))
            continue
        gradient = _simulated(seen, images.clamp(0, 1), labels)
        gap = sum(
            float((gradient[p][n] - t[v].double()).square().sum())
            for p, net in observed.items()
            for n, t in net.items()
        )
        size = sum(float(t[v].double().square().sum()) for net in observed.values() for t in net.values())
        shares.append(torch.tensor(100 * (1 - gap / size) if size else torch.nan, dtype=torch.float64))
    return torch.stack(shares)


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
