"""Moments of an uploaded generator: mu and sigma^2 of what it makes (FedCG, Eq. 8), and what enters its first batch norm."""

from __future__ import annotations

import torch
from torch import Tensor

from privbench.networks.base import Generator
from privbench.seeds import stream
from privbench.tensors import Params
from privbench.types import Artifact

DRAWS = 256  # generator samples of each label behind mu and sigma


def statistics(artifact: Artifact, labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """(mu, sigma^2) of the victim's generator given its labels, each [V, c], in eval mode; equal questions are asked once."""
    cache: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}
    keys = [(k, *sorted(batch)) for k, batch in zip(artifact.client.tolist(), labels.tolist(), strict=True)]
    for key in keys:
        if key not in cache:
            cache[key] = _statistics(artifact, key[0], key[1:], seed)
    return torch.stack([cache[key][0] for key in keys]), torch.stack([cache[key][1] for key in keys])


def _statistics(artifact: Artifact, client: int, classes: tuple[int, ...], seed: int) -> tuple[Tensor, Tensor]:
    device = artifact.client.device
    params = {n: t[client] for n, t in artifact.uploads["generator"].items()}
    buffers = {n: t[client] for n, t in artifact.upload_buffers["generator"].items()}
    y = torch.tensor(classes, device=device).repeat_interleave(DRAWS)
    z = torch.randn(len(y), artifact.model.noise_dim, generator=stream(seed, "attacker", "generator", client, *classes))
    with torch.no_grad():
        h, _ = artifact.model.net("generator").apply(params, buffers, z.to(device), y, train=False)
    channels = h.double().transpose(0, 1).flatten(1)
    return channels.mean(1), channels.var(1, unbiased=False)


def linear_map(net: Generator, params: Params, noise: int, classes: int) -> tuple[Tensor, Tensor]:
    """(mu [Y, c], A' [n, c]) of what enters the first batch norm, mean over places, on the CPU in float64."""
    params = {name: t.cpu().double() for name, t in params.items()}

    def entering(z: Tensor, labels: Tensor) -> Tensor:
        a = net.before_norm(params, z, labels)
        return a.reshape(*a.shape[:2], -1).mean(2)

    by_class = entering(torch.zeros(classes, noise, dtype=torch.float64), torch.arange(classes))
    first = torch.zeros(noise, dtype=torch.int64)
    return by_class, entering(torch.eye(noise, dtype=torch.float64), first) - by_class[0]
