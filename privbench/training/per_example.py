"""Gradients of single images, and mini-batches drawn as accountants assume them: for defences that act on each image in training.

A stage's loss is a mean over its mini-batch. The gradient of image b is that of the loss of a mini-batch of b alone, so that
whatever else is in the loss (a proximal term, a distillation term) belongs to every image and is clipped with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from privbench.methods.base import MiniBatch
from privbench.tensors import Parts

# (trained, fixed, buffers, what else the stage sees, mini-batch) -> (loss, buffers after)
Loss = Callable[[Parts, Parts, Parts, Any, MiniBatch], tuple[Tensor, Parts]]


class Sample(NamedTuple):
    """Mini-batches of one epoch, of different sizes in rows of one length."""

    rows: Tensor  # [steps, B] int64: which image; 0 where nothing was taken
    included: Tensor  # [steps, B] bool
    expected: float  # images per mini-batch


def poisson(samples: int, batch: int, steps: int, rng: torch.Generator) -> Sample:
    """Each of N images in each of `steps` mini-batches with probability q = min(1, batch / N), independently; rows are padded.

    A mini-batch may be empty. The rows are as long as the longest mini-batch drawn, at least 1.
    """
    rate = min(1.0, batch / samples)
    drawn = torch.rand(steps, samples, generator=rng) < rate
    sizes = drawn.sum(1)
    longest = max(int(sizes.max()), 1)
    # The images that were drawn come first, in their order.
    order = drawn.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :longest]
    included = torch.arange(longest)[None] < sizes[:, None]
    return Sample(order.where(included, 0), included, rate * samples)


class ByImage(NamedTuple):
    """What B images of one mini-batch give at the same networks."""

    gradients: Parts  # part -> parameter -> [B, ...]
    loss: Tensor  # [B]
    after: Parts  # the buffers after the step


def gradients(loss: Loss, trained: Parts, fixed: Parts, buffers: Parts, around: Any, batch: MiniBatch) -> ByImage:
    """The gradient of every image of a mini-batch by itself; `loss` is that of engine.stage_state.loss_of.

    What a loss leaves in buffers must not depend on images: spectral norm's directions do not; batch norm's statistics do, and
    networks under such a defence have none. So that of the first image is kept.
    """

    def alone(images: Tensor, label: Tensor, noise: dict[str, Tensor], features: Tensor | None) -> Any:
        one = MiniBatch(
            images[None],
            label[None],
            {name: t[None] for name, t in noise.items()},
            None if features is None else features[None],
        )
        gradient, (value, after) = grad_and_value(loss, has_aux=True)(trained, fixed, buffers, around, one)
        return gradient, value, after

    # A phase that sees features has no images.
    images = batch.images if batch.features is None else batch.features.new_zeros(len(batch.labels), 0)
    axes = (0, 0, 0, None if batch.features is None else 0)
    with torch.no_grad():
        each, value, after = vmap(alone, in_dims=axes)(images, batch.labels, dict(batch.noise), batch.features)
    return ByImage(each, value, {part: {name: t[0] for name, t in state.items()} for part, state in after.items()})


def mean(loss: Tensor, included: Tensor) -> Tensor:
    """The mean loss [] of the images that were taken, 0 where there was none."""
    return (loss * included).sum() / included.sum().clamp_min(1)
