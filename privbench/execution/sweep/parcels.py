"""The part of a folder of results that one job needs and makes, as bytes that travel between machines.

What belongs to a job: its training runs, the artifacts observed in them, and what its cells have at its seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from privbench.execution.cell_jobs import Trial
from privbench.records.store import Store
from privbench.system import files

Parcel = dict[str, bytes]  # the content of each file, by its path under the folder of results


def pack(trial: Trial) -> Parcel:
    """All that the folder of results of a job holds of it; UserError for a link that leads out of its folder."""
    return {path.relative_to(trial.root).as_posix(): path.read_bytes() for path in _paths(trial)}


def unpack(parcel: Mapping[str, bytes], root: Path) -> None:
    """Writes the files under a folder; UserError for a path that leads out of it."""
    for name, content in parcel.items():
        path = root
        for part in name.split("/"):
            path = files.inside(path, part)
        files.write_bytes(path, content)


def changed(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> Parcel:
    """The folders of `after` in which a file is new or other than in `before`, each folder whole."""
    touched = {_folder(name) for name, content in after.items() if before.get(name) != content}
    return {name: content for name, content in after.items() if _folder(name) in touched}


def _paths(trial: Trial) -> Iterator[Path]:
    store = Store(trial.root)
    for spec in trial.specs:
        yield from _below(store.train(spec))
        for folder in sorted(files.inside(store.root, "artifacts").glob(f"{spec.id}-*/")):
            yield from _below(folder)
    for cell in trial.cells:
        results = [store.result(cell, spec.seed) for spec in trial.specs]
        for path in (store.cell_spec(cell), store.failure(cell), *results):
            if path.is_file():
                yield files.no_way_out(path)


def _below(folder: Path) -> Iterator[Path]:
    """Every file of a folder and of those below it that is not hidden."""
    for path in sorted(files.no_way_out(folder).rglob("*")):
        files.no_way_out(path)
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts):
            yield path


def _folder(name: str) -> tuple[str, ...]:
    """The training run, artifact or cell that a file belongs to."""
    return PurePosixPath(name).parts[:2]
