"""One training run on disk: a checkpoint after every round, snapshots of the rounds that may be attacked, the history.

spec.json                            the specification, for people and for `privbench show`
checkpoint.safetensors               everything needed to go on, after the last complete round
checkpoint-previous.safetensors      the round before, should the last one be damaged
round-0007.safetensors               a snapshot: the networks alone, without discriminators and optimiser state
predictions.safetensors              each client's test logits at its best validation round; written before finished.json
finished.json                        the history; present when the run is complete
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from privbench import storage
from privbench.engine import Moments, Replica
from privbench.errors import UserError
from privbench.evaluation import Prediction
from privbench.spec import TrainSpec
from privbench.types import CLASSIFICATION, Parts

if TYPE_CHECKING:
    from privbench.harness import State

CHECKPOINT, PREVIOUS, PREDICTIONS, FINISHED, SPEC = (
    "checkpoint.safetensors",
    "checkpoint-previous.safetensors",
    "predictions.safetensors",
    "finished.json",
    "spec.json",
)


class Snapshot(NamedTuple):
    """The networks after `round` complete rounds, as far as an attack can depend on them."""

    round: int
    server: Replica  # the broadcast
    clients: list[Replica]  # private parts of every client that its gradient depends on
    uploads: list[tuple[Parts, Parts]]  # shared parts that are sent as weights (generators)


def save(folder: Path, spec: TrainSpec, state: State) -> None:
    """Writes the checkpoint; the one before stays as checkpoint-previous."""
    if not (folder / SPEC).exists():
        storage.write_json(folder / SPEC, spec.model_dump(mode="json"))
    tensors = _replica_tensors(state.server, "server")
    for k, (client, upload) in enumerate(zip(state.clients, state.uploads, strict=True)):
        tensors |= _replica_tensors(client, f"client{k}") | _network_tensors(upload, f"upload{k}")
    tensors |= _prediction_tensors(state.predictions)
    steps = {
        name: {stage: m.steps for stage, m in replica.moments.items()}
        for name, replica in _named(state.server, state.clients)
    }
    info = {
        "spec": spec.id,
        "round": state.round,
        "steps": steps,
        "history": state.history,
        "clients": len(state.clients),
    }
    if (folder / CHECKPOINT).exists():
        with storage.writing(folder):
            (folder / CHECKPOINT).replace(folder / PREVIOUS)
    storage.save_tensors(folder / CHECKPOINT, "checkpoint", tensors, info)


def load(folder: Path, spec: TrainSpec, device: torch.device) -> State | None:
    """The state to go on from, or None when nothing is there."""
    from privbench.harness import State

    path = next((folder / name for name in (CHECKPOINT, PREVIOUS) if (folder / name).exists()), None)
    if path is None:
        return None
    try:
        tensors, info = storage.load_tensors(path, "checkpoint")
    except UserError as error:
        spare = path.name == CHECKPOINT and (folder / PREVIOUS).exists()
        rest = "the round before it" if spare else "the beginning"
        raise UserError(f"{error}; remove it and run the same command again to continue from {rest}") from error
    if info["spec"] != spec.id:
        raise UserError(f"{path} belongs to run {info['spec']}, not to {spec.id}")
    tensors = {name: t.to(device) for name, t in tensors.items()}
    clients = [_replica(tensors, f"client{k}", info["steps"][f"client{k}"]) for k in range(info["clients"])]
    uploads = [_networks(tensors, f"upload{k}") for k in range(info["clients"])]
    server = _replica(tensors, "server", info["steps"]["server"])
    return State(info["round"], server, clients, uploads, info["history"], _predictions(tensors))


def save_snapshot(folder: Path, spec: TrainSpec, state: State) -> None:
    """Writes round-NNNN.safetensors."""
    tensors = _network_tensors((state.server.params, state.server.buffers), "server")
    private = [p for p in CLASSIFICATION if p not in state.server.params]
    for k, (client, (params, buffers)) in enumerate(zip(state.clients, state.uploads, strict=True)):
        own = ({p: client.params[p] for p in private}, {p: client.buffers[p] for p in private})
        sent = [p for p in params if p not in CLASSIFICATION]
        upload = ({p: params[p] for p in sent}, {p: buffers[p] for p in sent})
        tensors |= _network_tensors(own, f"client{k}") | _network_tensors(upload, f"upload{k}")
    info = {"spec": spec.id, "round": state.round, "clients": len(state.clients)}
    storage.save_tensors(snapshot_path(folder, state.round), "snapshot", tensors, info)


def snapshot_path(folder: Path, round_: int) -> Path:
    """Where the snapshot of one round lies."""
    return folder / f"round-{round_:04d}.safetensors"


def load_snapshot(folder: Path, round_: int) -> Snapshot:
    """The snapshot of one round; UserError when it is missing or damaged."""
    tensors, info = storage.load_tensors(snapshot_path(folder, round_), "snapshot")
    names = range(info["clients"])
    return Snapshot(
        info["round"],
        _replica(tensors, "server", {}),
        [_replica(tensors, f"client{k}", {}) for k in names],
        [_networks(tensors, f"upload{k}") for k in names],
    )


def keep(folder: Path, spec: TrainSpec, state: State) -> None:
    """After a round: writes its checkpoint and snapshot, and drops snapshots that are neither asked for nor the best."""
    from privbench.harness import best_round

    save_snapshot(folder, spec, state)
    save(folder, spec, state)
    wanted = {0, state.round, best_round(state.history)}
    for path in folder.glob("round-*.safetensors"):
        number = int(path.stem.removeprefix("round-"))
        if number % spec.schedule.keep_every and number not in wanted and number < state.round:
            path.unlink(missing_ok=True)


def finish(folder: Path, spec: TrainSpec, state: State) -> None:
    """Marks the run complete. Its checkpoint is no longer needed: snapshots, predictions and history say all."""
    info = {"spec": spec.id, "clients": len(state.clients)}
    storage.save_tensors(folder / PREDICTIONS, "predictions", _prediction_tensors(state.predictions), info)
    storage.write_json(folder / FINISHED, {"spec": spec.id, "round": state.round, "history": state.history})
    for name in (CHECKPOINT, PREVIOUS):
        (folder / name).unlink(missing_ok=True)


def history(folder: Path) -> list[dict[str, Any]] | None:
    """The rounds of a finished run, or None."""
    path = folder / FINISHED
    if not path.exists():
        return None
    value = storage.read_json(path)
    if not isinstance(value, dict) or "history" not in value:
        raise UserError(f"{path} is damaged (no history in it); remove it and run the same command again")
    return list(value["history"])


def predictions(folder: Path) -> list[Prediction]:
    """Each client's test logits and labels in a finished run; UserError when the file is missing or damaged."""
    return _predictions(storage.load_tensors(folder / PREDICTIONS, "predictions")[0])


def progress(folder: Path) -> int | None:
    """How many rounds an unfinished run has behind it, from the checkpoint's header alone; None when there is none."""
    for name in (CHECKPOINT, PREVIOUS):
        if (folder / name).exists():
            _, info = storage.load_tensors(folder / name, "checkpoint")
            return int(info["round"])
    return None


def _named(server: Replica, clients: list[Replica]) -> list[tuple[str, Replica]]:
    return [("server", server), *((f"client{k}", c) for k, c in enumerate(clients))]


def _prediction_tensors(each: Sequence[Prediction]) -> dict[str, Tensor]:
    return {f"prediction{k}/{name}": t for k, one in enumerate(each) for name, t in one._asdict().items()}


def _predictions(tensors: dict[str, Tensor]) -> list[Prediction]:
    clients = sum(name.startswith("prediction") for name in tensors) // len(Prediction._fields)
    return [
        Prediction(**{name: tensors[f"prediction{k}/{name}"].cpu() for name in Prediction._fields})
        for k in range(clients)
    ]


def _network_tensors(networks: tuple[Parts, Parts], name: str) -> dict[str, Tensor]:
    params, buffers = networks
    return storage.flatten(params, f"{name}/params") | storage.flatten(buffers, f"{name}/buffers")


def _replica_tensors(replica: Replica, name: str) -> dict[str, Tensor]:
    tensors = _network_tensors((replica.params, replica.buffers), name)
    for stage, m in replica.moments.items():
        tensors |= {f"{name}/mean/{stage}": m.mean, f"{name}/square/{stage}": m.square}
    return tensors


def _networks(tensors: dict[str, Tensor], name: str) -> tuple[Parts, Parts]:
    params = storage.unflatten(tensors, f"{name}/params")
    buffers = storage.unflatten(tensors, f"{name}/buffers")
    return params, {part: buffers.get(part, {}) for part in params}


def _replica(tensors: dict[str, Tensor], name: str, steps: dict[str, int]) -> Replica:
    moments = {s: Moments(tensors[f"{name}/mean/{s}"], tensors[f"{name}/square/{s}"], n) for s, n in steps.items()}
    return Replica(*_networks(tensors, name), moments)
