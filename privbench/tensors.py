"""Tensors by name, the form in which networks and gradients travel through the suite."""

from collections.abc import Sequence

import torch
from torch import Tensor

Params = dict[str, Tensor]  # one network: parameter name -> tensor
Parts = dict[str, Params]  # part name ("extractor", "classifier", "generator", "discriminator") -> network


def moved(parts: Parts, device: torch.device) -> Parts:
    """The same networks with their tensors on `device`."""
    return {part: {name: t.to(device) for name, t in params.items()} for part, params in parts.items()}


def alone(t: Tensor, device: torch.device) -> Tensor:
    """The same tensor on `device` in a storage of its own: a view would expose all that its storage holds."""
    moved = t.detach().to(device)
    return moved if moved.untyped_storage().nbytes() == moved.nbytes else moved.clone()


def parts_alone(parts: Parts, device: torch.device) -> Parts:
    """The same networks, each tensor `alone`."""
    return {part: {name: alone(t, device) for name, t in params.items()} for part, params in parts.items()}


def finite_rows(*tensors: Tensor) -> Tensor:
    """Whether row v of every tensor [V, ...] is finite, [V] bool; at least one tensor."""
    return torch.stack([t.flatten(1).isfinite().all(1) for t in tensors]).all(0)


def average(clients: Sequence[Params], weights: Tensor) -> Params:
    """sum_i w_i theta_i (Eq. 5's first line): K networks, weights [K].

    Whole numbers and truth values (counts, indices and masks among buffers) keep their type: what all clients agree on stays as
    it is, and the mean of anything else is rounded.
    """
    return {name: _average([c[name] for c in clients], weights.tolist()) for name in clients[0]}


def _average(each: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    first = each[0]
    if first.is_floating_point():
        return sum((w * t for w, t in zip(weights, each, strict=True)), torch.zeros_like(first))
    if all(torch.equal(t, first) for t in each):
        return first.clone()
    mean = torch.stack([w * t.double() for w, t in zip(weights, each, strict=True)]).sum(0)
    return mean.round().to(first)


def relative_change(now: Params, before: Params) -> float:
    """||now - before|| / ||before|| over all parameters of a network."""
    change = sum(float((now[n] - before[n].to(now[n])).double().square().sum()) for n in before)
    return float((change / sum(float(t.double().square().sum()) for t in before.values())) ** 0.5)
