"""Membership inference against a generator: how near it comes to an image.

GAN-Leaks: Chen, Yu, Zhang, Fritz, GAN-Leaks: A Taxonomy of Membership Inference Attacks against Generative Models, CCS 2020 (arXiv
1909.03935). An image that the generator was trained on is reconstructed better than another.
    full black-box:  R(x) = argmin over k samples G(z_i) of ||x - G(z_i)||^2
    white-box:       R(x) = G(z*),  z* = argmin over z of ||x - G(z)||^2
    calibrated:      L_cal(x) = ||x - R(x)||^2 - ||x - R_ref(x)||^2
R_ref is that of generators trained in the same way on other images. Each is a distance: members have the smaller ones.
Deviations: the attacker knows the image's label and has the conditional generator make that class alone. Distances are of pixels,
as the perceptual term of the paper needs pretrained weights. z begins at the nearest sample and goes by Adam, in place of L-BFGS
from a random z, without a penalty on its norm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from privbench.types import Batch

STEPS, RATE = 50, 0.05  # of Adam, of the white-box attack
PIECE = 100  # images at once
Generate = Callable[[Tensor, Tensor], Tensor]  # z [B, n], labels [B] -> images [B, C, H, W]


class Samples(NamedTuple):
    """Generated images with what they were made of."""

    z: Tensor  # [M, n]
    images: Tensor  # [M, C, H, W]
    labels: Tensor  # [M] int64


class Nearest(NamedTuple):
    """Of each image the nearest sample."""

    distances: Tensor  # [N], mean square over pixels; inf where there is no sample of its class
    sample: Tensor  # [N] int64, which one; 0 where there is none


def sampled(generate: Generate, z: Tensor, labels: Tensor) -> Samples:
    """One image for every z [M, n] and label [M]."""
    with torch.no_grad():
        images = [generate(*piece) for piece in zip(z.split(PIECE), labels.split(PIECE), strict=True)]
    return Samples(z, torch.cat(images), labels)


def black_box(queries: Batch, samples: Samples) -> Nearest:
    """The nearest sample of each image's class."""
    distances, index = (
        torch.full((len(queries.labels),), torch.inf),
        torch.zeros(len(queries.labels), dtype=torch.int64),
    )
    for label in queries.labels.unique():
        rows, members = ((labels == label).nonzero()[:, 0] for labels in (queries.labels, samples.labels))
        if not len(members):
            continue
        each = torch.cdist(
            queries.images[rows].flatten(1),
            samples.images[members].flatten(1),
            compute_mode="donot_use_mm_for_euclid_dist",
        )
        least = each.nan_to_num(torch.inf).min(1)
        distances[rows] = least.values.square() / queries.images[0].numel()
        index[rows] = members[least.indices]
    return Nearest(distances, index)


def white_box(generate: Generate, queries: Batch, start: Tensor) -> Tensor:
    """How near G comes to each image by descent on z from `start` [N, n]: [N], mean square over pixels, the least of all steps."""
    pieces = zip(queries.images.split(PIECE), queries.labels.split(PIECE), start.split(PIECE), strict=True)
    return torch.cat([_descended(generate, *piece) for piece in pieces])


def _descended(generate: Generate, images: Tensor, labels: Tensor, start: Tensor) -> Tensor:
    z, least = start.clone().requires_grad_(), torch.full((len(labels),), torch.inf)
    # Images do not share anything: Adam works number by number, and no other gradient is in the sum.
    optimiser = torch.optim.Adam([z], RATE)
    for _ in range(STEPS):
        errors = (generate(z, labels) - images).square().flatten(1).mean(1)
        least = least.fmin(errors.detach())
        optimiser.zero_grad()
        errors.sum().backward()
        optimiser.step()
    with torch.no_grad():
        return least.fmin((generate(z, labels) - images).square().flatten(1).mean(1))
