"""The observation: what the server sees of one seed of a cell at the attacked round of a finished run, and the truth."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch

from privbench import registry
from privbench.errors import Damaged, Missing, UserError
from privbench.execution import foundations
from privbench.methods import participation
from privbench.observation import (
    active_server,
    artifact_files,
    artifact_upgrade,
    chosen_victims,
    local_update,
    other_images,
)
from privbench.observation import observe as observation
from privbench.observation.chosen_victims import ChosenImages
from privbench.records.store import Store
from privbench.spec import CellSpec, TrainSpec
from privbench.system import files, locks, machine
from privbench.training import checkpoint, federation, harness, history
from privbench.training.state import Snapshot
from privbench.types import CLASSIFICATION, Artifact, Federation, Networks, Progress, Truth

LOG = logging.getLogger("privbench")


def observed(
    store: Store, cell: CellSpec, spec: TrainSpec, data_root: Path | None, device_name: str, progress: Progress
) -> tuple[Artifact, Truth, Snapshot]:
    """The artifact of one seed with its truth (read back from disk), and the networks of the attacked round.

    What of them is damaged is made again, with a line; another process that needs the same waits until they are there.
    """
    fed, _ = federation.of(spec, data_root)
    rounds = checkpoint.history(store.train(spec), spec.id)
    if not store.train(spec).is_dir():
        raise UserError(f"there is no training run at {store.train(spec)}; the command that began it trains it")
    if rounds is None:
        raise UserError(f"run {spec.id} is not trained to the end; run `privbench train` with the same options first")
    round_ = history.resolve_round(cell.round, rounds)
    setup = harness.prepare(spec, fed, torch.device("cpu"))
    folder = store.artifact(cell, spec, round_)
    whose = artifact_files.origin_of(spec, folder)
    with locks.lock(folder, wait=True):
        if active_server.rounds(cell):
            trainer = harness.prepare(spec, fed, machine.device(device_name))
            shot = active_server.trained(
                cell, trainer, round_, folder, store.train(spec), data_root, store.cache, progress
            )
        else:
            shot = snapshot(store, spec, round_, fed, device_name, progress)
        harness.snapshot_of(setup, folder if active_server.rounds(cell) else store.train(spec), shot)
        try:
            artifact_upgrade.upgrade(folder, whose, cell.preset)
            if artifact_files.complete(folder):
                return *artifact_files.load_with_truth(folder, whose), shot
        except (Damaged, Missing) as error:
            LOG.warning("%s; the artifact is observed again", error)
        seen, truth = observe(cell, spec, fed, active_server.sent(cell, setup, shot, data_root))
        artifact_files.save_with_truth(seen, truth, folder, whose, cell.preset)
    return *artifact_files.load_with_truth(folder, whose), shot


def observe(
    cell: CellSpec,
    spec: TrainSpec,
    fed: Federation,
    shot: Snapshot,
    chosen: ChosenImages | None = None,
    *,
    labels_known: bool | None = None,
) -> tuple[Artifact, Truth]:
    """What the server of a cell sees of the victims of one seed at a snapshot, or of other `chosen` images, and the truth."""
    setup = harness.prepare(spec, fed, torch.device("cpu"))
    return observation.observe(
        shot,
        fed,
        setup.model,
        setup.method,
        setup.defense,
        method_name=spec.method,
        dataset=registry.short(spec.dataset),
        victims=cell.victims,
        batch_size=cell.batch_size,
        labels_known=cell.labels_known if labels_known is None else labels_known,
        seed=spec.seed,
        local=local_update.local_steps(cell),
        rounds=spec.schedule.rounds,
        training=local_update.local_training(
            spec.schedule, [len(c.train.labels) for c in fed.clients], setup.method.client_tasks, setup.defense
        ),
        form=cell.wire,
        chosen=chosen,
    )


def restore(
    store: Store, cell: CellSpec, spec: TrainSpec, data_root: Path | None, device_name: str, progress: Progress
) -> None:
    """Observes again what one seed of a cell attacked, with a line, where that is not whole any more."""
    if (folder := foundations.lost_artifact(store, cell, spec)) is not None:
        LOG.warning("%s has lost files; what was attacked is observed again", folder)
        observed(store, cell, spec, data_root, device_name, progress)


def snapshot(
    store: Store, spec: TrainSpec, round_: int, fed: Federation, device_name: str, progress: Progress
) -> Snapshot:
    """The networks after one round. A round that was not kept, or is damaged, is trained again (harness.state_at)."""
    folder = store.train(spec)
    path = checkpoint.snapshot_path(folder, round_)
    if path.exists():
        try:
            return checkpoint.load_snapshot(folder, spec.id, round_)
        except Damaged as error:
            LOG.warning("%s; the round is trained again", error)
            files.remove(path)
    with locks.lock(folder, wait=True):
        # Another process may have made it meanwhile.
        if not path.exists():
            setup = harness.prepare(spec, fed, machine.device(device_name))
            checkpoint.save_snapshot(folder, spec, harness.state_at(setup, folder, round_, progress))
    return checkpoint.load_snapshot(folder, spec.id, round_)


def sent_networks(
    store: Store, spec: TrainSpec, seen: Artifact, fed: Federation, device_name: str, progress: Progress
) -> dict[int, Networks] | None:
    """Attacked client -> the classification networks that it sent last, as they were sent; None where one sent none yet.

    A round of which the run kept less is trained again, once. On a GPU these networks are the run's up to rounding
    (harness.state_at).
    """
    clients, folder = sorted(set(seen.client.tolist())), store.train(spec)
    setup = harness.prepare(spec, fed, machine.device(device_name))
    if not all(participation.rounds_of(setup.method, k, len(fed.clients), seen.round) for k in clients):
        return None
    with locks.lock(folder, wait=True):
        if not checkpoint.full_path(folder, seen.round).exists():
            checkpoint.save_full(folder, spec, harness.state_at(setup, folder, seen.round, progress))
        # Read back: training leaves weights of convolutions channels last, and sums over them then end in other digits.
        state = harness.state_at(setup, folder, seen.round, progress)
    sent = {k: state.uploads[k] for k in clients}
    return {
        k: Networks(*({part: each[part] for part in CLASSIFICATION if part in each} for each in both))
        for k, both in sent.items()
    }


def further_knowledge(
    store: Store,
    cell: CellSpec,
    spec: TrainSpec,
    data_root: Path | None,
    device_name: str,
    seen: Artifact,
    shot: Snapshot,
    progress: Progress,
) -> dict[str, Any]:
    """The fields of Knowledge that the needs of a cell's attack name of these; of sums over clients there is none."""
    needs = registry.needs(str(cell.attack), cell.attack_settings)
    if not needs & {"known", "rounds", "sent"} or seen.member_weights is not None:
        return {}
    fed, _ = federation.of(spec, data_root)
    further = dict[str, Any]()
    if "known" in needs:
        chosen = known_images(cell, spec, fed, shot.round)
        uploads, _ = observe(cell, spec, fed, shot, chosen, labels_known=True)
        further["known"] = other_images.as_known(chosen, uploads, cell.known_quality_db, spec.seed)
    if "sent" in needs:
        further["sent"] = sent_networks(store, spec, seen, fed, device_name, progress)
    if "rounds" in needs:
        chosen = kept_images(cell, spec, fed, shot.round)
        rounds = other_images.observed_rounds(cell.observed_rounds, shot.round)
        further["rounds"] = tuple(
            observe(
                cell,
                spec,
                fed,
                shot if r == shot.round else snapshot(store, spec, r, fed, device_name, progress),
                other_images.in_round(chosen, r, spec.seed),
            )[0]
            for r in rounds
        )
    return further


def known_images(cell: CellSpec, spec: TrainSpec, fed: Federation, round_: int) -> ChosenImages:
    """The images that the attacker of a cell knows; UserError where there are too few."""
    return _chosen(cell, spec, fed, round_, cell.known_images or 0, other_images.KNOWN)


def kept_images(cell: CellSpec, spec: TrainSpec, fed: Federation, round_: int) -> ChosenImages:
    """The images whose uploads the server of a cell keeps from round to round; UserError where there are too few."""
    return _chosen(cell, spec, fed, round_, cell.uploads_per_round or 0, other_images.KEPT)


def about_further(cell: CellSpec, round_: int) -> dict[str, Any]:
    """What a record says of it."""
    needs = registry.needs(str(cell.attack), cell.attack_settings)
    described = dict[str, Any]()
    if "known" in needs:
        described["known"] = {"images": cell.known_images, "quality_db": cell.known_quality_db}
    if "rounds" in needs:
        rounds = other_images.observed_rounds(cell.observed_rounds, round_)
        described["rounds"] = {"observed": list(rounds), "uploads": cell.uploads_per_round}
    return described


def victims_of(cell: CellSpec, spec: TrainSpec, fed: Federation, round_: int) -> ChosenImages:
    """The victims of one seed of a cell, where uploads are one client's."""
    method = federation.method_of(spec)
    of = chosen_victims.senders(method, round_, len(fed.clients))
    return chosen_victims.choose_victims(
        fed, cell.victims, cell.batch_size, spec.seed, spec.image_size, method.client_tasks, of=of
    )


def _chosen(cell: CellSpec, spec: TrainSpec, fed: Federation, round_: int, each: int, named: str) -> ChosenImages:
    victims = victims_of(cell, spec, fed, round_)
    return other_images.choose(fed, victims, each, spec.seed, named, image_size=spec.image_size)
