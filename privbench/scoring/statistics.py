"""Intervals and tests of numbers that are measured per victim, where victims share a client, a seed and an attacker's training.

Victims of one seed are attacked in networks that were trained together and through surrogates that were trained together, those of
one client in that client's networks. Taken for independent they give intervals that are far too narrow. Seeds are independent: each
trains anew and draws its clients' images and its victims anew. So the standard error of a mean is that of clustered data with one
cluster a seed (Liang and Zeger, Biometrika 1986; Cameron and Miller, Journal of Human Resources 2015, "CR1"):
    se^2 = S / (S - 1) sum_s (sum_{i in s} (x_i - mean))^2 / N^2,
and the interval is mean +- t_{S-1}(0.975) se. With equally many victims a seed both are those of Student's t of the seeds' means.
How much of a spread is the seeds', the clients' or the victims' own need not be known: all of it is in the seeds' means.

What is not in them is an error that all seeds share, as where all are asked about the same images. Its variance is added to se^2,
and the degrees of freedom are those of Welch and Satterthwaite (JCGM 100:2008, G.4), the shared variance taken for known.

With one seed nothing can be said of another: the interval is over its victims, and speaks of these networks alone.
Below LEAST_SEEDS seeds no table says "significant" (`is_few`), and every interval is marked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy.stats import t

LEAST_VICTIMS, LEAST_SEEDS = 64, 5  # of a row that may be published (all seeds together; seeds)
CAP_DB = 100.0  # an image's PSNR counts as no more, so that one exact image does not make a mean infinite
CONFIDENCE = 0.95
ALPHA = 0.05  # p values below it count as a difference
MOST_SPAN = 1e300
Numbers = np.ndarray[Any, np.dtype[np.float64]]


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
        """The same of a number that cannot leave a range, as a rate: its interval may."""
        return self._replace(low=max(self.low, least), high=min(self.high, most))

    @property
    def significantly_above(self) -> bool:
        """Whether all of it lies above 0, over enough seeds."""
        return not self.is_few and self.low > 0

    @property
    def holds_zero(self) -> bool:
        """Whether 0 lies in it, its ends included."""
        return self.low <= 0 <= self.high


class Student(NamedTuple):
    """A mean, its standard error and the degrees of freedom of that; 0 of them: nothing is known of the error."""

    mean: float
    error: float
    freedom: float

    def with_shared(self, variance: float) -> Student:
        """The same where the mean has an independent error more, of known variance."""
        if not variance:
            return self
        error = math.hypot(self.error, math.sqrt(variance))
        # Where the own error is less than a thousandth the degrees of freedom do not matter.
        is_own = self.error > 1e-3 * error
        return self._replace(error=error, freedom=self.freedom * (error / self.error) ** 4 if is_own else math.inf)

    @property
    def half_width(self) -> float:
        """Of the interval."""
        return float(t.ppf((1 + CONFIDENCE) / 2, self.freedom)) * self.error if self.error else 0.0

    @property
    def p_value(self) -> float:
        """Two-sided, of a mean of 0; where there is no error it is 0, or 1 for a mean of 0."""
        if not self.error:
            return 0.0 if self.mean else 1.0
        return float(2 * t.sf(abs(self.mean) / self.error, self.freedom))


def interval(
    values: Sequence[float], places: Sequence[Placed], *, seeds_fixed: bool = False, shared_variance: float = 0.0
) -> Interval:
    """The mean of values measured at some victims, with its 95% interval.

    Of several seeds the interval is that over seeds, see above; of one it is over its victims. With `seeds_fixed` it is over the
    victims of every seed, or over seeds where each has one victim: what is asked then is what other victims of these very
    networks would have given, as checks of a run ask (reports/records/table_checks.py). `shared_variance` is that of an error
    that all values have in common. Without it equal values, or one, are their own interval. Raises ValueError for no value, one
    that is not finite, or a variance that is none.
    """
    if not 0 <= shared_variance < math.inf:
        raise ValueError(f"a variance is a number from 0, got {shared_variance}")
    return _interval(tuple(values), tuple(p.seed for p in places), seeds_fixed, shared_variance)


def p_value(values: Sequence[float], places: Sequence[Placed]) -> float | None:
    """Two-sided p of a mean of 0; None with one seed, of which it cannot be asked.

    It is below 5% where the interval leaves out 0. Raises ValueError as `interval`.
    """
    seeds = np.array([p.seed for p in places])
    return _over_seeds(_finite(values, seeds), seeds).p_value if len(set(seeds.tolist())) > 1 else None


def of_means(means: Sequence[float]) -> Student:
    """What both are made of, from one value a seed, of two seeds or more; ValueError below two, and as `interval`."""
    if len(means) < 2:
        raise ValueError("an error over seeds needs two seeds or more")
    seeds = np.arange(len(means))
    return _over_seeds(_finite(means, seeds), seeds)


@lru_cache(maxsize=65_536)
def _interval(values: tuple[float, ...], of_seeds: tuple[int, ...], seeds_fixed: bool, shared: float) -> Interval:
    seeds = np.array(of_seeds)
    data, count = _finite(values, seeds), len(set(of_seeds))
    is_over_seeds = count > 1 and (not seeds_fixed or count == len(data))
    own = _over_seeds(data, seeds) if is_over_seeds else _over_victims(data, seeds)
    found = own.with_shared(shared)
    return Interval(found.mean, found.mean - found.half_width, found.mean + found.half_width, count)


def _finite(values: Sequence[float], seeds: np.ndarray[Any, Any]) -> Numbers:
    data = np.asarray(values, dtype=np.float64)
    if not len(data) or len(data) != len(seeds) or not np.isfinite(data).all() or np.ptp(data / 4) > MOST_SPAN:
        raise ValueError("an interval needs at least one value, a place for each, and every value finite")
    return data


def _over_seeds(data: Numbers, seeds: np.ndarray[Any, Any]) -> Student:
    """With one cluster a seed; of two seeds or more."""
    mean = float(data.mean())
    names, which = np.unique(seeds, return_inverse=True)
    return _student(data, mean, _sums(data - mean, which, len(names)), len(names) - 1)


def _over_victims(data: Numbers, seeds: np.ndarray[Any, Any]) -> Student:
    """Of the same networks: each victim differs from its own seed's mean."""
    names, which, count = np.unique(seeds, return_inverse=True, return_counts=True)
    own_mean = (_sums(data, which, len(names)) / count)[which]
    return _student(data, float(data.mean()), data - own_mean, len(data) - len(names))


def _sums(data: Numbers, which: np.ndarray[Any, Any], count: int) -> Numbers:
    """Of the values of each cluster: [count]."""
    sums = np.zeros(count)
    np.add.at(sums, which, data)
    return sums


def _student(data: Numbers, mean: float, sums: Numbers, freedom: int) -> Student:
    """From what independent clusters add to N times the mean's error."""
    n, largest = len(data), float(np.abs(sums).max())
    # What rounding leaves of sums that are 0 is no error, nor is it a mean.
    rounding = 4 * n * float(np.finfo(np.float64).eps) * float(np.abs(data).max())
    if largest <= rounding or not freedom:
        return Student(mean if abs(mean) > rounding else 0.0, 0.0, freedom)
    # Squares of the largest numbers there are would overflow.
    relative = float(np.sqrt(np.square(sums / largest).sum() * len(sums) / freedom))
    return Student(mean, largest / n * relative, freedom)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p values adjusted for how many there are (Holm 1979, Scand. J. Statist. 6), in the order given.

    The k-th smallest of m, k from 0, is multiplied by m - k, never below the adjusted one before it, at most 1.
    """
    adjusted, least, m = [0.0] * len(p_values), 0.0, len(p_values)
    for k, i in enumerate(sorted(range(m), key=lambda i: p_values[i])):
        least = max(least, min(1.0, (m - k) * p_values[i]))
        adjusted[i] = least
    return adjusted
