"""One process at a time at one piece of work, on one machine or on several that share a folder.

Several processes on one output folder share the work: each does what no other is at, and waits for the rest at the end. The lock is
the operating system's (flock), and ends with its process however that ends. Its file stays, as removing one that others wait for
would give them two; who has it stands beside it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from privbench.errors import Busy
from privbench.system import files, processes

POLL_SECONDS = 1.0  # between two questions whether another process is done
LOG = logging.getLogger("privbench")


@contextmanager
def lock(folder: Path, *, wait: bool, name: str = "") -> Iterator[None]:
    """Holds a folder, or the piece of work `name` in it, which is made where it is missing.

    Where another process holds it: Busy, or with `wait` one line that says which process, and then the wait for it. UserError: a
    folder that cannot be written.
    """
    path = files.inside(folder, f".{name}.lock" if name else ".lock")
    by = files.inside(folder, f"{path.name}-by")
    with files.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        file_lock = FileLock(path)
        try:
            file_lock.acquire(timeout=0)
        except Timeout as error:
            who = f"{_holder(by)} is at work on {folder / name}"
            if not wait:
                raise Busy(who) from error
            LOG.warning("waiting: %s; what it finishes is not computed again", who)
            file_lock.acquire(poll_interval=POLL_SECONDS)
    try:
        # For people alone: a disk too full for it stops no work.
        with suppress(OSError):
            # Not into what may lie there: a pipe would wait for a reader.
            by.unlink(missing_ok=True)
            by.write_text(processes.named())
        yield
    finally:
        with suppress(OSError):
            by.unlink(missing_ok=True)
        file_lock.release()


def _holder(by: Path) -> str:
    """The process that last held a lock, in words."""
    try:
        return by.read_text() or "another privbench"
    except (OSError, ValueError):
        return "another privbench"
