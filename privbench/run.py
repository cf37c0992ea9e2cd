"""run_cells: every cell of a table as jobs, each train -> measure; each step is reused when it is already on disk."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privbench import checkpoint, federations, harness, machine, measure, partition, plugins, pool, results
from privbench.errors import AttackRefused, Interrupted, UserError
from privbench.spec import CellSpec, TrainSpec
from privbench.store import Store
from privbench.types import Report, no_report


def run_cells(
    cells: Sequence[CellSpec],
    root: Path,
    data_root: Path | None,
    device_name: str,
    progress: pool.Progress,
    outcome: pool.Outcome,
) -> list[str]:
    """Runs or reuses every cell and writes its record; returns one line per cell that could not be finished."""
    store = Store(root)
    store.check_writable()
    trials = trials_of(cells, root, data_root, device_name)
    workers = 1 if machine.device(device_name).type == "cuda" else pool.cores()
    failures = pool.run_jobs(trials, workers, progress, outcome)
    for cell in cells:
        if not store.record(cell).exists() and all(store.result(cell, s).exists() for s in cell.seeds):
            results.finish_cell(store, cell)
    return failures


def trials_of(cells: Sequence[CellSpec], root: Path, data_root: Path | None, device_name: str) -> list[Trial]:
    """The unfinished work of some cells as independent jobs, the longest (FedCG) first."""
    store = Store(root)
    stacked = machine.device(device_name).type == "cuda"
    groups: dict[str, tuple[tuple[TrainSpec, ...], list[CellSpec]]] = {}
    for cell in cells:
        if store.record(cell).exists():
            continue
        specs = cell.train_specs()
        for group in [tuple(specs)] if stacked else [(spec,) for spec in specs]:
            groups.setdefault("+".join(spec.id for spec in group), (group, []))[1].append(cell)
    names = titles([group for group, _ in groups.values()])
    trials = [
        Trial(name, group, tuple(own), root, data_root, device_name)
        for name, (group, own) in zip(names, groups.values(), strict=True)
    ]
    return sorted(trials, key=lambda trial: -len(plugins.resolve("method", trial.specs[0].method).parts))


@dataclass(frozen=True)
class Trial:
    """All work that hangs on one training specification: its seeds' training, and the attacks of its cells.

    On a CPU a trial has one seed and many trials run side by side; on a GPU its seeds train in one stacked run.
    """

    title: str
    specs: tuple[TrainSpec, ...]
    cells: tuple[CellSpec, ...]
    root: Path  # of the results
    data_root: Path | None
    device: str

    @property
    def log(self) -> Path:
        """In the folder of its (first) training run."""
        return Store(self.root).train(self.specs[0]) / "error.txt"

    def run(self, report: Report = no_report) -> None:
        """Trains what is not trained, then attacks what is not attacked.

        A cell that fails leaves its reason on disk, and the others are still made. Then the failure is raised: an error that no
        user caused before a refusal, several of them as one ExceptionGroup.
        """
        store = Store(self.root)
        train(store, self.specs, self.data_root, self.device, report)
        refused: list[UserError] = []
        broken: list[Exception] = []
        for cell in self.cells:
            try:
                for spec in self.specs:
                    if cell.attack is None:
                        measure.measure_seed(store, cell, spec, self.data_root, self.device)
                    else:
                        measure.attack_seed(store, cell, spec, self.data_root, self.device, report)
            except Interrupted:
                raise
            except Exception as error:  # noqa: BLE001 (whatever it is, the other cells go on)
                reason, is_refusal = pool.in_words(error, self.log), isinstance(error, AttackRefused)
                store.write_failure(cell, reason, refused=is_refusal)
                if isinstance(error, UserError):
                    refused.append(error)
                else:
                    error.add_note(f"cell {cell.id}: {cell.attack or 'accuracy'} at round {cell.round}")
                    broken.append(error)
        if len(broken) > 1:
            raise ExceptionGroup(f"{len(broken)} of {len(self.cells)} cells, first {broken[0]!r}", broken)
        if broken or refused:
            raise [*broken, *refused][0]


def train(
    store: Store, specs: Sequence[TrainSpec], data_root: Path | None, device_name: str, report: Report = no_report
) -> None:
    """Trains to the end what is not finished, resuming where it stopped."""
    todo = [spec for spec in specs if checkpoint.history(store.train(spec), spec.id) is None]
    for spec in specs:
        checkpoint.tidy(store.train(spec))
    place = machine.device(device_name)
    groups = [todo] if place.type == "cuda" and todo else [[spec] for spec in todo]
    for group in groups:
        feds = [federations.of(spec, data_root)[0] for spec in group]
        folders = [store.train(spec) for spec in group]
        with ExitStack() as locks:
            for spec, fed, folder in zip(group, feds, folders, strict=True):
                locks.enter_context(store.lock(folder))
                federations.write_clients(store, spec, fed)
            harness.train(group, feds, folders, place, "stacked" if place.type == "cuda" else "alone", report)


def titles(jobs: Sequence[Sequence[TrainSpec]]) -> list[str]:
    """A name for each of several jobs; those of one `title` are told apart by the settings that differ, e.g. task.lr=0.05."""
    plain = [title(specs) for specs in jobs]
    found = []
    for name, specs in zip(plain, jobs, strict=True):
        rivals = [_spelt_out(other[0]) for other, own in zip(jobs, plain, strict=True) if own == name]
        differing = {one: v for one, v in _spelt_out(specs[0]).items() if any(r.get(one) != v for r in rivals)}
        found.append(name + "".join(f" {one}={value}" for one, value in differing.items()))
    return found


def _spelt_out(spec: TrainSpec) -> dict[str, Any]:
    """The fields of a specification and of its schedule, with the settings of its optimisers: "batch", "task.lr"."""
    found = {name: value for name, value in spec.model_dump().items() if name != "schedule"}
    for name, value in spec.schedule.model_dump().items():
        found |= {f"{name}.{one}": v for one, v in value.items()} if isinstance(value, dict) else {name: value}
    return found


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
    where = f"{plugins.short(first.dataset)}{domains}{dealt}{several}"
    return f"{where} {first.method}{settings}{defended}{nets} seed {seeds}"
