"""Independent jobs on the available cores: one single-threaded process per core, progress reported back, clean when stopped.

Networks this small leave a second thread inside an operation little to do, and attacks have long stretches on one, so that
each core gets a process of its own. When at most half as many jobs are left as cores, long training takes the idle ones too, as its
clients can learn side by side with the same numbers. Jobs write their own results to disk, so nothing finished is lost when
one fails.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import queue
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import partial
from logging.handlers import QueueHandler
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from privbench import registry, trust
from privbench.errors import Busy, Interrupted, UserError
from privbench.system import interrupts
from privbench.system.cpu import take_share
from privbench.types import Progress

_messages: Any = None  # set once in each worker process, by its initialiser


class Job(Protocol):
    """Work that can travel to another process."""

    @property
    def title(self) -> str:
        """Its name in the progress display."""
        ...

    @property
    def log(self) -> Path:
        """Where the traceback goes when the job fails by an error that no input caused."""
        ...

    def run(self, progress: Progress) -> None:
        """Does the work and writes its results to disk; Busy where another process is at it."""
        ...

    def patient(self) -> Job:
        """The same work, for the end: it waits for the other process instead of raising Busy."""
        ...


JobProgress = Callable[[str, int, int, str], None]  # (job title, steps done, steps in all, what)
Outcome = Callable[[str, str | None], None]  # (job title, one-line reason when it failed)
Result = (
    str | Busy | None
)  # how an attempt at a job ended: the one-line reason of a failure, another process at it, or done

LOG = logging.getLogger("privbench")


def run_jobs(jobs: Sequence[Job], workers: int, progress: JobProgress, outcome: Outcome) -> list[str]:
    """Runs all jobs, `workers` at a time; returns the reasons of those that failed, in order of failing.

    An exception in one job does not stop the others, nor does the death of its process: the jobs that ran just then are tried
    once more, each alone, so that only one that dies by itself has failed. A job that another process is at comes last, and
    waits. Raises Interrupted on Ctrl-C.
    """
    failures: list[str] = []

    def ended(job: Job, reason: str | None) -> None:
        failures.extend([] if reason is None else [reason])
        outcome(job.title, reason)

    def postponed(job: Job, busy: Busy) -> Job:
        LOG.warning("%s: %s; other work first", job.title, busy)
        return job.patient()

    try:
        if workers <= 1 or len(jobs) <= 1:
            waiting = deque(jobs)
            while waiting:
                job = waiting.popleft()
                result = attempt(job, partial(progress, job.title))
                if isinstance(result, Busy):
                    waiting.append(postponed(job, result))
                else:
                    ended(job, result)
            return failures
        remaining = list(jobs)
        while remaining:
            in_flight, remaining = _in_processes(remaining, workers, progress, ended, postponed)
            for job in in_flight:
                if any(_in_processes([job], 1, progress, ended, postponed)):
                    ended(job, f"{job.title}: its process died, as it does when the machine runs out of memory")
    except KeyboardInterrupt as stop:
        raise Interrupted from stop
    return failures


def _in_processes(
    jobs: Sequence[Job],
    workers: int,
    progress: JobProgress,
    ended: Callable[[Job, str | None], None],
    postponed: Callable[[Job, Busy], Job],
) -> tuple[list[Job], list[Job]]:
    """Runs jobs in processes of their own until one dies: (jobs in flight just then, jobs not begun), both empty at the end."""
    context = multiprocessing.get_context("spawn")
    messages, share = context.Queue(), context.RawValue("i", 1)
    executor = ProcessPoolExecutor(workers, context, _start_worker, (messages, share, trust.added()))
    waiting, in_flight = deque(jobs), dict[Future[Result], Job]()
    lost: list[Job] = []
    try:
        while in_flight or (waiting and not lost):
            while waiting and not lost and len(in_flight) < workers:
                job = waiting.popleft()
                try:
                    # A stop waits until the process is there: where it comes in the middle of a fork, Python drops it.
                    with interrupts.delayed(), interrupts.unheard_by_children(), _without_script():
                        in_flight[executor.submit(_work, job)] = job
                except BrokenProcessPool:
                    lost.append(job)
            share.value = max(workers // max(len(in_flight), 1), 1)
            done, _ = wait(in_flight, timeout=0.2, return_when=FIRST_COMPLETED)
            interrupts.check()
            _drain(messages, progress)
            for future in done:
                job = in_flight.pop(future)
                try:
                    result = future.result()
                except BrokenProcessPool:
                    lost.append(job)
                else:
                    if isinstance(result, Busy):
                        waiting.append(postponed(job, result))
                    else:
                        ended(job, result)
        _end(executor, messages, progress)
    except BaseException:
        _kill(executor)
        raise
    return lost, list(waiting)


def attempt(job: Job, progress: Progress) -> Result:
    """Runs a job; returns how it ended. The traceback of an error that no input caused goes to its log. Raises Interrupted."""
    with suppress(OSError):
        job.log.unlink(missing_ok=True)

    def checked_progress(done: int, total: int, what: str) -> None:
        # A stop may come where no exception gets through, as within a destructor: then it is noticed here.
        interrupts.check()
        progress(done, total, what)

    try:
        job.run(checked_progress)
        interrupts.check()
    except Interrupted:
        raise
    except Busy as busy:
        return busy
    except Exception as error:  # noqa: BLE001 (whatever it is, the other jobs go on)
        # Whatever it says: if a stop was asked for meanwhile, that was it.
        interrupts.check()
        return logged(error, job.log)
    return None


def logged(error: Exception, log: Path) -> str:
    """One line that says why something failed; the traceback of an error that no input caused is written to `log`."""
    if isinstance(error, UserError):
        return str(error)
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        # Anew, as a link of that name, in a folder of somebody else's, would lead elsewhere.
        log.unlink(missing_ok=True)
        log.write_text("".join(traceback.format_exception(error)))
    except OSError:
        return in_words(error)
    return in_words(error, log)


def in_words(error: Exception, log: Path | None = None) -> str:
    """One line that says why something failed; `log` is where the traceback of an error lies that no input caused."""
    if isinstance(error, UserError):
        return str(error)
    message = "".join(traceback.format_exception_only(error)).strip().partition("\n")[0]
    return f"{_whose(error)}: {message}" + (f"; see {log}" if log else "")


def _whose(error: Exception) -> str:
    """Where an error came from that no input caused: the last line of a user's own module that it passed, or this package."""
    modules = registry.own_modules()
    passed = [(frame.f_globals.get("__name__"), line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [f"error in {name}, line {line}" for name, line in passed if name in modules]
    return own[-1] if own else "internal error"


@contextmanager
def _without_script() -> Iterator[None]:
    """Processes that begin here do not run the user's script again, so that it needs no guard; jobs are of modules.

    A script that defines plug-ins of its own (`__main__:Class`) is run again, and has to have one.
    """
    main = sys.modules["__main__"]
    if any(name.startswith("__main__:") for name in trust.added()):
        yield
        return
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _start_worker(messages: Any, share: Any, trusted: Sequence[str]) -> None:
    global _messages  # noqa: PLW0603 (a worker process has no other place for its queue)
    trust.add(*trusted)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    take_share(share)
    _messages = messages
    # The parent prints a worker's messages: the terminal belongs to it.
    LOG.addHandler(QueueHandler(messages))
    LOG.propagate = False


def _end_with_parent() -> None:
    """Ends a worker whose parent was killed outright: nobody would hear of what it does."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker has a parent"
    parent.join()
    os._exit(1)


def _work(job: Job) -> Result:
    return attempt(job, lambda done, total, what: _messages.put((job.title, done, total, what)))


def _drain(messages: Any, progress: JobProgress) -> None:
    while True:
        try:
            message = messages.get_nowait()
        except queue.Empty:
            return
        if isinstance(message, logging.LogRecord):
            LOG.handle(message)
        else:
            progress(*message)


def _end(executor: ProcessPoolExecutor, messages: Any, progress: JobProgress) -> None:
    """Ends the workers after their last job, and takes all that they still have to say: a job may end before its words are here."""
    ending = threading.Thread(target=executor.shutdown, daemon=True)
    ending.start()
    # A worker ends only after it has sent everything, and a pipe that nobody reads holds little.
    while ending.is_alive():
        _drain(messages, progress)
        ending.join(0.05)
    _drain(messages, progress)


def _kill(executor: ProcessPoolExecutor) -> None:
    """Stops the workers immediately. Their files are written atomically, so what is on disk is whole."""
    processes = list((executor._processes or {}).values())
    for process in processes:
        process.kill()
    executor.shutdown(wait=False, cancel_futures=True)
