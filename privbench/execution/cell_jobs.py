"""run_cells: every cell of a table as jobs, each train -> measure; each step is reused when it is already on disk."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from privbench import registry
from privbench.data import partition
from privbench.errors import AttackRefused, Busy, Interrupted, UserError
from privbench.execution import attack_cell, foundations, worker_pool
from privbench.execution.inferring import inference_cell
from privbench.execution.worker_pool import JobProgress, Outcome
from privbench.records import clients, summary
from privbench.records.store import Store
from privbench.spec import CellSpec, TrainSpec
from privbench.system import cpu, files, interrupts, locks, machine
from privbench.training import checkpoint, federation, harness, local_training, restoration
from privbench.types import Progress, no_progress

LOG = logging.getLogger("privbench")


def run_cells(
    cells: Sequence[CellSpec],
    root: Path,
    data_root: Path | None,
    device_name: str,
    progress: JobProgress,
    outcome: Outcome,
    runs: Set[str] | None = None,
    engine: Engine = worker_pool.run_jobs,
) -> list[str]:
    """Runs or reuses every cell and writes its record; returns one line per cell that could not be finished.

    With `runs`, the ids of training runs, only what depends on those. `engine` says where the jobs run.
    """
    store = Store(root)
    store.check_writable()
    trials = trials_of(cells, root, data_root, device_name, runs)
    workers = 1 if machine.device(device_name).type == "cuda" else cpu.cores()
    failures = engine(trials, workers, progress, outcome)
    return list(dict.fromkeys([*failures, *record_finished(store, cells)]))


def record_finished(store: Store, cells: Sequence[CellSpec]) -> list[str]:
    """Writes the record of every cell whose seeds are all on disk, with all that they were made of; else why it could not.

    What is wrong with one cell costs no other; its reason is kept beside it.
    """
    failures = []
    for cell in cells:
        if store.record(cell).exists() or not all(store.result(cell, seed).exists() for seed in cell.seeds):
            continue
        try:
            foundations.check(store, cell)
            summary.finish_cell(store, cell)
        except Exception as error:  # noqa: BLE001 (whatever it is, the other cells are recorded)
            interrupts.check()
            failures.append(worker_pool.logged(error, store.log(cell)))
            fail(store, cell, failures[-1])
    return failures


def fail(store: Store, cell: CellSpec, reason: str, *, refused: bool = False) -> None:
    """Keeps the reason why a cell could not be finished; where nothing can be written any more, it is printed immediately."""
    try:
        store.write_failure(cell, reason, refused=refused)
    except UserError:
        LOG.warning("cell %s: %s", cell.id, reason)


def trials_of(
    cells: Sequence[CellSpec], root: Path, data_root: Path | None, device_name: str, runs: Set[str] | None = None
) -> list[Trial]:
    """The unfinished work of some cells as independent jobs, the longest (FedCG) first; with `runs` that of these runs alone."""
    store = Store(root)
    stacked = machine.device(device_name).type == "cuda"
    groups: dict[str, tuple[tuple[TrainSpec, ...], list[CellSpec]]] = {}
    for cell in cells:
        if store.record(cell).exists():
            continue
        specs = [spec for spec in cell.train_specs() if runs is None or spec.id in runs]
        for group in [tuple(specs)] * bool(specs) if stacked else [(spec,) for spec in specs]:
            groups.setdefault("+".join(spec.id for spec in group), (group, []))[1].append(cell)
    names = titles([group for group, _ in groups.values()])
    trials = [
        Trial(name, group, tuple(group_cells), root, data_root, device_name)
        for name, (group, group_cells) in zip(names, groups.values(), strict=True)
    ]
    return sorted(trials, key=lambda trial: -len(registry.resolve("method", trial.specs[0].method).parts))


@dataclass(frozen=True)
class Trial:
    """All work that depends on one training specification: its seeds' training, and the attacks of its cells.

    On a CPU a trial has one seed and many trials run side by side; on a GPU its seeds train in one stacked run.
    """

    title: str
    specs: tuple[TrainSpec, ...]
    cells: tuple[CellSpec, ...]
    root: Path  # of the results
    data_root: Path | None
    device: str
    # Whether to wait for a training that another process is at; else Busy, so that other work comes first.
    wait: bool = False

    @property
    def log(self) -> Path:
        """In the folder of its (first) training run."""
        return Store(self.root).train(self.specs[0]) / "error.txt"

    def patient(self) -> Trial:
        """The same work, after waiting for another process that does it."""
        return replace(self, wait=True)

    def run(self, progress: Progress = no_progress) -> None:
        """Trains what is not trained, then attacks what is not attacked; what another process attacks just now comes last.

        A cell that fails leaves its reason on disk, and the others are still made. Then the failure is raised: an error that no
        user caused before a refusal, several of them as one ExceptionGroup. Busy: another process trains one of its runs.
        """
        store = Store(self.root)
        train(store, self.specs, self.data_root, self.device, progress, wait=self.wait)
        failed: dict[str, tuple[CellSpec, Exception]] = {}
        remaining = [(cell, spec) for cell in self.cells for spec in self.specs]
        for wait in (False, True):
            busy = []
            for cell, spec in remaining:
                if cell.id in failed:
                    continue
                try:
                    self._measure(store, cell, spec, progress, wait=wait)
                except Busy:
                    busy.append((cell, spec))
                except Interrupted:
                    raise
                except Exception as error:  # noqa: BLE001 (whatever it is, the other cells go on)
                    interrupts.check()
                    failed[cell.id] = (cell, error)
                    fail(store, cell, worker_pool.in_words(error, self.log), refused=isinstance(error, AttackRefused))
            remaining = busy
        self._raise(list(failed.values()))

    def _measure(self, store: Store, cell: CellSpec, spec: TrainSpec, progress: Progress, *, wait: bool) -> None:
        """One seed of one cell, by one process at a time."""
        with locks.lock(store.cell(cell), wait=wait, name=f"seed-{spec.seed}"):
            if cell.attack is None:
                attack_cell.measure_seed(store, cell, spec, self.data_root, self.device)
            elif registry.is_inference(cell.attack):
                inference_cell.infer_seed(store, cell, spec, self.data_root, self.device, progress)
            else:
                attack_cell.attack_seed(store, cell, spec, self.data_root, self.device, progress)

    def _raise(self, failed: Sequence[tuple[CellSpec, Exception]]) -> None:
        """Raises what went wrong, if anything did."""
        broken = [(cell, error) for cell, error in failed if not isinstance(error, UserError)]
        for cell, error in broken:
            error.add_note(f"cell {cell.id}: {cell.attack or 'accuracy'} at round {cell.round}")
        if len(broken) > 1:
            raise ExceptionGroup(
                f"{len(broken)} of {len(self.cells)} cells, first {broken[0][1]!r}", [error for _, error in broken]
            )
        for _, error in (*broken, *failed):
            raise error


# Runs jobs somewhere: (jobs, processes of this machine at a time, progress, outcome) -> the reasons of those that failed. It raises
# Interrupted on Ctrl-C.
Engine = Callable[[Sequence[Trial], int, JobProgress, Outcome], list[str]]


def train(
    store: Store,
    specs: Sequence[TrainSpec],
    data_root: Path | None,
    device_name: str,
    progress: Progress = no_progress,
    *,
    wait: bool = True,
) -> None:
    """Trains to the end what is not finished, resuming where it stopped, and mends what is not whole then.

    Without `wait`, Busy where another process trains one of the runs.
    """
    place = machine.device(device_name)
    todo = [spec for spec in specs if checkpoint.history(store.train(spec), spec.id) is None]
    groups = [todo] if place.type == "cuda" and todo else [[spec] for spec in todo]
    for group in groups:
        feds = [federation.of(spec, data_root)[0] for spec in group]
        folders = [store.train(spec) for spec in group]
        with ExitStack() as locked:
            for spec, fed, folder in zip(group, feds, folders, strict=True):
                locked.enter_context(locks.lock(folder, wait=wait))
                clients.write_clients(store, spec, fed)
            # Another process may have finished some of them before it let go.
            open_ = [i for i, folder in enumerate(folders) if checkpoint.history(folder, group[i].id) is None]
            if open_:
                unfinished = ([group[i] for i in open_], [feds[i] for i in open_], [folders[i] for i in open_])
                harness.train(*unfinished, place, local_training.usual(place), progress)
            for spec, fed in zip(group, feds, strict=True):
                clients.write_clients(store, spec, fed)
    for spec in specs:
        mend(store, spec, data_root, place, progress)


def mend(
    store: Store, spec: TrainSpec, data_root: Path | None, place: torch.device, progress: Progress = no_progress
) -> None:
    """Makes again what a finished run has lost, with a line: label counts, snapshots, whole checkpoints, predictions.

    UserError where the run itself is gone, or training gives other numbers here.
    """
    folder = store.train(spec)
    if not checkpoint.is_finished(folder):
        raise UserError(f"{folder} was deleted or emptied while the command ran; the same command trains its run again")
    checkpoint.tidy(folder, spec.id)
    checkpoint.begin(folder, spec)
    if files.to_write(store.clients(spec)):
        files.remove(store.clients(spec))
        clients.write_clients(store, spec, federation.of(spec, data_root)[0])
    if not restoration.lost(folder, spec):
        return
    with locks.lock(folder, wait=True):
        # Another process may have made it meanwhile.
        if restoration.lost(folder, spec):
            setup = harness.prepare(spec, federation.of(spec, data_root)[0], place)
            restoration.restore(setup, folder, progress)


def titles(jobs: Sequence[Sequence[TrainSpec]]) -> list[str]:
    """A name for each of several jobs; those of one `title` are distinguished by the settings that differ, e.g. task.lr=0.05."""
    plain = [title(specs) for specs in jobs]
    titled = []
    for name, specs in zip(plain, jobs, strict=True):
        rivals = [_spelt_out(other[0]) for other, plain_title in zip(jobs, plain, strict=True) if plain_title == name]
        differing = {one: v for one, v in _spelt_out(specs[0]).items() if any(r.get(one) != v for r in rivals)}
        titled.append(name + "".join(f" {one}={value}" for one, value in differing.items()))
    return titled


def _spelt_out(spec: TrainSpec) -> dict[str, Any]:
    """The fields of a specification and of its schedule, with the settings of its optimisers: "batch", "task.lr"."""
    fields = {name: value for name, value in spec.model_dump().items() if name != "schedule"}
    for name, value in spec.schedule.model_dump().items():
        fields |= {f"{name}.{one}": v for one, v in value.items()} if isinstance(value, dict) else {name: value}
    return fields


def title(specs: Sequence[TrainSpec]) -> str:
    """A job's name in the progress display."""
    first = specs[0]
    defended = "" if first.defense == "none" else f"+{first.defense}"
    seeds = ",".join(str(spec.seed) for spec in specs)
    nets = "" if first.backbone == "lenet5" else f" {first.backbone}/{first.image_size}"
    dealt = f" dirichlet {first.omega:g}" if first.omega is not None else ""
    settings = "".join(f" {name}={value}" for name, value in first.method_settings.items() if name != "ramp_rounds")
    several = "" if first.clients == partition.defaults(first.dataset)[1] else f" {first.clients} clients"
    domains = f" ({'+'.join(first.domains)})" if first.domains else ""
    where = f"{registry.short(first.dataset)}{domains}{dealt}{several}"
    return f"{where} {first.method}{settings}{defended}{nets} seed {seeds}"
