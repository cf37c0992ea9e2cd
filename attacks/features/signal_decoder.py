"""A perceptron from the signals of a gradient to its image, between the principal components of both.

    min over f of  mean || f(s(g + n), y) - x ||^2
over auxiliary images x and noise n drawn afresh in every epoch. Epochs end where a tenth of the images, held out, is met best.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.common.problem import InversionProblem
from attacks.features import gradient_signals
from attacks.features.gradient_signals import Signals
from privbench.seeds import stream
from privbench.types import Batch, Progress

INPUTS, HIDDEN, OUTPUTS = 256, 256, 128
LAYERS = ("w0", "b0", "w1", "b1", "w2", "b2")
SLOPE = 0.1
BATCH = 128
HELD_OUT = 10  # every tenth image


def train(
    posed: InversionProblem,
    auxiliary: Batch,
    labels_known: bool,
    epochs: int,
    lr: float,
    seed: int,
    progress: Progress,
) -> dict[str, Tensor]:
    """The network of the best epoch, and "trace": the lowest error on held-out images so far [epochs + 1]."""
    rng = stream(seed, "attacker", "learned inverse")
    device = auxiliary.images.device
    signals, x = gradient_signals.simulated(posed, auxiliary, labels_known, rng), auxiliary.images.flatten(1)

    def noised(rows: Tensor | slice) -> Signals:
        return gradient_signals.noised(Signals(*(t[rows] for t in signals)), posed, labels_known, rng)

    held_out = torch.arange(len(x), device=device) % HELD_OUT == HELD_OUT - 1
    fitted, test = (torch.nonzero(rows)[:, 0] for rows in (~held_out, held_out if bool(held_out.any()) else ~held_out))
    net = initial(Signals(*(t[fitted] for t in noised(slice(None)))), x[fitted], rng)
    test_input = noised(test)
    leaves = {n: net[n].requires_grad_() for n in LAYERS}
    optimiser = torch.optim.Adam(leaves.values(), lr)
    lowest, best, trace = torch.tensor(torch.inf), leaves, []
    for epoch in range(epochs + 1):
        progress(epoch, epochs, "learned inverse")
        with torch.no_grad():
            error = F.mse_loss(invert(net, test_input), x[test]).cpu()
        if error < lowest:
            lowest, best = error, {n: t.detach().clone() for n, t in leaves.items()}
        trace.append(lowest)
        if epoch == epochs:
            break
        inputs = noised(slice(None))
        for rows in fitted[torch.randperm(len(fitted), generator=rng).to(device)].split(BATCH):
            optimiser.zero_grad()
            F.mse_loss(invert(net, Signals(*(t[rows] for t in inputs))), x[rows]).backward()
            optimiser.step()
    return {n: t.detach().contiguous() for n, t in (net | best).items()} | {"trace": torch.stack(trace).to(device)}


def initial(inputs: Signals, images: Tensor, rng: torch.Generator) -> dict[str, Tensor]:
    """A perceptron between the principal components of its inputs and of images [N, D]."""
    flat = torch.cat(inputs[:3], 1)
    net = {"middle": flat.mean(0), "scale": flat.std(0).clamp_min(1e-12), "mean": images.mean(0)}
    net["components"], net["size"] = _principal((flat - net["middle"]) / net["scale"], INPUTS)
    net["basis"], net["spread"] = _principal(images - net["mean"], OUTPUTS)
    widths = (len(net["components"]) + inputs.y.shape[1], HIDDEN, HIDDEN, len(net["basis"]))
    for layer, (before, after) in enumerate(pairwise(widths)):
        gain = 0.1 if layer == 2 else 1.0  # begins near the mean image
        w = gain * torch.randn(after, before, generator=rng) * (2 / before) ** 0.5
        net |= {f"w{layer}": w.to(flat), f"b{layer}": flat.new_zeros(after)}
    return net


def invert(net: dict[str, Tensor], signals: Signals) -> Tensor:
    """Images [N, D]."""
    z = ((torch.cat(signals[:3], 1) - net["middle"]) / net["scale"]).clamp(-10, 10) @ net["components"].T / net["size"]
    z = torch.cat([z, signals.y.to(z)], 1)
    z = F.leaky_relu(F.linear(z, net["w0"], net["b0"]), SLOPE)
    z = F.leaky_relu(F.linear(z, net["w1"], net["b1"]), SLOPE)
    return net["mean"] + (F.linear(z, net["w2"], net["b2"]) * net["spread"]) @ net["basis"]


def _principal(rows: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """(orthonormal directions [k, n], their standard deviations [k]) of centred rows [N, n], k at most `most`."""
    _, size, directions = torch.linalg.svd(rows, full_matrices=False)
    size = size / len(rows) ** 0.5
    k = max(1, min(most, int((size > 1e-6 * size[0]).sum())))
    return directions[:k].contiguous(), size[:k].clamp_min(1e-12)
