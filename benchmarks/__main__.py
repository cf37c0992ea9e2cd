"""`make bench`: how fast each way of doing the same work is, as ratios against a plain loop in the same run.

Prints a table and writes runs/benchmarks.json with every repetition, so that a reader sees the spread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from attacks.dlg import DLG
from privbench import data, harness, observe, partition, plugins, pool, run, spec
from privbench.checkpoint import Snapshot
from privbench.engine import Replica
from privbench.types import Artifact, Knowledge

VICTIMS, STEPS = 16, 20
CPU = torch.device("cpu")


@dataclass
class Row:
    """One way of doing a piece of work, timed several times."""

    work: str
    way: str
    seconds: list[float]
    baseline: float | None = None

    @property
    def median(self) -> float:
        """Median of the repetitions in seconds."""
        return statistics.median(self.seconds)

    @property
    def speedup(self) -> float:
        """How many times faster than the plain loop of the same work."""
        return (self.baseline or self.median) / self.median


def one_round(method: str, execution: str, seed: int = 0) -> float:
    """Seconds of one round of four clients on photos, after a warm-up round."""
    setup, states = _training(method, [seed])
    harness.train_round(setup, states, execution)  # type: ignore[arg-type]
    started = time.perf_counter()
    harness.train_round(setup, states, execution)  # type: ignore[arg-type]
    return time.perf_counter() - started


def _training(method: str, seeds: Sequence[int]) -> tuple[list[harness.Setup], list[harness.State]]:
    changes = {"rounds": 4, "local_epochs": 1, "generator_epochs": 1, "server_steps": 10}
    specs = [spec.train_spec("quick", "photos", method, seed=s, per_client=128, changes=changes) for s in seeds]
    loaded = data.load("photos", None)
    feds = [partition.federate(loaded, clients=4, per_client=128, how="iid", seed=s) for s in seeds]
    setups = [harness.prepare(each, fed, CPU) for each, fed in zip(specs, feds, strict=True)]
    return setups, [harness.initial(setup) for setup in setups]


def _single_thread() -> None:
    torch.set_num_threads(1)


def seeds_in_processes(method: str, seeds: int, workers: int) -> float:
    """Seconds until the slowest of `workers` one-thread processes has trained its share of the seeds' rounds."""
    with ProcessPoolExecutor(workers, get_context("spawn"), _single_thread) as executor:
        inside = list(executor.map(one_round, [method] * seeds, ["alone"] * seeds, range(seeds)))
    return max(sum(inside[first::workers]) for first in range(workers))


def seeds_stacked(method: str, seeds: int) -> float:
    """Seconds of one stacked round of all seeds and clients."""
    setups, states = _training(method, range(seeds))
    harness.train_round(setups, states, "stacked")
    started = time.perf_counter()
    harness.train_round(setups, states, "stacked")
    return time.perf_counter() - started


def victim_artifact() -> Artifact:
    """The undefended FedAvg gradient of single photos at the untrained network."""
    setups, states = _training("fedavg", [0])
    server, clients = states[0].server, [Replica({}, {}) for _ in states[0].clients]
    shot = Snapshot(0, server, clients, [({}, {}) for _ in clients])
    setup = setups[0]
    seen, _ = observe.observe(
        shot, setup.federation, setup.model, setup.method, plugins.defense("none", "update"), method_name="fedavg",
        dataset="photos", victims=VICTIMS, batch_size=1, labels_known=False, seed=0,
    )  # fmt: skip
    return seen


def dlg_batched(seen: Artifact) -> float:
    """Seconds of DLG on all victims in one batch."""
    started = time.perf_counter()
    DLG(steps=STEPS).reconstruct(seen, Knowledge(), 0)
    return time.perf_counter() - started


def dlg_loop(seen: Artifact) -> float:
    """The usual way: one victim after another, double backward through torch.nn.functional, torch.optim.LBFGS, float64."""
    model = seen.model
    weights = {p: {n: t.double() for n, t in net.items()} for p, net in seen.weights.items()}
    labels = seen.gradients["classifier"]["fc3.bias"].argmin(1)
    started = time.perf_counter()
    for v in range(seen.victims):
        observed = [g[v].double() for part in weights for g in seen.gradients[part].values()]
        x = torch.rand(1, *seen.image_shape, dtype=torch.float64).requires_grad_()
        optimiser = torch.optim.LBFGS([x], max_iter=STEPS, history_size=20)

        def closure(x: torch.Tensor = x, observed: list[torch.Tensor] = observed, v: int = v) -> torch.Tensor:
            optimiser.zero_grad()  # noqa: B023 (called before the next victim begins)
            own = {p: {n: t.detach().requires_grad_() for n, t in net.items()} for p, net in weights.items()}
            h, _ = model.net("extractor").apply(own["extractor"], {}, x, train=True)
            logits, _ = model.net("classifier").apply(own["classifier"], {}, h, train=True)
            loss = torch.nn.functional.cross_entropy(logits, labels[v : v + 1])
            leaves = [own[part][name] for part in seen.gradients for name in seen.gradients[part]]
            grads = torch.autograd.grad(loss, leaves, create_graph=True)
            gap = sum(((a - b) ** 2).sum() for a, b in zip(grads, observed, strict=True))
            assert isinstance(gap, torch.Tensor)
            gap.backward()
            return gap

        optimiser.step(closure)
    return time.perf_counter() - started


def rows(repeats: int) -> list[Row]:
    """Every benchmark."""
    found = []

    def measure(work: str, way: str, action: Callable[[], float], baseline: Row | None = None) -> Row:
        row = Row(work, way, [action() for _ in range(repeats)], baseline.median if baseline else None)
        found.append(row)
        return row

    for method in ("fedavg", "fedcg"):
        work = f"{method}, 1 round, 4 clients, 2 seeds"
        plain = measure(work, "plain loop", lambda m=method: one_round(m, "alone", 0) + one_round(m, "alone", 1))
        measure(work, "stacked (vmap)", lambda m=method: seeds_stacked(m, 2), plain)
        measure(work, f"{pool.cores()} processes", lambda m=method: seeds_in_processes(m, 2, pool.cores()), plain)
    seen = victim_artifact()
    work = f"DLG, {VICTIMS} victims, {STEPS} steps"
    plain = measure(work, "loop over victims", lambda: dlg_loop(seen))
    measure(work, "one batch", lambda: dlg_batched(seen), plain)
    return found


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs") / "benchmarks.json")
    options = parser.parse_args()
    found = rows(options.repeats)
    table = Table(title=f"{run.environment(CPU)['machine']}, {pool.cores()} cores, torch {torch.__version__}")
    for column in ("work", "way", "median s", "spread s", "x"):
        table.add_column(column, justify="left" if column in ("work", "way") else "right")
    for row in found:
        spread = f"{min(row.seconds):.2f}-{max(row.seconds):.2f}"
        table.add_row(row.work, row.way, f"{row.median:.2f}", spread, f"{row.speedup:.1f}")
    Console().print(table)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    content = {"environment": run.environment(CPU), "rows": [asdict(row) | {"speedup": row.speedup} for row in found]}
    options.out.write_text(json.dumps(content, indent=1) + "\n")
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
