"""What Gaussian mechanisms guarantee together, by the accountants of dp-accounting.

One release adds noise of `noise_multiplier` times the sensitivity to a sum over a Poisson sample (each record with probability
`sampling`, 1 for all of them); neighbouring data sets differ in one record added or removed. Releases compose.

Without sampling, Gaussian mechanisms compose to one, of noise 1 / sqrt(sum of times / noise^2), whose epsilon is known exactly
(Balle, Wang, ICML 2018, Theorem 8). With sampling, two accountants bound the same quantity.
- Privacy loss distributions (Koskela, Jalkoe, Honkela, AISTATS 2020; Doroshenko et al., PETS 2022) give the tighter bound: 5.42
  against 5.88 at noise 1, sampling 0.008 and 12,500 releases. Every step of theirs is pessimistic, so that the bound holds. Their
  work grows with epsilon: noise of a hundredth of the sensitivity takes more memory than there is.
- Renyi divergences (Mironov, CSF 2017; Mironov, Talwar, Zhang, arXiv 1908.10530) take a moment everywhere.
So the first is asked wherever the second says at most TIGHT_UP_TO, as far as an epsilon means anything.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from privbench.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dp_accounting import DpEvent
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

TIGHT_UP_TO = 50.0
# Losses are rounded up to multiples of it. The coarse one costs less than 1% of an epsilon above ROUGH, and a tenth of the time.
INTERVAL, COARSE, ROUGH = 1e-4, 1e-3, 2.0
# Relative; a solved noise multiplier never guarantees less than was asked for.
TOLERANCE = 1e-3
LARGEST_MULTIPLIER = 1e6
# Below, no training learns anything; above, nothing is guaranteed. Minutes go by before noise for such an epsilon is found.
LEAST_EPSILON, MOST_EPSILON = 1e-4, 1e4
STEP = 0.8


class Releases(NamedTuple):
    """`times` releases of one Gaussian mechanism."""

    noise_multiplier: float  # standard deviation of the noise / sensitivity, >= 0
    sampling: float  # probability of a record to take part in a release, in (0, 1]
    times: int


class Spent(NamedTuple):
    """What all releases together guarantee: (epsilon, delta)-differential privacy."""

    epsilon: float  # inf where nothing is guaranteed
    delta: float
    accountant: str  # "exact", "PLD" or "RDP"; "" where there was nothing to account for


def check(epsilon: float | None, delta: float) -> None:
    """UserError unless epsilon (None: not asked for) means anything and delta lies between 0 and 1."""
    if epsilon is not None and not LEAST_EPSILON <= epsilon <= MOST_EPSILON:
        raise UserError(f"epsilon should be from {LEAST_EPSILON:g} to {MOST_EPSILON:g}, but {epsilon:g} was given")
    if not 0 < delta < 1:
        raise UserError(f"delta should lie between 0 and 1, both left out, but {delta:g} was given")


@lru_cache(maxsize=256)
def spent(releases: tuple[Releases, ...], delta: float, interval: float = INTERVAL) -> Spent:
    """The least epsilon that is proved for some releases at `delta`; UserError for a delta that is none."""
    check(None, delta)
    real = _together(releases)
    if not real:
        return Spent(0.0, delta, "")
    if any(each.noise_multiplier == 0 for each in real):
        return Spent(math.inf, delta, "exact")
    if all(each.sampling >= 1 for each in real):
        return Spent(_exact(real, delta), delta, "exact")
    rough = _spent_by(_rdp(), real, delta)
    if rough > TIGHT_UP_TO:
        return Spent(rough, delta, "RDP")
    return Spent(min(rough, _spent_by(_pld(interval), real, delta)), delta, "PLD")


@lru_cache(maxsize=64)
def noise_multiplier(epsilon: float, delta: float, planned: tuple[Releases, ...]) -> float:
    """The least noise multiplier, the same for all, with which the `planned` releases guarantee (epsilon, delta).

    The planned releases' own multipliers are not read. UserError: an epsilon or a delta that is none, no release, or noise of more
    than 10^6 times the sensitivity.
    """
    check(epsilon, delta)
    real = _together(planned)
    if not real:
        raise UserError("no release is planned, so that there is no noise to solve for")

    def scaled(multiplier: float) -> tuple[Releases, ...]:
        return tuple(each._replace(noise_multiplier=multiplier) for each in real)

    if all(each.sampling >= 1 for each in real):
        return _least(lambda m: _exact(scaled(m), delta), epsilon, 1.0)
    # What the quick accountant asks for is enough; the tight one is left to find out how much less is.
    enough = _least(lambda m: _spent_by(_rdp(), scaled(m), delta), epsilon, 1.0)
    interval = INTERVAL if epsilon < ROUGH else COARSE
    return _least(lambda m: spent(scaled(m), delta, interval).epsilon, epsilon, enough)


def _together(releases: Sequence[Releases]) -> tuple[Releases, ...]:
    """The releases that there are, alike ones as one entry."""
    times: dict[Releases, int] = {}
    for each in releases:
        times[each._replace(times=1)] = times.get(each._replace(times=1), 0) + each.times
    return tuple(each._replace(times=n) for each, n in times.items() if n > 0)


def _least(spends: Callable[[float], float], epsilon: float, start: float) -> float:
    """The least multiplier whose `spends` is at most epsilon, by bisection from `start`; UserError where there is none."""
    high = start
    while spends(high) > epsilon:
        high *= 2
        if high > LARGEST_MULTIPLIER:
            raise UserError(f"no noise guarantees epsilon {epsilon:g} at this delta over that many releases")
    low = high * STEP
    while low > 1 / LARGEST_MULTIPLIER and spends(low) <= epsilon:
        low, high = low * STEP, low
    while high - low > TOLERANCE * high:
        middle = (low + high) / 2
        low, high = (middle, high) if spends(middle) > epsilon else (low, middle)
    return high


def _exact(releases: Sequence[Releases], delta: float) -> float:
    """Epsilon of Gaussian mechanisms without sampling."""
    from dp_accounting import get_epsilon_gaussian

    noise = sum(each.times / each.noise_multiplier**2 for each in releases) ** -0.5
    # Far out in the tails it takes logarithms of 0, which end in the right infinity.
    with np.errstate(divide="ignore", over="ignore"):
        return float(get_epsilon_gaussian(noise, delta))


def _spent_by(accountant: PLDAccountant | RdpAccountant, releases: Sequence[Releases], delta: float) -> float:
    with _quiet():
        for each in releases:
            accountant.compose(_event(each), each.times)
        return float(accountant.get_epsilon(delta))


def _event(release: Releases) -> DpEvent:
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

    gaussian = GaussianDpEvent(release.noise_multiplier)
    return gaussian if release.sampling >= 1 else PoissonSampledDpEvent(release.sampling, gaussian)


# Imported where it is used: listings and help need no accountant.
def _pld(interval: float) -> PLDAccountant:
    from dp_accounting.pld import PLDAccountant

    return PLDAccountant(value_discretization_interval=interval)


def _rdp() -> RdpAccountant:
    from dp_accounting.rdp import RdpAccountant

    return RdpAccountant()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's warnings about orders that it leaves out: what it returns holds without them."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
