"""The output folder of one life of the kill campaign: runs that are begun in it, and the verdict on what they leave."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.chaos.child import Counters, Trap, counters, start
from privbench.system import interrupts

# fmt: off
WORDS = [
    "attack", "--method", "fedavg", "--dataset", "digits", "--preset", "smoke", "--seeds", "2", "--rounds", "2",
    "--victims", "1", "--attack", "idlg", "--attack-set", "steps=2", "--device", "cpu",
]
# fmt: on
HANGS = 300.0  # seconds after which a child hangs


@dataclass
class Life:
    """What happened in one folder."""

    number: int
    kind: str  # of TURNS
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
    raw = path.read_bytes()
    if path.suffix != ".safetensors":
        return raw
    end = 8 + int.from_bytes(raw[:8], "little")
    return json.dumps(json.loads(raw[8:end]), sort_keys=True).encode() + raw[end:]


def ended(child: int, seconds: float = HANGS) -> int:
    """Waits for a child: its status, negative for a signal. Fault where it hangs, or leaves processes of its group behind."""
    deadline = time.monotonic() + seconds
    while True:
        process, status = os.waitpid(child, os.WNOHANG)
        if process:
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
    processes = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == leader and fields[0] not in "ZX":
            processes.append(int(folder.name))
    return processes


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

    def output(self) -> str:
        """What the last child printed."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def judge(self, status: int, number: int) -> bool:
        """Whether a child that got a signal still finished; Fault where it ended as it should not."""
        output = self.output()
        if "Traceback" in output or "internal error" in output:
            raise Fault(f"an error after {signal.Signals(number).name}: {output.strip().splitlines()[-1]}")
        if status == 0:
            return True
        if number == signal.SIGKILL and status == -signal.SIGKILL:
            return False
        if status == -number and not output:
            # Before privbench listens, Python is not listening either.
            return False
        if status == interrupts.STATUS and output.count("the same command continues from there") == 1:
            return False
        raise Fault(f"status {status} after {signal.Signals(number).name}: {output.strip()[-300:]!r}")

    def finish(self, reference: Reference) -> None:
        """Runs the command to its end and compares; Fault where anything differs."""
        status = ended(self.begin())
        if status != 0:
            raise Fault(f"status {status} when continued: {self.output().strip()[-300:]!r}")
        compare(tree(self.out), reference.files)


def compare(files: dict[str, bytes], expected: dict[str, bytes]) -> None:
    """Fault with the first file that is missing, left over or different."""
    for words, names in (
        ("missing", expected.keys() - files.keys()),
        ("left over", files.keys() - expected.keys()),
        ("different", {name for name in files.keys() & expected.keys() if files[name] != expected[name]}),
    ):
        if names:
            raise Fault(f"{words}: {min(names)}" + (f" and {len(names) - 1} more" if len(names) > 1 else ""))


def reference(root: Path, cores: int) -> Reference:
    """The undisturbed run, made twice: Fault where the two differ, since then nothing could be compared."""
    references = []
    for turn in ("a", "b"):
        folder, counted, began = Folder(root / f"reference-{cores}-{turn}", cores), counters(), time.monotonic()
        status = ended(folder.begin(counted=counted))
        if status:
            raise Fault(f"the undisturbed run ends with status {status}: {folder.output()}")
        seconds = time.monotonic() - began
        references.append(Reference(tree(folder.out), counted.events.value, seconds, counted.results.value))
        shutil.rmtree(folder.root)
    compare(references[1].files, references[0].files)
    return references[1]
