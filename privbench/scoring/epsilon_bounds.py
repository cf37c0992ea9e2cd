"""How much an epsilon is at least, from guesses of who took part: two tests, which see different things.

One run (Steinke, Nasr, Jagielski, Privacy Auditing with One (1) Training Run, NeurIPS 2023, arXiv 2305.08846, Corollary 5.4): m
canaries take part or not, each by a fair coin; r of the m coins are guessed from what was sent, v of them rightly. If what was sent
is (epsilon, delta)-differentially private,
    P[at least v right] <= beta + 2 m delta alpha,
    beta = P[Binomial(r, e^eps / (1 + e^eps)) >= v],   alpha = max_i (1/i) P[v > Binomial(r, e^eps / (1 + e^eps)) >= v - i].
It holds for every mechanism and needs one training. It is loose: at m = 1,000 it does not see noise that is half as large as an
epsilon of 1 asks for.

Single releases: in each of n independent releases one canary takes part or not, by a fair coin, which is guessed from that release
alone. No guess is right with a probability above 1/2 + advantage/2, the advantage being the least delta at epsilon 0. For a
Gaussian mechanism of that (epsilon, delta), which is mu-GDP (Dong, Roth, Su, JRSS B 2022, Corollary 1 and section 2.3), it is
2 Phi(mu/2) - 1. It sees noise that is too small, at any epsilon. What escapes clipping shows in how far a release goes: with
sensitivity C and noise sigma C no coordinate of one canary lies above C + z sigma C with a probability above Phi(-z). Both say
nothing of many releases together and nothing of the sampling of mini-batches, and hold of claims about Gaussian noise alone.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq
from scipy.stats import binom, norm

CONFIDENCE = 0.95
STEPS = 40  # of a bisection
LARGEST = 700.0  # an epsilon whose exponential is a number
LARGEST_MU = 60.0
SMALLEST = 1e-200  # an epsilon that is printed as it is
ROUNDING = 1e-12  # relative, of a number that is one of few digits but for its binary form


def rounded_up(epsilon: float, digits: int = 3) -> float:
    """The least number of so many significant digits that an epsilon is not above, so that a printed claim is true."""
    if not (math.isfinite(epsilon) and epsilon > SMALLEST):
        return epsilon
    places = digits - 1 - math.floor(math.log10(epsilon))
    return math.ceil(epsilon * 10.0**places * (1 - ROUNDING)) / 10.0**places


def rounded_down(bound: float, decimals: int = 2) -> float:
    """The greatest number of so many decimals that a lower bound is not below."""
    return math.floor(bound * 10**decimals * (1 + ROUNDING)) / 10**decimals if math.isfinite(bound) else bound


def p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Bound of the probability of so many right guesses or more under (epsilon, delta)-differential privacy: Corollary 5.4."""
    _check(canaries, guesses, right, delta)
    chance = 1 / (1 + math.exp(-epsilon))
    beta = float(binom.sf(right - 1, guesses, chance))
    # P[v > Binomial >= v - i] for i from 1 to v.
    below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, chance))
    alpha = float(np.max(below / np.arange(1, right + 1))) if right else 0.0
    return min(beta + 2 * canaries * delta * alpha, 1.0)


def lower_bound(canaries: int, guesses: int, right: int, delta: float, confidence: float = CONFIDENCE) -> float:
    """The largest epsilon that so many right guesses refute at `delta`: a lower bound of the true one, 0 where they refute none.

    It exceeds the true epsilon with a probability of at most 1 - confidence, where `guesses` was fixed before the coins were seen.
    """

    def refuted(epsilon: float) -> bool:
        return p_value(canaries, guesses, right, epsilon, delta) < 1 - confidence

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high) and high < LARGEST:
        low, high = high, 2 * high
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def guesses_for(canaries: int, mu: float, delta: float, confidence: float = CONFIDENCE) -> int:
    """How many of the canaries to guess, fixed before a coin is seen: what would prove most if the claim is true and tight.

    Scores are then N(+mu/2, 1) with the canary and N(-mu/2, 1) without. The ends of the order are guessed, as many on either side,
    and never all: of m fair coins, a number other than m/2 shows heads, and as many guesses as it is off would be wrong whatever
    the scores. It is less than 2 sqrt(m) off but once in 10,000 times. Where no number proves anything, the most are guessed.
    """
    limit = 2 * max(math.floor(canaries / 2 - 2 * math.sqrt(canaries)), 1)
    best, most = limit, 0.0
    for share in (limit / canaries, *np.geomspace(1.0, min(10 / canaries, 1.0), 12)):
        number = 2 * max(round(share * canaries / 2), 1)
        if number > limit:
            continue
        bound = lower_bound(canaries, number, math.floor(number * _right_share(share, mu)), delta, confidence)
        if bound > most:
            best, most = number, bound
    return best


def _right_share(share: float, mu: float) -> float:
    """Of the ends of the order, a `share` of all canaries, how many are guessed rightly."""
    if share >= 1:
        return float(norm.cdf(mu / 2))
    high = mu / 2 + 40.0
    end = brentq(lambda t: float(norm.sf(t - mu / 2) + norm.sf(t + mu / 2)) - share, 0.0, high)
    right, wrong = float(norm.sf(end - mu / 2)), float(norm.sf(end + mu / 2))
    return right / (right + wrong)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The least delta at epsilon of a mu-GDP mechanism: Dong, Roth, Su, Corollary 1."""
    tail = float(norm.logcdf(-epsilon / mu - mu / 2))
    return float(norm.cdf(mu / 2 - epsilon / mu)) - math.exp(min(epsilon + tail, LARGEST))


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The mu of the Gaussian mechanism that is just (epsilon, delta)-differentially private; at most LARGEST_MU."""
    if math.isinf(epsilon) or gaussian_delta(LARGEST_MU, epsilon) <= delta:
        return LARGEST_MU
    return float(brentq(lambda mu: gaussian_delta(mu, epsilon) - delta, 1e-9, LARGEST_MU))


def advantage(mu: float) -> float:
    """The least delta of a mu-GDP mechanism at epsilon 0, 2 Phi(mu/2) - 1: guesses of a coin are right with 1/2 plus half of it."""
    return 2 * float(norm.cdf(mu / 2)) - 1


def single_p_value(releases: int, right: int, advantage: float) -> float:
    """Probability of so many right guesses or more in independent releases of that advantage at most: an exact binomial test."""
    return float(binom.sf(right - 1, releases, min(0.5 + advantage / 2, 1.0)))


def reach_p_value(releases: int, largest: float, noise: float) -> float:
    """Probability that one of so many releases goes so far or farther: 1 - Phi((largest - 1) / noise)^releases.

    `largest` is in units of the clip, `noise` > 0 the standard deviation in the same.
    """
    return -math.expm1(releases * float(norm.logcdf((largest - 1) / noise)))


def _check(canaries: int, guesses: int, right: int, delta: float) -> None:
    """ValueError where the numbers are none of an audit."""
    if not 0 <= right <= guesses <= canaries or not 0 <= delta <= 1:
        raise ValueError(f"{right} right of {guesses} guesses of {canaries} canaries at delta {delta} is no audit")
