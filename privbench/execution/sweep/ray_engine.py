"""Jobs as tasks of a Ray cluster, whose nodes need no folder in common.

A task works in a temporary folder of its node. It gets there what the driver's folder holds of its run, and what it wrote comes
back through Ray's object store; the driver takes it as `privbench merge` takes a folder (merging.py). Where a node or a process
dies, Ray runs the task that was lost again, up to `RETRIES` times. An exception of the job is its result and is not retried.

Every node has this version of privbench, and the data sets at the same path. The driver runs on a node of the cluster, and its
device decides for all: where it is a GPU, each task asks for `gpus` of one, else for one core.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from privbench.errors import Interrupted, UserError
from privbench.execution import worker_pool
from privbench.execution.cell_jobs import Trial
from privbench.execution.sweep import parcels, ray_task
from privbench.execution.sweep.ray_task import Began, Return
from privbench.execution.worker_pool import JobProgress, Outcome
from privbench.system import cpu, interrupts, machine

RETRIES = 3  # of a task whose node or process died
POLL = 0.2  # seconds between two looks at messages
PATIENCE = 5  # seconds that a task has to clear up after it is cancelled
NAME = re.compile(r"ray(?::(?P<address>[^,\s]+))?(?:,gpus=(?P<gpus>[0-9.]+))?")
ADDRESS = re.compile(r"[^/\s]+:[0-9]{1,5}")
AUTO = "auto"
REACH = 10  # seconds in which the address of a cluster has to answer
LOG = logging.getLogger("privbench")


@dataclass(frozen=True)
class RayEngine:
    """A Ray cluster that jobs run on; an engine as `worker_pool.run_jobs` is one."""

    # HOST:PORT, or "auto": the cluster that this machine belongs to, or one of this machine alone.
    address: str = AUTO
    # Of one GPU, for each job on a GPU; 0.5 lets two jobs share it.
    gpus: float = 1.0

    def __call__(self, jobs: Sequence[Trial], workers: int, progress: JobProgress, outcome: Outcome) -> list[str]:
        """Runs all jobs, as many at a time as the cluster has room for; returns the reasons of those that failed.

        `workers`, the processes of this machine, do not count here. Raises Interrupted on Ctrl-C, after every task is cancelled.
        UserError where there is no such cluster, or it has no GPU and one is needed.
        """
        if not jobs:
            return []
        with _connection(self.address) as ray:
            return _Sweep(ray, jobs, self._request(ray, jobs[0])).run(progress, outcome)

    def _request(self, ray: Any, job: Trial) -> dict[str, float]:
        """What one task asks of a node."""
        if machine.device(job.device).type != "cuda":
            return {"num_cpus": 1}
        if ray.cluster_resources().get("GPU", 0) < self.gpus:
            raise UserError(f"the Ray cluster at {self.address} has no GPU, but the jobs are for one; use --device cpu")
        return {"num_cpus": 1, "num_gpus": self.gpus}


def read(text: str) -> RayEngine | None:
    """The engine that a text names, e.g. "ray" or "ray:10.0.0.1:6379,gpus=0.5"; None where it names another.

    UserError for an address of Ray Client and for a share of a GPU that is none.
    """
    written = NAME.fullmatch(text)
    if written is None:
        return None
    address, gpus = written["address"] or AUTO, written["gpus"] or "1"
    if address != AUTO and not ADDRESS.fullmatch(address):
        raise UserError(
            f"--engine ray takes the address of a cluster, HOST:PORT, but '{address}' was given; run it on a node"
        )
    if not re.fullmatch(r"0?\.\d+|1(\.0+)?", gpus) or float(gpus) == 0:
        raise UserError(f"gpus is the share of one GPU that a job gets, above 0 and at most 1, but {gpus} was given")
    return RayEngine(address, float(gpus))


def package() -> Any:
    """The package ray, with its usage statistics off; UserError where it is not installed."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Ray's later behaviour, chosen now: a task without GPUs keeps the environment of its node. Such tasks name the CPU themselves.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise UserError(
            "--engine ray needs the package ray; install it with `make ray` in the repository, or leave --engine out"
        ) from error
    return ray


@contextmanager
def _connection(address: str) -> Iterator[Any]:
    """The package ray, connected until the block ends; a connection that was there before stays."""
    ray = package()
    if ray.is_initialized():
        yield ray
        return
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    with _same_handlers():
        try:
            if address != AUTO:
                host, _, port = address.rpartition(":")
                # Ray itself tries for many minutes.
                socket.create_connection((host.strip("[]"), int(port)), timeout=REACH).close()
            try:
                ray.init(address=address, **quiet)
            except ConnectionError:
                if address != AUTO:
                    raise
                ray.init(address="local", num_cpus=cpu.cores(), include_dashboard=False, **quiet)
        except (OSError, OverflowError, RuntimeError, ValueError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise UserError(f"there is no Ray cluster to work with at {address} ({reason})") from error
    try:
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def _same_handlers() -> Iterator[None]:
    """Puts the handlers of stop signals back at the end: Ray has one of its own for SIGTERM. Only the main thread has any."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in interrupts.STOPS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if handler is not None:
                signal.signal(number, handler)


class _Sweep:
    """Some jobs on a cluster that is connected."""

    def __init__(self, ray: Any, jobs: Sequence[Trial], request: dict[str, float]) -> None:
        from ray.util import scheduling_strategies

        self.ray = ray
        self.request = request
        self.waiting = deque(jobs)
        self.in_flight: dict[Any, Trial] = {}
        self.begun: set[str] = set()  # titles
        self.task = ray.remote(max_retries=RETRIES, retry_exceptions=False, **request)(ray_task.work)
        # On the driver's node, as what was said on a node that died should not be lost with it.
        driver = scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        self.post = ray.remote(num_cpus=0, scheduling_strategy=driver)(ray_task.Post).remote()

    def run(self, progress: JobProgress, outcome: Outcome) -> list[str]:
        """Runs the jobs; returns the reasons of those that failed, in order of failing."""
        failures: list[str] = []
        try:
            while self.in_flight or self.waiting:
                while self.waiting and len(self.in_flight) < self._room():
                    self._submit(self.waiting.popleft())
                ready, _ = self.ray.wait(list(self.in_flight), timeout=POLL)
                interrupts.check()
                self._drain(progress)
                for reference in ready:
                    job = self.in_flight.pop(reference)
                    reason = self._reason(job, reference)
                    failures.extend([] if reason is None else [reason])
                    outcome(job.title, reason)
        except KeyboardInterrupt as stop:
            self._cancel()
            raise Interrupted from stop
        except BaseException:
            self._cancel()
            raise
        self._drain(progress)
        return failures

    def _room(self) -> int:
        """How many tasks the cluster, as it is just now, can run at once: no more are sent, as what they need fills its memory."""
        resources = self.ray.cluster_resources()
        rooms = [resources.get("CPU", 0) / self.request["num_cpus"]]
        if "num_gpus" in self.request:
            rooms.append(resources.get("GPU", 0) / self.request["num_gpus"])
        return max(int(min(rooms)), 1)

    def _submit(self, job: Trial) -> None:
        data_root = None if job.data_root is None else job.data_root.resolve()
        away = replace(job, data_root=data_root, device=machine.device(job.device).type)
        order = ray_task.order(away, parcels.pack(job))
        self.in_flight[self.task.remote(order, self.post)] = job

    def _reason(self, job: Trial, reference: Any) -> str | None:
        """Takes what a task brought; returns why its job failed, None where it did not."""
        try:
            brought: Return = self.ray.get(reference)
            return ray_task.take(job, brought)
        except self.ray.exceptions.RayTaskError as error:
            return f"{job.title}: {worker_pool.in_words(error.cause if isinstance(error.cause, Exception) else error)}"
        except self.ray.exceptions.RayError as error:
            return f"{job.title}: its task was lost, also where it was run again ({type(error).__name__})"
        except (UserError, OSError) as error:
            return worker_pool.in_words(error)

    def _drain(self, progress: JobProgress) -> None:
        for message in self.ray.get(self.post.take.remote()):
            if isinstance(message, logging.LogRecord):
                LOG.handle(message)
            elif not isinstance(message, Began):
                progress(*message)
            elif message.title in self.begun:
                LOG.warning("%s: its node or process died; it is run again on another", message.title)
            else:
                self.begun.add(message.title)

    def _cancel(self) -> None:
        """Stops every task: first so that it removes its temporary folder, then in any way."""
        remaining = list(self.in_flight)
        for force in (False, True):
            for reference in remaining:
                self.ray.cancel(reference, force=force)
            if remaining:
                _, remaining = self.ray.wait(remaining, num_returns=len(remaining), timeout=PATIENCE)
