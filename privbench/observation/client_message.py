"""What one client sends of one victim batch: the gradient of the observed loss, or a whole local update, after the defence.

Batch norm (ResNet-18): the gradient of a batch of several images is taken in train mode, as in training, so that the batch's own
statistics normalise it and nothing but the batch determines them. The gradient of ONE image is taken in eval mode, on the running
statistics with which its client starts the round (broadcast with shared parts, private with private ones), as in the code released
with Geiping et al. 2020: one image has no batch statistics (Model.train_mode). LeNet-5 knows no such difference.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

from privbench.defense import Defense
from privbench.methods.base import Method, MiniBatch, Nets, RoundClock, SamplingContext
from privbench.networks.model import Model
from privbench.observation import chosen_victims, defended_upload, local_update, wire
from privbench.seeds import stream
from privbench.tensors import Parts
from privbench.training.engine.plan import StageContext
from privbench.training.state import Snapshot
from privbench.types import CLASSIFICATION, Batch, LocalSteps


class ObservedRound(NamedTuple):
    """What the messages of one round depend on, the same for all clients."""

    snapshot: Snapshot
    model: Model
    method: Method
    defense: Defense
    clock: RoundClock
    local: LocalSteps | None  # of whole updates; None: gradients are sent
    form: wire.Format  # in which numbers arrive
    context: SamplingContext  # of the draws of the observed loss

    @property
    def sent_parts(self) -> tuple[str, ...]:
        """Of which networks clients send a gradient or an update."""
        return chosen_victims.visible(self.method)

    @property
    def trained_parts(self) -> tuple[str, ...]:
        """Which networks the observed loss trains, also those that clients keep."""
        return tuple(p for p in CLASSIFICATION if p in self.method.observed().trains)


def message(seen: ObservedRound, client: int, victim: Batch, seed: int, named: str, number: int) -> tuple[Parts, Parts]:
    """What arrives of one victim batch of a client, by part and parameter, and of its running statistics by part and buffer.

    Its draws come from streams of `seed`, of whose images it is (`named`: ChosenImages.named), and its number among them.
    """
    shape = (len(victim.labels),) if seen.local is None else (seen.local.steps, len(victim.labels))
    noise = {
        name: draw.sample(shape, seen.context, stream(seed, named, number, name))
        for name, draw in seen.method.observed().draws.items()
    }
    batch = MiniBatch(victim.images, victim.labels, noise)
    statistics: Parts = {}
    if seen.local is None:
        sent = _gradient(seen, client, batch, stream(seed, named, number, "defence"))
    else:
        rng = local_update.defence_stream(seed, named, number)
        sent, statistics = local_update.client_update(
            seen.model, seen.snapshot, client, batch, seen.method, seen.defense, seen.local, seen.clock, rng
        )
    return wire.rounded(sent, seen.form), wire.rounded(statistics, seen.form)


def _gradient(seen: ObservedRound, client: int, batch: MiniBatch, rng: torch.Generator) -> Parts:
    """The gradient of a victim batch after the defence."""
    train = seen.model.train_mode(len(batch.labels))
    at_client = partial(client_gradient, seen.model, seen.snapshot, client, method=seen.method, clock=seen.clock)
    of_parts = partial(at_client, train=train)
    exact = defended_upload.represented(
        seen.defense,
        partial(of_parts, batch, parts=seen.sent_parts),
        seen.model,
        seen.snapshot.networks(client),
        batch.images,
    )
    each = partial(by_image, partial(of_parts, parts=seen.trained_parts), batch)
    return defended_upload.gradient(seen.defense, exact, each, seen.sent_parts, rng)


def client_gradient(
    model: Model,
    snapshot: Snapshot,
    client: int,
    batch: MiniBatch,
    method: Method,
    parts: tuple[str, ...],
    clock: RoundClock,
    *,
    train: bool,
) -> Parts:
    """grad over `parts` of the observed loss of one victim batch, at the networks client `client` starts the round with.

    `train`: in train mode, as in training (privbench.networks.model.Model.train_mode).
    """
    server = snapshot.received(client)
    around = StageContext((server.params, server.buffers), (), None)
    start = local_update.Start(model, snapshot.networks(client), method.observed().loss, around, clock)
    return gradient_at(start, batch, parts, train=train)


def gradient_at(start: local_update.Start, batch: MiniBatch, parts: tuple[str, ...], *, train: bool) -> Parts:
    """grad over `parts` of the loss of one batch at networks that a client starts with; `train` as of `client_gradient`."""
    (whole, buffers), received = start.networks, start.around.received
    params = {p: {n: t.detach() for n, t in whole[p].items()} for p in CLASSIFICATION}
    leaves = [params[p][n].requires_grad_() for p in parts for n in params[p]]
    trains = CLASSIFICATION if train else ()
    nets = Nets(start.model, params, buffers, trains, received=Nets(start.model, *received) if received else None)
    loss = nets.penalised(start.loss(nets, batch, start.clock))
    grads = iter(torch.autograd.grad(loss, leaves))
    return {p: {n: next(grads) for n in params[p]} for p in parts}


def by_image(gradient: Callable[[MiniBatch], Parts], batch: MiniBatch) -> list[Parts]:
    """The gradient of every image of a batch by itself."""
    rows = [slice(b, b + 1) for b in range(len(batch.labels))]
    each = [MiniBatch(batch.images[r], batch.labels[r], {n: t[r] for n, t in batch.noise.items()}) for r in rows]
    return [gradient(one) for one in each]
