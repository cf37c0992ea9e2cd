"""`make chaos`: kills privbench again and again, and compares what it ends with, byte by byte, with an undisturbed run.

One life is one output folder: a run that is disturbed, sometimes twice, and then the same command to its end. The folder must then
hold what an undisturbed run leaves, every record, table and figure of it, and nothing else but locks. A stop by SIGTERM or SIGINT
must end with status 130 and one line, a full disk with status 2 and one line, everything else with status 0.

    python -m benchmarks.chaos --kills 1000 --seconds 3600 --seed 0 --report docs/reliability.md

Disturbances: a signal at an event point (benchmarks/chaos_child.py), in order so that every point comes once before any comes
twice; a signal at a random moment, to the parent, to a worker or to all; a disk that fills up (a small tmpfs, where this may be
mounted); a second process on the same folder. A life is repeated by its number: --seed S --life N.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks import chaos_report
from benchmarks.chaos_child import Counters, Trap, counters, start
from privbench import interrupts, plugins, pool, spec

# fmt: off
WORDS = [
    "attack", "--method", "fedavg", "--dataset", "digits", "--preset", "smoke", "--seeds", "2", "--rounds", "2",
    "--victims", "1", "--attack", "idlg", "--attack-set", "steps=2", "--device", "cpu",
]
# fmt: on
HANGS = 300.0  # seconds after which a child hangs
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
TURNS = ("event",) * 6 + ("moment",) * 2 + ("two", "disk")  # what lives are about, events first
PAGE, ENOUGH = (
    4096,
    2**27,
)  # bytes; checkpoints of two runs and what is written in their place are many times the results


@dataclass
class Life:
    """What happened in one folder."""

    number: int
    kind: str  # chaos_report.KINDS
    what: str  # the first disturbance in words
    kills: dict[str, int] = field(default_factory=dict)  # of each kind
    event: int = 0  # at which it was disturbed first, where it was at one
    fault: str = ""
    log: str = ""  # of the child at fault

    def count(self, kind: str) -> None:
        """One more disturbance."""
        self.kills[kind] = self.kills.get(kind, 0) + 1


@dataclass(frozen=True)
class Reference:
    """An undisturbed run with a number of cores."""

    files: dict[str, bytes]
    events: int
    seconds: float
    results: int  # that are written, one per seed and attack


class Fault(Exception):
    """The product did not do what it promises."""


def tree(out: Path) -> dict[str, bytes]:
    """Every file under a folder but locks: path -> content."""
    return {
        path.relative_to(out).as_posix(): content(path)
        for path in sorted(out.rglob("*"))
        if path.is_file() and not path.name.endswith((".lock", ".lock-by"))
    }


def content(path: Path) -> bytes:
    """What a file says; of a safetensors file its header in the order of names, as that library writes it in any order."""
    found = path.read_bytes()
    if path.suffix != ".safetensors":
        return found
    end = 8 + int.from_bytes(found[:8], "little")
    return json.dumps(json.loads(found[8:end]), sort_keys=True).encode() + found[end:]


def ended(child: int, seconds: float = HANGS) -> int:
    """Waits for a child: its status, negative for a signal. Fault where it hangs, or leaves processes of its group behind."""
    deadline = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            break
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise Fault("hangs")
        time.sleep(0.01)
    # Workers whose parent was killed end by themselves, and soon.
    while group(child):
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
            raise Fault("workers outlive their parent")
        time.sleep(0.01)
    return os.waitstatus_to_exitcode(status)


def group(leader: int) -> list[int]:
    """The processes of a process group that live."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == leader and fields[0] not in "ZX":
            found.append(int(folder.name))
    return found


class Folder:
    """The output folder of one life, and its children's log."""

    def __init__(self, root: Path, cores: int) -> None:
        self.root, self.cores = root, cores
        self.out, self.log = root / "out", root / "log"
        self.out.mkdir(parents=True)

    def begin(self, trap: Trap = Trap(), counted: Counters | None = None) -> int:  # noqa: B008 (an immutable default)
        """Starts privbench on the folder; the number of its process."""
        self.log.unlink(missing_ok=True)
        return start([*WORDS, "--out", str(self.out)], self.out, self.log, trap, counted or counters(), self.cores)

    def said(self) -> str:
        """What the last child printed."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def judge(self, status: int, number: int) -> bool:
        """Whether a child that got a signal still finished; Fault where it ended as it should not."""
        said = self.said()
        if "Traceback" in said or "internal error" in said:
            raise Fault(f"an error after {signal.Signals(number).name}: {said.strip().splitlines()[-1]}")
        if status == 0:
            return True
        if number == signal.SIGKILL and status == -signal.SIGKILL:
            return False
        if status == -number and not said:
            # Before privbench listens, Python is not listening either.
            return False
        if status == interrupts.STATUS and said.count("the same command continues from there") == 1:
            return False
        raise Fault(f"status {status} after {signal.Signals(number).name}: {said.strip()[-300:]!r}")

    def finish(self, reference: Reference) -> None:
        """Runs the command to its end and compares; Fault where anything differs."""
        status = ended(self.begin())
        if status != 0:
            raise Fault(f"status {status} when continued: {self.said().strip()[-300:]!r}")
        compare(tree(self.out), reference.files)


def compare(found: dict[str, bytes], expected: dict[str, bytes]) -> None:
    """Fault with the first file that is missing, left over or different."""
    for words, names in (
        ("missing", expected.keys() - found.keys()),
        ("left over", found.keys() - expected.keys()),
        ("different", {name for name in found.keys() & expected.keys() if found[name] != expected[name]}),
    ):
        if names:
            raise Fault(f"{words}: {min(names)}" + (f" and {len(names) - 1} more" if len(names) > 1 else ""))


def reference(root: Path, cores: int) -> Reference:
    """The undisturbed run, made twice: Fault where the two differ, since then nothing could be compared."""
    made = []
    for turn in ("a", "b"):
        folder, counted, began = Folder(root / f"reference-{cores}-{turn}", cores), counters(), time.monotonic()
        status = ended(folder.begin(counted=counted))
        if status:
            raise Fault(f"the undisturbed run ends with status {status}: {folder.said()}")
        seconds = time.monotonic() - began
        made.append(Reference(tree(folder.out), counted.events.value, seconds, counted.results.value))
        shutil.rmtree(folder.root)
    compare(made[1].files, made[0].files)
    return made[1]


def at_event(life: Life, folder: Folder, known: Reference, draw: random.Random, event: int) -> None:
    """A signal at one event point, to the process that meets it or to its whole group."""
    number, target = draw.choice(SIGNALS), draw.choice(("process", "group"))
    life.what = f"{number.name} to the {target} at event {event} of {known.events}, {folder.cores} core(s)"
    status = ended(folder.begin(Trap(event, number, target, draw.choice((1.0, draw.random())))))
    life.count(f"{life.kind} {number.name}")
    folder.judge(status, number)


def at_moment(life: Life, folder: Folder, known: Reference, draw: random.Random) -> None:
    """A signal at a random moment, to the parent, to a worker where there is one, or to all."""
    number, target = draw.choice(SIGNALS), draw.choice(("parent", "worker", "group"))
    when = draw.uniform(0, 1.05 * known.seconds)
    life.what = life.what or f"{number.name} to the {target} after {when:.2f} s, {folder.cores} core(s)"
    child = folder.begin()
    time.sleep(when)
    workers = [pid for pid in group(child) if pid != child]
    try:
        if target == "group":
            os.killpg(child, number)
        elif target == "worker" and workers:
            os.kill(draw.choice(workers), number)
        else:
            target = "parent"
            os.kill(child, number)
    except ProcessLookupError:
        pass
    life.count(f"moment {number.name}")
    status = ended(child)
    if target == "worker" and status != 0 and number != signal.SIGKILL:
        raise Fault(f"status {status} after a worker got {number.name}: {folder.said().strip()[-300:]!r}")
    folder.judge(status, number)


def two_at_once(life: Life, folder: Folder, known: Reference, draw: random.Random) -> None:
    """A second process on the same folder; half of the time one of the two is killed."""
    counted, killed = counters(), draw.random() < 0.5
    logs = [folder.log, folder.log.with_name("log-2")]
    children = []
    for log in logs:
        words = [*WORDS, "--out", str(folder.out)]
        children.append(start(words, folder.out, log, Trap(), counted, folder.cores))
        time.sleep(draw.uniform(0, 0.3 * known.seconds))
    life.what = f"two processes, {'one killed' if killed else 'both to the end'}, {folder.cores} core(s)"
    if killed:
        time.sleep(draw.uniform(0, 0.5 * known.seconds))
        os.kill(draw.choice(children), signal.SIGKILL)
    life.count("two SIGKILL" if killed else "two")
    for child, log in zip(children, logs, strict=True):
        status = ended(child, 2 * HANGS)
        said = log.read_text()
        if status not in ((0, -signal.SIGKILL) if killed else (0,)) or "Traceback" in said:
            raise Fault(f"status {status} of two at once: {said.strip()[-300:]!r}")
    if not killed:
        compare(tree(folder.out), known.files)
        if counted.results.value != known.results:
            raise Fault(f"{counted.results.value} results were written instead of {known.results}")


def full_disk(life: Life, folder: Folder, known: Reference, draw: random.Random) -> None:
    """A disk that is too small, and larger when the command is given again."""
    needed = sum(-(-len(content) // PAGE) * PAGE for content in known.files.values())
    size = int(needed * draw.uniform(0.05, 0.95))
    life.what = f"a disk of {size} of {needed} bytes, {folder.cores} core(s)"
    mount(folder.out, f"size={size}")
    try:
        life.count("disk")
        status, said = ended(folder.begin()), folder.said()
        if status != 2 or "the disk is full" not in said or "Traceback" in said:
            raise Fault(f"status {status} on a full disk: {said.strip()[-300:]!r}")
        mount(folder.out, f"remount,size={ENOUGH}")
        folder.finish(known)
    finally:
        subprocess.run(["umount", str(folder.out)], check=False, capture_output=True)


def mount(place: Path, options: str) -> None:
    """Mounts a tmpfs, or changes its size."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=True, capture_output=True)


def may_mount(root: Path) -> bool:
    """Whether a tmpfs can be mounted here."""
    place = root / "probe"
    place.mkdir()
    try:
        mount(place, "size=64k")
    except (OSError, subprocess.CalledProcessError):
        return False
    subprocess.run(["umount", str(place)], check=True)
    return True


def live(number: int, seed: int, root: Path, known: dict[int, Reference], disk: bool) -> Life:
    """One life: its disturbances and its end, all drawn from seed and number."""
    draw = random.Random(f"{seed}-{number}")
    cores, kind = draw.choice((1, 2)), TURNS[number % len(TURNS)]
    if kind == "disk" and not disk:
        kind = "moment"
    life, folder = Life(number, kind, ""), Folder(root / f"life-{number}", cores)
    own = known[cores]
    try:
        if kind == "event":
            order = list(range(1, own.events + 1))
            random.Random(seed).shuffle(order)
            before = number // len(TURNS) * TURNS.count("event") + number % len(TURNS)
            life.event = order[before % len(order)]
            at_event(life, folder, own, draw, life.event)
        elif kind == "moment":
            at_moment(life, folder, own, draw)
        else:
            {"two": two_at_once, "disk": full_disk}[kind](life, folder, own, draw)
        if kind in ("event", "moment"):
            while draw.random() < 0.5:
                at_moment(life, folder, own, draw)
        if kind != "disk":
            folder.finish(own)
    except Fault as fault:
        life.fault = str(fault)
        life.log = folder.said()
    finally:
        shutil.rmtree(folder.root, ignore_errors=True)
    return life


def lane(first: int, step: int, seed: int, root: Path, known: dict[int, Reference], disk: bool, kills: Any) -> None:
    """Lives one after another, each as a line of JSON, until the campaign ends this process."""
    torch.set_num_threads(1)
    number = first
    with (root / f"lane-{first}.jsonl").open("a", buffering=1) as file:
        while True:
            life = live(number, seed, root, known, disk)
            file.write(json.dumps(asdict(life)) + "\n")
            kills[first] += sum(life.kills.values())
            number += step


def warm(root: Path) -> None:
    """Runs the command once in this process, so that a forked child has everything imported and works for half a second alone."""
    torch.set_num_threads(1)
    handlers = {number: signal.getsignal(number) for number in interrupts.STOPS}
    cells = [spec.cell_spec("smoke", spec.train_spec("smoke", "digits", "fedavg"), "idlg", seeds=1, victims=1)]
    cells = [cell.model_copy(update={"attack_settings": {"steps": 2}}) for cell in cells]
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        plugins.commands().run_and_show(cells, root / "warm", None, "cpu", root / "warm" / "shown")
    for number, handler in handlers.items():
        signal.signal(number, handler)
    tasks = len(list(Path("/proc/self/task").iterdir()))
    if tasks > 1:
        raise SystemExit(
            f"this process has {tasks} threads, and one with threads cannot be forked; set OMP_NUM_THREADS=1"
        )


def campaign(kills: int, seconds: float, seed: int, root: Path, lanes: int) -> chaos_report.Campaign:
    """Lives in `lanes` processes until so many kills or seconds are reached."""
    warm(root)
    disk = may_mount(root)
    known = {cores: reference(root, cores) for cores in (1, 2)}
    context = multiprocessing.get_context("fork")
    done = context.RawArray("i", lanes)
    workers = [
        context.Process(target=lane, args=(first, lanes, seed, root, known, disk, done)) for first in range(lanes)
    ]
    began = time.monotonic()
    for worker in workers:
        worker.start()
    try:
        while sum(done) < kills and time.monotonic() - began < seconds and all(w.is_alive() for w in workers):
            time.sleep(0.2)
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
    if any(worker.exitcode not in (None, -signal.SIGKILL) for worker in workers):
        raise SystemExit("a lane of the campaign ended by an error of its own, which is printed above")
    lives = [json.loads(line) for path in sorted(root.glob("lane-*.jsonl")) for line in path.read_text().splitlines()]
    events = {cores: one.events for cores, one in known.items()}
    return chaos_report.Campaign(lives, events, seed, time.monotonic() - began, disk)


def main(
    kills: Annotated[int, typer.Option(help="Disturbances after which it ends.")] = 1000,
    seconds: Annotated[float, typer.Option(help="Seconds after which it ends.")] = 3600.0,
    seed: Annotated[int, typer.Option(help="Of every draw.")] = 0,
    lanes: Annotated[int | None, typer.Option(help="Lives at a time; default one a core.")] = None,
    life: Annotated[int | None, typer.Option(help="Only this life, again.")] = None,
    report: Annotated[Path | None, typer.Option(help="Markdown file to write; default: print it.")] = None,
) -> None:
    """Kill privbench again and again, and compare what it ends with."""
    # In memory, so that a thousand lives wear out no disk.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="privbench-chaos-", dir=memory if memory.is_dir() else None) as name:
        root = Path(name)
        if life is not None:
            warm(root)
            disk = may_mount(root)
            known = {cores: reference(root, cores) for cores in (1, 2)}
            print(asdict(live(life, seed, root, known, disk)))
            return
        done = campaign(kills, seconds, seed, root, lanes or pool.cores())
        text = chaos_report.text(done)
        if report is None:
            print(text)
        else:
            report.write_text(text)
        for one in done.faults:
            print(f"life {one['number']} ({one['what']}): {one['fault']}")
    raise SystemExit(bool(done.faults))


if __name__ == "__main__":
    typer.run(main)
