"""Trained federations that know their images by heart, as an inference on membership attacks them."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from privbench import presets
from privbench.execution.inferring import candidate_images
from privbench.observation import chosen_victims, knowledge, observe
from privbench.seeds import stream
from privbench.tensors import Parts
from privbench.training import harness
from privbench.training.state import Snapshot
from privbench.types import Artifact, Federation, Images, Knowledge, Networks
from tests.builders.federations import digits_federation

CPU = torch.device("cpu")


class Attacked(NamedTuple):
    """An artifact, what its attacker knows besides, and the answer."""

    seen: Artifact
    whole: Knowledge
    members: Tensor
    sent: dict[int, Networks]  # what each client sent last, of which `whole` holds nothing


def by_heart(federation: Federation) -> Federation:
    """The same federation with labels that mean nothing, so that a network knows those of images that it trained on alone."""
    rng = stream(0, "labels")

    def drawn(images: Images) -> Images:
        return images._replace(labels=torch.randint(10, images.labels.shape, generator=rng))

    clients = (
        c._replace(train=drawn(c.train), validation=drawn(c.validation), test=drawn(c.test)) for c in federation.clients
    )
    return federation._replace(clients=tuple(clients))


def attacked(
    method: str, *, rounds: int, epochs: int, sizes: tuple[int, ...] = (40, 40), backbone: str = "lenet5"
) -> Attacked:
    """A trained federation of a small network whose clients go through their few images many times, until known by heart."""
    changes = {"rounds": max(rounds, 1), "local_epochs": epochs, "task.lr": 0.01}
    spec = presets.train_spec("smoke", "digits", method, clients=len(sizes), backbone=backbone, changes=changes)
    federation = by_heart(digits_federation(sizes))
    setup = harness.prepare(spec, federation, CPU)
    state = harness.initial(setup)
    for _ in range(rounds):
        harness.learn([setup], [state], "alone")
        state.round += 1
    private = [part for part in setup.method.parts if part not in setup.method.shared_parts]
    sent = [part for part in setup.method.shared_parts if part not in ("extractor", "classifier")]
    clients = [
        dataclasses.replace(c, params={p: c.params[p] for p in private}, buffers={p: c.buffers[p] for p in private})
        for c in state.clients
    ]
    uploads = [_parts(both, sent) for both in state.uploads]
    shot = Snapshot(state.round, state.server, clients, uploads)
    seen, _ = observe.observe(
        shot, federation, setup.model, setup.method, setup.defense, method_name=method, dataset="digits", victims=2, batch_size=1,
        labels_known=False, seed=0,
    )  # fmt: skip
    victims = chosen_victims.choose_victims(federation, 2, 1, 0)
    asked = candidate_images.choose(federation, victims, 0, 32)
    kept = [part for part in ("extractor", "classifier") if part in setup.method.shared_parts]
    whole = Knowledge(
        auxiliary=observe.auxiliary(federation),
        candidates=asked.candidates,
        specification=knowledge.specification(spec, {"name": "none"}, flips=False),
    )
    sent_last = {k: Networks(*_parts(both, kept)) for k, both in enumerate(state.uploads)}
    return Attacked(seen, whole, asked.members, sent_last)


def _parts(both: tuple[Parts, Parts], names: Sequence[str]) -> tuple[Parts, Parts]:
    return {p: both[0][p] for p in names}, {p: both[1][p] for p in names}
