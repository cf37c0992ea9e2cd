"""`make bench`: how fast privbench does its work, as ratios against the usual way in the same run on the same machine.

Prints a table, writes every repetition to runs/benchmarks.json, and the table and two plots beside it. The usual way is
benchmarks/plain.py. Rows of hardware that is not there say "not measured". With --short every row is run on the least amount of
work, which shows that it runs and nothing of its speed.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer

from benchmarks import against_breaching, measure, work
from benchmarks.measure import Rows, Way
from benchmarks.races import Reach
from privbench import presets
from privbench.system import cpu, machine
from privbench.training import local_training
from privbench.types import Artifact
from reports.figures import speed
from reports.records import benchmark_rows
from reports.records.benchmark_rows import BenchmarkRow

CPU = torch.device("cpu")
NO_GPU = "no GPU at hand"


@dataclass(frozen=True)
class Amount:
    """How much work the rows are; the defaults are what is published."""

    victims: int = 64
    few_victims: int = 16
    steps: int = 20  # of L-BFGS
    seeds: int = 5
    by_victims: tuple[int, ...] = (1, 4, 16, 64, 256, 1024)
    by_batch_size: tuple[int, ...] = (1, 2, 4, 8)
    by_clients: tuple[int, ...] = (4, 8, 16, 32, 64)
    by_seeds: tuple[int, ...] = (1, 2, 5, 10)
    by_batch: tuple[int, ...] = (8, 16, 32, 64, 128)
    per_client: int = work.PER_CLIENT
    processes: int | None = None  # None: one a core
    of_a_column: dict[str, int] | None = None  # settings of the attacks on the columns; None: their defaults
    in_memory: int = 1024  # victims
    peak_side: int = 1024  # of the square matrices whose product is called the peak

    @property
    def cores(self) -> int:
        """How many processes run at once."""
        return self.processes or cpu.cores()


SHORT = Amount(
    victims=2, few_victims=1, steps=2, seeds=2, by_victims=(1, 2), by_batch_size=(1,), by_clients=(2,), by_seeds=(1,),
    by_batch=(16,), per_client=16, processes=1, in_memory=2, peak_side=64,
    of_a_column={"steps": 2, "feature_steps": 2, "peel_iterations": 1, "starts": 1},
)  # fmt: skip


def attack_rows(rows: Rows, place: torch.device, amount: Amount) -> None:
    """DLG against the loop over victims, and how its cost grows."""
    seen, few = (work.victims(count, place=place) for count in (amount.victims, amount.few_victims))
    name = f"DLG, {amount.victims} victims ({seen.dataset}), {amount.steps} L-BFGS steps"
    work.dlg(few, 2), work.plain.dlg(work.victims(1, place=place), 2)
    work.dlg(seen, 2)
    scale = amount.victims / amount.few_victims
    rows.measure_by_turns(
        "way", name,
        Way("loop over victims", lambda: work.clock(lambda: work.plain.dlg(few, amount.steps), place) * scale,
            note=f"timed on {amount.few_victims} victims, scaled"),
        Way("privbench", lambda: work.dlg(seen, amount.steps)),
    )  # fmt: skip
    for count in amount.by_victims:
        attacked = work.victims(count, place=place)
        rows.measure(
            "scaling", "DLG by victims", f"{count}", partial(_ms_per_victim_and_step, attacked, amount.steps),
            unit="ms per victim and step", x=count,
        )  # fmt: skip
    for size in amount.by_batch_size:
        attacked = work.victims(amount.few_victims, size, place=place)
        rows.measure(
            "scaling", "DLG by batch size", f"{size}", partial(_ms_per_victim_and_step, attacked, 5),
            unit="ms per victim and step", x=size,
        )  # fmt: skip


def _ms_per_victim_and_step(seen: Artifact, steps: int) -> float:
    return 1e3 * work.dlg(seen, steps) / steps / seen.victims


def training_rows(rows: Rows, place: torch.device, amount: Amount) -> tuple[dict[str, float], dict[str, float]]:
    """Rounds against the plain loop, the ways to run them, how they grow; (plain, fast) seconds of a round by method."""
    gpu, cores, seeds = place.type == "cuda", amount.cores, amount.seeds
    execution: work.harness.Execution = "stacked" if gpu else "alone"
    usual, fast = {}, {}
    for method in ("fedavg", "fedsplit", "fedcg"):
        name = f"{method} round, 4 clients, LeNet-5, batch 16"
        rounds = work.Rounds(method, per_client=amount.per_client, place=place)
        loop = rounds.plain()[0]
        loop.round()
        rounds.run(execution)
        plain = rows.measure_by_turns(
            "way", f"{name}, 1 seed",
            Way("plain loop", partial(work.clock, loop.round, place)),
            Way(f"privbench ({execution})", partial(rounds.run, execution)),
        )  # fmt: skip
        several = f"{name}, {seeds} seeds"
        many = BenchmarkRow(
            "way", several, "plain loop", [seeds * value for value in plain.values], note=f"one seed, times {seeds}"
        )
        rows.add(many)
        if gpu or method == "fedavg":  # on a CPU one method shows that stacking does not pay
            stacked = work.Rounds(method, seeds=range(seeds), per_client=amount.per_client, place=place)
            stacked.run("stacked")
            best = rows.measure("way", several, "privbench (stacked)", partial(stacked.run, "stacked"), plain=many)
        if not gpu:
            in_processes = partial(work.seeds_in_processes, method, per_client=amount.per_client)
            rows.measure("way", several, f"privbench ({cores} processes)",
                         partial(in_processes, seeds, cores), plain=many)  # fmt: skip
            best = rows.measure("way", f"{name}, {seeds} seeds of many", f"privbench ({cores} processes)",
                                partial(_times, seeds / cores, partial(in_processes, cores, cores)), plain=many,
                                note="every process busy, as in a table of many seeds")  # fmt: skip
        usual[method], fast[method] = many.median, best.median
    for clients in amount.by_clients:
        rounds = work.Rounds("fedavg", clients=clients, per_client=min(32, amount.per_client), place=place)
        rounds.run(execution)
        rows.measure("scaling", "FedAvg round by clients", f"{clients}",
                     partial(_times, 1e3 / clients, partial(rounds.run, execution)), unit="ms per client", x=clients)  # fmt: skip
    for count in amount.by_seeds:
        rows.measure("scaling", "FedAvg round by seeds", f"{count}",
                     partial(_times, 1e3 / count, partial(_several, count, place, amount)), unit="ms per seed",
                     x=count)  # fmt: skip
    for batch in amount.by_batch:
        rounds = work.Rounds("fedavg", batch=batch, per_client=amount.per_client, place=place)
        rounds.run(execution)
        rows.measure("scaling", "FedAvg round by batch size", f"{batch}",
                     partial(_times, 1e6 / (4 * amount.per_client), partial(rounds.run, execution)), unit="us per image",
                     x=batch)  # fmt: skip
    return usual, fast


def _times(factor: float, action: Callable[[], float]) -> float:
    return factor * action()


def _several(seeds: int, place: torch.device, amount: Amount) -> float:
    """One FedAvg round of several seeds: stacked on a GPU, else in one-thread processes, one per core."""
    if place.type != "cuda":
        return work.seeds_in_processes("fedavg", seeds, amount.cores, per_client=amount.per_client)
    rounds = work.Rounds("fedavg", seeds=range(seeds), per_client=amount.per_client, place=place)
    rounds.run("stacked")
    return rounds.run("stacked")


def kernel_rows(rows: Rows, place: torch.device, amount: Amount) -> None:
    """The share of the matrix-product peak that the two kernels reach, on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        victims = amount.victims
        evaluate = work.dlg_gradient(work.victims(victims, place=place))
        kernels = [
            (
                f"DLG objective and gradient, {victims} victims, float64",
                evaluate,
                torch.float64,
                work.needed_for_dlg(victims),
            ),
            ("LeNet-5 training round, batch 16, float32", _one_round(place, "fedavg", amount), torch.float32, None),
            ("FedCG training round, batch 16, float32", _one_round(place, "fedcg", amount), torch.float32, None),
        ]
        for name, action, dtype, needed in kernels:
            action()
            executed = work.flops(action)
            operations = needed or executed
            peak = statistics.median(work.matmul_peak(dtype, place, amount.peak_side) for _ in range(5))

            def share(work_: Callable[[], object] = action, of: float = operations / 1e7 / peak) -> float:
                return of / work.clock(work_, place)

            rows.measure("kernel", name, "one thread", share, unit="% of peak",
                         note=f"{operations / 1e9:.3g} GFLOP needed, {executed / 1e9:.3g} counted by torch, "
                         f"peak {peak:.0f} GFLOP/s")  # fmt: skip
    finally:
        torch.set_num_threads(before)


def _one_round(place: torch.device, method: str, amount: Amount) -> Callable[[], object]:
    """A round of one client, so that no second thread takes part."""
    rounds = work.Rounds(method, clients=1, per_client=amount.per_client, place=place)
    return lambda: rounds.learn(local_training.usual(place))


def projection_rows(
    rows: Rows, usual: dict[str, float], fast: dict[str, float], place: torch.device, amount: Amount
) -> None:
    """Published settings, five columns, one data set, 5 seeds, attacks included: hours, from what was measured above."""
    columns = {"fedavg": 3, "fedsplit": 1, "fedcg": 1}
    name = "published settings, five columns, one data set, 5 seeds"
    rounds = presets.SCHEDULES["paper"].rounds
    for way, measured in (("plain loop", usual), ("privbench", fast)):
        seconds = sum(count * measured[method] for method, count in columns.items())
        # Of as many seeds as were measured.
        seconds *= len(presets.SEEDS["paper"]) / amount.seeds
        hours = seconds * rounds * work.published_round(amount.per_client) / 3600
        rows.add(BenchmarkRow("projection", f"{name}: training", f"{way} on {place.type}", [hours], "h",
                     note=f"{rounds} rounds of learning, no early stopping, evaluation left out; from the rounds "
                     "above"))  # fmt: skip
    attacked = [("fedavg", "none"), ("fedavg", "gaussian:0.001"), ("fedavg", "gaussian:0.1"), ("fedsplit", "none")]
    spent = [
        work.attacks_of_a_column(amount.few_victims, method, defense, place, amount.of_a_column or {})
        for method, defense in attacked
    ]
    scale = presets.VICTIMS["paper"] / amount.few_victims * len(presets.SEEDS["paper"])
    rows.add(BenchmarkRow("projection", f"{name}: attacks", f"privbench on {place.type}", [(sum(spent) + spent[-1]) * scale / 3600],
                 "h", note=f"DLG and staged at full length; {amount.few_victims} victims a column scaled to "
                 f"{presets.VICTIMS['paper']}, FedCG counted as FedSplit"))  # fmt: skip


def breaching_rows(rows: Rows, amount: Amount) -> None:
    """Gradient matching to a given mean PSNR against the package breaching; benchmarks/against_breaching.py has all of it."""
    name = f"gradient matching to {{}} dB, {amount.few_victims} victims, untrained LeNet-5"
    if not against_breaching.installed():
        rows.add(BenchmarkRow("way", name.format("a given"), "breaching", note="the package is not installed"))
        return
    for target, breaching, privbench in against_breaching.compare(work.dataset(), amount.few_victims, rows.repeats):
        rows.add(_reaches(name.format(target), "breaching", breaching))
        row = _reaches(name.format(target), "privbench", privbench)
        row.times = breaching.median / privbench.median if breaching and privbench else None
        rows.add(row)


def _reaches(name: str, side: str, reach: Reach | None) -> BenchmarkRow:
    if reach is None:
        return BenchmarkRow("way", name, side, note="no setting gets there")
    return BenchmarkRow("way", name, side, reach.cpu_seconds, "CPU s", note=reach.way)


def start_rows(rows: Rows, place: torch.device, amount: Amount) -> None:
    """How long a user waits for a first sign."""
    rows.measure("start", "privbench --help", "process start included", work.help_page)
    rows.measure("start", "smoke cell, first training step", "process start included", work.first_step)
    rows.add(BenchmarkRow("memory", f"DLG, {amount.in_memory:,} victims of 3x32x32, 5 steps", "peak of a fresh process",
                 [work.peak_memory_mib(amount.in_memory, 5, place)], "MiB"))  # fmt: skip


def main(
    repeats: Annotated[int, typer.Option(min=1, help="How often every row is measured.")] = 3,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    out: Annotated[Path, typer.Option(help="The JSON to write; table and plots lie beside it.")] = Path(
        "runs/benchmarks.json"
    ),
    short: Annotated[
        bool, typer.Option("--short", help="Every row on the least work: that it runs, not how fast.")
    ] = False,
) -> None:
    """Measures, prints, writes."""
    place, amount = machine.device(device), SHORT if short else Amount()
    rows, load = Rows(repeats), os.getloadavg()[0]
    start_rows(rows, place, amount)
    attack_rows(rows, place, amount)
    usual, fast = training_rows(rows, place, amount)
    kernel_rows(rows, place, amount)
    projection_rows(rows, usual, fast, place, amount)
    breaching_rows(rows, amount)
    rows.add(BenchmarkRow("way", f"gradient matching, {amount.few_victims} victims", "GPU",
                 note=NO_GPU if place.type != "cuda" else "against_breaching.py runs on CPUs"))  # fmt: skip
    if place.type != "cuda":
        for name in (
            f"DLG, {amount.victims} victims",
            "FedCG round, 1 seed",
            f"FedCG round, {amount.seeds} seeds",
            "published settings, five columns, one data set, 5 seeds",
        ):
            rows.add(BenchmarkRow("way", name, "GPU", note=NO_GPU))
    # How busy the machine was: processes that ran or waited, mean over the minute before the first and after the last row.
    environment = work.machine(place) | {"repeats": repeats, "load": [load, os.getloadavg()[0]]}
    benchmark_rows.save(rows.rows, environment, out)
    out.with_suffix(".md").write_text(benchmark_rows.markdown(rows.rows), encoding="utf-8")
    speed.draw(rows.rows, out.parent)
    measure.show(rows.rows, f"{environment['machine']}, {environment['cores']} cores, torch {torch.__version__}")
    print(f"wrote {out}, {out.with_suffix('.md')} and two plots beside it")


if __name__ == "__main__":
    typer.run(main)
