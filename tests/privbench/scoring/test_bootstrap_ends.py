"""Quantiles of the bootstrap's mean: against every resample there is, and against many plain ones."""

from itertools import product

import numpy as np
import pytest

from privbench.scoring import bootstrap_ends
from tests.privbench.scoring.test_statistics import UNEVEN, At, keys, places, plain_resample

LEVELS = (0.025, 0.3, 0.975)


def every_mean(values, where):
    """The mean of every resample of seeds with one client each, as often as it occurs."""
    seeds = sorted({p.seed for p in where})
    of = {s: [v for v, p in zip(values, where, strict=True) if p.seed == s] for s in seeds}
    return np.sort(
        [
            np.mean(np.concatenate([np.asarray(one) for one in each]))
            for drawn in product(seeds, repeat=len(seeds))
            for each in product(*(product(of[s], repeat=len(of[s])) for s in drawn))
        ]
    )


def check(found, means):
    """Ends are quantiles of some resamples' means, to five standard errors of a share of them and to what jumps are spread by."""
    means, near = np.asarray(means), 0.05 * np.std(means)
    for level, end in zip(LEVELS, found, strict=True):
        error = 5 * (level * (1 - level) / len(means)) ** 0.5
        assert (means < end - near).mean() - error <= level <= (means <= end + near).mean() + error


def test_the_ends_are_those_of_every_resample():
    """3 seeds of 2 victims: 27 times 64 resamples, all as likely; between two of them lie 4% of the mean's spread at most."""
    where = places(3, 1, 2)
    values = list(np.random.default_rng(0).normal(0, 1, 6))
    means = every_mean(values, where)
    found = bootstrap_ends.quantiles(values, keys(where), LEVELS, seeds_fixed=False)
    expected = np.quantile(means, LEVELS)
    np.testing.assert_allclose(found, expected, atol=0.05 * means.std())


@pytest.mark.parametrize("seeds_fixed", [False, True])
@pytest.mark.parametrize("where", [places(5), UNEVEN * 2], ids=["even", "uneven"])
def test_the_ends_are_those_of_many_plain_resamples(where, seeds_fixed):
    where, rng = sorted(where), np.random.default_rng(1)
    values = rng.normal(0, 1, len(where)) + np.array([p.seed for p in where])
    means = []
    for _ in range(20_000):
        counts = np.zeros(len(where))
        if seeds_fixed:
            for seed in sorted({p.seed for p in where}):
                rows = [i for i, p in enumerate(where) if p.seed == seed]
                # One seed, drawn once.
                counts[rows] = plain_resample([where[i] for i in rows], rng)
        else:
            counts = np.asarray(plain_resample(where, rng), dtype=float)
        means.append(counts @ values / counts.sum())
    found = bootstrap_ends.quantiles(list(values), keys(where), LEVELS, seeds_fixed=seeds_fixed)
    check(found, means)


def test_a_jump_ends_where_it_is():
    """One victim of 80 has 1, the others 0: a resample has k / 80, k = 0 in a third of them."""
    where = places(5)
    values = [0.0] * 79 + [1.0]
    low, high = bootstrap_ends.quantiles(values, keys(where), (0.025, 0.975), seeds_fixed=False)
    assert low == 0.0
    rng = np.random.default_rng(2)
    ones = [plain_resample(where, rng)[-1] for _ in range(4000)]
    assert high == pytest.approx(np.quantile(ones, 0.975) / 80, abs=0.02 * np.std(ones) / 80 + 1e-9)


def test_clients_of_unequal_size_have_the_ends_of_many_resamples():
    """One client of 200 victims and four of one: most resamples are of few victims, or of hundreds."""
    where, rng = [At(0, 0)] * 200 + [At(0, c) for c in range(1, 5)], np.random.default_rng(4)
    values = rng.normal(0, 1, len(where))
    means = [np.asarray(counts := plain_resample(where, rng)) @ values / sum(counts) for _ in range(8000)]
    found = bootstrap_ends.quantiles(list(values), keys(where), LEVELS, seeds_fixed=False)
    check(found, means)


def test_where_there_is_one_resample_its_mean_is_the_interval():
    assert bootstrap_ends.quantiles([1.0, 2.0, 6.0], [(0, 0), (1, 0), (2, 3)], LEVELS, seeds_fixed=True) == [3.0] * 3


def test_ends_follow_scale_and_shift_and_the_order_of_victims_does_not_count():
    where, rng = places(5), np.random.default_rng(3)
    values = rng.normal(0, 1, len(where))
    found = np.array(bootstrap_ends.quantiles(list(values), keys(where), LEVELS, seeds_fixed=False))
    moved = bootstrap_ends.quantiles(
        list(100 - 7 * values), keys(where), [1 - level for level in LEVELS], seeds_fixed=False
    )
    np.testing.assert_allclose(moved, 100 - 7 * found, atol=1e-6)
    order = rng.permutation(len(where))
    again = bootstrap_ends.quantiles(list(values[order]), [keys(where)[i] for i in order], LEVELS, seeds_fixed=False)
    np.testing.assert_allclose(again, found, atol=1e-9)
