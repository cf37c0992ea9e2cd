"""One client isolated in a sum over all: what the others are sent, and the gradient that stands alone in the sum.

Pasquini, Francati, Ateniese (CCS 2022, arXiv 2111.07380, section 4) kill the ReLU units of a layer. The sigmoids here are driven to
0 instead: with a bias of FAR below 0, the units before the last layer are exactly 0 in floating point, and so are their slopes. So
    dL/dW of the last layer  = d a' = 0,    and every gradient before it passes the slopes a (1 - a) = 0
What stays is dL/db = p - e_y of the last layer, which no network can hide without the labels. All other entries of the sum hold
w g, w and g the target's weight and gradient, and its last bias follows from its last weights (attacks/common/labels.py).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from attacks.common import labels
from privbench.defending import described
from privbench.networks.model import Model
from privbench.types import Artifact, Networks

# exp(1e4) overflows in double precision, so that 1 / (1 + exp(1e4)) is 0.
FAR = 1e4
SMALLEST = 1e-300


def silent(model: Model, broadcast: Networks) -> Networks:
    """The broadcast classifier with silent units before its last layer, which is of zeros, so that p is uniform."""
    honest, last = broadcast.params["classifier"], model.classifier.logits_layer
    before = labels.before_last(model, honest)
    zeros = {name: torch.zeros_like(honest[name]) for name in (f"{last}.weight", f"{last}.bias", f"{before}.weight")}
    off = {f"{before}.bias": torch.full_like(honest[f"{before}.bias"], -FAR)}
    return Networks({"classifier": honest | zeros | off}, {})


def standing_alone(artifact: Artifact) -> Artifact:
    """The target's gradients as an artifact of its messages; any other artifact as it is.

    The variance of noise is that of the sum over the target's weight squared; of the last bias, it is another. The description of
    the defence is that of one message: a clip, or what was done to entries, is undone as in messages that arrive by themselves.
    """
    if artifact.target is None:
        return artifact
    assert artifact.member_weights is not None, "only sums have a target"
    w = artifact.member_weights[:, artifact.target]
    gradients = {
        part: {name: (t.double() / w.view(-1, *(1,) * (t.ndim - 1))).to(t) for name, t in net.items()}
        for part, net in _with_last_bias(artifact).gradients.items()
    }
    defense = described.of_one_message(artifact.defense)
    if "variance" in defense:
        defense["variance"] = float(defense["variance"]) / float(w.square().mean())
    return replace(artifact, gradients=gradients, member_weights=None, target=None, others=None, defense=defense)


def residual(artifact: Artifact) -> Tensor:
    """How much of each sum is not the target's: the norm of the others' part over that of the sum, [V]."""
    layer = f"{artifact.model.classifier.logits_layer}.bias"
    sent, alone = (each.gradients["classifier"][layer].double() for each in (artifact, _with_last_bias(artifact)))
    each = [t.double().flatten(1).square().sum(1) for net in artifact.gradients.values() for t in net.values()]
    whole = torch.stack(each).sum(0).clamp_min(SMALLEST)
    return ((sent - alone).square().sum(1) / whole).sqrt()


def _with_last_bias(artifact: Artifact) -> Artifact:
    """The sums with the target's part alone of the last bias's gradient."""
    gradient, layer = artifact.gradients["classifier"], f"{artifact.model.classifier.logits_layer}.bias"
    bias = labels.of_target(artifact).to(gradient[layer])
    return replace(artifact, gradients=artifact.gradients | {"classifier": gradient | {layer: bias}})
