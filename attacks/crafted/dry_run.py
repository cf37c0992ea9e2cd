"""A dry run: what a network that a server might send would bring back, on images of the server's own.

The server plays the client. It takes the gradient of auxiliary images at the networks in question, or the client's local steps.
It lets the defence that it knows act on that, and rounds it to the number format in which clients send. It attacks the outcome
with the rest of its auxiliary images as it would attack the victims, and compares with the images, which here it knows. The
server sends the honest classifier where that scores higher, e.g. where a defence clips.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from attacks.common import data_fit, updates
from attacks.crafted import classifiers, heads
from attacks.shadow import surrogate_training
from privbench import tensors
from privbench.defending import described
from privbench.defense import Defense
from privbench.networks.model import Model
from privbench.observation import defended_upload, wire
from privbench.observation.local_update import optimiser_of
from privbench.scoring import image_scores
from privbench.seeds import stream
from privbench.tensors import Parts
from privbench.types import (
    CLASSIFICATION,
    Artifact,
    Batch,
    ExpectedUpload,
    Knowledge,
    LocalSteps,
    Networks,
    Reconstruction,
)

Attack = Callable[[Artifact, Knowledge], Reconstruction]
STREAM = "rehearsal"  # in the names of random streams, which decide bits
NOISES = 10_000  # numbers sent through a defence to see how much noise it adds


def noise_std(defense: Defense, seed: int, batch_size: int = 1) -> float:
    """The standard deviation of what a defence makes of zeros, gradients of so many images; 0 where it adds no noise."""
    zeros = {"zeros": {"zeros": torch.zeros(NOISES)}}
    rng = stream(seed, "attacker", STREAM, "noise")
    noise = defended_upload.gradient(defense, lambda: zeros, lambda: [zeros] * batch_size, ("zeros",), rng)
    return float(noise["zeros"]["zeros"].std())


def gradient_noise_std(expected: ExpectedUpload, seed: int) -> float:
    """The same in the expected uploads, whole updates taken for gradients."""
    # In the mean of several messages.
    noise = noise_std(expected.defense, seed, expected.images_per_client) * math.hypot(*expected.shares)
    if expected.local is None or "message" not in expected.defense.places:
        return noise
    return noise / (optimiser_of(expected.local).lr * expected.local.steps)


def clips(defense: Defense) -> bool:
    """Whether a defence bounds the norm of gradients, alone or with others."""
    return any(data_fit.CLIP & described.kinds(one) for one in described.single(defense.describe()))


def better_classifier(
    model: Model,
    broadcast: Networks,
    knowledge: Knowledge,
    most_images: int,
    seed: int,
    read_crafted: Attack,
    read_honest: Attack,
) -> Networks:
    """The crafted classifier for the expected uploads, or HONEST where it would bring back no more; tried where E is broadcast.

    With E private an honest classifier gives the same features of one image without noise, and no worse ones under noise where
    gradients are clipped.
    """
    assert knowledge.auxiliary is not None, "the needs name auxiliary images"
    assert knowledge.expected is not None, "active attacks are told of the uploads to come"
    noise, batch_size = gradient_noise_std(knowledge.expected, seed), knowledge.expected.batch_size
    kind = heads.kind_of(model, broadcast.params["classifier"])
    if model.backbone != heads.LENET5 and not heads.gains(kind, batch_size, noise):
        return classifiers.HONEST
    if "extractor" in broadcast.params:
        serves = crafted_serves(model, broadcast, knowledge, most_images, seed, read_crafted, read_honest)
    else:
        # No gradient can exceed noise that is scaled to the bound of a norm.
        serves = (batch_size > 1 or noise > 0) and not (noise and clips(knowledge.expected.defense))
    return (
        classifiers.made_for(model, broadcast, knowledge.auxiliary, batch_size, noise) if serves else classifiers.HONEST
    )


def crafted_serves(
    model: Model,
    broadcast: Networks,
    knowledge: Knowledge,
    most_images: int,
    seed: int,
    read_crafted: Attack,
    read_honest: Attack,
) -> bool:
    """Whether a crafted classifier brings back more of the attacker's own images than an honest one; untried without images.

    `knowledge` are the auxiliary images and the expected uploads; each attack is given what an upload of either would hold.
    """
    assert knowledge.auxiliary is not None, "the needs name auxiliary images"
    assert knowledge.expected is not None, "active attacks are told of the uploads to come"
    expected, (others, attackers) = knowledge.expected, halves(knowledge.auxiliary, seed)
    if not most_images or len(others.labels) < expected.batch_size:
        return True
    clients, attacker = batches(others, most_images, expected.batch_size), Knowledge(attackers)
    noise = gradient_noise_std(expected, seed)
    crafted = classifiers.made_for(model, broadcast, attackers, expected.batch_size, noise)
    sent = Networks(broadcast.params | crafted.params, broadcast.buffers)

    def worth(networks: Networks, attack: Attack) -> float:
        upload = observed(model, networks, clients, expected, seed)
        return psnr_db(lambda seen: attack(seen, attacker), upload, clients.images)

    return worth(sent, read_crafted) > worth(broadcast, read_honest)


def halves(auxiliary: Batch, seed: int) -> tuple[Batch, Batch]:
    """The auxiliary images dealt out: (those of the clients that the server plays, those of the attacker)."""
    order = torch.randperm(len(auxiliary.labels), generator=stream(seed, "attacker", STREAM, "halves"))
    clients, attackers = order.tensor_split(2)
    return Batch(*(t[clients] for t in auxiliary)), Batch(*(t[attackers] for t in auxiliary))


def batches(images: Batch, most: int, size: int) -> Batch:
    """At most so many of some images, in batches of one size: [n, B, C, H, W] and [n, B]; n is 1 where size > most."""
    count = min(max(most // size, 1), len(images.labels) // size)
    return Batch(*(t[: count * size].unflatten(0, (count, size)) for t in images))


def observed(model: Model, networks: Networks, clients: Batch, expected: ExpectedUpload, seed: int) -> Artifact:
    """What clients with the batches [n, B, ...] would send of all `networks`, which they were sent.

    Whole updates are taken for gradients.
    """
    sent: list[Parts] = []
    (n, size), sums = clients.labels.shape, "aggregate" in expected.defense.places
    for v, (x, y) in enumerate(zip(*clients, strict=True)):
        rng = stream(seed, "attacker", STREAM, "defence", v)
        of_each = zip(*(t.split(expected.images_per_client) for t in (x, y)), strict=True)
        messages = [_sent(model, networks, Batch(*one), expected, rng) for one in of_each]
        sent.append(expected.defense.aggregate(messages, expected.weights, rng).tensors if sums else messages[0])
    stacked = {
        part: {name: torch.stack([one[part][name] for one in sent]) for name in networks.params[part]}
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
        weights={part: networks.params[part] for part in CLASSIFICATION},
        buffers={part: networks.buffers.get(part, {}) for part in CLASSIFICATION},
        uploads={},
        upload_buffers={},
        client=torch.zeros(n, dtype=torch.int64),
        batch_size=size,
        image_shape=(int(clients.images.shape[2]), int(clients.images.shape[3]), int(clients.images.shape[4])),
        labels=None,
        defense=defended_upload.described(
            expected.defense, expected.local, expected.images_per_client, expected.wire, expected.shares
        ),
        member_weights=torch.tensor(expected.shares, dtype=torch.float64).expand(n, -1).clone() if sums else None,
    )
    return updates.nearly_gradients(seen)


def _sent(model: Model, networks: Networks, batch: Batch, expected: ExpectedUpload, rng: torch.Generator) -> Parts:
    """What one client with the batch [B, ...] would send."""
    x, y = batch
    upload_of = partial(_gradient, model, networks)
    if expected.local is not None:
        upload_of = partial(local_change, model, networks, local=expected.local)
    nets, by_image = (networks.params, networks.buffers), partial(_by_image, upload_of, x, y)
    exact = defended_upload.represented(expected.defense, partial(upload_of, x, y), model, nets, x)
    defended = defended_upload.gradient(expected.defense, exact, by_image, CLASSIFICATION, rng)
    return wire.rounded(defended, expected.wire)


def _by_image(upload_of: Callable[..., Parts], images: Tensor, labels: Tensor) -> list[Parts]:
    """What every image of a batch gives by itself."""
    return [upload_of(x, y) for x, y in zip(images.split(1), labels.split(1), strict=True)]


def local_change(model: Model, networks: Networks, images: Tensor, labels: Tensor, local: LocalSteps) -> Parts:
    """How the networks change in a client's local steps on one batch."""
    params = {part: {name: t.detach().clone() for name, t in networks.params[part].items()} for part in CLASSIFICATION}
    optimiser = surrogate_training.optimiser_for([t for net in params.values() for t in net.values()], local.optimiser)
    for _ in range(local.steps):
        gradient = _gradient(model, Networks(params, networks.buffers), images, labels)
        for part, net in params.items():
            for name, t in net.items():
                t.grad = gradient[part][name]
        optimiser.step()
    return {part: {name: t - networks.params[part][name] for name, t in net.items()} for part, net in params.items()}


def _gradient(model: Model, networks: Networks, images: Tensor, labels: Tensor) -> Parts:
    """The gradient of the mean cross-entropy of one batch."""
    leaves: Parts = {
        part: {name: t.detach().clone().requires_grad_() for name, t in networks.params[part].items()}
        for part in CLASSIFICATION
    }
    train = model.train_mode(len(labels))
    h, _ = model.net("extractor").apply(leaves["extractor"], networks.buffers.get("extractor", {}), images, train=train)
    logits, _ = model.net("classifier").apply(
        leaves["classifier"], networks.buffers.get("classifier", {}), h, train=train
    )
    gradients = iter(
        torch.autograd.grad(model.loss(logits, labels), [t for net in leaves.values() for t in net.values()])
    )
    return {part: {name: next(gradients) for name in net} for part, net in leaves.items()}


def psnr_db(attack: Callable[[Artifact], Reconstruction], artifact: Artifact, images: Tensor) -> float:
    """The mean PSNR in dB of what an attack makes of an artifact of images [n, B, C, H, W]; the order of a batch is free.

    Minus infinity where an upload is not finite: what overflows on the wire is worth less than any image.
    """
    if not bool(tensors.finite_rows(*(g for net in artifact.gradients.values() for g in net.values())).all()):
        return -math.inf
    reconstructed = attack(artifact).images.nan_to_num(nan=0.5)
    aligned = torch.stack(
        [one[image_scores.assignment(one, true)] for one, true in zip(reconstructed, images, strict=True)]
    )
    return float(image_scores.psnr_db(aligned, images).clamp_max(image_scores.CAP_DB).mean())
