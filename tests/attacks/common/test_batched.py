"""The batched optimisers: right, and every problem as if it were alone."""

import pytest
import torch
from scipy.optimize import minimize, rosen, rosen_der

from attacks.common import adam, batched, lbfgs


def rosenbrock(x, data):
    return ((data["a"] - x[:-1]) ** 2 + 100 * (x[1:] - x[:-1] ** 2) ** 2).sum()


def quadratic(x, data):
    return 0.5 * (data["scale"] * (x - data["centre"]) ** 2).sum()


def starts(n, d, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_lbfgs_keeps_pace_with_scipys_on_an_ill_conditioned_quadratic():
    scale, centre = torch.logspace(0, 4, 30, dtype=torch.float64), starts(3, 30, 1)
    data = {"scale": scale.expand(3, -1), "centre": centre}
    end = lbfgs.minimise(quadratic, starts(3, 30), data, steps=400)
    torch.testing.assert_close(end.x, centre, atol=1e-3, rtol=0)

    def value_and_slope(x):
        gap = x - centre[0].numpy()
        return (0.5 * (scale.numpy() * gap**2).sum(), scale.numpy() * gap)

    options = {"maxcor": 20, "maxiter": 50, "ftol": 0, "gtol": 0}
    reference = minimize(value_and_slope, starts(3, 30)[0].numpy(), jac=True, method="L-BFGS-B", options=options)
    assert end.trace[0, 50].item() == pytest.approx(reference.fun, rel=0.05)


def test_lbfgs_finds_rosenbrocks_valley_floor_as_scipy_does():
    end = lbfgs.minimise(rosenbrock, starts(2, 4) * 0.5, {"a": torch.ones(2, dtype=torch.float64)}, steps=300)
    reference = minimize(rosen, (starts(2, 4) * 0.5)[0].numpy(), jac=rosen_der, method="L-BFGS-B")
    assert end.loss.max() < 1e-10
    torch.testing.assert_close(end.x[0], torch.from_numpy(reference.x), atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    "optimise", [lbfgs.minimise, lambda *a, steps: adam.minimise(*a, steps=steps, lr=0.1, sign=True)]
)
def test_every_problem_ends_where_it_ends_alone(optimise):
    data = {"a": torch.linspace(0.5, 2, 5, dtype=torch.float64)}
    together = optimise(rosenbrock, starts(5, 4), data, steps=60)
    for i in range(5):
        alone = optimise(rosenbrock, starts(5, 4)[i : i + 1], {"a": data["a"][i : i + 1]}, steps=60)
        torch.testing.assert_close(together.x[i], alone.x[0], atol=1e-9, rtol=1e-9)
        torch.testing.assert_close(together.trace[i], alone.trace[0], atol=1e-9, rtol=1e-9)


def test_chunks_change_nothing_but_the_memory(monkeypatch):
    data = {"a": torch.linspace(0.5, 2, 7, dtype=torch.float64)}
    whole = lbfgs.minimise(rosenbrock, starts(7, 4), data, steps=40)
    monkeypatch.setattr(batched, "CHUNK", 3)
    cut = lbfgs.minimise(rosenbrock, starts(7, 4), data, steps=40)
    torch.testing.assert_close(whole.x, cut.x, atol=1e-9, rtol=1e-9)
    assert whole.evaluations == cut.evaluations


def test_the_loss_never_rises():
    end = lbfgs.minimise(rosenbrock, starts(4, 6), {"a": torch.ones(4, dtype=torch.float64)}, steps=50)
    assert (end.trace.diff(dim=1) <= 0).all()
    assert end.trace.shape == (4, 51)


def test_ended_problems_cost_nothing():
    centre = torch.zeros(2, 3, dtype=torch.float64)
    start = torch.tensor([[0.0, 0, 0], [1, 2, 3]], dtype=torch.float64)  # the first is there already
    scale = torch.tensor([[1.0, 1, 1], [1, 5, 20]], dtype=torch.float64)
    both = lbfgs.minimise(quadratic, start, {"scale": scale, "centre": centre}, steps=50)
    second = lbfgs.minimise(quadratic, start[1:], {"scale": scale[1:], "centre": centre[1:]}, steps=50)
    assert both.evaluations - second.evaluations <= 14
    assert torch.equal(both.x[0], start[0])


def test_a_problem_that_meets_nan_stays_at_its_last_finite_point_and_spoils_no_other():
    def cliff(x, data):
        return torch.where(x.sum() < data["edge"], torch.log(x.sum() - data["edge"]), (x**2).sum())

    start = torch.full((2, 2), 2.0, dtype=torch.float64)
    end = lbfgs.minimise(cliff, start, {"edge": torch.tensor([3.0, -9.0], dtype=torch.float64)}, steps=30)
    assert end.x.isfinite().all()
    assert end.loss[1] < 1e-8
    broken = lbfgs.minimise(cliff, start * 0, {"edge": torch.tensor([3.0, -9.0], dtype=torch.float64)}, steps=30)
    assert not broken.loss[0].isfinite()
    assert torch.equal(broken.x[0], start[0] * 0)


def test_the_best_restart_is_the_one_with_the_lowest_own_loss():
    loss = torch.tensor([3.0, 1.0, torch.nan, 2.0])
    end = batched.Descent(torch.arange(4.0)[:, None], loss, loss[:, None], 4)
    x, lowest, _, index = batched.best_restart(end, 2)
    assert x.flatten().tolist() == [1.0, 3.0]
    assert lowest.tolist() == [1.0, 2.0]
    assert index.tolist() == [1, 1]


def two_loop(pairs, gradient):
    """Nocedal and Wright, Algorithm 7.4, for one problem."""
    q, alphas = gradient.clone(), []
    for s, y in reversed(pairs):
        alphas.append((s @ q) / (s @ y))
        q = q - alphas[-1] * y
    s, y = pairs[-1]
    r = (s @ y) / (y @ y) * q
    for (s, y), alpha in zip(pairs, reversed(alphas), strict=True):
        r = r + s * (alpha - (y @ r) / (s @ y))
    return -r


@pytest.mark.parametrize("steps", [1, 3, 7])
def test_the_compact_direction_is_that_of_the_two_loop_recursion(steps):
    """Over more pairs than are kept, with one problem whose second pair has negative curvature and is left out."""
    rng = torch.Generator().manual_seed(0)
    problems, size, most = 3, 6, 4
    pairs = lbfgs._Pairs(problems, most, torch.zeros(problems, size, dtype=torch.float64))
    plain = [[] for _ in range(problems)]
    for step in range(steps):
        s = torch.randn(problems, size, generator=rng, dtype=torch.float64)
        y = s + 0.3 * torch.randn(problems, size, generator=rng, dtype=torch.float64)
        y[0] = -y[0] if step == 1 else y[0]
        pairs.push(s, y)
        for history, a, b in zip(plain, s, y, strict=True):
            history.append((a, b))
    gradient = torch.randn(problems, size, generator=rng, dtype=torch.float64)
    histories = [[(a, b) for a, b in history[-most:] if a @ b > 0] for history in plain]
    expected = torch.stack([two_loop(history, g) for history, g in zip(histories, gradient, strict=True)])
    torch.testing.assert_close(pairs.direction(gradient), expected)


def test_the_numbers_do_not_depend_on_how_many_chunks_run_at_a_time(monkeypatch):
    monkeypatch.setattr(batched, "CHUNK", 4)
    start = torch.randn(10, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    data = {"centre": torch.linspace(-1, 1, 30, dtype=torch.float64).view(10, 3)}

    def objective(x, terms):
        return (x - terms["centre"]).pow(4).sum() + (x[0] * x[1] - 0.2).square()

    before, ends = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            ends.append(lbfgs.minimise(objective, start, data, steps=15))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(ends[0].x, ends[1].x)
    assert torch.equal(ends[0].trace, ends[1].trace)
    assert ends[0].evaluations == ends[1].evaluations


def test_of_two_descents_each_problem_takes_its_lower_end_with_that_ends_trace():
    def end(x, loss, steps):
        loss = torch.tensor(loss)
        return batched.Descent(torch.full((3, 2, 2), x), loss, loss[:, None].repeat(1, steps), 3 * steps)

    lower = batched.lower(end(1.0, [1.0, 5.0, 2.0], 2), end(2.0, [3.0, 4.0, 2.0], 4))
    assert lower.x[:, 0, 0].tolist() == [1.0, 2.0, 1.0]
    assert lower.loss.tolist() == [1.0, 4.0, 2.0]
    assert torch.equal(lower.trace, lower.loss[:, None].repeat(1, 4))
    assert lower.evaluations == 18


def two_loops(gradient, pairs):
    """-H gradient of one problem by Nocedal and Wright's Algorithm 7.4; pairs from the oldest to the newest."""
    q, alphas = gradient.clone(), []
    for s, y in reversed(pairs):
        alphas.append(s @ q / (s @ y))
        q = q - alphas[-1] * y
    if pairs:
        s, y = pairs[-1]
        q = (s @ y) / (y @ y) * q
    for (s, y), alpha in zip(pairs, reversed(alphas), strict=True):
        q = q + (alpha - y @ q / (s @ y)) * s
    return -q


def test_the_direction_equals_the_two_loop_recursion_while_slots_fill_and_when_they_are_reused():
    problems, dimension, most = 3, 12, 4
    rng = torch.Generator().manual_seed(0)
    pairs = lbfgs._Pairs(problems, most, torch.zeros(problems, dimension, dtype=torch.float64))
    latest = []
    for step in range(2 * most + 1):
        gradient = torch.randn(problems, dimension, dtype=torch.float64, generator=rng)
        expected = torch.stack([two_loops(gradient[n], [(s[n], y[n]) for s, y in latest]) for n in range(problems)])
        torch.testing.assert_close(pairs.direction(gradient), expected, rtol=1e-9, atol=1e-12)
        s = torch.randn(problems, dimension, dtype=torch.float64, generator=rng)
        y = (1 + step) * s + 0.1 * torch.randn(problems, dimension, dtype=torch.float64, generator=rng)
        pairs.push(s, y)
        latest = [*latest, (s, y)][-most:]
