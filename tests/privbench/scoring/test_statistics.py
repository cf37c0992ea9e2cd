"""The hierarchical bootstrap and the tests over seeds: against plain loops, and on planted cases whose truth is known."""

import math
from collections import Counter
from typing import NamedTuple

import numpy as np
import pytest
import torch
from scipy.stats import norm, ttest_1samp

from privbench.scoring import statistics


class At(NamedTuple):
    seed: int
    client: int


def places(seeds, clients=4, victims=4):
    return [At(s, c) for s in range(seeds) for c in range(clients) for _ in range(victims)]


def keys(where):
    return tuple((p.seed, p.client) for p in where)


def plain_resample(where, rng):
    """One resample, by three nested loops: how often each victim was drawn."""
    counts = Counter()
    seeds = sorted({p.seed for p in where})
    for _ in seeds:
        seed = seeds[rng.integers(len(seeds))]
        clients = sorted({p.client for p in where if p.seed == seed})
        for _ in clients:
            client = clients[rng.integers(len(clients))]
            indices = [i for i, p in enumerate(where) if p == (seed, client)]
            for _ in indices:
                counts[indices[rng.integers(len(indices))]] += 1
    return [counts[i] for i in range(len(where))]


UNEVEN = [At(0, 0), At(0, 0), At(0, 1), At(1, 0), At(1, 2), At(1, 2), At(1, 2), At(2, 1)]


def test_a_resample_is_that_of_three_nested_loops():
    """Means, variances and covariances of the counts; 4,000 draws each, so that five standard errors of a mean are 0.11.

    The counts' standard deviation is below 1.4, and that of their products, which are below 20, below 4.
    """
    rng = np.random.default_rng(5)
    loops = np.array([plain_resample(UNEVEN, rng) for _ in range(statistics.RESAMPLES)], dtype=float)
    ours = statistics.resampled(keys(UNEVEN))
    assert ours.shape == loops.shape
    error = 5 * math.sqrt(2 / statistics.RESAMPLES)
    np.testing.assert_allclose(ours.mean(0), loops.mean(0), atol=1.4 * error)
    np.testing.assert_allclose(ours.T @ ours / len(ours), loops.T @ loops / len(loops), atol=4 * error)


def planted(seeds, of_seed, of_client, of_victim, rng, clients=4, victims=8):
    """Values whose true mean is 0 and whose spread is that of the seeds, the clients and the victims."""
    where = places(seeds, clients, victims)
    seed_effects = rng.normal(0, of_seed, seeds)
    client_effects = rng.normal(0, of_client, (seeds, clients))
    return [seed_effects[p.seed] + client_effects[p.seed, p.client] + rng.normal(0, of_victim) for p in where], where


@pytest.mark.parametrize(
    ("seeds", "spreads", "least", "most"),
    [
        # Where seeds decide the interval is exact; where victims decide it is wider than need be.
        (5, (1.0, 0.0, 0.05), 0.92, 0.98),
        (5, (1.0, 0.3, 1.0), 0.93, 0.99),
        (3, (1.0, 0.3, 1.0), 0.94, 1.0),
        (2, (1.0, 0.0, 0.05), 0.90, 0.98),
        (5, (0.0, 0.0, 1.0), 0.98, 1.0),
    ],
)
def test_the_interval_covers_the_true_mean_at_least_as_often_as_it_says(seeds, spreads, least, most):
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(400):
        interval = statistics.interval(*planted(seeds, *spreads, rng))
        hits += interval.low <= 0 <= interval.high
    # The standard error of 95% in 400 is 1.1 points.
    assert least <= hits / 400 <= most


def test_victims_alone_would_claim_a_gain_that_seeds_do_not_bear():
    """Three seeds at +1.9, +0.6 and -0.4 dB, 64 victims each that vary by 1 dB: significant over victims, not over seeds."""
    rng = np.random.default_rng(7)
    where = places(3, 4, 16)
    means = {0: 1.9, 1: 0.6, 2: -0.4}
    values = [means[p.seed] + rng.normal(0, 1) for p in where]
    alone = 1.96 * np.std(values, ddof=1) / math.sqrt(len(values))
    interval = statistics.interval(values, where)
    assert interval.mean - alone > 0
    assert interval.low < 0 < interval.high
    assert not interval.significantly_above


def test_a_claim_needs_five_seeds_however_narrow_the_interval():
    for seeds, claimed in ((1, False), (4, False), (5, True)):
        interval = statistics.interval([10 + 0.01 * i for i in range(16 * seeds)], places(seeds))
        assert interval.low > 0
        assert (interval.seeds, interval.is_few, interval.significantly_above) == (seeds, not claimed, claimed)
    assert statistics.LEAST_SEEDS == 5


def test_of_one_seed_the_interval_is_over_its_victims():
    rng = np.random.default_rng(2)
    values, where = list(rng.normal(0, 1, 16)), places(1)
    assert statistics.interval(values, where) == statistics.interval(values, where, seeds_fixed=True)


def test_the_expansion_is_the_t_interval_of_the_seed_means_where_seeds_alone_vary():
    """Victims of a seed are alike: the bootstrap's standard error, expanded, is Student's half-width."""
    rng = np.random.default_rng(3)
    seeds = 12
    means = rng.normal(0, 1, seeds)
    where = places(seeds)
    interval = statistics.interval([means[p.seed] for p in where], where)
    student = ttest_1samp(means, 0).confidence_interval(0.95)
    # The tails of 12 values are not quite normal.
    width = student.high - student.low
    assert interval.low == pytest.approx(student.low, abs=0.08 * width)
    assert interval.high == pytest.approx(student.high, abs=0.08 * width)
    assert statistics.expansion(5) == pytest.approx(math.sqrt(5 / 4) * 2.7764451 / norm.ppf(0.975), rel=1e-6)


def test_the_interval_of_a_rate_stays_in_its_range():
    assert statistics.Interval(0.9, 0.7, 1.1).within(0, 1) == (0.9, 0.7, 1.0, 5)
    assert statistics.Interval(2.0, -0.5, 11.0, 1).within(0, 100) == (2.0, 0.0, 11.0, 1)


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [1.0, math.inf], [-1e308, 1e308]])
def test_an_interval_of_nothing_or_of_a_value_that_is_not_finite_is_refused(values):
    with pytest.raises(ValueError, match="at least one value, a place for each, and every value finite"):
        statistics.interval(values, places(1, 1, len(values)))


def test_equal_values_are_their_own_interval():
    assert statistics.interval([3.0] * 80, places(5)) == (3.0, 3.0, 3.0, 5)
    assert statistics.interval([3.0], places(1, 1, 1)) == (3.0, 3.0, 3.0, 1)


def test_an_interval_of_resamples_draws_from_a_named_stream_and_not_from_the_global_one(monkeypatch):
    where = places(5)
    values = [x**1.5 for x in range(len(where))]
    each = [np.full(statistics.RESAMPLES, value) for value in values]
    torch.manual_seed(0)
    named = statistics.interval_of_resamples(values, each, where)
    for cached in (statistics.resampled, statistics._shares):
        cached.cache_clear()
    torch.manual_seed(1)
    assert statistics.interval_of_resamples(values, each, where) == named
    monkeypatch.setattr(statistics, "stream", lambda seed, *names: torch.Generator().manual_seed(12345))
    for cached in (statistics.resampled, statistics._shares):
        cached.cache_clear()
    assert statistics.interval_of_resamples(values, each, where) != named
    for cached in (statistics.resampled, statistics._shares):
        cached.cache_clear()
    # Numbers that do not vary by themselves count as victims do. An end of 4,000 resamples errs by 4% of the mean's spread.
    width = named.high - named.low
    assert statistics.interval(values, where)[1:3] == pytest.approx(named[1:3], abs=0.05 * width)


def test_the_p_value_is_students_over_the_means_of_seeds():
    where = [At(0, 0), At(0, 1), At(1, 0), At(2, 0), At(2, 0)]
    values = [1.0, 3.0, 1.5, 4.0, 2.0]
    assert statistics.seed_means(values, where) == [2.0, 1.5, 3.0]
    assert statistics.seed_level_p(values, where) == pytest.approx(ttest_1samp([2.0, 1.5, 3.0], 0).pvalue)
    assert statistics.seed_level_p(values[:2], where[:2]) is None
    assert statistics.seed_level_p([1.0, 1.0], [At(0, 0), At(1, 0)]) == 0.0
    assert statistics.seed_level_p([0.0, 0.0], [At(0, 0), At(1, 0)]) == 1.0


def test_victims_that_share_a_seed_make_no_small_p():
    """Two seeds that differ by chance, a hundred victims each: a test over victims finds a difference, that over seeds none."""
    rng = np.random.default_rng(4)
    where = places(2, 4, 25)
    values = [(0.9 if p.seed else -0.3) + rng.normal(0, 0.5) for p in where]
    assert ttest_1samp(values, 0).pvalue < 1e-6
    assert statistics.seed_level_p(values, where) > 0.3


def test_holm_adjusts_by_hand():
    assert statistics.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert statistics.holm([0.5, 0.9]) == [1.0, 1.0]
    assert statistics.holm([]) == []
