"""Puts results of several folders together, as those of the shards of one sweep.

What is copied is what `Store` writes: training runs, artifacts, and what cells measured. Nothing is overwritten: where both folders
hold a file, the first stays, and one that differs is counted. Each file says which run, seed and cell it belongs to, and that
is checked where it is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from privbench.errors import UserError
from privbench.execution import cell_jobs, reproduce
from privbench.observation import artifact_files
from privbench.records import record_lines
from privbench.records.store import Store
from privbench.records.unlike import unlike
from privbench.spec import CellSpec
from privbench.system import files, locks
from privbench.training import checkpoint

KINDS = ("train", "artifacts", "cells")
# Of a cell beside its record: its specification, its seeds' results.
OF_CELLS = ("spec.json", "seed-*.safetensors", "seed-*.json")


class Copied(NamedTuple):
    """What was copied of one folder, or of several."""

    runs: int  # training runs, artifacts and results of seeds
    artifacts: int
    results: int
    differing: tuple[Path, ...]  # files of the folder that differ from those that were there


class Merged(NamedTuple):
    """What a merge did."""

    copied: Copied
    recorded: int  # cells that are complete now
    open_cells: int  # cells of which a seed is still missing
    failures: tuple[str, ...]  # cells that could not be recorded, a line each


def merge(store: Store, sources: Sequence[Path]) -> Merged:
    """Copies what other folders hold and this one does not, and records the cells that are complete then.

    UserError: a folder that is not there, holds no results, or is this one; a link that leads out of its folder.
    """
    others = [_source(store, path) for path in sources]
    store.check_writable()
    each = [take(store, other) for other in others]
    copied = Copied(
        sum(one.runs for one in each),
        sum(one.artifacts for one in each),
        sum(one.results for one in each),
        tuple(path for one in each for path in one.differing),
    )
    cells = store.cells()
    failures = cell_jobs.record_finished(store, cells)
    recorded = sum(store.record(cell).exists() for cell in cells)
    return Merged(copied, recorded, len(cells) - recorded, tuple(failures))


def take(store: Store, other: Store) -> Copied:
    """Copies what another folder holds and this one does not, and records nothing.

    UserError for a link that leads out of its folder.
    """
    runs = sum(_take_run(store, other, folder) for folder in _folders(other, "train"))
    artifacts = sum(_take_artifact(store, other, folder) for folder in _folders(other, "artifacts"))
    results, differing = 0, list[Path]()
    for cell in other.cells():
        copied, others = _take_cell(store, other, cell)
        results += copied
        differing += others
    return Copied(runs, artifacts, results, tuple(differing))


def _source(store: Store, path: Path) -> Store:
    if path.resolve() == store.root.resolve():
        raise UserError(f"{path} is the folder to merge into; name the others after it")
    if path.is_file() and path.name.endswith(record_lines.ENDING):
        raise UserError(
            f"{path} is a file; name a new *{record_lines.ENDING} to merge into, which takes files of records"
        )
    if not path.is_dir():
        raise UserError(f"there is no folder {path}; privbench merge takes folders of results, as --out names them")
    kinds = [files.inside(path, kind) for kind in KINDS]
    if not any(folder.is_dir() for folder in kinds):
        raise UserError(f"{path} holds no results; name the folders that --out named")
    return Store(path)


def _folders(other: Store, kind: str) -> Iterator[Path]:
    """The folders of one kind in order; UserError for one that a link leads out of."""
    for path in sorted(files.inside(other.root, kind).glob("*/")):
        yield files.inside(path.parent, path.name)


def _take_run(store: Store, other: Store, source: Path) -> bool:
    """Copies a training run where it has come further there: it is finished, or is not begun here.

    Of a run that is finished here, the same with all its seconds, what is missing is copied.
    """
    spec = other.run(source.name)
    if spec is None:
        return False
    target = store.train(spec)
    if checkpoint.is_finished(target):
        last = checkpoint.FINISHED
        if (source / last).is_file() and files.no_way_out(source / last).read_bytes() == (target / last).read_bytes():
            _copy(source, target, missing=True)
        return False
    if target.exists() and not checkpoint.is_finished(source):
        return False
    with locks.lock(target, wait=True):
        if not checkpoint.is_finished(target):
            # Its last file says that all others are there.
            _copy(source, target, last=checkpoint.FINISHED)
        checkpoint.tidy(target, spec.id)
    return True


def _take_artifact(store: Store, other: Store, source: Path) -> bool:
    target = files.inside(files.inside(store.root, "artifacts"), source.name)
    if artifact_files.complete(target) or not artifact_files.complete(source):
        return False
    for folder in (source, *(path for path in sorted(source.rglob("*/")) if path.is_dir())):
        files.no_way_out(folder)
        _copy(folder, target / folder.relative_to(source))
    return True


def _take_cell(store: Store, other: Store, cell: CellSpec) -> tuple[int, list[Path]]:
    """(how many seeds' results were copied, the files that differ from those that were there).

    The record is copied where it is of the trainings and results that are here now; else these give their own, or a reason.
    """
    source, target = other.cell(cell), store.cell(cell)
    results, differing = 0, []
    for path in (path for pattern in OF_CELLS for path in sorted(source.glob(pattern))):
        # A pipe would be waited for.
        if not path.is_file():
            continue
        if not (target / path.name).exists():
            _copy_file(path, target)
            results += path.name.startswith("seed-")
        elif path.name.startswith("seed-") and not _alike(target / path.name, files.no_way_out(path)):
            differing.append(path)
    same = not differing and all(_same_training(store.train(spec), other.train(spec)) for spec in cell.train_specs())
    if same and other.record(cell).is_file() and not store.record(cell).exists():
        _copy_file(other.record(cell), target)
    return results, differing


def _same_training(first: Path, second: Path) -> bool:
    """Whether two folders of one training run tell no different histories, but for seconds; one that is gone tells none."""
    histories = [folder / checkpoint.FINISHED for folder in (first, second)]
    return not all(path.is_file() for path in histories) or _alike(*histories)


def _alike(first: Path, second: Path) -> bool:
    """Whether two results of one seed are the same but for seconds; one that cannot be read is like no other."""
    try:
        if first.suffix == ".json":
            return not any(unlike(_measured(first), _measured(second), ""))
        before, after = (files.read_tensors(path)[0] for path in (first, second))
    except (OSError, ValueError, UserError):
        return False
    return all(reproduce.same_bits(before.get(name), after.get(name)) for name in {*before, *after})


def _measured(path: Path) -> dict[str, Any]:
    """What a JSON file tells but for time and place, which its digest is of, too."""
    return {name: each for name, each in files.read_digested(path).items() if name not in reproduce.NOT_COMPARED}


def _copy(source: Path, target: Path, last: str = "", *, missing: bool = False) -> None:
    """The files of one folder that are not hidden, each whole or not at all; with `missing` only those that are not there."""
    for path in sorted(source.iterdir(), key=lambda path: (path.name == last, path.name)):
        exists = missing and (target / path.name).exists()
        if path.is_file() and not path.name.startswith(".") and not exists:
            _copy_file(path, target)


def _copy_file(path: Path, target: Path) -> None:
    files.write_bytes(target / path.name, files.no_way_out(path).read_bytes())
