"""observe(victim batches) -> what the server sees: derived from what the method declares to send, it cannot return more.

Batch norm (ResNet-18): the gradient of a batch of several images is taken in train mode, as in training, so that the batch's own
statistics normalise it and nothing but the batch determines them. The gradient of ONE image is taken in eval mode, on the running
statistics with which its client starts the round (broadcast with shared parts, private with private ones), as in the code released
with Geiping et al. 2020: one image has no batch statistics (privbench.networks.model.train_mode). LeNet-5 knows no such difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from privbench.data.dataset import SIDE
from privbench.data.readers.resize import pixels
from privbench.errors import UserError
from privbench.methods.base import Method, MiniBatch, Nets, RoundClock, SamplingContext
from privbench.networks.model import Model, train_mode
from privbench.observation import local_update, wire
from privbench.seeds import stream
from privbench.tensors import Parts
from privbench.training.state import Snapshot
from privbench.types import (
    CLASSIFICATION,
    TELL_CLASSES,
    Artifact,
    Batch,
    Defense,
    Federation,
    Images,
    LocalSteps,
    LocalTraining,
    Truth,
)

AUXILIARY_BYTES = 2**30
FLOAT_BYTES = 4


def offers(method: Method, *, labels_known: bool = False, update: bool = False) -> frozenset[str]:
    """What the artifacts of a method will offer (Artifact.offers), known before training; `update`: of whole updates."""
    sent = [f"{'update' if update else 'gradient'}:{part}" for part in CLASSIFICATION if part in method.shared_parts]
    sent += ["gradient"] if sent and not update else []
    sent += [f"upload:{part}" for part in method.shared_parts if part not in CLASSIFICATION]
    sent += [f"broadcast:{part}" for part in (*method.shared_parts, *method.serves)]
    sent += ["label_counts"] if method.uploads_counts else []
    sent += ["labels"] if labels_known else []
    return frozenset([*sent, "classes"] if TELL_CLASSES & {*sent} else sent)


def check_victims(federation: Federation, victims: int, batch_size: int) -> None:
    """UserError unless every client has the training images for its victims: batches of its own, clients in turn."""
    clients = len(federation.clients)
    sizes = [len(client.train.labels) for client in federation.clients]
    most = min(size // batch_size * clients + k for k, size in enumerate(sizes))
    if victims <= most:
        return
    if not most:
        raise UserError(
            f"--batch-size {batch_size} was asked for, but client {sizes.index(min(sizes)) + 1} has only {min(sizes)} training "
            f"images; lower it to {min(sizes)}, or raise --per-client"
        )
    each = "an image each" if batch_size == 1 else f"{batch_size} images each"
    sizes_ = f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
    raise UserError(
        f"{victims} victims a seed were asked for, {each}, but the {clients} clients with {sizes_} training "
        f"images each have enough for {most}; lower --victims or --batch-size, or raise --per-client"
    )


def choose_victims(
    federation: Federation, victims: int, batch_size: int, seed: int, image_size: int = SIDE
) -> tuple[Tensor, Tensor, Tensor]:
    """Victim images [V, B, C, H, W] in [0, 1], labels [V, B] and clients [V]: training images, clients in turn.

    The choice depends on data, seed, V and B alone, so every method is attacked on the same images.
    """
    check_victims(federation, victims, batch_size)
    clients = len(federation.clients)
    images, labels, owners = [], [], []
    shuffles = [
        torch.randperm(len(c.train.labels), generator=stream(seed, "victims", k))
        for k, c in enumerate(federation.clients)
    ]
    for v in range(victims):
        k, turn = v % clients, v // clients
        index = shuffles[k][turn * batch_size : (turn + 1) * batch_size]
        images.append(pixels(federation.clients[k].train.images[index], image_size))
        labels.append(federation.clients[k].train.labels[index])
        owners.append(k)
    return torch.stack(images), torch.stack(labels), torch.tensor(owners)


def auxiliary(federation: Federation, image_size: int = SIDE) -> Batch:
    """The pooled validation images: of the same distribution as every client's training images."""
    return pooled([c.validation for c in federation.clients if len(c.validation.labels)], image_size)


def pooled(sets: Sequence[Images], image_size: int = SIDE) -> Batch:
    """Stored images of one or several sets as an attacker gets them.

    Where all of them would take more than AUXILIARY_BYTES (at 224x224), every n-th one of each set.
    """
    channels, count = sets[0].images.shape[1], sum(len(v.labels) for v in sets)
    nth = math.ceil(count * channels * image_size**2 * FLOAT_BYTES / AUXILIARY_BYTES)
    images = torch.cat([pixels(v.images[::nth], image_size) for v in sets])
    return Batch(images, torch.cat([v.labels[::nth] for v in sets]))


def client_gradient(
    model: Model,
    snapshot: Snapshot,
    client: int,
    batch: MiniBatch,
    method: Method,
    parts: tuple[str, ...],
    clock: RoundClock,
) -> Parts:
    """grad over `parts` of the observed loss of one victim batch, at the networks client `client` starts the round with."""
    own, server = snapshot.clients[client], snapshot.server
    params = {p: {n: t.detach() for n, t in (own.params | server.params)[p].items()} for p in CLASSIFICATION}
    leaves = [params[p][n].requires_grad_() for p in parts for n in params[p]]
    trains = CLASSIFICATION if train_mode(len(batch.images)) else ()
    received = Nets(model, server.params, server.buffers)
    nets = Nets(model, params, own.buffers | server.buffers, trains, received=received)
    loss = method.observed().loss(nets, batch, clock)
    grads = iter(torch.autograd.grad(loss, leaves))
    return {p: {n: next(grads) for n in params[p]} for p in parts}


def observe(  # noqa: PLR0913 (what an observation depends on)
    snapshot: Snapshot,
    federation: Federation,
    model: Model,
    method: Method,
    defense: Defense,
    *,
    method_name: str,
    dataset: str,
    victims: int,
    batch_size: int,
    labels_known: bool,
    seed: int,
    local: LocalSteps | None = None,
    training: LocalTraining | None = None,
    form: wire.Format = "float32",
    rounds: int | None = None,
) -> tuple[Artifact, Truth]:
    """Everything the server holds about V victim batches (whole updates where there are `local` steps), and the truth.

    `form` is the number format in which the clients send; `rounds` are those of the whole training, on which the weights of some
    losses depend; by default the attacked one is the last.
    """
    images, labels, clients = choose_victims(federation, victims, batch_size, seed, model.image_size)
    visible = tuple(p for p in CLASSIFICATION if p in method.shared_parts)
    if not visible:
        raise UserError(f"{method_name} sends nothing that depends on a training image, so there is nothing to attack")
    clock = RoundClock(snapshot.round + 1, snapshot.round + 1 if rounds is None else rounds)
    counts = federation.label_counts() if method.uploads_counts else None
    shape = (batch_size,) if local is None else (local.steps, batch_size)
    sent = []
    for v, k in enumerate(clients.tolist()):
        noise = {
            name: draw.sample(shape, SamplingContext(model, counts), stream(seed, "victims", v, name))
            for name, draw in method.observed().draws.items()
        }
        batch = MiniBatch(images[v], labels[v], noise)
        if local is not None:
            rng = local_update.defence_stream(seed, v)
            sent.append(local_update.client_update(model, snapshot, k, batch, method, defense, local, clock, rng))
            continue
        exact = client_gradient(model, snapshot, k, batch, method, visible, clock)
        rng = stream(seed, "victims", v, "defence")
        sent.append({p: defense.protect(g, rng) for p, g in exact.items()})
    sent = [wire.rounded(parts, form) for parts in sent]
    uploads = [u[0] for u in snapshot.uploads]
    upload_buffers = [u[1] for u in snapshot.uploads]
    artifact = Artifact(
        method=method_name,
        dataset=dataset,
        model=model,
        round=snapshot.round,
        shared_parts=tuple(method.shared_parts),
        gradients=_stack(sent) if local is None else {},
        weights=snapshot.server.params,
        buffers=snapshot.server.buffers,
        uploads=_stack(uploads),
        upload_buffers=_stack(upload_buffers),
        client=clients,
        batch_size=batch_size,
        image_shape=(int(images.shape[2]), int(images.shape[3]), int(images.shape[4])),
        labels=labels if labels_known else None,
        label_counts=counts,
        defense=wire.described(defense.describe(), form),
        updates={} if local is None else _stack(sent),
        local=local,
        imitated=0 if local is not None else batch_size * method.imitated(clock),
        training=training,
    )
    return artifact, Truth(images, labels)


def _stack(each: list[Parts]) -> Parts:
    return {p: {n: torch.stack([e[p][n] for e in each]) for n in params} for p, params in each[0].items()}
