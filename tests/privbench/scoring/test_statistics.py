"""Intervals and tests over seeds: against Student's t of the seeds' means, and on planted cases whose truth is known."""

import math
from typing import NamedTuple

import numpy as np
import pytest
from scipy.stats import norm, t, ttest_1samp

from privbench.scoring import statistics


class At(NamedTuple):
    seed: int
    client: int


def places(seeds, clients=4, victims=4):
    return [At(s, c) for s in range(seeds) for c in range(clients) for _ in range(victims)]


UNEVEN = [At(0, 0), At(0, 0), At(0, 1), At(1, 0), At(1, 2), At(1, 2), At(1, 2), At(2, 1)]


def planted(seeds, of_seed, of_client, of_victim, rng, clients=4, victims=8):
    """Values whose true mean is 0 and whose spread is that of the seeds, the clients and the victims."""
    where = places(seeds, clients, victims)
    seed_effects = rng.normal(0, of_seed, seeds)
    client_effects = rng.normal(0, of_client, (seeds, clients))
    return [seed_effects[p.seed] + client_effects[p.seed, p.client] + rng.normal(0, of_victim) for p in where], where


@pytest.mark.parametrize(
    ("seeds", "spreads"),
    [
        # The shares of variance in ladders: seed 8%, client 12%, victim 81%.
        (5, (0.28, 0.35, 0.90)),
        (5, (1.0, 0.0, 0.05)),
        (5, (1.0, 0.3, 1.0)),
        (3, (1.0, 0.3, 1.0)),
        (2, (1.0, 0.0, 0.05)),
        (5, (0.0, 0.0, 1.0)),
    ],
)
def test_the_interval_covers_the_true_mean_as_often_as_it_says_and_the_p_value_agrees(seeds, spreads):
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(1000):
        values, where = planted(seeds, *spreads, rng)
        interval = statistics.interval(values, where)
        assert interval.holds_zero == (statistics.p_value(values, where) >= 0.05)
        hits += interval.holds_zero
    # Three standard errors of 95% in 1000.
    assert hits / 1000 == pytest.approx(0.95, abs=0.021)


def test_seeds_of_unlike_many_victims_still_cover():
    """From 8 to 24 victims a seed, whose means vary by as much as their victims do."""
    rng = np.random.default_rng(6)
    where = [At(s, c) for s, victims in enumerate((2, 3, 4, 5, 6)) for c in range(4) for _ in range(victims)]
    hits = 0
    for _ in range(1000):
        of_seed = rng.normal(0, 0.25, 5)
        hits += statistics.interval([of_seed[p.seed] + rng.normal() for p in where], where).holds_zero
    assert 0.91 <= hits / 1000 <= 0.98


def test_with_even_seeds_the_interval_is_students_of_their_means():
    rng = np.random.default_rng(3)
    where = places(5)
    values = [rng.normal(p.seed, 2) for p in where]
    means = [np.mean([v for v, p in zip(values, where, strict=True) if p.seed == s]) for s in range(5)]
    student = ttest_1samp(means, 0)
    low, high = student.confidence_interval(0.95)
    mean = pytest.approx(np.mean(means))
    assert statistics.interval(values, where) == (mean, pytest.approx(low), pytest.approx(high), 5)
    assert statistics.p_value(values, where) == pytest.approx(student.pvalue)
    assert statistics.of_means(means).p_value == pytest.approx(student.pvalue)
    with pytest.raises(ValueError, match="two seeds or more"):
        statistics.of_means([1.0])


def test_with_uneven_seeds_the_error_is_that_of_clusters():
    values = [1.0, 3.0, 2.0, 4.0, 0.5, 1.5, 2.0, 7.0]
    mean = sum(values) / 8
    sums = [6 - 3 * mean, 8 - 4 * mean, 7 - mean]
    error = math.sqrt(3 / 2 * sum(x**2 for x in sums)) / 8
    half = t.ppf(0.975, 2) * error
    expected = (mean, pytest.approx(mean - half), pytest.approx(mean + half), 3)
    assert statistics.interval(values, UNEVEN) == expected
    assert statistics.p_value(values, UNEVEN) == pytest.approx(2 * t.sf(mean / error, 2))
    # In any order of the victims.
    order = [3, 0, 7, 5, 1, 6, 2, 4]
    again = statistics.interval([values[i] for i in order], [UNEVEN[i] for i in order])
    assert again == pytest.approx(statistics.interval(values, UNEVEN))


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


def test_of_one_seed_the_interval_is_students_over_its_victims():
    rng = np.random.default_rng(2)
    values, where = list(rng.normal(0, 1, 16)), places(1)
    low, high = ttest_1samp(values, 0).confidence_interval(0.95)
    assert statistics.interval(values, where)[1:3] == pytest.approx((low, high))
    assert statistics.interval(values, where) == statistics.interval(values, where, seeds_fixed=True)
    assert statistics.p_value(values, where) is None


def test_with_seeds_fixed_victims_differ_from_their_own_seeds_mean():
    """Three seeds far apart: of other victims of these networks much is known, of other seeds nothing."""
    rng = np.random.default_rng(8)
    where = places(3)
    values = [10 * p.seed + rng.normal() for p in where]
    own = [
        v - np.mean([w for w, q in zip(values, where, strict=True) if q.seed == p.seed])
        for v, p in zip(values, where, strict=True)
    ]
    half = t.ppf(0.975, 45) * math.sqrt(sum(x**2 for x in own) / 45 / 48)
    fixed = statistics.interval(values, where, seeds_fixed=True)
    assert fixed == (
        pytest.approx(np.mean(values)),
        pytest.approx(fixed.mean - half),
        pytest.approx(fixed.mean + half),
        3,
    )
    assert statistics.interval(values, where).low < 0 < fixed.low
    # One victim a seed says nothing of others of its seed; that values differ is known all the same.
    alone = places(3, 1, 1)
    assert statistics.interval([1.0, 2.0, 6.0], alone, seeds_fixed=True) == statistics.interval([1.0, 2.0, 6.0], alone)


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


def test_what_rounding_leaves_of_equal_seeds_is_no_error_and_no_gain():
    """Each seed adds up to 0 but for the last digits: neither a mean nor a spread."""
    where = places(5, 1, 3)
    values = [0.1, 0.2, -0.3] * 5
    assert sum(values) != 0
    assert statistics.p_value(values, where) == 1.0
    assert statistics.interval(values, where) == (0.0, 0.0, 0.0, 5)
    assert statistics.p_value([1.0, 1.0], [At(0, 0), At(1, 0)]) == 0.0
    assert statistics.p_value([0.0, 0.0], [At(0, 0), At(1, 0)]) == 1.0


def test_an_error_that_seeds_share_is_added_to_the_one_that_their_means_show():
    """As independent errors add; one that is known has no degrees of freedom to lose (Welch and Satterthwaite)."""
    values, where = [1.0, 2.0, 4.0, 5.0, 8.0], places(5, 1, 1)
    own = np.std(values, ddof=1) / math.sqrt(5)
    error = math.sqrt(own**2 + 0.5)
    half = t.ppf(0.975, error**4 / (own**4 / 4)) * error
    assert statistics.interval(values, where, shared_variance=0.5) == (
        4.0,
        pytest.approx(4 - half),
        pytest.approx(4 + half),
        5,
    )
    alone = statistics.interval([4.0] * 5, where, shared_variance=0.25)
    assert alone[1:3] == pytest.approx((4 - 0.5 * norm.ppf(0.975), 4 + 0.5 * norm.ppf(0.975)))
    known = statistics.interval([1.0, 1.0 + 1e-9], places(2, 1, 1), shared_variance=1.0)
    assert known[1:3] == pytest.approx((1 - norm.ppf(0.975), 1 + norm.ppf(0.975)))
    for variance in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="a variance is a number from 0"):
            statistics.interval(values, where, shared_variance=variance)


def test_with_what_seeds_share_the_interval_covers_as_often_as_it_says():
    rng, hits = np.random.default_rng(4), 0
    for _ in range(1000):
        values, where = planted(5, 0.3, 0.0, 1.0, rng)
        common = rng.normal(0, 0.25)
        hits += statistics.interval([v + common for v in values], where, shared_variance=0.25**2).holds_zero
    assert hits / 1000 == pytest.approx(0.95, abs=0.021)


@pytest.mark.parametrize("scale", [1e-200, 1e290])
def test_numbers_of_any_size_have_their_interval(scale):
    rng = np.random.default_rng(9)
    values, where = rng.normal(1, 1, 80), places(5)
    plain = statistics.interval(list(values), where)
    scaled = statistics.interval(list(values * scale), where)
    assert scaled[:3] == pytest.approx(tuple(scale * x for x in plain[:3]), rel=1e-9, abs=0)
    assert statistics.p_value(list(values * scale), where) == pytest.approx(statistics.p_value(list(values), where))


def test_victims_that_share_a_seed_make_no_small_p():
    """Two seeds that differ by chance, a hundred victims each: a test over victims finds a difference, that over seeds none."""
    rng = np.random.default_rng(4)
    where = places(2, 4, 25)
    values = [(0.9 if p.seed else -0.3) + rng.normal(0, 0.5) for p in where]
    assert ttest_1samp(values, 0).pvalue < 1e-6
    assert statistics.p_value(values, where) > 0.3


def test_holm_adjusts_by_hand():
    assert statistics.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert statistics.holm([0.5, 0.9]) == [1.0, 1.0]
    assert statistics.holm([]) == []
