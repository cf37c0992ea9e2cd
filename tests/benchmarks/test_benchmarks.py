"""The benchmark's pieces of work do their work; no test here asserts a time."""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from multiprocessing import dummy
from types import SimpleNamespace

import pytest
import torch

from attacks.common import gradient_distance, problem
from attacks.dlg import DLG
from benchmarks import __main__ as bench
from benchmarks import against_breaching, work
from benchmarks.measure import Rows, Way
from benchmarks.races import Race, Reach
from privbench.execution import worker_pool
from privbench.networks import layers
from privbench.types import Knowledge
from reports.figures import speed
from reports.records import benchmark_rows
from reports.records.benchmark_rows import BenchmarkRow
from tests.builders.small_artifacts import UNIT, error_of_squared_distance

CPU = torch.device("cpu")


def test_the_kernel_that_is_timed_is_the_gradient_of_dlg_s_objective_in_the_usual_way():
    """To rounding: Eq. 7 is a small rest of large norms, and loses as many digits as it is smaller than they are."""
    seen = work.victims(2)
    gradient, loss = work.dlg_gradient(seen)()
    posed, start = problem.make(seen, 0), problem.random_start(seen, 1, 0)
    for v, objective in enumerate(work.plain.objectives(seen)):
        x = start[v].clone().requires_grad_()
        usual_loss = objective(x)
        (slope,) = torch.autograd.grad(usual_loss, x)
        known = {name: t[v] for name, t in problem.data(posed).items()}
        products = gradient_distance.gradient_products(
            posed, start[v], known["labels"], problem.observed_of(posed, known)
        )
        error = error_of_squared_distance(products)
        torch.testing.assert_close(loss[v], usual_loss.detach(), rtol=0, atol=error)
        # The slope is twice a product with g - G, which errs relative to its length as Eq. 7 does relative to its root.
        lost = (error / float(loss[v])) ** 0.5 * UNIT**0.5
        torch.testing.assert_close(gradient[v], slope, rtol=0, atol=lost * float(slope.abs().max()))
    assert work.flops(work.dlg_gradient(seen)) > work.needed_for_dlg(2) > 6 * 10**6


@pytest.mark.parametrize("onednn", [layers.LINEAR, None], ids=["oneDNN", "MKL"])
@pytest.mark.parametrize("rows", [8, 512])
def test_operations_of_small_and_large_products_are_counted(rows, onednn, monkeypatch):
    """Large ones may be oneDNN's, which torch's counter does not know."""
    monkeypatch.setattr(layers, "ONEDNN", onednn)
    x, matrix = torch.randn(rows, 64), torch.randn(64, 128)
    assert (rows * 64 * 128 >= layers.LARGE) == (rows == 512)
    assert work.flops(lambda: layers.times(x, matrix)) == 2 * rows * 64 * 128


def test_the_loop_over_victims_lowers_that_objective_as_dlg_does():
    """Both from their own noise: fifteen steps bring either to a small part of where it began."""
    seen = work.victims(2)
    fast = DLG(steps=15).reconstruct(seen, Knowledge(), 0)
    images = work.plain.dlg(seen, 15)
    begin = DLG(steps=0).reconstruct(seen, Knowledge(), 0).loss
    assert (fast.loss < 0.05 * begin).all()
    for objective, image, first in zip(work.plain.objectives(seen), images, begin, strict=True):
        assert float(objective(image).detach()) < 0.05 * float(first)


@pytest.mark.parametrize(("method", "defense"), [("fedavg", "gaussian:0.1"), ("fedsplit", "none")])
def test_columns_of_the_table_are_attacked(method, defense):
    seen = work.victims(1, method=method, defense=defense)
    assert seen.method == method
    assert ("extractor" in seen.gradients) == (method == "fedavg")
    assert seen.defense["name"] == defense.partition(":")[0]


def test_a_round_that_is_timed_learns_what_the_usual_way_learns_and_counts():
    rounds = work.Rounds("fedavg", clients=2, per_client=16)
    (loop,) = rounds.plain()
    state = rounds.states[0]
    for count in (1, 2):
        assert rounds.run("alone") > 0
        loop.round()
        assert state.round == count
    for part, module in loop.server.items():
        usual = work.plain.values(module, part, state.server.params[part])
        for name, ours in state.server.params[part].items():
            torch.testing.assert_close(ours, usual[name], rtol=1e-4, atol=2e-5)
    assert not state.history  # nothing was evaluated


@pytest.fixture
def in_threads(monkeypatch):
    """Seeds side by side in threads, which need no start of a process."""
    monkeypatch.setattr(work, "get_context", lambda kind: SimpleNamespace(Manager=lambda: nullcontext(dummy)))
    monkeypatch.setattr(work, "ProcessPoolExecutor", lambda workers, context: ThreadPoolExecutor(workers))
    monkeypatch.setattr(worker_pool, "take_share", lambda share: None)  # what makes a process a worker, for good


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["one process", "whole"])
def test_every_row_runs_in_a_short_form(whole, tmp_path, capsys, monkeypatch, in_threads):
    """`make bench BENCH_ARGS="--short --repeats 1"`, the race against the package included as far as privbench runs it."""
    if not whole:  # six processes of their own
        monkeypatch.setattr(work, "peak_memory_mib", lambda *_: 1.0)
    reach = Reach("way", [2.0])
    monkeypatch.setattr(against_breaching, "installed", lambda: True)
    races = [
        Race("15", reach, reach._replace(cpu_seconds=[0.5])),
        Race("30", None, reach),
    ]
    monkeypatch.setattr(against_breaching, "compare", lambda dataset, victims, repeats: races)
    bench.main(1, "cpu", tmp_path / "b.json", short=True)
    rows, environment = benchmark_rows.load(tmp_path / "b.json")
    assert environment["device"] == "cpu"
    assert environment["repeats"] == 1
    assert all(load >= 0 for load in environment["load"])
    # Each of the published form's rows has one here: only the curves have fewer points.
    assert Counter(row.group for row in rows) == {
        "start": 2, "memory": 1, "way": 2 + 4 + 4 + 5 + 2 * 5 + 1 + 1, "scaling": 6, "kernel": 3, "projection": 3
    }  # fmt: skip
    unmeasured = [row for row in rows if not row.values]
    assert {row.note for row in unmeasured} == {bench.NO_GPU, "no setting gets there"}
    assert all(value > 0 for row in rows for value in row.values)
    won = next(row for row in rows if row.work.startswith("gradient matching to 15") and row.way == "privbench")
    assert won.times == 4.0
    assert {path.name for path in tmp_path.iterdir()} == {
        "b.json", "b.md", "scaling.pdf", "scaling.png", "speedup.pdf", "speedup.png",
    }  # fmt: skip
    assert f"wrote {tmp_path / 'b.json'}" in capsys.readouterr().out


@pytest.mark.thorough
def test_seeds_are_trained_in_processes_of_their_own():
    """The test above has them in threads."""
    assert work.seeds_in_processes("fedavg", 2, 1, per_client=16) > 0


def test_the_race_is_run_on_the_amount_that_was_asked_for(monkeypatch):
    """Without the package there is one row that says so."""
    monkeypatch.setattr(against_breaching, "installed", lambda: False)
    rows = Rows(1)
    bench.breaching_rows(rows, bench.SHORT)
    assert [row.note for row in rows.rows] == ["the package is not installed"]
    assert "1 victims" in rows.rows[0].work


def test_rows_are_saved_printed_and_drawn(tmp_path):
    rows = Rows(3)
    ticks = iter([3.0, 1.0, 2.0, 0.2, 0.4, 0.1])
    plain = rows.measure("way", "work", "plain", lambda: next(ticks))
    ours = rows.measure("way", "work", "ours", lambda: next(ticks), plain=plain)
    assert (plain.median, ours.times) == (2.0, 10.0)
    rows.add(BenchmarkRow("way", "work", "GPU", note=bench.NO_GPU))
    for x in (1.0, 2.0):
        rows.add(BenchmarkRow("scaling", "growth", f"{x:g}", [x], x=x))
    benchmark_rows.save(rows.rows, {"machine": "here"}, tmp_path / "b.json")
    again, environment = benchmark_rows.load(tmp_path / "b.json")
    assert environment == {"machine": "here"}
    assert again == rows.rows
    assert len(json.loads((tmp_path / "b.json").read_text())["rows"][0]["values"]) == 3
    lines = benchmark_rows.markdown(again).splitlines()
    assert "| work | ours | 0.2 s | 0.1-0.4 | 10.0x |  |" in lines
    assert f"| work | GPU | not measured |  |  | {bench.NO_GPU} |" in lines
    made = speed.draw(again, tmp_path)
    assert sorted(p.name for p in made) == ["scaling.pdf", "scaling.png", "speedup.pdf", "speedup.png"]


def test_the_projection_counts_what_is_published(monkeypatch):
    """One hundred rounds of 20 epochs over 2,000 images: 312.5 measured rounds each; three FedAvg columns."""
    monkeypatch.setattr(work, "attacks_of_a_column", lambda count, method, defense, place, settings: 9.0)
    rows = Rows(1)
    bench.projection_rows(
        rows,
        {"fedavg": 1.0, "fedsplit": 2.0, "fedcg": 3.0},
        {"fedavg": 0.1, "fedsplit": 0.2, "fedcg": 0.3},
        CPU,
        bench.Amount(),
    )
    plain, ours, attacks = (row.median for row in rows.rows)
    assert plain == pytest.approx((3 * 1 + 2 + 3) * 100 * 312.5 / 3600)
    assert ours == pytest.approx(plain / 10)
    assert attacks == pytest.approx(5 * 9 * (64 / 16) * 5 / 3600)


def test_two_ways_are_measured_by_turns_and_compared_by_their_medians(capsys):
    taken: list[str] = []

    def action(way, seconds):
        taken.append(way)
        return seconds.pop(0)

    slow, quick = [6.0, 9.0, 6.0], [2.0, 3.0, 1.0]
    rows = Rows(3)
    plain = rows.measure_by_turns(
        "way", "work", Way("plain", lambda: action("plain", slow)), Way("fast", lambda: action("fast", quick))
    )
    assert taken == ["plain", "fast"] * 3
    assert (plain.values, plain.times) == ([6.0, 9.0, 6.0], None)
    assert (rows.rows[1].values, rows.rows[1].times) == ([2.0, 3.0, 1.0], 3.0)
    assert "3.0x" in capsys.readouterr().out
