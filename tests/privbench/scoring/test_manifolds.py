"""Improved precision and recall: against a plain loop, and on distributions of which both are known."""

import math

import pytest
import torch

from privbench.scoring import manifolds
from privbench.seeds import stream


def by_loops(real, generated, k):
    """The definition, point by point."""

    def distance(a, b):
        return math.dist(a.tolist(), b.tolist())

    def inside(point, others):
        for i, other in enumerate(others):
            neighbours = sorted(distance(other, one) for j, one in enumerate(others) if j != i)
            if distance(point, other) <= neighbours[k - 1]:
                return True
        return False

    return [inside(x, real) for x in generated], [inside(x, generated) for x in real]


@pytest.mark.parametrize("neighbours", [1, 3])
def test_it_is_that_of_a_plain_loop(neighbours, double_precision):
    rng = stream(0, "points")
    real, generated = torch.randn(25, 3, generator=rng), 0.3 + torch.randn(20, 3, generator=rng)
    precise, recalled = by_loops(real, generated, neighbours)
    assert 0 < sum(precise) < len(generated)
    assert 0 < sum(recalled) < len(real)
    made = manifolds.coverage(real, generated, neighbours)
    assert (made.precise.tolist(), made.recalled.tolist()) == (precise, recalled)


def shares(real, generated):
    return [float(inside.double().mean()) for inside in manifolds.coverage(real, generated)]


def test_known_distributions():
    rng = stream(1, "points")
    modes = torch.tensor([[0.0, 0.0], [20.0, 0.0], [0.0, 20.0], [20.0, 20.0]])

    def sample(centres, n=400):
        return centres[torch.arange(n) % len(centres)] + torch.randn(n, 2, generator=rng)

    real = sample(modes)
    assert shares(real, real) == [1.0, 1.0]
    assert min(shares(real, sample(modes))) > 0.9
    # Two of four modes: what there is is right, and half is missing.
    precision, recall = shares(real, sample(modes[:2]))
    assert precision > 0.9
    assert 0.4 < recall < 0.52
    # All modes, and half of what is generated is far from any.
    precision, recall = shares(real, torch.cat([sample(modes, 200), sample(modes, 200) + 100]))
    assert 0.4 < precision < 0.52
    assert recall > 0.8
    assert shares(real, sample(modes + 100)) == [0.0, 0.0]
    # A generator of one image: a manifold of one point.
    assert shares(real, real[:1].expand(400, -1)) == [1.0, 1 / 400]


def test_what_is_not_finite_is_in_no_manifold():
    real = torch.randn(10, 2, generator=stream(2, "points"))
    broken = torch.full((10, 2), torch.nan)
    assert shares(real, broken) == [0.0, 0.0]
    one = torch.cat([real[:9], broken[:1]])
    assert manifolds.coverage(real, one).precise.tolist() == [True] * 9 + [False]


def test_too_few_points_are_refused():
    with pytest.raises(ValueError, match="3 points have no 3 neighbours"):
        manifolds.coverage(torch.randn(3, 2), torch.randn(9, 2))
