"""`make chaos`: kills privbench again and again, and compares what it ends with, byte by byte, with an undisturbed run.

One life is one output folder: a run that is disturbed, sometimes twice, and then the same command to its end. The folder must then
hold what an undisturbed run leaves, every record, table and figure of it, and nothing else but locks. A stop by SIGTERM or SIGINT
must end with status 130 and one line, a disk that cannot be written with status 2 and one line, everything else with status 0.

    python -m benchmarks.chaos --kills 1000 --seconds 3600 --seed 0 --report docs/reliability.md

Disturbances: a signal at an event point (benchmarks/chaos/child.py), in order so that every point comes once before any comes
twice; a signal at a random moment, to the parent, to a worker or to all; a disk that fills up or becomes read-only (a tmpfs, where
one may be mounted); a folder that is deleted; a second process on the same folder.

A life is repeated by its number: --seed S --life N.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.chaos import page
from benchmarks.chaos.kinds import live, may_mount
from benchmarks.chaos.life import Reference, reference
from privbench import presets
from privbench.requests.options import PlaceOptions
from privbench.system import cpu, interrupts

SHORT = (0, 6, 8, 9)  # lives of the short form: an event, a moment, two processes, a full disk


def lane(
    first: int, step: int, seed: int, root: Path, references: dict[int, Reference], disk: bool, kills: Any, stop: Any
) -> None:
    """Lives one after another, each as a line of JSON, until the campaign stops them."""
    torch.set_num_threads(1)
    number = first
    with (root / f"lane-{first}.jsonl").open("a", buffering=1) as file:
        while not stop.value:
            life = live(number, seed, root, references, disk)
            file.write(json.dumps(asdict(life)) + "\n")
            kills[first] += sum(life.kills.values())
            number += step


def warm(root: Path) -> None:
    """Runs the command once in this process, so that a forked child has everything imported and works for half a second alone."""
    torch.set_num_threads(1)
    handlers = {number: signal.getsignal(number) for number in interrupts.STOPS}
    cells = [presets.cell_spec("smoke", presets.train_spec("smoke", "digits", "fedavg"), "idlg", seeds=1, victims=1)]
    cells = [cell.model_copy(update={"attack_settings": {"steps": 2}}) for cell in cells]
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        from privbench.cli import attack_runs

        attack_runs.show_attacked(attack_runs.run_attacks(cells, PlaceOptions("cpu", None, root / "warm")))
    for number, handler in handlers.items():
        signal.signal(number, handler)
    tasks = len(list(Path("/proc/self/task").iterdir()))
    if tasks > 1:
        raise SystemExit(
            f"this process has {tasks} threads, and one with threads cannot be forked; set OMP_NUM_THREADS=1"
        )


def campaign(kills: int, seconds: float, seed: int, root: Path, lanes: int) -> page.Campaign:
    """Lives in `lanes` processes until so many kills or seconds are reached."""
    references, disk = prepared(root, (1, 2))
    context = multiprocessing.get_context("fork")
    done, stop = context.RawArray("i", lanes), context.RawValue("b", 0)
    workers = [
        context.Process(target=lane, args=(first, lanes, seed, root, references, disk, done, stop))
        for first in range(lanes)
    ]
    began = time.monotonic()
    for worker in workers:
        worker.start()
    try:
        while sum(done) < kills and time.monotonic() - began < seconds and all(w.is_alive() for w in workers):
            time.sleep(0.2)
    finally:
        # Lives that have begun come to their end, so that nothing stays mounted or running.
        stop.value = 1
        for worker in workers:
            worker.join()
    if any(worker.exitcode for worker in workers):
        raise SystemExit("a lane of the campaign ended by an error of its own, which is printed above")
    lives = [json.loads(line) for path in sorted(root.glob("lane-*.jsonl")) for line in path.read_text().splitlines()]
    return page.Campaign(lives, _events(references), seed, time.monotonic() - began, disk)


def chosen_lives(numbers: Sequence[int], seed: int, root: Path, cores: tuple[int, ...]) -> page.Campaign:
    """These lives alone, one after another."""
    references, disk = prepared(root, cores)
    began = time.monotonic()
    lives = [asdict(live(number, seed, root, references, disk)) for number in numbers]
    return page.Campaign(lives, _events(references), seed, time.monotonic() - began, disk)


def prepared(root: Path, cores: tuple[int, ...]) -> tuple[dict[int, Reference], bool]:
    """(the undisturbed run with each number of cores, whether a tmpfs can be mounted), in a process that is ready to be forked."""
    warm(root)
    return {each: reference(root, each) for each in cores}, may_mount(root)


def _events(references: Mapping[int, Reference]) -> dict[int, int]:
    return {cores: one.events for cores, one in references.items()}


def main(
    kills: Annotated[int, typer.Option(help="Disturbances after which it ends.")] = 1000,
    seconds: Annotated[float, typer.Option(help="Seconds after which it ends.")] = 3600.0,
    seed: Annotated[int, typer.Option(help="Of every draw.")] = 0,
    lanes: Annotated[int | None, typer.Option(help="Lives at a time; default one a core.")] = None,
    life: Annotated[int | None, typer.Option(help="Only this life, again.")] = None,
    short: Annotated[
        bool, typer.Option("--short", help="Seconds instead of an hour; with --life, on two cores alone.")
    ] = False,
    report: Annotated[Path | None, typer.Option(help="Markdown file to write; default: print it.")] = None,
) -> None:
    """Kill privbench again and again, and compare what it ends with."""
    # In memory, so that a thousand lives wear out no disk.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="privbench-chaos-", dir=memory if memory.is_dir() else None) as name:
        root = Path(name)
        if life is not None:
            done = chosen_lives((life,), seed, root, (2,) if short else (1, 2))
        elif short:
            done = chosen_lives(SHORT, seed, root, (2,))
        else:
            done = campaign(kills, seconds, seed, root, lanes or cpu.cores())
        text = page.text(done)
        if report is None:
            print(text)
        else:
            report.write_text(text)
        for one in done.faults:
            print(f"life {one['number']} ({one['what']}): {one['fault']}")
    raise SystemExit(bool(done.faults))


if __name__ == "__main__":
    typer.run(main)
