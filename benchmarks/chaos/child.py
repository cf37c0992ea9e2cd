"""The program that the kill campaign kills: `privbench` in a forked process, with a trap at one of its event points.

An event point is the moment before or after the process opens, flushes, renames, links, removes or locks something under the output
folder. The product has no hook for this: the calls of the standard library are wrapped here, in the child alone. Clocks stand
still, so that results can be compared byte by byte.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from privbench import __main__ as program
from privbench.execution import worker_pool
from privbench.system import cpu, files, machine
from reports.figures import grid, scatter

WRAPPED = ((os, "replace"), (os, "unlink"), (os, "link"), (os, "mkdir"), (os, "fsync"), (fcntl, "flock"))
DAY = datetime(2000, 1, 1)  # that of every result


class Trap(NamedTuple):
    """What happens at one event point: a signal to `target`; 0: nothing, events are counted alone."""

    event: int = 0
    number: int = signal.SIGKILL
    target: str = "process"  # the one that meets the event; or "group"
    torn: float = 1.0  # of a file that is being flushed, how much is left of it where its process dies of the signal


class Events:
    """Counts the events of a child and its workers together, and springs the trap at its number."""

    def __init__(self, out: Path, trap: Trap, counter: Any, results: Any) -> None:
        self.out, self.trap = str(out) + os.sep, trap
        self.counter, self.results = counter, results

    def install(self) -> None:
        """Wraps the calls that change files or locks, and listens to files being opened."""
        for module, name in WRAPPED:
            setattr(module, name, self.around(name, getattr(module, name)))
        sys.addaudithook(self.opened)

    def opened(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Of every file that Python opens under the output folder."""
        if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith(self.out):
            self.happens()

    def around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call with an event before and one after it, where it is about something under the output folder."""

        def wrapped(what: Any, *more: Any, **named: Any) -> Any:
            path = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else os.fspath(what)  # noqa: PTH115
            if not str(path).startswith(self.out):
                return call(what, *more, **named)
            self.happens(what if name == "fsync" else None)
            answer = call(what, *more, **named)
            if name == "replace" and Path(more[0]).name.startswith("seed-"):
                self.results.value += 1
            self.happens()
            return answer

        return wrapped

    def happens(self, flushed: int | None = None) -> None:
        """One event; `flushed` is the file descriptor of a file whose content is on its way to the disk."""
        # Without a lock: a process that is killed while it holds one would stop the others for good.
        self.counter.value += 1
        if self.counter.value != self.trap.event:
            return
        if flushed is not None and self.trap.torn < 1 and _dies_of(self.trap.number):
            os.ftruncate(flushed, int(os.fstat(flushed).st_size * self.trap.torn))
        if self.trap.target == "group":
            os.killpg(0, self.trap.number)
        else:
            os.kill(os.getpid(), self.trap.number)


def _dies_of(number: int) -> bool:
    """Whether a signal ends this process at once. One that goes on, as workers do after Ctrl-C, leaves no file cut short."""
    if number == signal.SIGKILL:
        return True
    delivered = number not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    return delivered and signal.getsignal(number) == signal.SIG_DFL


class Counters(NamedTuple):
    """What the campaign reads of a child that may be gone: numbers in shared memory."""

    events: Any
    results: Any  # how often the result of a seed was written


def counters() -> Counters:
    """Both at zero."""
    return Counters(multiprocessing.RawValue("i", 0), multiprocessing.RawValue("i", 0))


def start(words: list[str], out: Path, log: Path, trap: Trap, counted: Counters, cores: int) -> int:
    """Forks `privbench` with some words, in a process group of its own; its number. What it prints goes to `log`."""
    child = os.fork()
    if child:
        return child
    status = 70
    try:
        os.setpgid(0, 0)
        with log.open("ab", buffering=0) as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        _stand_still(cores)
        Events(out, trap, counted.events, counted.results).install()
        sys.argv = ["privbench", *words]
        try:
            program.main()
        except SystemExit as end:
            status = int(end.code or 0)
    except BaseException:  # noqa: BLE001 (a child must never run on in the campaign's code)
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def _stand_still(cores: int) -> None:
    """Everything in a result that differs between two runs of the same command is the same in every child.

    Figures are written without being drawn, which would take half of the time and touches no file.
    """
    forked = SimpleNamespace(
        # A worker that is forked has torch already, which is what makes a thousand kills an hour's work.
        get_context=lambda _: multiprocessing.get_context("fork"),
        parent_process=multiprocessing.parent_process,
    )
    for module, name, stands in (
        (time, "perf_counter", lambda: 0.0),
        (machine, "peak_memory_mib", lambda place: 0.0),
        (machine, "datetime", SimpleNamespace(now=lambda zone: DAY)),
        (cpu, "cores", lambda: cores),
        (worker_pool, "multiprocessing", forked),
        (worker_pool, "_start_worker", partial(_as_if_spawned, worker_pool._start_worker)),
        *((module, "write", _draw) for module in (grid, scatter)),
    ):
        setattr(module, name, stands)


def _draw(*what: Any, **_: Any) -> list[Path]:
    """Writes a figure's files; the one path in `what` says where, without its ending."""
    (stem,) = (each for each in what if isinstance(each, Path))
    paths = [Path(f"{stem}.{ending}") for ending in ("png", "pdf")]
    for path in paths:
        files.write_bytes(path, b"a figure")
    return paths


def _as_if_spawned(begin: Callable[..., None], *arguments: Any) -> None:
    """A worker without its parent's handlers, as one that is begun anew has none."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    begin(*arguments)
