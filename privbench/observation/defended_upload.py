"""What a defence makes of one upload, at whichever of its places, and how the attacker knows it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from privbench.defense import Defense
from privbench.networks.model import Model
from privbench.observation import wire
from privbench.tensors import Parts
from privbench.types import LocalSteps


def gradient(
    defense: Defense,
    exact: Callable[[], Parts],
    by_image: Callable[[], Sequence[Parts]],
    parts: Sequence[str],
    rng: torch.Generator,
) -> Parts:
    """What a server sees of the gradient of one batch over `parts`.

    `exact` gives that gradient without a defence; `by_image` that of every image over all parts that the client trains, which a
    defence of every image clips together, also those that the client keeps to itself.
    """
    if "example" in defense.places:
        each = by_image()
        stacked = {part: {n: torch.stack([one[part][n] for one in each]) for n in each[0][part]} for part in each[0]}
        whole = defense.example(stacked, torch.ones(len(each), dtype=torch.bool), float(len(each)), rng)
        upload = {part: whole[part] for part in parts}
    else:
        upload = exact()
    upload = defense.step(upload, rng) if "step" in defense.places else upload
    return defense.message(upload, rng) if "message" in defense.places else upload


def represented(
    defense: Defense, exact: Callable[[], Parts], model: Model, nets: tuple[Parts, Parts], images: Tensor
) -> Callable[[], Parts]:
    """`exact` after a defence of the representation, for the (parameters, buffers) and the images that it was taken at."""
    if "representation" not in defense.places:
        return exact
    return lambda: defense.representation(exact(), model, nets, images)


def described(
    defense: Defense, local: LocalSteps | None, batch_size: int, form: wire.Format, shares: Sequence[float] = (1.0,)
) -> dict[str, Any]:
    """What the attacker knows of the defence, with the variance of the noise where there is any, and of the number format.

    Of a local update whose every step is noised, the variance is that of one step's gradient. In the mean of several clients'
    messages of `batch_size` images each, by `shares` with sum 1, it is that of the mean: their noises are independent.
    """
    images = batch_size if local is None or local.batch is None else local.batch
    variance = defense.noise_variance(images) * math.fsum(share**2 for share in shares)
    return wire.described(defense.describe() | ({"variance": variance} if variance else {}), form)
