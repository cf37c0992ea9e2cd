"""Independent jobs on the cores at hand: one single-threaded process per core, progress reported back, clean on Ctrl-C.

Two one-thread processes nearly double the throughput of small networks, while two threads in one process hardly help
(measured: docs/performance.md). Jobs write their own results to disk, so nothing finished is lost when one fails.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import partial
from typing import Any, Protocol

from privbench.errors import Interrupted, UserError
from privbench.types import Report

_messages: Any = None  # set once in each worker process, by its initialiser


class Job(Protocol):
    """Work that can travel to another process."""

    @property
    def title(self) -> str:
        """Its name in the progress display."""
        ...

    def run(self, report: Report) -> None:
        """Does the work and writes its results to disk."""
        ...


Progress = Callable[[str, int, int, str], None]  # (job title, steps done, steps in all, what)
Outcome = Callable[[str, str | None], None]  # (job title, one-line reason when it failed)


def cores() -> int:
    """How many processes may run at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_jobs(jobs: Sequence[Job], workers: int, progress: Progress, outcome: Outcome) -> list[str]:
    """Runs all jobs, `workers` at a time; returns the reasons of those that failed, in order of failing.

    A UserError of one job does not stop the others. Raises Interrupted on Ctrl-C.
    """
    if workers <= 1 or len(jobs) <= 1:
        return _run_here(jobs, progress, outcome)
    context = multiprocessing.get_context("spawn")
    messages = context.Queue()
    failures: list[str] = []
    executor = ProcessPoolExecutor(workers, context, _start_worker, (messages,))
    try:
        waiting: dict[Future[None], Job] = {executor.submit(_work, job): job for job in jobs}
        while waiting:
            done, _ = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
            _drain(messages, progress)
            for future in done:
                _settle(waiting.pop(future).title, future.exception(), failures, outcome)
        executor.shutdown()
    except KeyboardInterrupt as stop:
        _kill(executor)
        raise Interrupted from stop
    except BaseException:
        _kill(executor)
        raise
    return failures


def _run_here(jobs: Sequence[Job], progress: Progress, outcome: Outcome) -> list[str]:
    failures: list[str] = []
    for job in jobs:
        try:
            job.run(partial(progress, job.title))
        except UserError as error:
            _settle(job.title, error, failures, outcome)
        except KeyboardInterrupt as stop:
            raise Interrupted from stop
        else:
            outcome(job.title, None)
    return failures


def _settle(title: str, error: BaseException | None, failures: list[str], outcome: Outcome) -> None:
    if error is not None and not isinstance(error, UserError):
        raise error
    if error is not None:
        failures.append(str(error))
    outcome(title, None if error is None else str(error))


def _start_worker(messages: Any) -> None:
    global _messages  # noqa: PLW0603 (a worker process has no other place for its queue)
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    torch.set_num_threads(1)
    _messages = messages


def _work(job: Job) -> None:
    job.run(lambda done, total, what: _messages.put((job.title, done, total, what)))


def _drain(messages: Any, progress: Progress) -> None:
    while True:
        try:
            progress(*messages.get_nowait())
        except queue.Empty:
            return


def _kill(executor: ProcessPoolExecutor) -> None:
    """Stops the workers at once. Their files are written atomically, so what is on disk is whole."""
    processes = list((executor._processes or {}).values())
    for process in processes:
        process.kill()
    executor.shutdown(wait=False, cancel_futures=True)
