"""One finished smoke run of two seeds, copied for every test, and what a stranger does to such files."""

import hashlib
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from privbench import presets, spec
from privbench.execution import cell_jobs
from privbench.observation import artifact_files
from privbench.records.store import Store
from privbench.system import files

TRAIN = presets.train_spec("smoke", "digits", "fedavg", clients=2, changes={"rounds": 2})
GREY, MEAN = (
    presets.cell_spec("smoke", TRAIN, name, seeds=2, round_="last", victims=2) for name in ("grey", "class-mean")
)
TRAINED = presets.cell_spec("smoke", TRAIN, None, seeds=2)
OTHER = presets.cell_spec(
    "smoke", presets.train_spec("smoke", "digits", "fedprox", clients=2, changes={"rounds": 2}), None
)
CELLS = [GREY, MEAN, TRAINED, OTHER]
FIRST, SECOND = GREY.train_specs()


def ran(cells: list[spec.CellSpec], root: Path) -> list[str]:
    """Runs or reuses some cells; the reasons of those that failed."""
    return cell_jobs.run_cells(cells, root, None, "cpu", lambda *_: None, lambda *_: None)


@pytest.fixture(scope="package")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The finished run; no test changes it."""
    root = tmp_path_factory.mktemp("made")
    assert ran(CELLS, root) == []
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    """A copy of it, to be harmed."""
    return Path(shutil.copytree(made, tmp_path / "runs"))


def digest_of(content: dict[str, Any]) -> str:
    """The digest of a JSON file's content, written again from its description."""
    text = json.dumps({k: v for k, v in content.items() if k != "digest"}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def edit(path: Path, change: Callable[[dict[str, Any]], object], *, forge: bool = True) -> None:
    """Changes a JSON file; with `forge` its digest, where it has one, is made to fit again."""
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value | ({"digest": digest_of(value)} if forge and "digest" in value else {})))


def edit_tensors(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes the JSON header of a tensor file, whose digest is made to fit again."""
    with safe_open(path, framework="pt") as file:
        kind = file.metadata()["privbench"]
    tensors, info = files.load_tensors(path, kind)
    change(info)
    files.save_tensors(path, kind, tensors, info)


def rename(info: dict[str, Any], names: dict[str, str]) -> None:
    """Gives the header of a result other names, where it has any."""
    info.update(names if "cell" in info else {})


def forged(root: Path, cell: spec.CellSpec, **changes: Any) -> str:
    """Puts a finished cell beside the others that is the same but for its specification, with all digests right; its id.

    `changes` are of the cell, or of its training where they are no fields of a cell.
    """
    value = cell.model_dump(mode="json")
    of_cell = {name: each for name, each in changes.items() if name in spec.CellSpec.model_fields}
    value |= of_cell
    value["train"] |= {name: each for name, each in changes.items() if name not in of_cell}
    other = spec.checked(spec.CellSpec, value)
    folder = shutil.copytree(Store(root).cell(cell), Store(root).cell(other))
    (folder / "spec.json").write_text(json.dumps(value))
    edit(folder / "record.json", lambda r: r.update(id=other.id, cell=value))
    for seed, old in zip(cell.seeds, cell.train_specs(), strict=True):
        new = other.train.model_copy(update={"seed": seed})
        path = Store(root).result(other, seed)
        names = {"cell": other.id, "spec": new.id}
        edit_tensors(path, partial(rename, names=names))
        first, second = (Store(root).artifact(c, t, 2) for c, t in ((cell, old), (other, new)))
        if not second.exists():
            seen, truth = artifact_files.load_with_truth(first, artifact_files.origin_of(old, first))
            artifact_files.save_with_truth(seen, truth, second, artifact_files.origin_of(new, second))
    return other.id
