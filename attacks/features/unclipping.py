"""Clipping taken back: the gradient of one image as it was before it was scaled down, in closed form.

Clipping scales the whole gradient by one number s, so that features and label are exact (attacks/common/closed_form.py,
attacks/common/labels.py). They give the classifier's gradient g_C in full, and what was sent of it is s g_C:
    s = <g_C, G_C> / ||g_C||^2
A private extractor's gradient, which enters the clipped norm unseen, changes nothing. A gradient that was rounded on its way is
no more exact without the clip, nor is one that stands for an update of several steps: their descriptions go on to say so.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from attacks.common import closed_form, labels, updates
from attacks.features import per_image
from privbench.defending import described
from privbench.observation import wire
from privbench.types import Artifact

CLIPPED_ALONE = ({"clip"}, {described.CLIPS_IMAGES})


def unclipped(artifact: Artifact) -> Artifact:
    """The artifact of the gradients before they were clipped; as it is where more was done to them, or h is not in closed form.

    A victim whose scale cannot be found (its gradient is zero or not finite) stays as it is.
    """
    if described.kinds(artifact.defense) not in CLIPPED_ALONE or artifact.local is not None:
        return artifact
    h = None if artifact.model.dropout else closed_form.closed_form(artifact)
    if h is None:
        return artifact
    s = scales(artifact, h)
    gradients = {
        part: {name: (t.double() / s.view(-1, *(1,) * (t.ndim - 1))).to(t) for name, t in net.items()}
        for part, net in artifact.gradients.items()
    }
    form = artifact.defense.get("wire", "float32")
    name = updates.SEVERAL_STEPS if artifact.defense["name"] == updates.SEVERAL_STEPS else described.NONE
    return replace(artifact, gradients=gradients, defense=wire.described({"name": name}, form))


def scales(artifact: Artifact, h: Tensor) -> Tensor:
    """s of every victim, [V], in (0, 1], from its features h [V, c, s, s]."""
    y, each = labels.recover(artifact)[:, 0], []
    for v in range(artifact.victims):
        exact = per_image.gradient_of(artifact, h[v], y[v])
        cross = torch.stack([(g * artifact.gradients["classifier"][n][v].to(g)).sum() for n, g in exact.items()]).sum()
        each.append(cross / torch.stack([g.square().sum() for g in exact.values()]).sum())
    s = torch.stack(each)
    return s.where((s > 0) & s.isfinite(), 1.0).clamp(max=1)
