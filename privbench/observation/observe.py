"""observe(victim batches) -> what the server sees: derived from what the method declares to send, it cannot return more."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from privbench.data.dataset import SIDE
from privbench.data.readers.resize import pixels
from privbench.defending import described
from privbench.defense import Defense
from privbench.errors import UserError
from privbench.methods.base import Method, RoundClock, SamplingContext
from privbench.networks.model import Model
from privbench.observation import chosen_victims, client_message, defended_upload, local_update, secure_sums, wire
from privbench.observation.chosen_victims import ChosenImages
from privbench.observation.client_message import ObservedRound
from privbench.tensors import Parts
from privbench.training.state import Isolated, Snapshot
from privbench.types import (
    CLASS_EVIDENCE,
    CLASSIFICATION,
    Artifact,
    Batch,
    Federation,
    Images,
    LocalSteps,
    LocalTraining,
    Networks,
    Truth,
)

AUXILIARY_BYTES = 2**30
FLOAT_BYTES = 4


def offers(method: Method, *, labels_known: bool = False, update: bool = False, summed: bool = False) -> frozenset[str]:
    """What the artifacts of a method will offer (Artifact.offers), known before training.

    `update`: of whole updates; `summed`: of sums over clients.
    """
    sent = [f"{'update' if update else 'gradient'}:{part}" for part in CLASSIFICATION if part in method.shared_parts]
    sent += ["gradient"] if sent and not update else []
    sent += [f"upload:{part}" for part in method.shared_parts if part not in CLASSIFICATION]
    sent += [f"broadcast:{part}" for part in (*method.shared_parts, *method.serves)]
    sent += ["label_counts"] if method.uploads_counts else []
    sent += ["labels"] if labels_known else []
    sent += ["aggregate"] if summed else []
    return frozenset([*sent, "classes"] if CLASS_EVIDENCE & {*sent} else sent)


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
    chosen: ChosenImages | None = None,
) -> tuple[Artifact, Truth]:
    """Everything the server holds about V victim batches (whole updates where there are `local` steps), and the truth.

    Where the defence adds messages up, each of the V uploads is the sum over all clients, of a batch of each. Victims are all of
    these images, or those of the one client whose message the server made stand alone (`Snapshot.isolated`). Of a method whose
    clients send weights alone (`Artifact.upload_client`), the victims are training images of those whose message there was.

    `chosen` are the images of whose batches the uploads are, by default the victims of this seed; of sums there is no choice.

    `form` is the number format in which the clients send; `rounds` are those of the whole training, on which the weights of some
    losses depend; by default the attacked one is the last.
    """
    local = local_update.of_method(local, method)
    chosen_victims.check_sent(method_name, method, update=local is not None, round_=str(snapshot.round))
    visible, everyone = chosen_victims.visible(method), len(federation.clients)
    of = chosen_victims.senders(method, snapshot.round, everyone)
    summed = chosen_victims.summed(defense, method, [snapshot.round], everyone)
    sizes = [method.counts_for(len(federation.clients[k].train.labels)) for k in of]
    if summed and len(of) < everyone:
        raise UserError(
            f"sums over {len(of)} of {everyone} clients of {method_name} cannot be observed yet, only sums over all"
        )
    if chosen is None:
        chosen = chosen_victims.choose_victims(
            federation, victims, batch_size, seed, model.image_size, method.client_tasks, summed=summed, of=of
        )
    images, labels, clients, named = chosen
    counts = federation.label_counts() if method.uploads_counts else None
    clock = RoundClock(snapshot.round + 1, snapshot.round + 1 if rounds is None else rounds)
    seen = ObservedRound(snapshot, model, method, defense, clock, local, form, SamplingContext(model, counts))
    sent = [
        client_message.message(seen, k, Batch(images[v], labels[v]), seed, named, v)
        for v, k in enumerate(clients.tolist() if visible else ())
    ]
    isolated = snapshot.isolated
    uploads = snapshot.uploads if visible else [snapshot.uploads[k] for k in of]
    if summed:
        sent, uploads = (
            secure_sums.of_messages(defense, sent, sizes, seed),
            secure_sums.of_networks(defense, uploads, sizes, seed),
        )
        counts = None if counts is None else secure_sums.of_counts(defense, counts, seed)
        images, labels, clients = _of_sums(images, labels, victims, isolated)
    described_as = defended_upload.described(
        defense, local, batch_size, form, [n / sum(sizes) for n in sizes] if summed else (1.0,)
    )
    artifact = Artifact(
        method=method_name,
        dataset=dataset,
        model=model,
        round=snapshot.round,
        shared_parts=tuple(method.shared_parts),
        gradients=_stack([one[0] for one in sent]) if sent and local is None else {},
        weights=snapshot.server.params,
        buffers=snapshot.server.buffers,
        uploads=_stack([u[0] for u in uploads]),
        upload_buffers=_stack([u[1] for u in uploads]),
        client=clients,
        batch_size=labels.shape[1],
        image_shape=(int(images.shape[2]), int(images.shape[3]), int(images.shape[4])),
        labels=labels if labels_known else None,
        label_counts=counts,
        # Where one client sends alone, what adds messages up has nothing to do.
        defense=described_as if summed else described.of_one_message(described_as),
        updates={} if local is None else _stack([one[0] for one in sent]),
        local=local,
        update_buffers=_stack([one[1] for one in sent]) if sent else {},
        imitated=labels.shape[1] * method.imitated(clock),
        training=training,
        member_weights=secure_sums.shares(sizes, victims) if summed else None,
        target=None if isolated is None else isolated.target,
        others=None if isolated is None else Networks(isolated.others.params, isolated.others.buffers),
        divided=None
        if snapshot.divided is None
        else tuple(Networks(each.params, each.buffers) for each in snapshot.divided),
        upload_client=None if visible or summed else torch.tensor(of),
    )
    return artifact, Truth(images, labels)


def _of_sums(images: Tensor, labels: Tensor, victims: int, isolated: Isolated | None) -> tuple[Tensor, Tensor, Tensor]:
    """(images, labels, clients) of V sums, from those of the V K batches behind them: of all clients, or of an isolated one."""
    each = [t.unflatten(0, (victims, -1)) for t in (images, labels)]
    if isolated is None:
        return each[0].flatten(1, 2), each[1].flatten(1, 2), torch.zeros(victims, dtype=torch.int64)
    return each[0][:, isolated.target], each[1][:, isolated.target], torch.full((victims,), isolated.target)


def _stack(each: list[Parts]) -> Parts:
    return {p: {n: torch.stack([e[p][n] for e in each]) for n in params} for p, params in each[0].items()}
