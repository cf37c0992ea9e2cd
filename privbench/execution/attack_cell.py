"""One seed of a cell, to its result on disk: observe -> attack -> score, and the accuracy of the method."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from privbench import presets, registry, seeds
from privbench.data import partition
from privbench.data.readers.resize import pixels
from privbench.errors import Damaged, UserError
from privbench.execution import at_round, audit, generator_scores, privacy
from privbench.execution.one_attack import attack_artifact
from privbench.observation import active_server
from privbench.observation import knowledge as known
from privbench.records import victims
from privbench.records.store import Store
from privbench.scoring import broadcast_checks, image_scores, learned_distance
from privbench.scoring.image_scores import FloorScores
from privbench.spec import CellSpec, TrainSpec
from privbench.system import files, machine
from privbench.training import checkpoint, evaluation, federation, harness
from privbench.training.state import Replica, Snapshot
from privbench.types import (
    Artifact,
    Batch,
    Federation,
    Knowledge,
    Networks,
    Progress,
    Reconstruction,
    Truth,
    no_progress,
)

LOG = logging.getLogger("privbench")


def attack_seed(
    store: Store,
    cell: CellSpec,
    spec: TrainSpec,
    data_root: Path | None,
    device_name: str,
    progress: Progress = no_progress,
) -> None:
    """Attacks one seed of a cell and writes reconstruction and scores; when they are on disk, restores a lost artifact alone.

    In order: the artifact with its truth, the floors, the attack with the knowledge that its `needs` name, the scores. Of these
    only the scores, and those of the floors, are given the truth.
    """
    path = store.result(cell, spec.seed)
    if cell.attack is None:
        return
    if is_there(path):
        store.begin(cell)
        at_round.restore(store, cell, spec, data_root, device_name, progress)
        return
    if (now := presets.revision_of(cell)) != cell.attack_revision:
        raise UserError(
            f"{cell.attack} was specified at revision {cell.attack_revision} and is at revision {now} here; specify the cell anew"
        )
    store.begin(cell)
    one = CellSeed(store, cell, spec, data_root, device_name, progress)
    seen, truth, shot = one.observed()
    images = auxiliary_images(one, seen)
    floors = _floors(one, seen, truth, images)
    attacked = _attack(one, seen, shot, images)
    # Read anew, as the attack may have written into what it was given: no attack lowers its own floor or suppresses a check.
    info = _scored(one, one.observed(), attacked, floors, images)
    reconstruction = attacked.reconstruction
    tensors = {
        "images": reconstruction.images.float(),
        "labels": reconstruction.labels,
        "loss": reconstruction.loss,
        "trace": reconstruction.trace,
    }
    files.save_tensors(path, "reconstruction", tensors, info)


class CellSeed(NamedTuple):
    """One seed of a cell, and where its work is done."""

    store: Store
    cell: CellSpec
    spec: TrainSpec
    data_root: Path | None
    device_name: str
    progress: Progress

    def observed(self) -> tuple[Artifact, Truth, Snapshot]:
        """The artifact that is attacked, its truth, and the networks at that round."""
        return at_round.observed(self.store, self.cell, self.spec, self.data_root, self.device_name, self.progress)

    @property
    def federation(self) -> Federation:
        """Its clients and their images."""
        return federation.of(self.spec, self.data_root)[0]

    @property
    def place(self) -> torch.device:
        """Where attacks compute."""
        return machine.device(self.device_name)


class AuxiliaryImages(NamedTuple):
    """The images that attackers of one cell have."""

    # Of the attacked distribution. The floors ask what anybody could score, so they always have these.
    same: Batch
    # As the cell says.
    chosen: Batch
    # What a record says of the chosen ones.
    about: dict[str, Any]

    def digests(self) -> set[str]:
        """Of both."""
        return {*image_scores.digests(self.same.images), *image_scores.digests(self.chosen.images)}


class TimedReconstruction(NamedTuple):
    """What an attack returned, and after how long."""

    reconstruction: Reconstruction
    seconds: float


def auxiliary_images(one: CellSeed, seen: Artifact) -> AuxiliaryImages:
    """Those of an attacker of one seed, for the floors and as the cell chooses them."""

    def of(choice: str, content: str | None = None) -> tuple[Batch, dict[str, Any]]:
        attacker_view = federation.as_known(one.spec, one.federation)
        return known.auxiliary(attacker_view, choice, one.data_root, seen.image_shape, one.spec.seed, content)

    cell, same = one.cell, of(known.SAME)
    return AuxiliaryImages(
        same[0], *(same if cell.auxiliary == known.SAME else of(cell.auxiliary, cell.auxiliary_content))
    )


def _floors(one: CellSeed, seen: Artifact, truth: Truth, images: AuxiliaryImages) -> dict[str, FloorScores]:
    """What each floor scores whose needs are met."""
    seed, whole = seeds.of_attacker(one.spec.id, seen.round), Knowledge(auxiliary=images.same)
    return {
        floor: image_scores.floor_scores(attack_artifact(floor, {}, seen, whole, seed, one.place, no_progress), truth)
        for floor in registry.FLOORS
        if registry.resolve("attack", floor).needs <= seen.offers() | {"auxiliary"}
    }


def _attack(one: CellSeed, seen: Artifact, shot: Snapshot, images: AuxiliaryImages) -> TimedReconstruction:
    """The cell's attack, with the part of all knowledge that its `needs` name."""
    every = knowledge_of(one.store, one.cell, one.spec, one.federation, seen, shot)
    every = replace(every, **at_round.further_knowledge(*one[:5], seen, shot, one.progress))
    seed, started = seeds.of_attacker(one.spec.id, seen.round), time.perf_counter()
    reconstruction = attack_artifact(
        str(one.cell.attack), one.cell.attack_settings, seen, replace(every, auxiliary=images.chosen), seed, one.place,
        one.progress,
    )  # fmt: skip
    return TimedReconstruction(reconstruction, time.perf_counter() - started)


def _scored(
    one: CellSeed,
    observed: tuple[Artifact, Truth, Snapshot],
    attacked: TimedReconstruction,
    floors: Mapping[str, FloorScores],
    images: AuxiliaryImages,
) -> dict[str, Any]:
    """What the result of a seed says besides its tensors."""
    seen, truth, shot = observed
    spec, name, reconstruction = one.spec, str(one.cell.attack), attacked.reconstruction
    scores = image_scores.score(reconstruction, truth, _true_features(seen, shot))
    info = attacked_trial(one, seen, shot, images.about)
    info |= {
        "knowledge": info["knowledge"]
        | {"labels": victims.labels_used(seen, reconstruction)}
        | at_round.about_further(one.cell, seen.round),
        "victims": victims.described(
            seen, truth, reconstruction, scores, seed=spec.seed, floors=floors, auxiliary=images.digests(),
            is_floor=name in registry.FLOORS,
        ),
    }  # fmt: skip
    about = f"{registry.short(spec.dataset)}, {spec.method}, round {seen.round}, seed {spec.seed}"
    info["notes"] += [f"{about}: {note}" for note in reconstruction.notes]
    if one.cell.active:
        info["broadcast"] = _broadcast(one, seen, shot)
    info["cost"] |= {
        "attack_seconds": attacked.seconds,
        "gradient_evaluations": int(reconstruction.gradient_evaluations),
    }
    return info


def _broadcast(one: CellSeed, seen: Artifact, shot: Snapshot) -> list[dict[str, Any]] | None:
    """What each client's checks say of networks that an active server sent; nothing where clients train on tasks of their own."""
    if federation.method_of(one.spec).client_tasks is not None:
        return None
    honest = shot
    if active_server.rounds(one.cell):
        honest = at_round.snapshot(one.store, one.spec, seen.round, one.federation, one.device_name, one.progress)
    sent = Networks(seen.weights, seen.buffers)
    checks = []
    for k, client in enumerate(one.federation.clients):
        images = client.train.images[: broadcast_checks.IMAGES]
        batch = Batch(pixels(images, seen.model.image_size), client.train.labels[: broadcast_checks.IMAGES])
        received = sent if seen.others is None or k == seen.target else seen.others
        if seen.divided is not None:
            received = seen.divided[k]
        # Private parts are those that each course of events left to the client.
        fair, crafted = (
            broadcast_checks.of_networks(seen.model, networks, _networks(private), batch)
            for networks, private in ((_networks(honest.server), honest.clients[k]), (received, shot.clients[k]))
        )
        checks.append({"client": k, "sent": crafted, "honest": fair})
    return checks


def _networks(replica: Replica) -> Networks:
    return Networks(replica.params, replica.buffers)


def attacked_trial(one: CellSeed, seen: Artifact, shot: Snapshot, auxiliary: dict[str, Any]) -> dict[str, Any]:
    """What the result of every attacked seed says, whatever the attack gives: an image or a statement."""
    cell, spec = one.cell, one.spec
    setup = harness.prepare(spec, one.federation, torch.device("cpu"))
    networks = [Replica(*known.of_client(shot, k)) for k in range(len(shot.clients))]
    info = _trial(one.store, cell, spec, one.data_root, one.place)
    return info | {
        "round": seen.round,
        "knowledge": _knowledge(str(cell.attack), seen, auxiliary, cell.attack_settings)
        | active_server.crafted_rounds(one.store.artifact(cell, spec, seen.round)),
        "accuracy_at_round": [evaluation.right(p) for p in evaluation.of_each(setup, networks, "test")],
        "guarantee": privacy.in_words(info["privacy"]),
    }


def measure_seed(store: Store, cell: CellSpec, spec: TrainSpec, data_root: Path | None, device_name: str) -> None:
    """Writes what one seed of an accuracy cell gives in addition to its training; does nothing when it is on disk."""
    path = store.result(cell, spec.seed)
    store.begin(cell)
    if not files.to_write(path):
        return
    files.write_digested(path, _trial(store, cell, spec, data_root, machine.device(device_name)))


def is_there(path: Path) -> bool:
    """Whether a reconstruction is on disk and whole; a damaged one is removed, with a line, and its attack is run again."""
    if not path.exists():
        return False
    try:
        files.load_tensors(path, "reconstruction")
    except Damaged as error:
        LOG.warning("%s; it is removed, and the attack is run again", error)
        files.remove(path)
        return False
    return True


def knowledge_of(
    store: Store, cell: CellSpec, spec: TrainSpec, fed: Federation, seen: Artifact, shot: Snapshot
) -> Knowledge:
    """What an attacker of this run could know beyond the artifact, but for what is made elsewhere.

    Auxiliary images come from `auxiliary_images`, and `known`, `rounds` and `sent` from at_round.further_knowledge. Candidates and
    domains are an inference's (privbench/execution/inferring/).
    """
    return Knowledge(
        initial=_start(spec, fed),
        colluder=known.colluder(shot, seen, federation.as_known(spec, fed)),
        oracle=known.oracle(shot, seen),
        specification=known.specification(spec, seen.defense, flips=fed.flip),
        broadcast=None if active_server.rounds(cell) else Networks(shot.server.params, shot.server.buffers),
        cache=store.cache,
    )


def _start(spec: TrainSpec, fed: Federation) -> Networks | None:
    """The networks that every client started with; None where each drew its own, which nobody else knows."""
    if spec.initialisation == "per-client":
        return None
    start = harness.initial(harness.prepare(spec, fed, torch.device("cpu")))
    first = Replica(start.clients[0].params | start.server.params, start.clients[0].buffers | start.server.buffers)
    return known.initial(first)


def _trial(
    store: Store, cell: CellSpec, spec: TrainSpec, data_root: Path | None, place: torch.device
) -> dict[str, Any]:
    """What the result of every seed says, attacked or not; its first names are what the file belongs to."""
    fed, note = federation.of(spec, data_root)
    census = partition.census(fed)
    rounds = checkpoint.history(store.train(spec), spec.id) or []
    method, classes = federation.method_of(spec), federation.as_known(spec, fed).classes
    return {
        "cell": cell.id,
        "spec": spec.id,
        "seed": spec.seed,
        "classes": len(classes),
        "class_names": list(classes),
        "client_domains": [client["domain"] for client in census],
        "label_counts": [client["train"] for client in census],
        "accuracy": [evaluation.right(p) for p in checkpoint.predictions(store.train(spec), spec.id)],
        "cost": {
            "train_seconds": sum(entry["seconds"] for entry in rounds),
            "peak_memory_mib": machine.peak_memory_mib(place),
        },
        "environment": machine.environment(place) | {"lpips": learned_distance.missing() or "installed"},
        "notes": [*([note] if note else []), *method.notes()],
        "privacy": privacy.of_run(spec, fed, len(rounds)),
        "audit": audit.of_run(store, spec, fed, len(rounds), cell.audit),
        "generators": generator_scores.of_run(store, spec, fed, cell.generated),
    }


def _knowledge(
    name: str, seen: Artifact, auxiliary: dict[str, Any], settings: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """What the attacker knew, as the record says it; `auxiliary` is None where the attack was given no such images."""
    attack = registry.create(registry.resolve("attack", name), settings)
    return {
        "tag": known.tag(attack, seen.offers()),
        "tag_in_general": known.tag(attack),
        "rung": getattr(attack, "rung", None),  # a user's attack need not have a level on the ladder
        "needs": sorted(attack.needs),
        "uses": sorted(known.uses(attack) & seen.offers()),
        "pools": known.pooled(attack, seen),
        "pools_clients": known.pooled_clients(attack, seen),
        "auxiliary": auxiliary if "auxiliary" in attack.needs else None,
        "restart_chosen_by": "attacker's own loss",
        "not_modelled": known.not_modelled(attack, seen),
    }


def _true_features(seen: Artifact, shot: Snapshot) -> image_scores.Features:
    """E(x) through each victim's own extractor, in the mode in which its gradient was taken; for scoring alone.

    Where a server crafted the extractor, through the honest one: one measure for all attacks on the same networks.
    """
    net, train = seen.model.net("extractor"), seen.model.train_mode(seen.images_per_client)

    def features(victim: int, images: torch.Tensor) -> torch.Tensor:
        each = []
        members = torch.nonzero(seen.members[victim])[:, 0].tolist()
        for client, batch in zip(members, images.chunk(len(members)), strict=True):
            networks = known.of_client(shot, client)
            params, buffers = networks.params["extractor"], networks.buffers["extractor"]
            each.append(net.apply(params, buffers, batch, train=train)[0])
        return torch.cat(each)

    return features
