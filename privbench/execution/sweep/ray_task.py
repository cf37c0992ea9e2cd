"""One job on a node of a cluster: what it is sent, what it does there, and how what it brings back is taken.

Imports no Ray: what a task is given can be sent and called by anything.
"""

from __future__ import annotations

import logging
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from logging.handlers import QueueHandler
from pathlib import Path
from typing import Any, NamedTuple

from privbench import trust
from privbench.errors import AGAIN, UserError
from privbench.execution import cell_jobs, worker_pool
from privbench.execution.cell_jobs import Trial
from privbench.execution.sweep import merging, parcels
from privbench.execution.sweep.parcels import Parcel
from privbench.records.store import Store
from privbench.system import cpu, files
from privbench.training import checkpoint
from privbench.types import Progress
from privbench.version import __version__

EVERY = 0.2  # seconds between two messages of a job's progress
PREFIX = "privbench-job-"  # of temporary folders
LOG = logging.getLogger("privbench")


class Order(NamedTuple):
    """What a task is sent."""

    job: Trial
    parcel: Parcel  # what the driver's folder holds of the job
    trusted: tuple[str, ...]  # names beyond the built-in ones that the user allowed
    version: str  # of privbench


class Return(NamedTuple):
    """What a task brings back."""

    reason: str | None  # why the job failed; None where it did not
    parcel: Parcel  # the training runs, artifacts and cells in which it wrote
    replaced: tuple[str, ...]  # files that it was sent and that are others now
    root: str  # where it worked


class Began(NamedTuple):
    """A message: a job begins, perhaps again."""

    title: str


class Post:
    """Keeps messages of tasks until the driver asks for them."""

    def __init__(self) -> None:
        self._messages: list[Any] = []

    def put(self, message: Any) -> None:
        """Keeps a message: Began, a log record, or (title, steps done, steps in all, what)."""
        self._messages.append(message)

    def take(self) -> list[Any]:
        """What came since the last time."""
        messages, self._messages = self._messages, []
        return messages


def order(job: Trial, parcel: Parcel) -> Order:
    """A job as this process sends it."""
    return Order(job, parcel, trust.added(), __version__)


def work(order: Order, post: Any) -> Return:
    """Runs a job in a temporary folder; `post` is the handle of a `Post` elsewhere.

    UserError where this node has another version of privbench.
    """
    if order.version != __version__:
        raise UserError(
            f"a node of the cluster has privbench {__version__}, but the command is of {order.version}; install one version on all"
        )
    post.put.remote(Began(order.job.title))
    trust.add(*order.trusted)
    cpu.take_share(multiprocessing.get_context("spawn").RawValue("i", 1))
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as folder:
        job = replace(order.job, root=Path(folder))
        parcels.unpack(order.parcel, job.root)
        with _logged(post, folder, str(order.job.root)):
            ended = worker_pool.attempt(job, _posted(post, job.title))
        after = parcels.pack(job)
        replaced = [name for name, content in order.parcel.items() if name in after and after[name] != content]
        reason = None if ended is None else str(ended)
        return Return(reason, parcels.changed(order.parcel, after), tuple(replaced), folder)


def take(job: Trial, brought: Return) -> str | None:
    """Puts what a task wrote into the job's folder of results, as a merge does; returns why the job failed, None where it did not.

    Files that were sent damaged and were made again replace those that were there. UserError where a result is other than one that
    came meanwhile, and where it cannot be written.
    """

    def rooted(text: str) -> str:
        return text.replace(brought.root, str(job.root))

    store = Store(job.root)
    with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
        source = Store(Path(folder))
        parcels.unpack(brought.parcel, source.root)
        finished = {spec.id for spec in job.specs if checkpoint.is_finished(source.train(spec))}
        for name in brought.replaced:
            kind, entry, *_ = name.split("/")
            # A run that did not get to its end stays as it is here.
            if kind != "train" or entry in finished:
                files.remove(store.root / name)
        copied = merging.take(store, source)
        _take_failures(job, store, source, rooted)
        if copied.differing:
            path = store.root / copied.differing[0].relative_to(source.root)
            raise UserError(f"{path} is other than what {job.title} gives; {AGAIN}")
    return None if brought.reason is None else rooted(brought.reason)


def _take_failures(job: Trial, store: Store, source: Store, rooted: Callable[[str], str]) -> None:
    """The reasons why cells could not be finished, and the traceback of the job where there is one."""
    for cell in job.cells:
        if source.failure(cell).exists():
            reason, refused = source.read_failure(cell)
            cell_jobs.fail(store, cell, rooted(reason), refused=refused)
    files.remove(job.log)
    log = replace(job, root=source.root).log
    if log.exists():
        files.write_bytes(job.log, rooted(log.read_text()).encode())


def _posted(post: Any, title: str) -> Progress:
    """Progress that goes to the driver, at most every `EVERY` seconds."""
    last = -EVERY

    def progress(done: int, total: int, what: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= EVERY:
            last = now
            post.put.remote((title, done, total, what))

    return progress


class _Posting(QueueHandler):
    """Sends log records to the driver, which prints them, with paths as they are there."""

    def __init__(self, post: Any, folder: str, root: str) -> None:
        super().__init__(post)
        self.paths = (folder, root)

    def enqueue(self, record: logging.LogRecord) -> None:
        record.msg = str(record.msg).replace(*self.paths)
        record.message = record.msg
        self.queue.put.remote(record)  # type: ignore[attr-defined]


@contextmanager
def _logged(post: Any, folder: str, root: str) -> Iterator[None]:
    """Messages of the block go to the driver."""
    handler, before = _Posting(post, folder, root), LOG.propagate
    LOG.addHandler(handler)
    LOG.propagate = False
    try:
        yield
    finally:
        LOG.removeHandler(handler)
        LOG.propagate = before
