"""Uploads that are not finite, or zero throughout, are set aside before anything is pooled over victims, and put back as failures.

Medians and moments over a client's victims, or over clients, would be NaN for all where one upload is; a gradient of zeros has no
features, and those that a closed form makes of it would be pooled as if it had. So the sound victims are attacked as if the others
had not been there, and these are grey images with a loss that is NaN.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from attacks import case, labels
from privbench import finite
from privbench.types import Artifact, Reconstruction


def set_aside(artifact: Artifact, attack: Callable[[Artifact], Reconstruction]) -> Reconstruction:
    """What `attack` makes of the sound victims by themselves; the others are grey, their loss and trace NaN."""
    gradients = [g for net in artifact.gradients.values() for g in net.values()]
    nonzero = torch.stack([g.flatten(1).any(1) for g in gradients]).any(0)
    sound = torch.nonzero(finite.rows(*gradients) & nonzero)[:, 0]
    if len(sound) == artifact.victims:
        return attack(artifact)
    images, known = case.grey_start(artifact), labels.recover(artifact)
    loss, restart = torch.full_like(images[:, 0, 0, 0, 0], torch.nan), torch.zeros_like(known[:, 0])
    if not len(sound):
        return Reconstruction(images, known, loss, loss[:, None], restart, 0)
    found = attack(artifact.some(sound))
    trace = loss[:, None].repeat(1, found.trace.shape[1])
    ours = (images, known, loss, trace, restart)
    for whole, part in zip(ours, found[:5], strict=True):
        whole[sound] = part.to(whole)
    return Reconstruction(*ours, gradient_evaluations=found.gradient_evaluations, notes=found.notes)
