"""How unlike an honest broadcast the networks are that an active server sent, by checks that any client can make.

A client has what it receives and its own images. Five numbers, of networks received by a client with images x_1 .. x_n:
    largest weight   max |w| over all that was received
    loss             mean cross-entropy of C(E(x)), nats
    gradient         norm of the mean gradient of that loss with respect to the received networks
    one of many      max over matrices W of  max_i ||dl_i/dW|| / sqrt( sum over j other than i of ||dl_j/dW||^2 )
    generator        mean over i and features of (E(x_i) - G(z, y_i))^2, where a generator of features is received
`one of many` is large where a sum of gradients is one image's (after the D-SNR of Garov et al., ICLR 2024). A client knows what it
was sent in earlier rounds. Here the honest broadcast of the same round stands for that.

No such number proves that a server is honest: who knows the checks can craft networks that pass them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from privbench.networks.model import Model
from privbench.seeds import stream
from privbench.types import CLASSIFICATION, Batch, Networks

CHECKS = ("largest weight", "loss", "gradient", "one of many", "generator")

IMAGES = 16  # of a client, the first ones: as many as a usual mini-batch
MATRIX_DIMS = 2  # and more: weights of linear and convolutional layers


def of_networks(model: Model, received: Networks, private: Networks, batch: Batch) -> dict[str, float | None]:
    """The numbers of CHECKS on networks that a client received, beside its `private` parts; None where one is not finite.

    batch   images [n, C, H, W] in [0, 1] and labels [n]
    """
    received, private = _double(received), _double(private)
    parts = [part for part in CLASSIFICATION if part in received.params]
    sizes = [t.abs().max() for part in received.params.values() for t in part.values() if t.numel()]
    losses, gradients = [], []
    for image, label in zip(batch.images.double(), batch.labels, strict=True):
        trained = {
            part: {n: t.clone().requires_grad_(True) for n, t in received.params[part].items()} for part in parts
        }
        networks = Networks(private.params | received.params | trained, private.buffers | received.buffers)
        loss = _loss(model, networks, image[None], label[None])
        tensors = [t for part in trained.values() for t in part.values()]
        gradients.append(torch.autograd.grad(loss, tensors, allow_unused=True, materialize_grads=True))
        losses.append(loss.detach())
    of_tensors = [torch.stack(of_images) for of_images in zip(*gradients, strict=True)]
    norm = torch.stack([t.mean(0).square().sum() for t in of_tensors]).sum().sqrt()
    values = [torch.stack(sizes).max(), torch.stack(losses).mean(), norm, one_of_many(of_tensors)]
    if "generator" in received.params and model.gan != "image":
        both = Networks(private.params | received.params, private.buffers | received.buffers)
        values.append(_gap(model, both, batch))
    # Without a generator the last check is missing.
    return {name: float(v) if math.isfinite(v) else None for name, v in zip(CHECKS, values, strict=False)}


def one_of_many(gradients: list[Tensor]) -> Tensor:
    """How far one image's gradient exceeds all others together, in the matrix where it does most: [], of tensors [n, ...]."""
    ratios = []
    for each in gradients:
        if each.ndim > MATRIX_DIMS:
            squares = each.flatten(1).square().sum(1)
            largest = squares.max()
            ratios.append((largest / (squares.sum() - largest)).sqrt())
    return torch.stack(ratios).nan_to_num(0.0, math.inf).max()


def _loss(model: Model, networks: Networks, images: Tensor, labels: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(
        _apply(model, networks, "classifier", _features(model, networks, images)), labels
    )


def _gap(model: Model, networks: Networks, batch: Batch) -> Tensor:
    """What separates the received generator's features from a client's own, of the same labels: []."""
    z = torch.randn(len(batch.labels), model.noise_dim, generator=stream(0, "checks of a broadcast")).double()
    with torch.no_grad():
        generated = _apply(model, networks, "generator", z, batch.labels)
        return (_features(model, networks, batch.images.double()) - generated).square().mean()


def _features(model: Model, networks: Networks, images: Tensor) -> Tensor:
    return _apply(model, networks, "extractor", images)


def _apply(model: Model, networks: Networks, part: str, *inputs: Tensor) -> Tensor:
    """A part in eval mode, as a client would test it."""
    output: Tensor = model.net(part).apply(networks.params[part], networks.buffers.get(part, {}), *inputs, train=False)[
        0
    ]
    return output


def _double(networks: Networks) -> Networks:
    """Crafted weights exceed what single precision holds the square of."""
    return Networks(
        *(
            {
                part: {n: t.double() if t.is_floating_point() else t for n, t in of_part.items()}
                for part, of_part in parts.items()
            }
            for parts in (networks.params, networks.buffers)
        )
    )
