"""Where results live: one folder per training run, artifact and cell, named by the hash of its specification.

Hidden files beside them: locks (.lock, .seed-<s>.lock, with the process that has them in ...-by) and files half-written.

runs/train/<id>/       checkpoints, snapshots, history, predictions, clients.json (who holds how many images of which class);
                       audit-<canaries>.json, what canaries prove of its epsilon;
                       generators-<samples>.json, scores of generators of images;
                       error.txt, the traceback of the last attempt where it ended in an internal error
runs/artifacts/<id>/   observation/, what the server saw, and, in a file of its own, observation-truth.safetensors
runs/cache/            what attacks train, each file named by all that it depends on (attacks/common/training_cache.py), and by
no run
runs/cells/<id>/       seed-<s>.safetensors (a reconstruction with its scores; of an accuracy cell seed-<s>.json), spec.json and
                       record.json; or failed.json, why it could not be finished
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeVar

from privbench import presets
from privbench.errors import AGAIN, Damaged, UserError
from privbench.observation import local_update
from privbench.spec import ATTACK_REVISION, CellSpec, TrainSpec, checked
from privbench.system import files, processes
from privbench.training import checkpoint

Spec = TypeVar("Spec", TrainSpec, CellSpec)
FOLDERS = ("train", "artifacts", "cells", "cache")  # of results, by what they are
LOG = logging.getLogger("privbench")


@dataclass(frozen=True)
class Store:
    """The results under one output folder."""

    root: Path

    # What is measured of a trained run, by how much it is measured with.
    GENERATORS: ClassVar[str] = "generators-{}.json"
    AUDIT: ClassVar[str] = "audit-{}.json"

    def train(self, spec: TrainSpec) -> Path:
        """The folder of a training run."""
        return self._folder("train", spec.id)

    def clients(self, spec: TrainSpec) -> Path:
        """The label counts of a training run's clients, written when it starts."""
        return self.train(spec) / "clients.json"

    def audit(self, spec: TrainSpec, canaries: int) -> Path:
        """What so many canaries prove of the epsilon of a training run; all cells of the run share it."""
        return self.train(spec) / self.AUDIT.format(canaries)

    def generators(self, spec: TrainSpec, samples: int) -> Path:
        """The scores of a training run's generators by so many samples; all cells of the run share them."""
        return self.train(spec) / self.GENERATORS.format(samples)

    def cell(self, cell: CellSpec) -> Path:
        """The folder of a cell."""
        return self._folder("cells", cell.id)

    def cell_spec(self, cell: CellSpec) -> Path:
        """The specification of a cell, written when its first seed starts."""
        return self.cell(cell) / "spec.json"

    def begin(self, cell: CellSpec) -> None:
        """Writes the specification of a cell; a damaged one is written again."""
        if files.to_write(self.cell_spec(cell)):
            files.write_json(self.cell_spec(cell), cell.model_dump(mode="json"))

    def record(self, cell: CellSpec) -> Path:
        """The record of a finished cell."""
        return self.cell(cell) / "record.json"

    @property
    def cache(self) -> Path:
        """Where attacks keep what they train: apart from every artifact, and under no run's name."""
        return files.inside(self.root, "cache")

    def result(self, cell: CellSpec, seed: int) -> Path:
        """What one seed gave: the reconstruction, or of an accuracy cell a JSON file."""
        return self.cell(cell) / f"seed-{seed}.{'json' if cell.attack is None else 'safetensors'}"

    def failure(self, cell: CellSpec) -> Path:
        """Why a cell could not be finished, and whether its attack cannot be made at all; gone when it is tried again."""
        return self.cell(cell) / "failed.json"

    def log(self, cell: CellSpec) -> Path:
        """The traceback of a cell that ended in an internal error; gone when the cell is recorded."""
        return self.cell(cell) / "error.txt"

    def write_failure(self, cell: CellSpec, reason: str, *, refused: bool) -> None:
        """Writes why a cell could not be finished; `refused` says that its attack cannot be made at all."""
        files.write_digested(self.failure(cell), {"cell": cell.id, "reason": reason, "refused": refused})

    def read_failure(self, cell: CellSpec) -> tuple[str, bool]:
        """(reason, refused) as they were written; UserError when the file is damaged, altered or another cell's."""
        path = self.failure(cell)
        failure = files.read_digested(path)
        files.check_identity(path, failure, cell=cell.id)
        if not isinstance(failure.get("reason"), str) or not isinstance(failure.get("refused"), bool):
            raise UserError(f"{path} is damaged (no reason in it); {AGAIN}")
        return failure["reason"], failure["refused"]

    def artifact(self, cell: CellSpec, train: TrainSpec, round_: int) -> Path:
        """The folder of the artifact that a cell attacks at one seed: shared by every attack on it.

        An active attack has artifacts of its own, as they depend on what it sent.
        """
        labels = "-labels" if cell.labels_known else ""
        sent = ""
        if cell.attack is not None and cell.active:
            # What is crafted changes with the attacks' revision, as their seed does.
            craft = cell.attack_settings | {"auxiliary": cell.auxiliary, "attacks": ATTACK_REVISION}
            if cell.attack_revision:
                craft |= {"revision": cell.attack_revision}
            if cell.auxiliary_content is not None:
                craft |= {"auxiliary_content": cell.auxiliary_content}
            settings = json.dumps(craft, sort_keys=True)
            sent = f"-by-{cell.attack.replace(':', '.')}-{hashlib.sha256(settings.encode()).hexdigest()[:8]}"
        local = local_update.local_steps(cell)
        steps = f"-k{local.steps}-{'-'.join(f'{n}{v}' for n, v in local.optimiser.items())}" if local else ""
        steps += f"-m{local.batch}" if local and local.batch else ""
        form = "" if cell.wire == "float32" else f"-{cell.wire}"
        revision = f"-o{n}" if (n := presets.observed_revision(cell)) else ""
        name = f"{train.id}-r{round_}-v{cell.victims}-b{cell.batch_size}{labels}{steps}{form}{revision}{sent}"
        return self._folder("artifacts", name)

    def run(self, run: str) -> TrainSpec | None:
        """The specification of the training run with that id; None where there is none. UserError where it is damaged."""
        path = self._folder("train", run) / "spec.json"
        spec = _specification(TrainSpec, path) if path.is_file() else None
        return spec if spec is not None and spec.id == run else None

    def trained(self) -> list[tuple[Path, TrainSpec]]:
        """Every training run on disk, finished or not; without those of `earlier` revisions."""
        return [(folder, spec) for folder, spec in self._specifications("train", TrainSpec) if folder.name == spec.id]

    def check_writable(self) -> None:
        """Checks early, before any computing, that results can be written here, and clears up after runs that were killed."""
        with files.writing(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            probe = self.root / f".writable{processes.mark()}"
            # Exclusively, as a link of that name, in a folder of somebody else's, would lead elsewhere.
            probe.unlink(missing_ok=True)
            probe.touch(exist_ok=False)
            now = probe.stat().st_mtime
            probe.unlink(missing_ok=True)
        for folder in self._written_to():
            files.sweep(folder, now)
            if folder.parent == self.root / "train":
                # A run that cannot be cleared up is reported where it is used.
                with suppress(OSError, UserError):
                    checkpoint.tidy(folder, folder.name)

    def _written_to(self) -> Iterator[Path]:
        """Every folder that files are written to: this one, those of reports, and those of results with all below them.

        None that a link leads to. What else lies here may be large and somebody else's, so that only its first level is named.
        """
        yield self.root
        for folder in self.root.glob("*/"):
            if folder.is_symlink():
                continue
            if folder.name in FOLDERS:
                yield from (Path(place) for place, _, _ in os.walk(folder))
            else:
                yield folder

    def cells(self) -> list[CellSpec]:
        """Every cell on disk, finished or not; without those of `earlier` revisions."""
        return [cell for folder, cell in self._specifications("cells", CellSpec) if _is_of_today(folder, cell)]

    def recorded(self) -> list[CellSpec]:
        """Those of `cells` that have a record."""
        return [cell for cell in self.cells() if self.record(cell).exists()]

    def earlier(self) -> list[Path]:
        """Folders that are read no more: of another revision of training, of all attacks, or of their own attack."""
        runs = self._specifications("train", TrainSpec, quietly=True)
        cells = self._specifications("cells", CellSpec, quietly=True)
        return [
            *(folder for folder, spec in runs if folder.name != spec.id),
            *(folder for folder, cell in cells if not _is_of_today(folder, cell)),
        ]

    def _specifications(self, kind: str, form: type[Spec], *, quietly: bool = False) -> list[tuple[Path, Spec]]:
        """Every folder whose specification can be read; the others are left out, with a line each unless `quietly`."""
        pairs = []
        for path in sorted(self.root.glob(f"{kind}/*/spec.json")):
            try:
                pairs.append((self._folder(kind, path.parent.name), _specification(form, path)))
            except UserError as error:
                if not quietly:
                    LOG.warning("left out: %s", error)
        return pairs

    def _folder(self, kind: str, name: str) -> Path:
        """A folder of results; UserError where it, or the one of its kind, is a link that leads elsewhere."""
        return files.inside(files.inside(self.root, kind), name)


def _is_of_today(folder: Path, cell: CellSpec) -> bool:
    """Whether the cell has the name of its folder by now, and its attack would return the same."""
    return folder.name == cell.id and presets.is_of_today(cell)


def _specification(form: type[Spec], path: Path) -> Spec:
    try:
        content = files.read_json(path)
    except Damaged as error:
        what = "training run" if form is TrainSpec else "cell"
        raise Damaged(
            f"{path} is damaged; the command that began this {what} writes it again, or remove {path.parent}"
        ) from error
    try:
        return checked(form, content)
    except UserError as error:
        raise UserError(f"{path} is no specification of this privbench ({error}); move {path.parent} away") from error


def status(folder: Path, run: str) -> str:
    """How far the training run with that id has come, in words."""
    try:
        rounds = checkpoint.history(folder, run)
        if rounds is not None:
            return f"finished after {len(rounds)} rounds"
        done = checkpoint.progress(folder, run)
    except UserError as error:
        return str(error)
    return "not started" if done is None else f"stopped after round {done}; the same command continues"
