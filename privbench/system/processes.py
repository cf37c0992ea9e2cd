"""Which process a file of a moment belongs to, and whether that process is gone, also on folders that several machines share."""

from __future__ import annotations

import hashlib
import os
import re
import socket
from functools import cache
from pathlib import Path

# A file is written in seconds. Of a process that cannot be asked from here (another machine, or one that started again), what is
# this old is left behind.
DAY = 24 * 3600.0
MARK = re.compile(r"\.(?P<machine>[0-9a-f]{8})-(?P<pid>\d+)-(?P<started>\d+)\.tmp$")
# As they were named before machines and starting times stood in them.
EARLIER = re.compile(r"^\..+\.(?:safetensors|json|md|csv|tex|png|pdf|txt|html)\.\d+$")
STARTED = 19  # the field of /proc/PID/stat, counted behind the name in brackets, that says when a process began


def mark() -> str:
    """The ending of this process's temporary files: ".machine-pid-start.tmp"."""
    pid = os.getpid()
    return f".{_machine()}-{pid}-{_started(pid) or 0}.tmp"


def left_behind(name: str, age: float) -> bool:
    """Whether a file of that name and age (seconds) is a temporary one whose process is gone.

    A process of this machine is gone where there is none of its number, or one that began at another time. For any other machine
    the age decides.
    """
    match = MARK.search(name)
    if match is None:
        return EARLIER.match(name) is not None and age > DAY
    if match["machine"] != _machine():
        return age > DAY
    pid, started = int(match["pid"]), int(match["started"])
    if not _lives(pid):
        return True
    now = _started(pid)
    return started != 0 and now is not None and now != started


def named() -> str:
    """This process as another one names it to its user."""
    return f"process {os.getpid()} on {socket.gethostname()}"


@cache
def _machine() -> str:
    """A name of this boot of this machine and, of a container, of its own numbering of processes."""
    facts = [socket.gethostname()]
    for read in (_boot, _numbering):
        try:
            facts.append(read())
        except OSError:
            facts.append("")
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:8]


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text()


def _numbering() -> str:
    return os.readlink("/proc/self/ns/pid")  # noqa: PTH115 (no path, but "pid:[number]")


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    status = _status(pid)
    # One that has ended and that nobody has waited for is no more.
    return status is None or status[0] not in "ZX"


def _started(pid: int) -> int | None:
    """When a process began, in ticks since the machine did; None where the system does not say."""
    status = _status(pid)
    return None if status is None else int(status[STARTED])


def _status(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat behind the process's name; None where there is no such file."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
