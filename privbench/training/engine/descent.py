"""One step of a stage's optimiser, in place: Adam or plain stochastic gradient descent."""

from __future__ import annotations

import torch
from torch import Tensor

from privbench.spec import SGD, Adam, Optimiser

ADAM_EPS = 1e-8
LATE = 1e9

Pieces = list[Tensor]


def adam(params: Pieces, grads: Pieces, means: Pieces, squares: Pieces, steps: Pieces, setting: Adam) -> None:
    """Adam's step `steps` (the first is 1) in place, each tensor with its own count: torch's fused Adam."""
    if not setting.bias_correction:
        # After that many steps 1 - beta^t is 1.
        steps = [torch.full_like(step, LATE) for step in steps]
    torch._fused_adam_(
        params, grads, means, squares, [], steps, amsgrad=False, maximize=False,
        lr=setting.lr, beta1=setting.beta1, beta2=setting.beta2, eps=ADAM_EPS, weight_decay=setting.weight_decay,
    )  # fmt: skip


def sgd(params: Pieces, grads: Pieces, setting: SGD) -> None:
    """One step of plain stochastic gradient descent in place."""
    for flat, grad in zip(params, grads, strict=True):
        flat.sub_(setting.lr * (grad + setting.weight_decay * flat))


def descend(params: Pieces, grads: Pieces, means: Pieces, squares: Pieces, steps: Pieces, setting: Optimiser) -> None:
    """Step `steps` in place by the optimiser of a stage; SGD leaves the moments alone."""
    if isinstance(setting, Adam):
        adam(params, grads, means, squares, steps, setting)
    else:
        sgd(params, grads, setting)
