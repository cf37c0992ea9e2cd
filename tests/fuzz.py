"""`make fuzz`: files of every kind, mutated, read again, and judged; tests/test_fuzz.py does the same for seconds.

A mutation is of bytes, of a file's JSON or TOML, of a tensor file's header or tensors, or one file takes another's place. Where a
checksum can be computed again, it is, in most of the mutations: whoever means harm does so. What the reader makes of it is one of

refused    one line, a UserError
same       the content that was there before
sound      other content under a checksum that fits, with which whatever follows can work: no checksum tells who wrote a file
FAILED     a traceback, more than LIMIT_SECONDS or LIMIT_BYTES, or other content under a checksum that does not fit
"""

from __future__ import annotations

import argparse
import gc
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import torch

from privbench.errors import UserError
from tests import fuzz_mutations
from tests.fuzz_digest import digest
from tests.fuzz_samples import Sample, samples

LIMIT_SECONDS = 20.0  # reading takes hundredths of a second, and a busy machine ten times that
LIMIT_BYTES = 2**29  # more than was ever taken before; the largest sample has 2^24
LONGEST_LINE = 2_000
FAILED = "FAILED"


class Verdict(NamedTuple):
    """What a reader made of a file."""

    word: str  # as above
    detail: str  # the line, or what failed


class _TooLong(BaseException):
    pass


def judged(sample: Sample, folder: Path, before: str, *, resealed: bool) -> Verdict:
    """The verdict on a sample's mutated files; `before` is the digest of its content."""
    stage = "read"
    resident = _from_now_on()
    try:
        with _within(LIMIT_SECONDS), _nothing_collected():
            content = sample.read(folder)
            after = digest(content)
            stage = "use"
            if after != before and resealed:
                sample.use(content)
    except UserError as error:
        line = str(error)
        if "\n" in line or len(line) > LONGEST_LINE:
            return Verdict(FAILED, f"{stage}: a refusal of {len(line)} letters and {line.count(chr(10))} line breaks")
        return Verdict("refused", line)
    except _TooLong:
        return Verdict(FAILED, f"{stage}: more than {LIMIT_SECONDS:g} s")
    except Exception as error:  # noqa: BLE001 (whatever comes is what is looked for)
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = next(
            (f for f in reversed(traceback.extract_tb(error.__traceback__)) if "privbench/" in f.filename), frame
        )
        return Verdict(
            FAILED, f"{stage}: {type(error).__name__} in {Path(where.filename).name}:{where.lineno}: {str(error)[:200]}"
        )
    if _peak() - resident > LIMIT_BYTES:
        return Verdict(FAILED, f"{stage}: more than {LIMIT_BYTES} bytes")
    if after == before:
        return Verdict("same", "")
    return Verdict("sound", "") if resealed else Verdict(FAILED, "other content, and no checksum told it")


def once(sample: Sample, others: list[Sample], before: str, rng: random.Random, scratch: Path) -> tuple[str, Verdict]:
    """(the kind of mutation, the verdict) of one mutation of a sample."""
    folder = scratch / sample.folder.name
    shutil.copytree(sample.folder, folder, copy_function=_linked)
    try:
        # An empty file, such as a lock, has nothing to mutate.
        every = sorted(p for p in folder.rglob("*") if p.is_file() and p.stat().st_size)
        paths = [folder / name for name in sample.files] or every
        kind, resealed = fuzz_mutations.mutate(rng, paths, [other.folder for other in others])
        return kind, judged(sample, folder, before, resealed=resealed)
    finally:
        shutil.rmtree(folder)


def _from_now_on() -> int:
    """Bytes that this process has in memory now; its peak is counted anew where Linux lets it."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    """The most bytes that this process had in memory since then."""
    with suppress(OSError):
        match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        if match:
            return 1024 * int(match[1])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _linked(source: str, target: str) -> None:
    """The same file once more without its bytes; whatever changes one writes it anew."""
    Path(target).hardlink_to(source)


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    started = time.monotonic()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    if time.monotonic() - started > seconds:
        raise _TooLong


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """What earlier reads left in cycles stays: freed now, it would hide as many bytes of what is read."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def campaign(every: list[Sample], seconds: float, seed: int, out: Path) -> Counter[tuple[str, str, str]]:
    """Mutates sample after sample for some seconds: counts by kind of file, kind of mutation and verdict; failures go to `out`."""
    counts: Counter[tuple[str, str, str]] = Counter()
    before = {sample.name: digest(sample.read(sample.folder)) for sample in every}
    end, turn = time.monotonic() + seconds, 0
    with tempfile.TemporaryDirectory() as scratch:
        while time.monotonic() < end:
            sample = every[turn % len(every)]
            rng = random.Random(f"{seed}/{turn}")
            kind, verdict = once(sample, every, before[sample.name], rng, Path(scratch))
            counts[kind_of(sample), kind, verdict.word] += 1
            if verdict.word == FAILED:
                with out.open("a", encoding="utf-8") as file:
                    file.write(f"seed {seed} turn {turn}: {sample.name}: {kind}: {verdict.detail}\n")
            turn += 1
            if turn % 5_000 == 0:
                print(table(counts), flush=True)
    return counts


def kind_of(sample: Sample) -> str:
    """The kind of file that a sample is of."""
    return sample.name.partition(" of ")[0] if sample.name.startswith("artifact") else sample.name.partition(" ")[0]


def table(counts: Counter[tuple[str, str, str]]) -> str:
    """Counts by kind of file, then by kind of mutation."""
    words = ("refused", "same", "sound", FAILED)
    lines = [f"{'':28}" + "".join(f"{word:>10}" for word in words)]
    for axis in (0, 1):
        for name in sorted({key[axis] for key in counts}):
            each = [sum(n for key, n in counts.items() if key[axis] == name and key[2] == word) for word in words]
            lines.append(f"{name:28}" + "".join(f"{n:10}" for n in each))
    whole = [sum(n for key, n in counts.items() if key[2] == word) for word in words]
    return "\n".join([*lines, f"{'all':28}" + "".join(f"{n:10}" for n in whole)])


def main(words: list[str] | None = None) -> int:
    """The campaign as a program; status 1 when anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--time", type=float, default=600, help="seconds (default: 600)")
    parser.add_argument("--seed", type=int, default=0, help="of the mutations (default: 0)")
    parser.add_argument(
        "--failures",
        type=Path,
        default=Path("runs/fuzz-failures.txt"),
        help="a file for what failed (default: runs/fuzz-failures.txt)",
    )
    given = parser.parse_args(words)
    given.failures.parent.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as root:
        counts = campaign(samples(Path(root)), given.time, given.seed, given.failures)
    print(table(counts))
    failed = sum(n for key, n in counts.items() if key[2] == FAILED)
    if failed:
        print(f"{failed} failed; see {given.failures}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
