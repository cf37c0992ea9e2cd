"""One training run on disk: a checkpoint after every round, snapshots of the rounds that may be attacked, the history.

spec.json                            the specification, for people and for `privbench show`
checkpoint.safetensors               everything needed to go on, after the last complete round
checkpoint-previous.safetensors      the round before, should the last one be damaged
full-0007.safetensors                the checkpoint of a round that stays, of long runs: rounds FULL_ROUNDS, the best and the last;
                                     of every run the attacked round of an attack on the networks that clients sent (networks=sent)
round-0007.safetensors               a snapshot: the networks alone, without discriminators and optimiser state
predictions.safetensors              each client's test logits at its best validation round; written before finished.json
finished.json                        the history; present when the run is complete

Each of them names the run that it belongs to, and its round where there is one per round. A reader says which it should
be, and another one is refused in one line. A snapshot of an active server's networks also names the artifact folder that it lies in
(privbench/observation/active_server.py). Older files, which do not say all of that, are read.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from privbench.errors import Damaged, UserError
from privbench.spec import FULL_ROUNDS, TrainSpec
from privbench.system import files
from privbench.training import training_files
from privbench.training.history import best_round
from privbench.training.state import Prediction, Snapshot, State
from privbench.types import CLASSIFICATION

CHECKPOINT, PREVIOUS, PREDICTIONS, FINISHED, SPEC = (
    "checkpoint.safetensors",
    "checkpoint-previous.safetensors",
    "predictions.safetensors",
    "finished.json",
    "spec.json",
)
LOG = logging.getLogger("privbench")
# Whole checkpoints stay of runs this long. A shorter run is soon trained again, and would be mostly checkpoints. Of a run of any
# length an attack on the networks that clients sent (networks=sent) keeps the attacked round's whole checkpoint too.
LONG = 20


def save(folder: Path, spec: TrainSpec, state: State) -> None:
    """Writes the checkpoint; the one before stays as checkpoint-previous. UserError where the run's folder is gone."""
    if not (folder / SPEC).exists():
        raise UserError(
            f"{folder} was deleted or emptied while its run was trained; the same command begins that run again"
        )
    if (folder / CHECKPOINT).exists():
        with files.writing(folder):
            (folder / CHECKPOINT).replace(folder / PREVIOUS)
    _write(folder / CHECKPOINT, spec, state)


def save_full(folder: Path, spec: TrainSpec, state: State) -> None:
    """Writes the whole checkpoint of a round that stays."""
    _write(full_path(folder, state.round), spec, state)


def _write(path: Path, spec: TrainSpec, state: State) -> None:
    tensors = training_files.replica_tensors(state.server, "server")
    for k, (client, upload) in enumerate(zip(state.clients, state.uploads, strict=True)):
        tensors |= training_files.replica_tensors(client, f"client{k}") | training_files.network_tensors(
            upload, f"upload{k}"
        )
    tensors |= training_files.prediction_tensors(state.predictions)
    replicas = {"server": state.server, **{f"client{k}": client for k, client in enumerate(state.clients)}}
    steps = {name: {stage: m.steps for stage, m in each.moments.items()} for name, each in replicas.items()}
    info = {
        "spec": spec.id,
        "round": state.round,
        "steps": steps,
        "history": state.history,
        "clients": len(state.clients),
    }
    files.save_tensors(path, "checkpoint", tensors, info)


def begin(folder: Path, spec: TrainSpec) -> None:
    """Writes the specification of a run, which its folder has from then on; a damaged one is written again."""
    if files.to_write(folder / SPEC):
        files.write_json(folder / SPEC, spec.model_dump(mode="json"))


def load(folder: Path, spec: TrainSpec, device: torch.device) -> State | None:
    """The state to go on from, or None when nothing is there: the latest checkpoint that is whole.

    Damaged ones are removed, with a line that says from where the run continues.
    """
    for path in (folder / CHECKPOINT, folder / PREVIOUS):
        if path.exists() and (state := _whole(path, spec, device)) is not None:
            # A kill after the checkpoint was written may have left it without its second name.
            if path.name == CHECKPOINT and _stays(spec, state) and not full_path(folder, state.round).exists():
                _keep_checkpoint(folder, state.round)
            return state
    return nearest(folder, spec, spec.schedule.rounds, device)


def full(folder: Path, spec: TrainSpec, round_: int, device: torch.device) -> State | None:
    """Everything of a run after `round_` rounds, optimiser state and discriminators included; None where it was not kept."""
    path = full_path(folder, round_)
    return _whole(path, spec, device, round=round_) if path.exists() else None


def nearest(folder: Path, spec: TrainSpec, round_: int, device: torch.device) -> State | None:
    """The latest kept state of at most `round_` rounds, from which that round can be trained again; None without any."""
    earlier = sorted((number for number in _numbers(folder, "full") if number <= round_), reverse=True)
    return next((state for number in earlier if (state := full(folder, spec, number, device)) is not None), None)


def full_path(folder: Path, round_: int) -> Path:
    """Where the whole checkpoint of one round lies."""
    return folder / f"full-{round_:04d}.safetensors"


def _whole(path: Path, spec: TrainSpec, device: torch.device, **expected: int) -> State | None:
    """A checkpoint, or None where it is damaged: it is then removed, so that an earlier one takes its place."""
    try:
        return _read(path, spec, device, **expected)
    except Damaged as error:
        LOG.warning("%s; it is removed, and the run goes on from the latest whole checkpoint or the beginning", error)
        files.remove(path)
        return None


def _read(path: Path, spec: TrainSpec, device: torch.device, **expected: int) -> State:
    """A checkpoint; Damaged, or UserError when it is of another run or round."""
    tensors, info = files.load_tensors(path, "checkpoint")
    with training_files.reading(path):
        training_files.CheckpointHeader.model_validate(info)
        files.check_identity(path, info, spec=spec.id, **expected)
        training_files.check_history(info["history"], info["round"])
        tensors = {name: t.to(device) for name, t in tensors.items()}
        clients = [
            training_files.replica_of(tensors, f"client{k}", info["steps"][f"client{k}"])
            for k in range(info["clients"])
        ]
        uploads = [training_files.networks_of(tensors, f"upload{k}") for k in range(info["clients"])]
        server = training_files.replica_of(tensors, "server", info["steps"]["server"])
        return State(info["round"], server, clients, uploads, info["history"], training_files.predictions(tensors))


def save_snapshot(folder: Path, spec: TrainSpec, state: State, artifact: str | None = None) -> None:
    """Writes round-NNNN.safetensors; `artifact` names the folder where the networks are not the run's but an active server's."""
    tensors = training_files.network_tensors((state.server.params, state.server.buffers), "server")
    for k, (client, (params, buffers)) in enumerate(zip(state.clients, state.uploads, strict=True)):
        private = [p for p in training_files.SNAPSHOT_PARTS if p in client.params and p not in state.server.params]
        private_networks = ({p: client.params[p] for p in private}, {p: client.buffers[p] for p in private})
        sent = [p for p in params if p not in CLASSIFICATION]
        upload = ({p: params[p] for p in sent}, {p: buffers[p] for p in sent})
        tensors |= training_files.network_tensors(private_networks, f"client{k}") | training_files.network_tensors(
            upload, f"upload{k}"
        )
    info = {"spec": spec.id, "round": state.round, "clients": len(state.clients), "artifact": artifact}
    files.save_tensors(snapshot_path(folder, state.round), "snapshot", tensors, info)


def snapshot_path(folder: Path, round_: int) -> Path:
    """Where the snapshot of one round lies."""
    return folder / f"round-{round_:04d}.safetensors"


def load_snapshot(folder: Path, run: str, round_: int, artifact: str | None = None) -> Snapshot:
    """The snapshot of one round of the run with that id; UserError when it is missing, damaged, or another's (`save_snapshot`)."""
    path = snapshot_path(folder, round_)
    tensors, info = files.load_tensors(path, "snapshot")
    with training_files.reading(path):
        training_files.SnapshotHeader.model_validate(info)
        files.check_identity(path, info, spec=run, round=round_, artifact=artifact)
        names = range(info["clients"])
        return Snapshot(
            info["round"],
            training_files.replica_of(tensors, "server", {}),
            [training_files.replica_of(tensors, f"client{k}", {}) for k in names],
            [training_files.networks_of(tensors, f"upload{k}") for k in names],
        )


def keep(folder: Path, spec: TrainSpec, state: State) -> None:
    """After a round, and before the first: writes its checkpoint and snapshot, and drops earlier ones that need not stay.

    Which of them stay, `stored_rounds` says.
    """
    save_snapshot(folder, spec, state)
    save(folder, spec, state)
    snapshots, checkpoints = stored_rounds(spec, state.history)
    for number in _numbers(folder, "round"):
        if number not in snapshots and number < state.round:
            files.remove(snapshot_path(folder, number))
    if _stays(spec, state):
        _keep_checkpoint(folder, state.round)
    if spec.schedule.rounds >= LONG:
        for number in _numbers(folder, "full"):
            if number not in checkpoints and number < state.round:
                files.remove(full_path(folder, number))


def _stays(spec: TrainSpec, state: State) -> bool:
    """Whether the whole checkpoint of the round that has just ended stays while training goes on."""
    is_one_of_them = state.round in FULL_ROUNDS or state.round == best_round(state.history)
    return is_one_of_them and spec.schedule.rounds >= LONG


def stored_rounds(spec: TrainSpec, rounds: Sequence[dict[str, Any]]) -> tuple[set[int], set[int]]:
    """(the rounds whose snapshot stays, those whose whole checkpoint stays) of a run with that history.

    Snapshots stay of every `keep_every`-th round, whole checkpoints of FULL_ROUNDS where the schedule is LONG; both of the first,
    the best and the last round.
    """
    last = len(rounds)
    always = {0, best_round(rounds), last}
    checkpoints = always | {number for number in FULL_ROUNDS if number <= last}
    is_long = spec.schedule.rounds >= LONG
    return always | {*range(0, last, spec.schedule.keep_every)}, checkpoints if is_long else set()


def _keep_checkpoint(folder: Path, round_: int) -> None:
    """Gives the checkpoint a second name under which it stays: no copy where the file system knows links.

    Of a run that goes on from that second name, which is all there is of its last round, nothing is to be done.
    """
    path, latest = full_path(folder, round_), folder / CHECKPOINT
    if not latest.exists() and path.exists():
        return
    with files.writing(path):
        path.unlink(missing_ok=True)
        try:
            os.link(latest, path)
        except OSError:
            files.write_bytes(path, latest.read_bytes())


def finish(folder: Path, spec: TrainSpec, state: State) -> None:
    """Marks the run complete. Its last checkpoint stays as that round's, of a long run; else snapshots and history say all."""
    if spec.schedule.rounds >= LONG:
        _keep_checkpoint(folder, state.round)
    save_predictions(folder, spec, state.predictions)
    files.write_digested(folder / FINISHED, {"spec": spec.id, "round": state.round, "history": state.history})
    tidy(folder, spec.id)


def tidy(folder: Path, run: str) -> None:
    """Drops the checkpoints of a finished run, which a kill between its last two writes leaves behind."""
    remaining = [folder / name for name in (CHECKPOINT, PREVIOUS) if (folder / name).exists()]
    if remaining and history(folder, run) is not None:
        for path in remaining:
            files.remove(path)


def _numbers(folder: Path, kind: str) -> list[int]:
    """The rounds of which there is a file `kind`-NNNN.safetensors."""
    names = (re.fullmatch(rf"{kind}-([0-9]+)\.safetensors", path.name) for path in folder.glob(f"{kind}-*.safetensors"))
    return [int(name[1]) for name in names if name]


def is_finished(folder: Path) -> bool:
    """Whether a run is complete, without reading its history."""
    return (folder / FINISHED).exists()


def history(folder: Path, run: str) -> list[dict[str, Any]] | None:
    """The rounds of a finished run with that id, or None.

    UserError when it is another run's; Damaged when it is damaged or altered: what then is lost, and what the same command makes
    again.
    """
    path = folder / FINISHED
    if not path.exists():
        return None
    last = max(_numbers(folder, "full"), default=0)
    way = f"remove it, and the same command trains the run again from {f'round {last}' if last else 'the beginning'}"
    try:
        value = files.read_digested(path)
    except Damaged as error:
        raise Damaged(f"{str(error).partition('; remove it')[0]}; {way}") from error
    if not isinstance(value.get("history"), list):
        raise Damaged(f"{path} is damaged (no history in it); {way}")
    files.check_identity(path, value, spec=run)
    with training_files.reading(path, way):
        training_files.check_history(value["history"], value.get("round"))
        return list(value["history"])


def predictions(folder: Path, run: str) -> list[Prediction]:
    """Each client's test logits and labels in a finished run with that id; Damaged, or UserError when missing or another's."""
    path = folder / PREDICTIONS
    tensors, info = files.load_tensors(path, "predictions")
    files.check_identity(path, info, spec=run)
    with training_files.reading(path):
        each_client = training_files.predictions(tensors)
        for each in each_client:
            training_files.check_prediction(each.logits, each.labels)
        return each_client


def save_predictions(folder: Path, spec: TrainSpec, each: Sequence[Prediction]) -> None:
    """Writes each client's test logits and labels."""
    info = {"spec": spec.id, "clients": len(each)}
    files.save_tensors(folder / PREDICTIONS, "predictions", training_files.prediction_tensors(each), info)


def progress(folder: Path, run: str) -> int | None:
    """How many rounds an unfinished run with that id has behind it, by the latest whole checkpoint; None when there is none."""
    for path in (folder / CHECKPOINT, folder / PREVIOUS):
        if path.exists():
            # A damaged one is reported when the run continues, from the one before it.
            with suppress(Damaged), training_files.reading(path):
                info = files.load_tensors(path, "checkpoint")[1]
                files.check_identity(path, info, spec=run)
                return training_files.SnapshotHeader.model_validate(info).round
    return max(_numbers(folder, "full"), default=None)
