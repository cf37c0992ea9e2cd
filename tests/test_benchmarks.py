"""The benchmark's pieces of work do their work; no test here asserts a time."""

import json

import pytest
import torch

from attacks import case
from attacks.dlg import DLG
from benchmarks import __main__ as bench
from benchmarks import measure, plots, work
from benchmarks.measure import Row, Rows, Way
from privbench.types import Knowledge

CPU = torch.device("cpu")


def test_the_kernel_that_is_timed_is_the_gradient_of_dlg_s_objective_in_the_usual_way():
    seen = work.victims(2)
    gradient, loss = work.dlg_gradient(seen)()
    start = case.random_start(seen, 1, 0)
    for v, objective in enumerate(work.plain.objectives(seen)):
        x = start[v].clone().requires_grad_()
        theirs = objective(x)
        (slope,) = torch.autograd.grad(theirs, x)
        torch.testing.assert_close(loss[v], theirs.detach(), rtol=1e-9, atol=0)
        torch.testing.assert_close(gradient[v], slope, rtol=1e-7, atol=1e-9 * float(slope.abs().max()))
    assert work.flops(work.dlg_gradient(seen)) > work.needed_for_dlg(2) > 6 * 10**6


def test_the_loop_over_victims_lowers_that_objective_as_dlg_does():
    """Both from their own noise: fifteen steps bring either to a small part of where it began."""
    seen = work.victims(2)
    fast = DLG(steps=15).reconstruct(seen, Knowledge(), 0)
    images = work.plain.dlg(seen, 15)
    begin = DLG(steps=0).reconstruct(seen, Knowledge(), 0).loss
    assert (fast.loss < 0.05 * begin).all()
    for objective, found, first in zip(work.plain.objectives(seen), images, begin, strict=True):
        assert float(objective(found).detach()) < 0.05 * float(first)


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
        theirs = work.plain.values(module, part, state.server.params[part])
        for name, ours in state.server.params[part].items():
            torch.testing.assert_close(ours, theirs[name], rtol=1e-4, atol=2e-5)
    assert not state.history  # nothing was evaluated


def test_rows_are_saved_printed_and_drawn(tmp_path):
    rows = Rows(3)
    ticks = iter([3.0, 1.0, 2.0, 0.2, 0.4, 0.1])
    plain = rows.measure("goal", "work", "plain", lambda: next(ticks))
    ours = rows.measure("goal", "work", "ours", lambda: next(ticks), plain=plain, goal=30)
    assert (plain.median, ours.times) == (2.0, 10.0)
    rows.add(Row("goal", "work", "GPU", note=bench.NO_GPU))
    for x in (1.0, 2.0):
        rows.add(Row("scaling", "growth", f"{x:g}", [x], x=x))
    measure.save(rows.rows, {"machine": "here"}, tmp_path / "b.json")
    again, environment = measure.load(tmp_path / "b.json")
    assert environment == {"machine": "here"}
    assert again == rows.rows
    assert len(json.loads((tmp_path / "b.json").read_text())["rows"][0]["values"]) == 3
    lines = measure.markdown(again).splitlines()
    assert "| work | ours | 0.2 s | 0.1-0.4 | 10.0x | 30x |  |" in lines
    assert f"| work | GPU | not measured |  |  |  | {bench.NO_GPU} |" in lines
    made = plots.draw(again, tmp_path)
    assert sorted(p.name for p in made) == ["scaling.pdf", "scaling.png", "speedup.pdf", "speedup.png"]


def test_the_projection_counts_what_is_published(monkeypatch):
    """One hundred rounds of 20 epochs over 2,000 images: 312.5 measured rounds each; three FedAvg columns."""
    monkeypatch.setattr(work, "attacks_of_a_column", lambda count, method, defense, place: 9.0)
    rows = Rows(1)
    bench.projection_rows(
        rows, {"fedavg": 1.0, "fedsplit": 2.0, "fedcg": 3.0}, {"fedavg": 0.1, "fedsplit": 0.2, "fedcg": 0.3}, CPU
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
        "goal", "work", Way("plain", lambda: action("plain", slow)), Way("fast", lambda: action("fast", quick), goal=4)
    )
    assert taken == ["plain", "fast"] * 3
    assert (plain.values, plain.times) == ([6.0, 9.0, 6.0], None)
    assert (rows.rows[1].values, rows.rows[1].times, rows.rows[1].goal) == ([2.0, 3.0, 1.0], 3.0, 4)
    assert "3.0x" in capsys.readouterr().out
