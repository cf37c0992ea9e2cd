"""The benchmark's pieces of work do their work; no test here asserts a time."""

import json

import pytest
import torch

from attacks.dlg import DLG
from benchmarks import __main__ as bench
from benchmarks import measure, plots, work
from benchmarks.measure import Row, Rows
from privbench.types import Knowledge

CPU = torch.device("cpu")


def test_the_kernel_that_is_timed_is_the_gradient_of_dlg():
    seen = work.victims(2)
    gradient, loss = work.dlg_gradient(seen)()
    assert gradient.shape == (2, 1, 3, 32, 32)
    first = DLG(steps=0).reconstruct(seen, Knowledge(), 0)
    assert torch.equal(loss, first.loss)
    assert work.flops(work.dlg_gradient(seen)) > work.needed_for_dlg(2) > 6 * 10**6


def test_the_loop_over_victims_lowers_the_same_objective():
    """Both from their own noise: fifteen steps bring either to a small part of where it began."""
    seen = work.victims(2)
    fast = DLG(steps=15).reconstruct(seen, Knowledge(), 0)
    images = work.plain.dlg(seen, 15)
    slow = DLG(steps=0).reconstruct(seen, Knowledge(), 0)
    again = bench_loss(seen, images)
    assert (fast.loss < 0.05 * slow.loss).all()
    assert (again < 0.05 * slow.loss).all()


def bench_loss(seen, images):
    """DLG's objective at given images."""
    from attacks import case, descend, match

    own = case.make(seen, 0)

    def objective(x, data):
        return match.squared_distance(
            match.gradient_products(own, x, data["labels"], {n: data[n] for n in own.observed})
        )

    return descend.lbfgs(objective, images, own.observed | {"labels": own.labels}, steps=0).loss


@pytest.mark.parametrize(("method", "defense"), [("fedavg", "gaussian:0.1"), ("fedsplit", "none")])
def test_columns_of_the_table_are_attacked(method, defense):
    seen = work.victims(1, method=method, defense=defense)
    assert seen.method == method
    assert ("extractor" in seen.gradients) == (method == "fedavg")
    assert seen.defense["name"] == defense.partition(":")[0]


def test_a_round_in_the_usual_way_and_ours_start_from_the_same_networks():
    rounds = work.Rounds("fedavg", clients=2, per_client=16)
    (loop,) = rounds.plain()
    before = rounds.states[0].round
    assert rounds.run("alone") > 0
    loop.round()
    assert rounds.states[0].round == before + 1


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
