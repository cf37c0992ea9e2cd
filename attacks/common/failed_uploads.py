"""Uploads that are not finite, or zero throughout, are set aside before anything is pooled over victims, and put back as failures.

Medians and moments over a client's victims, or over clients, would be NaN for all where one upload is; a gradient of zeros has no
features, and those that a closed form makes of it would be pooled as if it had. So the sound victims are attacked as if the others
had not been there, and these are grey images with a loss that is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.common import labels, problem, updates
from privbench import tensors
from privbench.types import Artifact, Reconstruction


def is_sound(artifact: Artifact) -> Tensor:
    """Which uploads are finite and not zero throughout, [V] bool."""
    gradients = [g for net in (artifact.gradients or artifact.updates).values() for g in net.values()]
    nonzero = torch.stack([g.flatten(1).any(1) for g in gradients]).any(0)
    return tensors.finite_rows(*gradients) & nonzero


def set_aside(
    artifact: Artifact, attack: Callable[[Artifact], Reconstruction], gradients: Artifact | None = None
) -> Reconstruction:
    """What `attack` makes of the sound victims by themselves; the others are grey, their loss and trace NaN.

    `gradients`: what is taken for the gradients of updates, by which these are sound.
    """
    sound = torch.nonzero(is_sound(artifact if gradients is None else gradients))[:, 0]
    if len(sound) == artifact.victims:
        return attack(artifact)
    images, recovered = problem.grey_start(artifact), labels.recover(updates.labelled_gradients(artifact))
    loss, restart = torch.full_like(images[:, 0, 0, 0, 0], torch.nan), torch.zeros_like(recovered[:, 0])
    failed = Reconstruction(images, recovered, loss, loss[:, None], restart, 0)
    return put(failed, sound, attack(artifact.select(sound))) if len(sound) else failed


def put(whole: Reconstruction, rows: Tensor, part: Reconstruction) -> Reconstruction:
    """`whole`, of which nothing was descended on, with some victims' rows from `part`."""
    trace = F.pad(whole.trace, (0, part.trace.shape[1] - 1), value=math.nan)
    fields = (whole.images, whole.labels, whole.loss, trace, whole.restart)
    merged = [t.to(of_part, copy=True) for t, of_part in zip(fields, part[:5], strict=True)]
    for t, of_part in zip(merged, part[:5], strict=True):
        t[rows] = of_part
    images, y, loss, trace, restart = merged
    outcome = torch.zeros_like(restart) if whole.outcome is None else whole.outcome.clone()
    outcome[rows] = 0 if part.outcome is None else part.outcome.to(outcome)
    spent = whole.gradient_evaluations + part.gradient_evaluations
    return Reconstruction(images, y, loss, trace, restart, spent, part.notes, outcome)


def joined(parts: Sequence[tuple[Tensor, Reconstruction]]) -> Reconstruction:
    """Reconstructions of some victims each, put back in the order of all victims.

    A shorter trace repeats its last value; one of a single entry, where nothing was descended on, goes on as NaN.
    """
    back = torch.cat([rows for rows, _ in parts]).argsort()
    length = max(part.trace.shape[1] for _, part in parts)
    traces = []
    for _, part in parts:
        more = part.trace[:, -1:] if part.trace.shape[1] > 1 else torch.full_like(part.trace, math.nan)
        traces.append(torch.cat([part.trace, more.expand(-1, length - part.trace.shape[1])], 1))
    images, y, loss, restart = (
        torch.cat([getattr(part, name) for _, part in parts])[back] for name in ("images", "labels", "loss", "restart")
    )
    spent = sum(part.gradient_evaluations for _, part in parts)
    notes = tuple(dict.fromkeys(note for _, part in parts for note in part.notes))
    outcomes = [torch.zeros_like(part.restart) if part.outcome is None else part.outcome for _, part in parts]
    return Reconstruction(images, y, loss, torch.cat(traces)[back], restart, spent, notes, torch.cat(outcomes)[back])
