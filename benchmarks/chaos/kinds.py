"""What disturbs the runs of the kill campaign: signals, full, read-only and deleted folders, a second process."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

from benchmarks.chaos.child import Trap, counters, start
from benchmarks.chaos.life import HANGS, WORDS, Fault, Folder, Life, Reference, compare, ended, group, tree

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
TURNS = ("event",) * 6 + ("moment",) * 2 + ("two", "disk", "read-only", "deleted")  # what lives are about, events first
MOUNTED = ("disk", "read-only")  # need a tmpfs of their own
PAGE = 4096  # bytes
# Bytes: the checkpoints of two runs, and what is written in their place, are many times the results.
ENOUGH = 2**27


def at_event(life: Life, folder: Folder, undisturbed: Reference, draw: random.Random, event: int) -> None:
    """A signal at one event point, to the process that meets it or to its whole group."""
    number, target = draw.choice(SIGNALS), draw.choice(("process", "group"))
    life.what = f"{number.name} to the {target} at event {event} of {undisturbed.events}, {folder.cores} core(s)"
    status = ended(folder.begin(Trap(event, number, target, draw.choice((1.0, draw.random())))))
    life.count(f"{life.kind} {number.name}")
    folder.judge(status, number)


def at_moment(life: Life, folder: Folder, undisturbed: Reference, draw: random.Random) -> None:
    """A signal at a random moment, to the parent, to a worker where there is one, or to all."""
    number, target = draw.choice(SIGNALS), draw.choice(("parent", "worker", "group"))
    when = draw.uniform(0, 1.05 * undisturbed.seconds)
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
        raise Fault(f"status {status} after a worker got {number.name}: {folder.output().strip()[-300:]!r}")
    folder.judge(status, number)


def two_at_once(life: Life, folder: Folder, undisturbed: Reference, draw: random.Random) -> None:
    """A second process on the same folder; half of the time one of the two is killed."""
    counted, killed = counters(), draw.random() < 0.5
    logs = [folder.log, folder.log.with_name("log-2")]
    children = []
    for log in logs:
        words = [*WORDS, "--out", str(folder.out)]
        children.append(start(words, folder.out, log, Trap(), counted, folder.cores))
        time.sleep(draw.uniform(0, 0.3 * undisturbed.seconds))
    life.what = f"two processes, {'one killed' if killed else 'both to the end'}, {folder.cores} core(s)"
    if killed:
        time.sleep(draw.uniform(0, 0.5 * undisturbed.seconds))
        os.kill(draw.choice(children), signal.SIGKILL)
    life.count("two SIGKILL" if killed else "two")
    for child, log in zip(children, logs, strict=True):
        status = ended(child, 2 * HANGS)
        output = log.read_text()
        if status not in ((0, -signal.SIGKILL) if killed else (0,)) or "Traceback" in output:
            raise Fault(f"status {status} of two at once: {output.strip()[-300:]!r}")
    if not killed:
        compare(tree(folder.out), undisturbed.files)
        if counted.results.value != undisturbed.results:
            raise Fault(f"{counted.results.value} results were written instead of {undisturbed.results}")


def full_disk(life: Life, folder: Folder, undisturbed: Reference, draw: random.Random) -> None:
    """A disk that is too small, and larger when the command is given again."""
    needed = sum(-(-len(content) // PAGE) * PAGE for content in undisturbed.files.values())
    size = int(needed * draw.uniform(0.05, 0.95))
    life.what = f"a disk of {size} of {needed} bytes, {folder.cores} core(s)"
    mount(folder.out, f"size={size}")
    try:
        life.count("disk")
        status, output = ended(folder.begin()), folder.output()
        if status != 2 or "the disk is full" not in output or "Traceback" in output:
            raise Fault(f"status {status} on a full disk: {output.strip()[-300:]!r}")
        mount(folder.out, f"remount,size={ENOUGH}")
        folder.finish(undisturbed)
    finally:
        subprocess.run(["umount", str(folder.out)], check=False, capture_output=True)


def read_only(life: Life, folder: Folder, undisturbed: Reference, draw: random.Random) -> None:
    """A disk that becomes read-only at a random moment, as one with errors does, and writable when the command is given again."""
    when = draw.uniform(0, 1.05 * undisturbed.seconds)
    life.what = f"read-only after {when:.2f} s, {folder.cores} core(s)"
    mount(folder.out, f"size={ENOUGH}")
    try:
        life.count("read-only")
        child, done = folder.begin(), False
        while not done:
            time.sleep(when)
            # Not while a file is open for writing; then a moment later.
            done, when = mount(folder.out, "remount,ro", check=False), 0.001
        status, output = ended(child), folder.output()
        if status != 0 and ("Read-only file system" not in output or status != 2 or "Traceback" in output):
            raise Fault(f"status {status} on a read-only disk: {output.strip()[-300:]!r}")
        if status == 0:
            compare(tree(folder.out), undisturbed.files)
        mount(folder.out, "remount,rw")
        folder.finish(undisturbed)
    finally:
        subprocess.run(["umount", str(folder.out)], check=False, capture_output=True)


def deleted(life: Life, folder: Folder, undisturbed: Reference, draw: random.Random) -> None:
    """A folder that somebody deletes at a random moment: a command that ends well all the same has made everything again."""
    when = draw.uniform(0, 1.05 * undisturbed.seconds)
    life.what = f"deleted after {when:.2f} s, {folder.cores} core(s)"
    child = folder.begin()
    time.sleep(when)
    life.count("deleted")
    shutil.rmtree(folder.out, ignore_errors=True)
    status, output = ended(child), folder.output()
    if status not in (0, 2) or "Traceback" in output or (status == 2 and str(folder.out) not in output):
        raise Fault(f"status {status} in a deleted folder: {output.strip()[-300:]!r}")
    # Empty: it was deleted when all was done.
    if status == 0 and (files := tree(folder.out)):
        compare(files, undisturbed.files)
    folder.out.mkdir(exist_ok=True)
    folder.finish(undisturbed)


def mount(place: Path, options: str, *, check: bool = True) -> bool:
    """Mounts a tmpfs, or changes how it is mounted; whether that could be done."""
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=check, capture_output=True
    )
    return done.returncode == 0


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


OTHERS = {"two": two_at_once, "disk": full_disk, "read-only": read_only, "deleted": deleted}


def live(number: int, seed: int, root: Path, references: dict[int, Reference], disk: bool) -> Life:
    """One life: its disturbances and its end, all drawn from seed and number."""
    draw = random.Random(f"{seed}-{number}")
    cores, kind = draw.choice(sorted(references)), TURNS[number % len(TURNS)]
    if kind in MOUNTED and not disk:
        kind = "moment"
    life, folder = Life(number, kind, ""), Folder(root / f"life-{number}", cores)
    undisturbed = references[cores]
    try:
        if kind == "event":
            order = list(range(1, undisturbed.events + 1))
            random.Random(seed).shuffle(order)
            before = number // len(TURNS) * TURNS.count("event") + number % len(TURNS)
            life.event = order[before % len(order)]
            at_event(life, folder, undisturbed, draw, life.event)
        elif kind == "moment":
            at_moment(life, folder, undisturbed, draw)
        else:
            OTHERS[kind](life, folder, undisturbed, draw)
        if kind in ("event", "moment"):
            while draw.random() < 0.5:
                at_moment(life, folder, undisturbed, draw)
        if kind not in MOUNTED:
            folder.finish(undisturbed)
    except Fault as fault:
        life.fault = str(fault)
        life.log = folder.output()
    finally:
        shutil.rmtree(folder.root, ignore_errors=True)
    return life
