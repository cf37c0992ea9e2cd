"""A dry run: what a network that a server might send would bring back, on images of the server's own.

The server plays the client. It takes the gradient of auxiliary images at the networks in question, or the client's local steps.
It lets the defence that it knows act on that, and rounds it to the number format in which clients send. It attacks the outcome
with the rest of its auxiliary images as it would attack the victims, and compares with the images, which here it knows.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.common import updates
from attacks.shadow import surrogate_training
from privbench import tensors
from privbench.networks.model import Model, train_mode
from privbench.observation import wire
from privbench.scoring import image_scores
from privbench.seeds import stream
from privbench.tensors import Parts
from privbench.types import (
    CLASSIFICATION,
    Artifact,
    Batch,
    Defense,
    ExpectedUpload,
    LocalSteps,
    Networks,
    Reconstruction,
)

STREAM = "rehearsal"  # in the names of random streams, which decide bits
NOISES = 10_000  # numbers sent through a defence to see how much noise it adds


def noise_std(defense: Defense, seed: int) -> float:
    """The standard deviation of what a defence makes of zeros; 0 where it adds no noise."""
    zeros = {"zeros": torch.zeros(NOISES)}
    return float(defense.protect(zeros, stream(seed, "attacker", STREAM, "noise"))["zeros"].std())


def halves(auxiliary: Batch, seed: int) -> tuple[Batch, Batch]:
    """The auxiliary images dealt out: (those of the clients that the server plays, those of the attacker)."""
    order = torch.randperm(len(auxiliary.labels), generator=stream(seed, "attacker", STREAM, "halves"))
    theirs, mine = order.tensor_split(2)
    return Batch(*(t[theirs] for t in auxiliary)), Batch(*(t[mine] for t in auxiliary))


def batches(images: Batch, most: int, size: int) -> Batch:
    """At most so many of some images, in batches of one size: [n, B, C, H, W] and [n, B]; n is 1 where size > most."""
    count = min(max(most // size, 1), len(images.labels) // size)
    return Batch(*(t[: count * size].unflatten(0, (count, size)) for t in images))


def observed(model: Model, own: Networks, clients: Batch, expected: ExpectedUpload, seed: int) -> Artifact:
    """What clients with the batches [n, B, ...] would send of all networks in `own`, both of which they were sent.

    Whole updates are taken for gradients.
    """
    sent: list[Parts] = []
    for v, (x, y) in enumerate(zip(*clients, strict=True)):
        rng = stream(seed, "attacker", STREAM, "defence", v)
        exact = (
            _gradient(model, own, x, y) if expected.local is None else local_change(model, own, x, y, expected.local)
        )
        protected = {part: expected.defense.protect(t, rng) for part, t in exact.items()}
        sent.append(wire.rounded(protected, expected.wire))
    n, size = clients.labels.shape
    stacked = {
        part: {name: torch.stack([one[part][name] for one in sent]) for name in own.params[part]}
        for part in CLASSIFICATION
    }
    seen = Artifact(
        method="dry run",
        dataset="auxiliary",
        model=model,
        round=0,
        shared_parts=CLASSIFICATION,
        gradients=stacked if expected.local is None else {},
        updates={} if expected.local is None else stacked,
        local=expected.local,
        weights={part: own.params[part] for part in CLASSIFICATION},
        buffers={part: own.buffers.get(part, {}) for part in CLASSIFICATION},
        uploads={},
        upload_buffers={},
        client=torch.zeros(n, dtype=torch.int64),
        batch_size=size,
        image_shape=(int(clients.images.shape[2]), int(clients.images.shape[3]), int(clients.images.shape[4])),
        labels=None,
        defense=wire.described(expected.defense.describe(), expected.wire),
    )
    return updates.nearly_gradients(seen)


def local_change(model: Model, own: Networks, images: Tensor, labels: Tensor, local: LocalSteps) -> Parts:
    """How the networks change in a client's local steps on one batch."""
    params = {part: {name: t.detach().clone() for name, t in own.params[part].items()} for part in CLASSIFICATION}
    optimiser = surrogate_training.optimiser_for([t for net in params.values() for t in net.values()], local.optimiser)
    for _ in range(local.steps):
        gradient = _gradient(model, Networks(params, own.buffers), images, labels)
        for part, net in params.items():
            for name, t in net.items():
                t.grad = gradient[part][name]
        optimiser.step()
    return {part: {name: t - own.params[part][name] for name, t in net.items()} for part, net in params.items()}


def _gradient(model: Model, own: Networks, images: Tensor, labels: Tensor) -> Parts:
    """The gradient of the mean cross-entropy of one batch."""
    leaves: Parts = {
        part: {name: t.detach().clone().requires_grad_() for name, t in own.params[part].items()}
        for part in CLASSIFICATION
    }
    train = train_mode(len(labels))
    h, _ = model.net("extractor").apply(leaves["extractor"], own.buffers.get("extractor", {}), images, train=train)
    logits, _ = model.net("classifier").apply(leaves["classifier"], own.buffers.get("classifier", {}), h, train=train)
    found = iter(
        torch.autograd.grad(F.cross_entropy(logits, labels), [t for net in leaves.values() for t in net.values()])
    )
    return {part: {name: next(found) for name in net} for part, net in leaves.items()}


def psnr_db(attack: Callable[[Artifact], Reconstruction], artifact: Artifact, images: Tensor) -> float:
    """The mean PSNR in dB of what an attack makes of an artifact of images [n, B, C, H, W]; the order of a batch is free.

    Minus infinity where an upload is not finite: what overflows on the wire is worth less than any image.
    """
    if not bool(tensors.finite_rows(*(g for net in artifact.gradients.values() for g in net.values())).all()):
        return -math.inf
    found = attack(artifact).images.nan_to_num(nan=0.5)
    aligned = torch.stack([one[image_scores.assignment(one, true)] for one, true in zip(found, images, strict=True)])
    return float(image_scores.psnr_db(aligned, images).clamp_max(image_scores.CAP_DB).mean())
