"""What gradients show of a classifier's variational bottleneck (PRECODE), and descents where they do not show it.

The encoder's gradient shows h in closed form (attacks/common/closed_form.py), and so mu and sigma. Of one image the decoder's shows
z in the same way, since z enters a linear layer: eps = (z - mu) / sigma. A candidate is then simulated with the client's own draw.
Of a batch they show only spans; eps is descended on together with the images, in units of RANGE. Scheliga, Maeder, Seeland
(2022, arXiv 2208.04767) leave the random gradients out instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from torch import Tensor

from attacks.common import batched, closed_form
from attacks.common.batched import Data, Descent, Objective
from privbench.networks.bottleneck import DECODER, Bottleneck
from privbench.networks.model import Model
from privbench.tensors import Params
from privbench.types import Artifact

NOISE = "noise of the bottleneck"
RANGE = 6.0  # eps in +-3, where N(0, 1) has 99.7%, is a number from 0 to 1, as pixels are; it is held there where pixels are


def of(model: Model) -> Bottleneck:
    """The bottleneck of a model that has one."""
    return cast("Bottleneck", model.classifier)


def noise(artifact: Artifact) -> Tensor | None:
    """eps [V, 1, k] of one-image gradients; None without a bottleneck, for larger batches, and where h is not shown in full."""
    features = closed_form.of_single(artifact) if artifact.model.bottleneck else None
    if features is None or features.known is not None:
        return None
    gradient = artifact.gradients["classifier"]
    z = closed_form.least_squares(gradient[f"{DECODER}.weight"].double(), gradient[f"{DECODER}.bias"].double())
    params = {name: t.to(features.h) for name, t in artifact.weights["classifier"].items()}
    mean, log_variance = of(artifact.model).encoded(params, features.h)
    return ((z - mean) / (0.5 * log_variance).exp())[:, None]


def divergence(model: Model, params: Params, h: Tensor) -> Tensor | float:
    """beta KL, the mean over features h [B, c, s, s], which a client's loss holds; 0 without a bottleneck."""
    return model.kl_weight * of(model).divergence(params, h).mean() if model.bottleneck else 0.0


def sampling(model: Model, noise: Tensor | None) -> tuple[Tensor, ...]:
    """What the classifier takes beside features: eps [B, k] where it has a bottleneck and eps is known."""
    return (noise,) if model.bottleneck and noise is not None else ()


def minimise(
    model: Model,
    objective: Objective,
    start: Tensor,
    data: Data,
    descend: Callable[[Objective, Tensor, Data], Descent],
) -> Descent:
    """`descend` of an objective from `start` [N, ...]; where there is a bottleneck and `data` lack its eps, of both together.

    `data` has labels [N, B]. eps begins at 0, its mean.
    """
    if not model.bottleneck or NOISE in data:
        return descend(objective, start, data)
    shape = (data["labels"].shape[1], model.bottleneck)
    both = batched.EndToEnd(start.shape[1:], shape)

    def joint(joined: Tensor, data: Data) -> Tensor:
        x, u = both.split(joined)
        return objective(x, data | {NOISE: RANGE * (u - 0.5)})

    end = descend(joint, both.joined(start, start.new_full((len(start), *shape), 0.5)), data)
    return end._replace(x=both.split(end.x)[0])
