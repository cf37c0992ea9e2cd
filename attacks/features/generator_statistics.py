"""The moments per channel of what a client's uploaded generator makes of some labels: mu and sigma^2 of FedCG's Eq. 8."""

from __future__ import annotations

import torch
from torch import Tensor

from privbench.seeds import stream
from privbench.types import Artifact

DRAWS = 256  # generator samples behind mu and sigma


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
