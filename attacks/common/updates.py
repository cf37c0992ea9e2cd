"""A whole local update taken for one gradient: what labels and first images are made from (attacks/update_matching.py).

One step of Adam hides its gradient poorly: single precision distinguishes g / (|g| + eps) from a sign for most
entries of an untrained LeNet, and it is taken back to g (`without_adam`; ours).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from attacks.common import labels
from privbench.observation.local_update import optimiser_of
from privbench.spec import SGD, Adam
from privbench.tensors import Parts
from privbench.training.engine import ADAM_EPS
from privbench.types import Artifact, LocalSteps

TRUSTED = 0.02  # relative error at which an entry of a gradient counts half
LOST = 0.2  # and above which it does not count
TINY = 1e-40  # in place of a division by 0


def nearly_gradients(artifact: Artifact) -> Artifact:
    """An artifact of gradients as it is; one of updates with what comes nearest to the gradients they began with."""
    artifact, _ = without_adam(artifact)
    return artifact if artifact.local is None else as_gradient(artifact, artifact.local)


def without_adam(artifact: Artifact) -> tuple[Artifact, dict[str, Tensor]]:
    """One step of Adam as the step of SGD (rate 1) that it hides; how far each entry is to be trusted, [V, ...] in [0, 1] by name.

    From zero moments the step is -lr g / (|g| + eps), weight decay in g. It is no mere sign: 1 - |step| / lr = eps / (|g| + eps),
    which single precision still distinguishes from 0 where |g| lies below about 1e-3; there g = eps u / (1 - |u|) with u =
    -step / lr. The error of u is that of storing theta in single precision, and of the few roundings of the step.
    Anything else (several steps, SGD, a defended update) comes back as it is, with an empty dict: trusted everywhere.
    """
    local = artifact.local
    setting = None if local is None else optimiser_of(local)
    if local is None or local.steps > 1 or not isinstance(setting, Adam) or artifact.defense.get("name") != "none":
        return artifact, {}
    updates: Parts = {}
    trust: dict[str, Tensor] = {}
    for part, net in artifact.updates.items():
        updates[part] = {}
        for name, step in net.items():
            theta, ulp = artifact.weights[part][name].double(), torch.finfo(step.dtype).eps
            u = -step.double() / setting.lr
            error = ulp * (theta.abs() / (4 * setting.lr) + 1)
            short = (1 - u.abs()).clamp_min(error.expand_as(u))  # eps / (|g| + eps)
            relative = error / short
            trust[f"{part}/{name}"] = torch.where(relative < LOST, 1 / (1 + (relative / TRUSTED).square()), 0.0)
            updates[part][name] = setting.weight_decay * theta - ADAM_EPS * u / short
    sgd = {"kind": "sgd", "lr": 1.0, "weight_decay": 0.0}
    return replace(artifact, updates=updates, local=LocalSteps(1, sgd)), trust


def noise_variance(artifact: Artifact) -> float:
    """The variance that the defence's noise gives each entry of a whole update; 0 without noise, and where it is not normal.

    Noise in each of K steps of SGD adds up to lr^2 K times its variance; what it does to later gradients is left out. Adam divides
    its noisy gradients by their size.
    """
    variance, local = labels.noise_variance(artifact), artifact.local
    if not variance or local is None or artifact.defense.get("where") != "step":
        return variance
    setting = optimiser_of(local)
    return variance * setting.lr**2 * local.steps if isinstance(setting, SGD) else 0.0


def with_steady_rows(taken: Artifact, trust: dict[str, Tensor]) -> Artifact:
    """The gradient with the rows of C's first layer scaled so that a least-squares h weighs each by its precision.

    Row j says h = dL/dW_j / d_j; with d_j scaled to 1 / (its relative error), sum_j d_j dL/dW_j / sum_j d_j^2 is the weighted mean.
    """
    w, gradient = trust.get("classifier/fc1.bias"), taken.gradients.get("classifier", {})
    if w is None:
        return taken
    scale = (w / (1 - w).clamp_min(TINY)).sqrt() / gradient["fc1.bias"].abs().clamp_min(TINY)
    rows = {"fc1.bias": gradient["fc1.bias"] * scale, "fc1.weight": gradient["fc1.weight"] * scale[..., None]}
    return replace(taken, gradients=taken.gradients | {"classifier": gradient | rows})


def as_gradient(artifact: Artifact, local: LocalSteps) -> Artifact:
    """The update taken for one gradient: -U / (lr K). It is that for K = 1 and SGD, and near it for small steps.

    The defence is named "local steps", so that nothing about rank and signs is taken to be exact.
    """
    rate = optimiser_of(local).lr * local.steps
    gradients = {p: {n: -t / rate for n, t in net.items()} for p, net in artifact.updates.items()}
    variance = noise_variance(artifact) / rate**2
    defense = {"name": "local steps"} | ({"variance": variance} if variance else {})
    return replace(artifact, gradients=gradients, updates={}, local=None, defense=defense)
