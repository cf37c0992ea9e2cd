"""`make bench`: how fast privbench does its work, as ratios against the usual way in the same run on the same machine.

Prints a table, writes every repetition to runs/benchmarks.json, and the table and two plots beside it. The usual way is
benchmarks/plain.py. Rows of hardware that is not there say "not measured".
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import torch
import typer

from benchmarks import against_breaching, measure, plots, work
from benchmarks.measure import Row, Rows, Way
from privbench import pool, spec
from privbench import run as running

CPU = torch.device("cpu")
VICTIMS, STEPS, SEEDS, FEW_VICTIMS = 64, 20, 5, 16
NO_GPU = "no GPU at hand"


def attack_rows(rows: Rows, place: torch.device) -> None:
    """DLG against the loop over victims, and how its cost grows."""
    seen, few = work.victims(VICTIMS, place=place), work.victims(FEW_VICTIMS, place=place)
    name = f"DLG, {VICTIMS} victims ({seen.dataset}), {STEPS} L-BFGS steps"
    work.dlg(few, 2), work.plain.dlg(work.victims(1, place=place), 2)
    work.dlg(seen, 2)
    rows.measure_by_turns(
        "goal", name,
        Way("loop over victims", lambda: work.clock(lambda: work.plain.dlg(few, STEPS), place) * VICTIMS / FEW_VICTIMS,
            note=f"timed on {FEW_VICTIMS} victims, scaled"),
        Way("privbench", lambda: work.dlg(seen, STEPS), goal=200 if place.type == "cuda" else 30),
    )  # fmt: skip
    for count in (1, 4, 16, 64, 256, 1024):
        some = work.victims(count, place=place)
        rows.measure(
            "scaling", "DLG by victims", f"{count}", lambda a=some: 1e3 * work.dlg(a, STEPS) / STEPS / a.victims,
            unit="ms per victim and step", x=count,
        )  # fmt: skip
    for size in (1, 2, 4, 8):
        some = work.victims(16, size, place=place)
        rows.measure(
            "scaling", "DLG by batch size", f"{size}", lambda a=some: 1e3 * work.dlg(a, 5) / 5 / a.victims,
            unit="ms per victim and step", x=size,
        )  # fmt: skip


def training_rows(rows: Rows, place: torch.device) -> tuple[dict[str, float], dict[str, float]]:
    """Rounds against the plain loop, the ways to run them, how they grow; (plain, fast) seconds of a round by method."""
    gpu, cores = place.type == "cuda", pool.cores()
    execution: work.harness.Execution = "stacked" if gpu else "alone"
    usual, fast = {}, {}
    for method in ("fedavg", "fedsplit", "fedcg"):
        name = f"{method} round, 4 clients, LeNet-5, batch 16"
        rounds = work.Rounds(method, place=place)
        loop = rounds.plain()[0]
        loop.round()
        goal = (20 if gpu else 4) if method == "fedcg" else None
        group = "goal" if method == "fedcg" else "way"
        rounds.run(execution)
        plain = rows.measure_by_turns(
            group, f"{name}, 1 seed",
            Way("plain loop", lambda p=loop: work.clock(p.round, place)),
            Way(f"privbench ({execution})", lambda r=rounds: r.run(execution), goal=goal),
        )  # fmt: skip
        several = f"{name}, {SEEDS} seeds"
        many = Row(group, several, "plain loop", [SEEDS * value for value in plain.values], note="one seed, times 5")
        rows.add(many)
        goal = (60 if gpu else 4) if method == "fedcg" else None
        if gpu or method == "fedavg":  # on a CPU one method shows that stacking does not pay
            stacked = work.Rounds(method, seeds=range(SEEDS), place=place)
            stacked.run("stacked")
            best = rows.measure(group, several, "privbench (stacked)", lambda r=stacked: r.run("stacked"), plain=many,
                                goal=goal if gpu else None)  # fmt: skip
        if not gpu:
            rows.measure(group, several, f"privbench ({cores} processes)",
                         lambda m=method: work.seeds_in_processes(m, SEEDS, cores), plain=many, goal=goal)  # fmt: skip
            best = rows.measure("way", f"{name}, {SEEDS} seeds of many", f"privbench ({cores} processes)",
                                lambda m=method: SEEDS / cores * work.seeds_in_processes(m, cores, cores), plain=many,
                                note="every process busy, as in a table of many seeds")  # fmt: skip
        usual[method], fast[method] = many.median, best.median
    for clients in (4, 8, 16, 32, 64):
        rounds = work.Rounds("fedavg", clients=clients, per_client=32, place=place)
        rounds.run(execution)
        rows.measure("scaling", "FedAvg round by clients", f"{clients}",
                     lambda r=rounds, n=clients: 1e3 * r.run(execution) / n, unit="ms per client", x=clients)  # fmt: skip
    for seeds in (1, 2, 5, 10):
        rows.measure("scaling", "FedAvg round by seeds", f"{seeds}",
                     lambda n=seeds: 1e3 * _several(n, place) / n, unit="ms per seed", x=seeds)  # fmt: skip
    for batch in (8, 16, 32, 64, 128):
        rounds = work.Rounds("fedavg", batch=batch, place=place)
        rounds.run(execution)
        images = 4 * work.PER_CLIENT
        rows.measure("scaling", "FedAvg round by batch size", f"{batch}",
                     lambda r=rounds, n=images: 1e6 * r.run(execution) / n, unit="us per image", x=batch)  # fmt: skip
    return usual, fast


def _several(seeds: int, place: torch.device) -> float:
    """One FedAvg round of several seeds: stacked on a GPU, else in one-thread processes, one per core."""
    if place.type != "cuda":
        return work.seeds_in_processes("fedavg", seeds, pool.cores())
    rounds = work.Rounds("fedavg", seeds=range(seeds), place=place)
    rounds.run("stacked")
    return rounds.run("stacked")


def kernel_rows(rows: Rows, place: torch.device) -> None:
    """The share of the matrix-product peak that the two kernels reach, on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        evaluate = work.dlg_gradient(work.victims(VICTIMS, place=place))
        kernels = [
            (
                f"DLG objective and gradient, {VICTIMS} victims, float64",
                evaluate,
                torch.float64,
                work.needed_for_dlg(VICTIMS),
            ),
            ("LeNet-5 training round, batch 16, float32", _one_round(place), torch.float32, None),
            ("FedCG training round, batch 16, float32", _one_round(place, "fedcg"), torch.float32, None),
        ]
        for name, action, dtype, needed in kernels:
            action()
            executed = work.flops(action)
            operations = needed or executed
            peak = statistics.median(work.matmul_peak(dtype, place) for _ in range(5))

            def share(work_: Callable[[], object] = action, of: float = operations / 1e7 / peak) -> float:
                return of / work.clock(work_, place)

            rows.measure("kernel", name, "one thread", share, unit="% of peak",
                         note=f"{operations / 1e9:.3g} GFLOP needed, {executed / 1e9:.3g} counted by torch, "
                         f"peak {peak:.0f} GFLOP/s")  # fmt: skip
    finally:
        torch.set_num_threads(before)


def _one_round(place: torch.device, method: str = "fedavg") -> Callable[[], object]:
    """A round of one client, so that no second thread takes part."""
    rounds = work.Rounds(method, clients=1, place=place)
    return lambda: rounds.learn("stacked" if place.type == "cuda" else "alone")


def projection_rows(rows: Rows, usual: dict[str, float], fast: dict[str, float], place: torch.device) -> None:
    """Published settings, five columns, one data set, 5 seeds, attacks included: hours, from what was measured above."""
    columns = {"fedavg": 3, "fedsplit": 1, "fedcg": 1}
    name = "published settings, five columns, one data set, 5 seeds"
    rounds = spec.SCHEDULES["paper"].rounds
    asked = "; asked: under 30 min, attacks included" if place.type == "cuda" else ""
    for way, measured in (("plain loop", usual), ("privbench", fast)):
        seconds = sum(count * measured[method] for method, count in columns.items())
        hours = seconds * rounds * work.PUBLISHED_ROUND / 3600
        rows.add(Row("projection", f"{name}: training", f"{way} on {place.type}", [hours], "h",
                     note=f"{rounds} rounds of learning, no early stopping, evaluation left out; from the rounds above"
                     + asked))  # fmt: skip
    attacked = [("fedavg", "none"), ("fedavg", "gaussian:0.001"), ("fedavg", "gaussian:0.1"), ("fedsplit", "none")]
    spent = [work.attacks_of_a_column(FEW_VICTIMS, method, defense, place) for method, defense in attacked]
    scale = spec.VICTIMS["paper"] / FEW_VICTIMS * len(spec.SEEDS["paper"])
    rows.add(Row("projection", f"{name}: attacks", f"privbench on {place.type}", [(sum(spent) + spent[-1]) * scale / 3600],
                 "h", note=f"DLG and staged at full length; {FEW_VICTIMS} victims a column scaled to "
                 f"{spec.VICTIMS['paper']}, FedCG counted as FedSplit"))  # fmt: skip


def breaching_rows(rows: Rows) -> None:
    """Gradient matching to a given mean PSNR against the package breaching; benchmarks/against_breaching.py has all of it."""
    name, goal = f"gradient matching to {{}} dB, {FEW_VICTIMS} victims, untrained LeNet-5", 20
    if not against_breaching.installed():
        rows.add(Row("goal", name.format("a given"), "breaching", goal=goal, note="the package is not installed"))
        return
    for target, theirs, ours in against_breaching.compare(work.dataset(), FEW_VICTIMS, rows.repeats):
        rows.add(_reaches(name.format(target), "breaching", theirs))
        own = _reaches(name.format(target), "privbench", ours)
        own.goal, own.times = goal, theirs.median / ours.median if theirs and ours else None
        rows.add(own)


def _reaches(name: str, side: str, found: against_breaching.Reach | None) -> Row:
    if found is None:
        return Row("goal", name, side, note="no setting gets there")
    return Row("goal", name, side, found.cpu_seconds, "CPU s", note=found.way)


def start_rows(rows: Rows, place: torch.device) -> None:
    """How long a user waits for a first sign."""
    rows.measure("start", "privbench --help", "process start included", work.help_page, note="asked: under 0.7 s")
    rows.measure(
        "start", "smoke cell, first training step", "process start included", work.first_step, note="asked: under 4 s"
    )
    rows.add(Row("memory", "DLG, 1,024 victims of 3x32x32, 5 steps", "peak of a fresh process",
                 [work.peak_memory_mib(1024, 5, place)], "MiB", note="asked: under 4,096"))  # fmt: skip


def main(
    repeats: Annotated[int, typer.Option(min=1, help="How often every row is measured.")] = 3,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    out: Annotated[Path, typer.Option(help="The JSON to write; table and plots lie beside it.")] = Path(
        "runs/benchmarks.json"
    ),
) -> None:
    """Measures, prints, writes."""
    place = running.device(device)
    rows = Rows(repeats)
    start_rows(rows, place)
    attack_rows(rows, place)
    usual, fast = training_rows(rows, place)
    kernel_rows(rows, place)
    projection_rows(rows, usual, fast, place)
    breaching_rows(rows)
    rows.add(Row("goal", f"gradient matching, {FEW_VICTIMS} victims", "GPU", goal=100,
                 note=NO_GPU if place.type != "cuda" else "against_breaching.py runs on CPUs"))  # fmt: skip
    if place.type != "cuda":
        for name in (
            f"DLG, {VICTIMS} victims",
            "FedCG round, 1 seed",
            f"FedCG round, {SEEDS} seeds",
            "published settings, five columns, one data set, 5 seeds",
        ):
            rows.add(Row("goal", name, "GPU", note=NO_GPU))
    environment = work.machine(place)
    measure.save(rows.rows, environment, out)
    out.with_suffix(".md").write_text(measure.markdown(rows.rows), encoding="utf-8")
    plots.draw(rows.rows, out.parent)
    measure.show(rows.rows, f"{environment['machine']}, {environment['cores']} cores, torch {torch.__version__}")
    print(f"wrote {out}, {out.with_suffix('.md')} and two plots beside it")


if __name__ == "__main__":
    typer.run(main)
