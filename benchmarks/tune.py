"""Chooses an attack's hyper-parameters on images of the attacker's own, never on victims.

The attacker simulates: gradients of images that he has (disjoint from all victims), at networks of the architecture under
attack. What he finds there is fixed before any victim is looked at. docs/appendix/tuning.md holds the scans behind the
defaults.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from privbench import registry
from privbench.types import Artifact, Attack, Knowledge


class Trial(NamedTuple):
    """One combination of settings and what it reached on the attacker's own images."""

    settings: dict[str, Any]
    psnr_db: float  # mean over images, clipped to [0, 1], peak 1
    worst_db: float


def scan(
    attack: type[Attack], grid: Mapping[str, Sequence[Any]], artifact: Artifact, images: Tensor, seed: int = 0
) -> list[Trial]:
    """Every combination of the grid on one simulated artifact whose images [V, B, C, H, W] the attacker knows; best first."""
    trials = []
    for values in itertools.product(*grid.values()):
        settings = dict(zip(grid, values, strict=True))
        reconstruction = registry.create(attack, settings).reconstruct(artifact, Knowledge(), seed)
        error = (reconstruction.images.clamp(0, 1) - images).square().flatten(1).mean(1)
        psnr = -10 * torch.log10(error)
        trials.append(Trial(settings, float(psnr.mean()), float(psnr.min())))
    return sorted(trials, key=lambda trial: -trial.psnr_db)
