"""A client's local steps as a function of its images, with slopes: what attackers and audits simulate.

The client itself steps in place (privbench/training/engine/descent.py).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from privbench.observation.local_update import optimiser_of
from privbench.spec import SGD, Optimiser
from privbench.tensors import Params, Parts
from privbench.training.engine.descent import ADAM_EPS
from privbench.types import LocalSteps

TINY = 1e-40  # under Adam's root, which has no slope at 0

# (networks, running statistics of E) -> (gradient of the task's loss there, the statistics after it)
Gradient = Callable[[Parts, Params], tuple[Parts, Params]]


def after_steps(local: LocalSteps, received: Parts, statistics: Params, gradient: Gradient) -> tuple[Parts, Params]:
    """Networks and running statistics of E after the local steps from those that were received.

    Weight decay and the proximal term of `local` are added to what `gradient` gives. Moments are fresh.
    """
    setting, params = optimiser_of(local), received
    mean: Params = {}
    square: Params = {}
    for step in range(1, local.steps + 1):
        of_task, statistics = gradient(params, statistics)
        whole = {
            p: {n: of_task[p][n] + _pull(local, setting, t, received[p][n]) for n, t in net.items()}
            for p, net in params.items()
        }
        params = {
            p: {n: t - _move(setting, whole[p][n], f"{p}/{n}", mean, square, step) for n, t in net.items()}
            for p, net in params.items()
        }
    return params, statistics


def _pull(local: LocalSteps, setting: Optimiser, theta: Tensor, received: Tensor) -> Tensor:
    """What weight decay and a proximal term add to a parameter's gradient."""
    decay = setting.weight_decay * theta
    return decay + local.proximal * (theta - received) if local.proximal else decay


def _move(setting: Optimiser, gradient: Tensor, name: str, mean: Params, square: Params, step: int) -> Tensor:
    """What one step subtracts from a parameter; Adam's moments are replaced in place."""
    if isinstance(setting, SGD):
        return setting.lr * gradient
    zero = torch.zeros_like(gradient)
    mean[name] = setting.beta1 * mean.get(name, zero) + (1 - setting.beta1) * gradient
    square[name] = setting.beta2 * square.get(name, zero) + (1 - setting.beta2) * gradient.square()
    first, second = (1 - beta**step if setting.bias_correction else 1.0 for beta in (setting.beta1, setting.beta2))
    return setting.lr * mean[name] / first / ((square[name] / second + TINY).sqrt() + ADAM_EPS)
