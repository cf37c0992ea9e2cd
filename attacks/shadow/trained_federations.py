"""Whole federations of the attacker's own, trained by the attacked run's specification, each on half of some candidate images.

Shokri, Stronati, Song, Shmatikov: Membership Inference Attacks Against Machine Learning Models, IEEE S&P 2017, arXiv 1610.05820:
shadow models show how a network that trained on an image differs from one that did not. Here a shadow is a federation, trained
round by round by the suite's own code (privbench/training/harness.py): the method with all its losses, generators and server
phases, the schedule and the defence. Federations come in pairs: the one trains on the candidates that the other leaves out.

Deviations: clients' images are the auxiliary images and half of the candidates, dealt out at random, whatever the layout of the
attacked run is. A shadow client may therefore have other numbers of images, and starts from networks of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from privbench.errors import UserError
from privbench.hyperparameters import BySetting
from privbench.seeds import stream
from privbench.spec import TrainSpec
from privbench.tensors import Parts
from privbench.training import harness
from privbench.training.state import State
from privbench.types import CLASSIFICATION, Artifact, Batch, Client, Federation, Images, Knowledge, Networks, Progress

OWN = "generator"  # what each client uploads of its own, if anything


class Seen(NamedTuple):
    """What a server holds of one client, or of all together where no client sends weights of its own."""

    params: Parts  # the broadcast classifier, and the extractor and the client's generator where the method sends them
    buffers: Parts


class Shadow(NamedTuple):
    """The same of a shadow, and what it trained on."""

    seen: Seen
    inside: Tensor  # [N] bool: the candidates that it trained on
    outside: Tensor  # [N] bool: those that no client of its federation trained on


def needing(needs: frozenset[str]) -> BySetting[frozenset[str]]:
    """Those of an inference with a setting `networks`, and with "sent" what each client sent."""
    return BySetting(needs, lambda attack: needs | {"sent"} if attack.networks == "sent" else needs)


def knowing(words: str) -> BySetting[str]:
    """What it knows, in words that begin with "networks"."""
    return BySetting(words, lambda attack: f"each client's {words}" if attack.networks == "sent" else words)


class Pictures(NamedTuple):
    """Candidates of all clients; the same picture may be a candidate of several."""

    batch: Batch  # [P], each picture once
    of: Tensor  # [N] which picture a candidate is


def real(artifact: Artifact, sent: Mapping[int, Networks] | None = None) -> list[Seen]:
    """Of each attacked client, in ascending order: the broadcast networks, or those that it `sent`."""
    broadcast = {part: artifact.weights[part] for part in CLASSIFICATION if part in artifact.weights}
    usual = Networks(broadcast, {part: artifact.buffers.get(part, {}) for part in broadcast})
    each = []
    for k in artifact.client.unique().tolist():
        row, (params, buffers) = artifact.upload_of[artifact.client == k][0], usual if sent is None else sent[k]
        own = {p: {n: t[row] for n, t in net.items()} for p, net in artifact.uploads.items() if p == OWN}
        own_buffers = {OWN: {n: t[row] for n, t in artifact.upload_buffers.get(OWN, {}).items()}}
        each.append(Seen(params | own, buffers | own_buffers))
    return each


def pictures(knowledge: Knowledge) -> Pictures:
    """The candidates, flattened, without repetitions."""
    assert knowledge.candidates is not None, "the needs of an attack on membership name candidates"
    images, labels = (t.flatten(0, 1) for t in knowledge.candidates)
    _, which = torch.unique(images.flatten(1), dim=0, return_inverse=True)
    rows = torch.arange(len(which), device=which.device)
    first = torch.full_like(rows[: int(which.max()) + 1], len(rows)).scatter_reduce(0, which, rows, "amin")
    return Pictures(Batch(images[first], labels[first]), which)


def shadows(
    artifact: Artifact, knowledge: Knowledge, asked: Pictures, pairs: int, seed: int, progress: Progress
) -> list[Shadow]:
    """Every client of so many pairs of federations; a federation as a whole where nothing is known of a single client.

    Something is where clients send generators, or where the attacker has the networks that each client `sent`.
    """
    each = list[Shadow]()
    for number in range(2 * pairs):
        owner = dealt(asked, knowledge, number, seed)
        state = _trained(artifact, knowledge, asked, owner, number, seed, progress)
        candidate = owner[: len(asked.batch.labels)][asked.of]
        parts = [part for part in CLASSIFICATION if part in artifact.weights]
        broadcast = Seen(
            *({part: both[part] for part in parts} for both in (state.server.params, state.server.buffers))
        )
        of_client = ([OWN] if OWN in artifact.uploads else []) + (parts if knowledge.sent is not None else [])
        if not of_client:
            each.append(Shadow(broadcast, candidate >= 0, candidate < 0))
            continue
        for k, upload in enumerate(state.uploads):
            own = ({part: both[part] for part in of_client} for both in upload)
            seen = Seen(*(common | single for common, single in zip(broadcast, own, strict=True)))
            each.append(Shadow(seen, candidate == k, candidate < 0))
    return each


def dealt(asked: Pictures, knowledge: Knowledge, number: int, seed: int) -> Tensor:
    """Which client of a shadow federation gets each candidate picture, and then each auxiliary image: [P + A], -1 for none.

    Of two federations in a row each gets the candidates that the other does not. UserError: a client would get no image.
    """
    assert knowledge.specification is not None
    assert knowledge.auxiliary is not None
    clients, count = int(knowledge.specification["clients"]), len(asked.batch.labels)
    half = torch.randperm(count, generator=stream(seed, "attacker", "shadow halves", number // 2)) % 2 == number % 2
    owner = torch.full((count + len(knowledge.auxiliary.labels),), -1)
    rows = torch.cat([half.nonzero()[:, 0], torch.arange(count, len(owner))])
    if len(rows) < clients:
        raise UserError(f"shadow federations of {clients} clients need as many images, but there are {len(rows)}")
    order = torch.randperm(len(rows), generator=stream(seed, "attacker", "shadow clients", number))
    owner[rows[order]] = torch.arange(len(rows)) % clients
    return owner.to(asked.of.device)


def _trained(
    artifact: Artifact, knowledge: Knowledge, asked: Pictures, owner: Tensor, number: int, seed: int, progress: Progress
) -> State:
    """A federation after as many rounds as the attacked one."""
    assert knowledge.specification is not None
    assert knowledge.auxiliary is not None
    every = [torch.cat(pair).cpu() for pair in zip(asked.batch, knowledge.auxiliary, strict=True)]
    stored, nothing = Images((255 * every[0]).round().byte(), every[1]), torch.zeros(0, dtype=torch.long)
    empty = Images(stored.images[nothing], stored.labels[nothing])
    named = int(torch.randint(2**31, (), generator=stream(seed, "attacker", "shadow federation", number)))
    spec = TrainSpec(**knowledge.specification, seed=named)
    shares = [Images(*(t[owner.cpu() == k] for t in stored)) for k in range(spec.clients)]
    federation = Federation(
        clients=tuple(Client("shadow", share, empty, empty) for share in shares),
        public=Images(*(t[len(asked.batch.labels) :] for t in stored)),
        classes=tuple(str(y) for y in range(artifact.model.classes)),
        flip=spec.flip,
    )
    setup = harness.prepare(spec, federation, asked.of.device)
    state = harness.initial(setup)
    while state.round < artifact.round:
        harness.learn([setup], [state], "alone")
        state.round += 1
        progress(state.round, artifact.round, f"shadow federation {number + 1}")
    return state
