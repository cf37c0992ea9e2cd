"""Shadow clients of the attacker's own, one per candidate domain, that train on auxiliary images from the broadcast on.

A shadow client holds the auxiliary images of one domain and trains as the attacked run's specification says, with the method's own
losses and defence (privbench/training/local_training.py). Every round it receives the attacked broadcast, which no shadow changes:
so the classifier whose gradients are compared is the same one, and no server has to be imitated. Stages that train neither
extractor nor classifier (a generator's) are left out, as nothing that is read depends on them. Where the extractor is broadcast,
there is nothing to train. Then every shadow client sends what the attacked ones send, of batches of its own images.

Deviations from a client of the run: it has other numbers of images, and it never saw the broadcasts of earlier rounds.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from privbench.data.readers.resize import pixels
from privbench.observation import observe
from privbench.observation.chosen_victims import ChosenImages
from privbench.seeds import stream
from privbench.spec import TrainSpec
from privbench.training import harness, local_training
from privbench.training.local_training import Learner
from privbench.training.state import Replica, Setup, Snapshot, State
from privbench.types import CLASSIFICATION, Artifact, Batch, Client, Federation, Images, Knowledge, Progress

UPLOADS = 24  # of every shadow client


class ShadowUploads(NamedTuple):
    """What shadow clients sent."""

    artifact: Artifact  # M uploads
    domains: Tensor  # [M] int64: the candidate that each is of


def uploads(artifact: Artifact, knowledge: Knowledge, number: int, seed: int, progress: Progress) -> ShadowUploads:
    """Those of one shadow client of every candidate domain; `number` tells several such sets apart."""
    setup = _setup(artifact, knowledge, number, seed)
    state = harness.initial(setup)
    server = Replica(artifact.weights, {part: artifact.buffers.get(part, {}) for part in artifact.weights})
    state.server = server
    _train(setup, state, 0 if "extractor" in artifact.weights else artifact.round, progress)
    shot = Snapshot(artifact.round, server, state.clients, state.uploads)
    seen, _ = observe.observe(
        shot, setup.federation, setup.model, setup.method, setup.defense, method_name=artifact.method,
        dataset=artifact.dataset, victims=UPLOADS * len(state.clients), batch_size=artifact.batch_size, labels_known=False,
        seed=setup.spec.seed, local=artifact.local, form=artifact.defense.get("wire", "float32"),
        rounds=setup.spec.schedule.rounds, chosen=_batches(setup, artifact.batch_size),
    )  # fmt: skip
    return ShadowUploads(seen, seen.client)


def _setup(artifact: Artifact, knowledge: Knowledge, number: int, seed: int) -> Setup:
    assert knowledge.specification is not None
    assert knowledge.auxiliary is not None
    assert knowledge.domains is not None
    every = Batch(*(t.cpu() for t in knowledge.auxiliary))
    stored, domains = Images((255 * every.images).round().byte(), every.labels), knowledge.domains.cpu()
    shares = [Images(*(t[domains == d] for t in stored)) for d in range(int(domains.max()) + 1)]
    empty = Images(*(t[:0] for t in stored))
    named = int(torch.randint(2**31, (), generator=stream(seed, "attacker", "shadow clients by domain", number)))
    spec = TrainSpec(**{**knowledge.specification, "clients": len(shares)}, seed=named)
    federation = Federation(
        clients=tuple(Client("shadow", share, empty, empty) for share in shares),
        public=stored,
        classes=tuple(str(y) for y in range(artifact.model.classes)),
        flip=spec.flip,
    )
    return harness.prepare(spec, federation, artifact.client.device)


def _train(setup: Setup, state: State, rounds: int, progress: Progress) -> None:
    """So many rounds of all shadow clients, in place, each from the same broadcast."""
    method, server = setup.method, state.server
    phases = [p for p in method.client() if any(set(stage.trains) & set(CLASSIFICATION) for stage in p.stages)]
    overwritten = [part for part in method.shared_parts if part not in method.keeps]
    for round_ in range(1, rounds + 1):
        for client in state.clients:
            client.params = client.params | {part: server.params[part] for part in overwritten}
            client.buffers = client.buffers | {part: server.buffers[part] for part in overwritten}
        learners = [Learner(setup, k, server, client) for k, client in enumerate(state.clients)]
        local_training.run(learners, round_, phases, "alone")
        progress(round_, rounds, "shadow clients")


def _batches(setup: Setup, size: int) -> ChosenImages:
    """UPLOADS batches of every shadow client's images, drawn at random; images repeat where there are fewer than `size`."""
    rng, rows = stream(setup.spec.seed, "attacker", "shadow batches"), list[Tensor]()
    counts = [len(labels) for labels in setup.labels]
    for count in counts:
        drawn = [torch.randperm(count, generator=rng).repeat(-(-size // count))[:size] for _ in range(UPLOADS)]
        rows.append(torch.stack(drawn))
    trains, side = [client.train for client in setup.federation.clients], setup.spec.image_size
    return ChosenImages(
        torch.cat([pixels(train.images, side)[each] for train, each in zip(trains, rows, strict=True)]),
        torch.cat([train.labels[each] for train, each in zip(trains, rows, strict=True)]),
        torch.arange(len(counts)).repeat_interleave(UPLOADS),
        "shadow victims",
    )
