"""What a cell's record is made of, and whether all of it is on disk: training runs, artifacts, results of every seed.

A record is written where all is there, and is removed where some of it is deleted while the command runs: the same command then
makes everything again. What is deleted later, as to have the space, is nobody's concern until it is needed.
"""

from __future__ import annotations

from pathlib import Path

from privbench.errors import UserError
from privbench.observation import active_server, artifact_files, artifact_upgrade
from privbench.records.store import Store
from privbench.spec import CellSpec, TrainSpec
from privbench.training import checkpoint, history, restoration


def check(store: Store, cell: CellSpec) -> None:
    """UserError where something that a cell's record is made of is not there."""
    for path in (store.cell_spec(cell), *(store.result(cell, seed) for seed in cell.seeds)):
        _check(path if not path.exists() else None)
    for spec in cell.train_specs():
        _check(next(iter(restoration.missing(store.train(spec), spec)), None))
        _check(store.clients(spec) if not store.clients(spec).exists() else None)
        _check(lost_artifact(store, cell, spec))


def lost_artifact(store: Store, cell: CellSpec, spec: TrainSpec) -> Path | None:
    """The folder of what one seed of a cell attacked, where it is not whole; None where it is, or nothing is attacked."""
    if cell.attack is None:
        return None
    rounds = checkpoint.history(store.train(spec), spec.id)
    if rounds is None:
        return store.train(spec)
    round_ = history.resolve_round(cell.round, rounds)
    folder = store.artifact(cell, spec, round_)
    networks = not active_server.rounds(cell) or active_server.is_stored(folder, round_)
    whole = artifact_files.complete(folder) or artifact_upgrade.is_old(folder)
    return None if networks and whole else folder


def _check(path: Path | None) -> None:
    if path is not None:
        raise UserError(f"{path} was deleted or emptied while the command ran; the same command makes it again")
