"""The pieces of work that are timed. Every function returns what it measured, in seconds unless it says otherwise."""

from __future__ import annotations

import math
import os
import queue
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from attacks.common import batched, problem
from attacks.dlg import DLG, equation_7
from attacks.staged import Staged
from benchmarks import plain
from privbench import data, presets, written_defense
from privbench.data import partition
from privbench.data.dataset import Dataset
from privbench.networks import layers
from privbench.observation import observe
from privbench.system import cpu
from privbench.system import machine as measured_on
from privbench.training import harness
from privbench.training.state import Snapshot
from privbench.types import Artifact, Federation, Knowledge, Truth

# One epoch over 128 images keeps the published proportions: 20 epochs over 2,000 images and 2,000 server steps are
# 312 times as long.
PER_CLIENT, SERVER_STEPS = 128, 6


def published_round(per_client: int) -> float:
    """How many rounds of one epoch over `per_client` images a published round is."""
    return 20 * 2000 / per_client


def dataset() -> str:
    """CIFAR-10 where it is at hand, else photos of the same shape."""
    return "cifar10" if os.environ.get("PRIVBENCH_DATA") else "photos"


@cache
def _loaded(name: str) -> Dataset:
    root = os.environ.get("PRIVBENCH_DATA")
    return data.load(name, Path(root) if root else None)


def clock(action: Callable[[], object], place: torch.device) -> float:
    """Seconds of one call, the device's queue included."""
    if place.type == "cuda":
        torch.cuda.synchronize(place)
    started = time.perf_counter()
    action()
    if place.type == "cuda":
        torch.cuda.synchronize(place)
    return time.perf_counter() - started


def federations(clients: int, seeds: Sequence[int], per_client: int = PER_CLIENT) -> list[Federation]:
    """The same images dealt out anew for every seed."""
    return [
        partition.federate(_loaded("photos"), clients=clients, per_client=per_client, how="iid", seed=s) for s in seeds
    ]


class Rounds:
    """Rounds of one method, all seeds together, on photos; ready to be run once more and timed."""

    def __init__(
        self,
        method: str,
        *,
        seeds: Sequence[int] = (0,),
        clients: int = 4,
        batch: int = 16,
        per_client: int = PER_CLIENT,
        place: torch.device | None = None,
    ) -> None:
        self.place = place or torch.device("cpu")
        changes = {
            "rounds": 1000,
            "local_epochs": 1,
            "generator_epochs": 1,
            "server_steps": SERVER_STEPS,
            "batch": batch,
        }
        feds = federations(clients, seeds, per_client)
        specs = [
            presets.train_spec(
                "quick", "photos", method, seed=s, clients=clients, per_client=per_client, changes=changes
            )
            for s in seeds
        ]
        self.setups = [harness.prepare(each, fed, self.place) for each, fed in zip(specs, feds, strict=True)]
        self.states = [harness.initial(setup) for setup in self.setups]

    def run(self, execution: harness.Execution) -> float:
        """The learning of one round of all seeds; nothing is evaluated, as in plain.py."""
        seconds = clock(lambda: self.learn(execution), self.place)
        for state in self.states:
            state.round += 1
        return seconds

    def learn(self, execution: harness.Execution) -> None:
        """The same without a clock and without counting the round."""
        harness.learn(self.setups, self.states, execution)

    def plain(self) -> list[plain.Training]:
        """The same seeds in the usual way."""
        return [plain.Training(setup, state) for setup, state in zip(self.setups, self.states, strict=True)]


def _worker(
    method: str, seeds: int, per_client: int, barrier: Any, waiting: Any, share: Any, busy: Any
) -> tuple[float, float]:
    cpu.take_share(share)
    every = [Rounds(method, seeds=(seed,), per_client=per_client) for seed in range(seeds)]
    for rounds in every:
        rounds.run("alone")
    barrier.wait()
    started = time.perf_counter()
    with suppress(queue.Empty):
        while True:
            every[waiting.get_nowait()].run("alone")
    ended = time.perf_counter()
    busy.get()
    share.value = cpu.cores() // max(busy.qsize(), 1)
    return started, ended


def seeds_in_processes(method: str, seeds: int, workers: int, per_client: int = PER_CLIENT) -> float:
    """From the first start to the last end of processes that take the seeds' rounds one by one, start-up left out.

    As in privbench/execution/worker_pool.py: one thread each, and the cores of those that found nothing left for those still at
    work.
    """
    context, workers = get_context("spawn"), min(workers, seeds)
    with context.Manager() as manager, ProcessPoolExecutor(workers, context) as executor:
        barrier, waiting, busy = manager.Barrier(workers), manager.Queue(), manager.Queue()
        share = manager.Value("i", cpu.cores() // workers)
        for seed in range(seeds):
            waiting.put(seed)
        for one in range(workers):
            busy.put(one)
        begun = [
            executor.submit(_worker, method, seeds, per_client, barrier, waiting, share, busy) for _ in range(workers)
        ]
        spans = [each.result() for each in begun]
    return max(end for _, end in spans) - min(start for start, _ in spans)


def victims(
    count: int, batch_size: int = 1, place: torch.device | None = None, *, method: str = "fedavg", defense: str = "none"
) -> Artifact:
    """Gradients at the untrained network, of undefended FedAvg unless it is said otherwise."""
    per_client = max(16, -(-count * batch_size // 4))
    seen, _ = observed(dataset(), count, per_client, batch_size, method=method, defense=defense)
    return seen.to(place) if place is not None else seen


def observed(
    name: str, count: int, per_client: int, batch_size: int = 1, *,
    method: str = "fedavg", defense: str = "none", tuning: bool = False,
) -> tuple[Artifact, Truth]:  # fmt: skip
    """The same with the images; with `tuning` of the clients' validation images, which are no victims."""
    fed = partition.federate(_loaded(name), clients=4, per_client=per_client, how="iid", seed=0)
    if tuning:
        fed = fed._replace(clients=tuple(c._replace(train=c.validation, validation=c.train) for c in fed.clients))
    each = presets.train_spec("quick", name, method, clients=4, per_client=per_client)
    setup = harness.prepare(each, fed, torch.device("cpu"))
    state = harness.initial(setup)
    shot = Snapshot(0, state.server, state.clients, [({}, {}) for _ in state.clients])
    return observe.observe(
        shot, fed, setup.model, setup.method, written_defense.create(defense, "update"), method_name=method, dataset=name,
        victims=count, batch_size=batch_size, labels_known=False, seed=0,
    )  # fmt: skip


def dlg(seen: Artifact, steps: int) -> float:
    """DLG on all victims in one call."""
    return clock(lambda: DLG(steps=steps).reconstruct(seen, Knowledge(), 0), seen.client.device)


def attacks_of_a_column(
    count: int, method: str, defense: str, place: torch.device, settings: Mapping[str, int] | None = None
) -> float:
    """DLG and `staged`, at full length unless `settings` say otherwise, on `count` victims of one column of the privacy table."""
    seen = victims(count, place=place, method=method, defense=defense)
    staged_settings = dict(settings or {})
    spent = dlg(seen, staged_settings.get("steps", DLG().steps))
    return spent + clock(lambda: Staged(**staged_settings).reconstruct(seen, Knowledge(), 0), place)


def needed_for_dlg(victim_count: int) -> int:
    """Floating-point operations that DLG's objective and its gradient need on LeNet-5 and one 3x32x32 image a victim.

    Convolutions with the pooling folded in, no double backward: every product with weights runs once forward and once in
    the derivative; the gradients of the convolutions, products of two variables, once and twice; the linear layers' go
    through their deltas.
    """
    convolutions, linear = (127_008, 86_400), 48_000 + 10_080 + 840  # multiply-adds forward
    weights = 2 * (sum(convolutions) + linear + convolutions[1] + linear)  # layers forward, deltas back
    return 2 * victim_count * (weights + 3 * sum(convolutions) + 2 * linear)


def dlg_gradient(seen: Artifact) -> Callable[[], object]:
    """One evaluation of DLG's objective and its gradient for all victims."""
    posed = problem.make(seen, 0)

    def objective(x: torch.Tensor, data: dict[str, torch.Tensor]) -> torch.Tensor:
        return equation_7(posed, x, data["labels"], data)

    data, start = problem.data(posed), problem.random_start(seen, 1, 0)
    return lambda: batched.gradients(objective)(start, data)


def matmul_peak(dtype: torch.dtype, place: torch.device, side: int) -> float:
    """GFLOP/s of a square matrix product."""
    a = torch.randn(side, side, dtype=dtype, device=place)
    seconds = min(clock(lambda: a @ a, place) for _ in range(20))
    return 2 * side**3 / seconds / 1e9


def flops(action: Callable[[], object]) -> int:
    """Floating-point operations of the matrix products and convolutions of a call, as torch counts them.

    Its counter does not know the large products (privbench/networks/layers.py), which go to oneDNN by themselves.
    """
    unknown = {layers.ONEDNN: _of_linear_layer} if layers.ONEDNN else {}
    with FlopCounterMode(display=False, custom_mapping=unknown) as counter:
        action()
    return int(counter.get_total_flops())


def _of_linear_layer(x: Sequence[int], weight: Sequence[int], *_: object, **__: object) -> int:
    """A multiplication and an addition for each of [M, K] times [K, N], of the shapes [M, K] and [N, K]."""
    return 2 * math.prod(x) * weight[0]


def peak_memory_mib(victim_count: int, steps: int, place: torch.device) -> float:
    """MiB of `place` that a fresh process held at most while it attacked that many victims by DLG."""
    code = (
        f"import torch; from benchmarks import work; from privbench.system import machine; place = torch.device('{place}');"
        f"work.dlg(work.victims({victim_count}, place=place), {steps}); print(machine.peak_memory_mib(place))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def help_page() -> float:
    """`privbench --help`, process start included."""
    command = [sys.executable, "-m", "privbench", "--help"]
    return clock(lambda: subprocess.run(command, capture_output=True, check=True), torch.device("cpu"))


def first_step() -> float:
    """From the start of `privbench attack --preset smoke` to the first training step."""
    code = (
        "import os; from privbench.training import local_training; from privbench.cli import main;"
        "local_training.ENGINES.update(dict.fromkeys(list(local_training.ENGINES), lambda *a: os._exit(7)));"
        "main.app(['attack', '--method', 'fedavg', '--dataset', 'digits', '--preset', 'smoke', '--out', 'out'])"
    )
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(p or str(Path.cwd()) for p in sys.path))
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, check=False
        )
        seconds = time.perf_counter() - started
    if done.returncode != 7:
        raise RuntimeError(f"the smoke cell ended before its first step: {done.stderr.decode()[-500:]}")
    return seconds


def machine(place: torch.device) -> dict[str, Any]:
    """What the numbers were measured on."""
    return measured_on.environment(place)
