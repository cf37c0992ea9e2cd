"""Intervals and tests of numbers that are measured per victim, where victims share a client, a seed and an attacker's training.

Victims of one seed are attacked in networks that were trained together and through surrogates that were trained together, those of
one client in that client's networks. Taken for independent they give intervals that are far too narrow. So the bootstrap here
resamples in the order in which the data came about (Davison and Hinkley, Bootstrap Methods and their Application, 1997, section
3.8; Saravanan, Berman and Sober, Neurons, Behavior, Data Analysis and Theory 2020): seeds with replacement, within each drawn
seed its clients, within each drawn client its victims.

Few seeds vary too little among themselves, by sqrt((S - 1) / S), and a normal quantile takes their spread for known. Hesterberg
(The American Statistician 2015, section 4, "expanded percentile") corrects both by more extreme quantiles. With five seeds those
lie beyond what resampling five values can give, so the quantiles' distances from the mean are multiplied instead, by
    sqrt(S / (S - 1)) t_{S-1}(0.975) / z(0.975),
1.58 for five seeds, 2.69 for three, 9.17 for two. That is exact where seeds decide alone and vary normally, and wider than need be
where victims decide, which the bootstrap counts at every level: significance is claimed rather too seldom than too often.

With one seed nothing can be said of another: the interval is over its clients and victims, and speaks of these networks alone.
Below LEAST_SEEDS seeds no table says "significant" (`is_few`), and every interval is marked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy.stats import norm, t

from privbench.scoring import bootstrap_ends
from privbench.seeds import stream

LEAST_VICTIMS, LEAST_SEEDS = 64, 5  # of a row that may be published (all seeds together; seeds)
CAP_DB = 100.0  # an image's PSNR counts as no more, so that one exact image does not make a mean infinite
RESAMPLES = 4000  # of numbers that are resampled themselves, as areas under a curve are
CONFIDENCE = 0.95
ALPHA = 0.05  # p values below it count as a difference
MOST_SPAN = 1e300
ENDS = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
Counts = np.ndarray[Any, np.dtype[np.float64]]


class Placed(Protocol):
    """Where a number was measured (privbench.records.entries.Victim says it)."""

    @property
    def seed(self) -> int:
        """Of training."""
        ...

    @property
    def client(self) -> int:
        """Of that seed's federation."""
        ...


class Interval(NamedTuple):
    """A mean with its 95% interval, and over how many seeds."""

    mean: float
    low: float
    high: float
    seeds: int = LEAST_SEEDS

    @property
    def is_few(self) -> bool:
        """Whether the seeds are too few for a claim about training again."""
        return self.seeds < LEAST_SEEDS

    def within(self, least: float, most: float) -> Interval:
        """The same of a number that cannot leave a range, as a rate: resamples' ends may."""
        return self._replace(low=max(self.low, least), high=min(self.high, most))

    @property
    def significantly_above(self) -> bool:
        """Whether all of it lies above 0, over enough seeds."""
        return not self.is_few and self.low > 0

    @property
    def holds_zero(self) -> bool:
        """Whether 0 lies in it, its ends included."""
        return self.low <= 0 <= self.high


def interval(values: Sequence[float], places: Sequence[Placed], *, seeds_fixed: bool = False) -> Interval:
    """The mean of values measured at some victims, with its interval by the hierarchical bootstrap.

    With `seeds_fixed` every seed is taken once, and its clients and their victims are resampled: what is asked then is what other
    victims of these very networks would have given, as checks of a run ask (reports/records/table_checks.py). Equal values, or
    one, are their own interval. Raises ValueError for no value or one that is not finite. The resampling depends on the places
    alone, and nothing is drawn: the ends are those of all resamples there are, to 1% of the mean's deviation (bootstrap_ends.py).
    """
    return _interval(tuple(values), tuple((p.seed, p.client) for p in places), seeds_fixed)


@lru_cache(maxsize=65_536)
def _interval(values: tuple[float, ...], places: tuple[tuple[int, int], ...], seeds_fixed: bool) -> Interval:
    data = np.asarray(values, dtype=np.float64)
    if not len(data) or len(data) != len(places) or not np.isfinite(data).all() or np.ptp(data / 4) > MOST_SPAN:
        raise ValueError("an interval needs at least one value, a place for each, and every value finite")
    mean, seeds = float(data.mean()), len({seed for seed, _ in places})
    if float(np.ptp(data)) == 0:
        return Interval(mean, mean, mean, seeds)
    low, high = bootstrap_ends.quantiles(values, places, ENDS, seeds_fixed=seeds_fixed)
    return _expanded(mean, low, high, 1.0 if seeds_fixed else expansion(seeds), seeds)


def interval_of_resamples(values: Sequence[float], resamples: Sequence[Counts], places: Sequence[Placed]) -> Interval:
    """The mean of numbers that are each of a whole client, e.g. an area under a curve, with the same interval.

    `resamples` holds, of each, what it is on RESAMPLES resamples of the client's images: [RESAMPLES], the bootstrap's last level.
    Raises ValueError as `interval`.
    """
    every = tuple((p.seed, p.client) for p in places)
    data, drawn = np.asarray(values, dtype=np.float64), np.stack(resamples, axis=1)
    if len(data) != len(every) or drawn.shape != (RESAMPLES, len(data)) or not np.isfinite(drawn).all():
        raise ValueError("an interval needs at least one value, a place and finite resamples for each")
    seeds = len({seed for seed, _ in every})
    low, high = (float(q) for q in np.quantile((_shares(every) * drawn).sum(1), ENDS))
    return _expanded(float(data.mean()), low, high, expansion(seeds), seeds)


def _expanded(mean: float, low: float, high: float, wider: float, seeds: int) -> Interval:
    """The interval between two quantiles of a resample's mean, its distances from the mean multiplied."""
    # The mean lies within its interval, also where one seed of few has most of the victims.
    return Interval(mean, min(mean, mean + wider * (low - mean)), max(mean, mean + wider * (high - mean)), seeds)


def expansion(seeds: int) -> float:
    """By how much the distances of quantiles from the mean are multiplied for so few seeds; 1 for one seed, see above."""
    if seeds < 2:
        return 1.0
    level = (1 + CONFIDENCE) / 2
    return float(math.sqrt(seeds / (seeds - 1)) * t.ppf(level, seeds - 1) / norm.ppf(level))


@lru_cache(maxsize=64)
def resampled(places: tuple[tuple[int, int], ...]) -> Counts:
    """How often each victim at (seed, client) is drawn in each of RESAMPLES resamples: [RESAMPLES, n] float64.

    Whoever is drawn k times has its members drawn k times over: the counts of k independent draws of m out of m are multinomial
    of k m draws. So every level is one multinomial draw for all resamples at once.
    """
    rng = np.random.default_rng(stream(0, "bootstrap").initial_seed())
    order = sorted(range(len(places)), key=lambda i: places[i])
    by_seed = [list(members_of_one) for _, members_of_one in groupby(order, key=lambda i: places[i][0])]
    counts = np.zeros((RESAMPLES, len(places)))
    once = np.ones(RESAMPLES, dtype=np.int64)
    for times, members in zip(_drawn(rng, once, len(by_seed)).T, by_seed, strict=True):
        by_client = [list(members_of_one) for _, members_of_one in groupby(members, key=lambda i: places[i][1])]
        for again, victims in zip(_drawn(rng, times, len(by_client)).T, by_client, strict=True):
            counts[:, victims] = _drawn(rng, again, len(victims))
    counts.setflags(write=False)
    return counts


@lru_cache(maxsize=64)
def _shares(places: tuple[tuple[int, int], ...]) -> Counts:
    """The same as shares of a resample."""
    counts = resampled(places)
    return counts / counts.sum(1, keepdims=True)


def _drawn(rng: np.random.Generator, times: np.ndarray[Any, Any], members: int) -> np.ndarray[Any, Any]:
    """How often each of m members is drawn where m are drawn with replacement so many times over: [R, m]."""
    return rng.multinomial(times * members, np.full(members, 1 / members))


def seed_means(values: Sequence[float], places: Sequence[Placed]) -> list[float]:
    """The mean of each seed's values, in the order of their first coming."""
    by_seed: dict[int, list[float]] = {}
    for value, place in zip(values, places, strict=True):
        by_seed.setdefault(place.seed, []).append(value)
    return [float(np.mean(seed_values)) for seed_values in by_seed.values()]


def seed_level_p(values: Sequence[float], places: Sequence[Placed]) -> float | None:
    """Two-sided p of Student's t-test that the seeds' mean values have mean 0; None with one seed, of which it cannot be asked.

    Seeds are independent, victims of a seed are not: the seeds' means are the sample. Where all seeds have one and the same mean
    the statistic is infinite: p is 0, or 1 for means of 0.
    """
    means = seed_means(values, places)
    return p_of_means(means) if len(means) > 1 else None


def p_of_means(means: Sequence[float]) -> float:
    """The same of the means of two seeds or more."""
    mean, spread = float(np.mean(means)), float(np.std(means, ddof=1))
    if spread == 0:
        return 0.0 if mean else 1.0
    return float(2 * t.sf(abs(mean) / (spread / math.sqrt(len(means))), len(means) - 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """The p values adjusted for how many there are (Holm 1979, Scand. J. Statist. 6), in the order given.

    The k-th smallest of m, k from 0, is multiplied by m - k, never below the adjusted one before it, at most 1.
    """
    adjusted, least, m = [0.0] * len(p_values), 0.0, len(p_values)
    for k, i in enumerate(sorted(range(m), key=lambda i: p_values[i])):
        least = max(least, min(1.0, (m - k) * p_values[i]))
        adjusted[i] = least
    return adjusted
