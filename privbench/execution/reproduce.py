"""Is a record what its own specification gives? Runs it again in a fresh folder and compares everything but time and place.

On the machine that made a record, with the same versions and thread count, the result is the same bit for bit: every draw comes
from a named stream, and the numbers do not depend on which worker process computed them. Elsewhere (another processor, a GPU,
another torch) sums are taken in another order; what differs is then listed, with the two environments.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from privbench import registry, trust, written_defense
from privbench.data import auxiliary_choice
from privbench.errors import UserError
from privbench.execution import cell_jobs, worker_pool
from privbench.records import schema, summary
from privbench.records.schema import Record
from privbench.records.store import Store
from privbench.records.unlike import unlike
from privbench.spec import CellSpec
from privbench.system import cpu, files, machine

PLACE = ("privbench", "python", "torch", "device", "threads", "machine")  # of the environment, what bits depend on
NOT_COMPARED = ("environment", "notes")  # printed, not compared: notes may mention the environment


def cell_of(record: Record) -> CellSpec:
    """The specification that a record holds, as it was run; UserError when it hashes to another name than the record's."""
    cell = record.cell
    if cell.id != record.id:
        raise UserError(
            f"record {record.id} cannot be run again: its specification hashes to {cell.id} here, so another version of privbench "
            "made it, or it was altered"
        )
    return cell


def check_trusted(cell: CellSpec) -> None:
    """UserError with all that a record's cell would import or read and that nobody but the record names (privbench/trust.py)."""
    train, images = cell.train, auxiliary_choice.parsed(cell.auxiliary)[0]
    named = [
        ("method", train.method),
        ("dataset", train.dataset),
        *(("defense", each.name) for each in written_defense.members(train.defense)),
        *([("attack", cell.attack)] if cell.attack is not None else []),
        *([("dataset", images)] if images != auxiliary_choice.SAME else []),
    ]
    foreign = [name for kind, name in named if name not in registry.KINDS[kind]]
    foreign += [train.backbone] if registry.is_code(train.backbone) else []
    missing = tuple(name for name in dict.fromkeys(foreign) if name not in trust.added())
    if missing:
        raise UserError(
            f"record {cell.id} names {', '.join(missing)}: not built in, and no file alone makes this be imported or read; if you "
            f"know it, add {trust.option(*missing)}"
        )


def again(
    record: Record, root: Path, fresh: Path, data_root: Path | None, progress: worker_pool.JobProgress, outcome:
    worker_pool.Outcome, *, attack_only: bool = False,
) -> Record:  # fmt: skip
    """The record made again under `fresh`, which must be empty, with the threads and on the kind of device of the first time.

    With `attack_only` the trained networks are those under `root`, copied; else training is repeated too.
    """
    if fresh.exists() and any(fresh.iterdir()):
        raise UserError(f"{fresh} is not empty, and a result is reproduced in a fresh folder")
    cell, old, new = cell_of(record), Store(root), Store(fresh)
    check_trusted(cell)
    # What is compared at the end, and refused there where it is another cell's.
    for seed in cell.seeds:
        if old.result(cell, seed).exists():
            summary.result(old, cell, seed)
    new.check_writable()
    if attack_only:
        for spec in cell.train_specs():
            if not old.train(spec).is_dir():
                raise UserError(
                    f"there is no training run {spec.id} under {root}; leave --attack-only out to train it again"
                )
            _take_networks(old.train(spec), new.train(spec))
    device, threads = str(record.environment.get("device")), record.environment.get("threads")
    if threads is None:
        raise UserError(
            f"record {record.id} does not say with how many threads it was made (environment.threads), so that its bits cannot be "
            "compared; run its command again"
        )
    if device not in ("cpu", "cuda") or type(threads) is not int or not 1 <= threads <= schema.MOST_THREADS:
        raise UserError(f"record {record.id} was made on {device!r} with {threads!r} threads, which no machine has")
    trials = cell_jobs.trials_of([cell], fresh, data_root, device)
    workers = cpu.cores() if threads == 1 and machine.device(device).type == "cpu" else 1
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        failures = worker_pool.run_jobs(trials, workers, progress, outcome)
    finally:
        torch.set_num_threads(before)
    if failures:
        raise UserError(f"{record.id} could not be run again: {failures[0]}")
    return schema.read(summary.finish_cell(new, cell))


def _take_networks(source: Path, target: Path) -> None:
    """Copies a training run but for its scores, which are made again."""
    scores = [form.format("*") for form in (Store.GENERATORS, Store.AUDIT)]
    for path in sorted(source.iterdir()):
        if path.is_file() and not any(path.match(score) for score in scores):
            files.write_bytes(target / path.name, files.no_way_out(path).read_bytes())


def differences(first: Record, second: Record, old: Path, new: Path) -> list[str]:
    """One line per number, word or tensor that two runs of one cell do not share; NaN equals NaN.

    Reconstructions under the roots `old` and `new` are compared bit by bit where the old ones are still there.
    """
    lines = unlike_records(first, second)
    cell = cell_of(second)
    for seed in compared(second, old, new):
        before, after = (summary.result(Store(root), cell, seed)[0] for root in (old, new))
        lines += [
            f"seed {seed}: tensor '{name}' differs"
            for name in sorted(set(before) | set(after))
            if not same_bits(before.get(name), after.get(name))
        ]
    return lines


def unlike_records(first: Record, second: Record, without: Sequence[str] = ()) -> list[str]:
    """One line per number or word that two records do not share, but for time, place and the fields `without`; NaN equals NaN."""
    # What an attack's class says of the defence, or of other clients, is no measurement, and older records do not have it. Older
    # tags leave the training specification out; `needs` and `uses`, which tags are made of, are compared. Older records call labels
    # recovered that nobody gave; of each victim it is compared how many were right. Older records do not say which images an
    # inference was asked about, which follows from the run.
    of_class = {"not_modelled", "pools_clients", "labels", "tag", "tag_in_general"}
    excluded: Any = dict.fromkeys((*NOT_COMPARED, *without), True) | {"knowledge": of_class}
    if "seeds" not in excluded:
        excluded["seeds"] = {"__all__": {"statements": {"__all__": {"others"}}}}
    then, now = (r.model_dump(mode="json", exclude=excluded, serialize_as_any=True) for r in (first, second))
    return list(unlike(then, now, ""))


def compared(first: Record, old: Path, new: Path) -> list[int]:
    """The seeds whose reconstructions `differences` compares bit by bit: those that are still on disk under both roots.

    None of an accuracy cell, which has no reconstructions.
    """
    cell = cell_of(first)
    return (
        []
        if cell.attack is None
        else [s for s in cell.seeds if all(Store(root).result(cell, s).exists() for root in (old, new))]
    )


def moved(first: Record, second: Record) -> list[str]:
    """What differs between the places where two records were made, of what bits depend on."""
    return [
        f"{name}: {first.environment.get(name)} then, {second.environment.get(name)} now"
        for name in PLACE
        if first.environment.get(name) != second.environment.get(name)
    ]


def same_bits(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    """Whether both are there with the same bits."""
    if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(torch.equal(a.contiguous().flatten().view(torch.uint8), b.contiguous().flatten().view(torch.uint8)))
