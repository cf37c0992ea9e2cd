"""How well members are recognised: the ROC curve of an attack's scores, what n allows to prove, and its error.

An attack is measured by its true-positive rate at a low false-positive rate, because an average over all images hides those that
are surely recognised (Carlini et al., Membership Inference Attacks From First Principles, IEEE S&P 2022, arXiv 2112.03570). It
is that of the lowest threshold that at most floor(rate * n) of the n non-members exceed; nothing is interpolated.

By chance alone, where members and non-members are exchangeable, the order of their scores is a random one. Then P[t of m members or
more exceed what j of n non-members exceed] = P[Hypergeometric(m + n, n, t + j) <= j]: that the first t + j hold no more than j
non-members. It is exact for every m and n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import hypergeom, norm

from privbench.scoring.statistics import CONFIDENCE, holm
from privbench.seeds import stream

DECIMALS = 5  # of a stored rate: finer than any set of images here
RESAMPLES = 4000
Rates = NDArray[np.float64]
Counts = NDArray[np.int64]


class Recognition(NamedTuple):
    """Members and non-members in falling order of their scores, those with equal scores together: a ROC curve's steps."""

    members: Counts  # [T], how many have the t-th highest score
    non_members: Counts  # [T]


def recognition(members: Rates, non_members: Rates) -> Recognition:
    """The order of scores [m] and [n], higher where an image is likelier a member; what is no number counts as the lowest."""
    each = [
        np.nan_to_num(scores.astype(np.float64), nan=-np.inf, posinf=np.inf, neginf=-np.inf)
        for scores in (members, non_members)
    ]
    values = np.unique(np.concatenate(each))
    counts = [np.bincount(np.searchsorted(values, scores), minlength=len(values))[::-1] for scores in each]
    return Recognition(*counts)


def curve(order: Recognition) -> tuple[list[float], list[float]]:
    """(false-positive rates, true-positive rates) from 0 to 1, collinear points left out."""
    rises = np.stack([order.non_members, order.members])
    # A step in the direction of the one before it makes no corner.
    turns = rises[0, 1:] * rises[1, :-1] != rises[0, :-1] * rises[1, 1:]
    last = np.append(turns, True)
    rates = [np.concatenate([[0], np.cumsum(steps)[last] / steps.sum()]).round(DECIMALS) for steps in rises]
    return rates[0].tolist(), rates[1].tolist()


def of_curve(
    false_positive_rate: Sequence[float], true_positive_rate: Sequence[float], members: int, non_members: int
) -> Recognition:
    """The order behind a curve of so many members and non-members; points of one diagonal line are ties.

    ValueError: rates that do not rise from 0 to 1.
    """
    each = [
        np.rint(np.asarray(rates) * count).astype(np.int64)
        for rates, count in ((true_positive_rate, members), (false_positive_rate, non_members))
    ]
    for counts, count in zip(each, (members, non_members), strict=True):
        if len(counts) < 2 or counts[0] != 0 or counts[-1] != count or (np.diff(counts) < 0).any():
            raise ValueError("a ROC curve rises from (0, 0) to (1, 1)")
    return Recognition(*(np.diff(counts) for counts in each))


def auc(order: Recognition) -> float:
    """P[a member has a higher score than a non-member], ties counted half."""
    return float(_areas(order.members[None], _steps(order)[None])[0])


def true_positives(order: Recognition, rate: float) -> int:
    """How many members exceed the lowest threshold that at most `rate` of the non-members exceed."""
    return int(_members_above(order)[_allowed(order, rate)])


def p_value(hits: int, members: int, non_members: int, rate: float) -> float:
    """Probability of so many true positives or more at that false-positive rate by chance."""
    allowed = math.floor(rate * non_members)
    return float(hypergeom.cdf(allowed, members + non_members, non_members, hits + allowed))


def by_chance(order: Recognition, rate: float) -> float:
    """The same of an order's true positives."""
    return p_value(true_positives(order, rate), int(order.members.sum()), int(order.non_members.sum()), rate)


def recognised(orders: Sequence[Recognition], rate: float) -> int:
    """In how many orders that is below 5%, corrected for their number (Holm)."""
    return sum(p < 1 - CONFIDENCE for p in holm([by_chance(one, rate) for one in orders]))


def chance(non_members: int, rate: float) -> float:
    """The true-positive rate that scores without information are expected to have at that rate of so few non-members.

    Above the threshold, the score of the next non-member, lies one of their n + 1 gaps more than `rate` allows.
    """
    return (math.floor(rate * non_members) + 1) / (non_members + 1)


def provable(orders: Sequence[Recognition], rate: float) -> float | None:
    """The smallest rate that is distinguished from chance in every order; None where there is none in one of them."""
    each = [least_provable(int(one.members.sum()), int(one.non_members.sum()), rate) for one in orders]
    rates = [one for one in each if one is not None]
    return max(rates) if len(rates) == len(each) else None


@lru_cache(maxsize=256)
def least_provable(members: int, non_members: int, rate: float) -> float | None:
    """The smallest true-positive rate that CONFIDENCE distinguishes from chance; None where none does."""
    numbers = range(1, members + 1)
    return next((t / members for t in numbers if p_value(t, members, non_members, rate) < 1 - CONFIDENCE), None)


def auc_resamples(order: Recognition, name: str) -> Rates:
    """The area of RESAMPLES bootstrap samples of members and non-members, [RESAMPLES].

    Resamples of other members have another `name`. Clients are compared with the same held-out images, so that their areas err
    together: in each resample the non-members at one place of the order are drawn equally often for all of them, which makes the
    common part of the error as large as it can be.
    """
    rng = np.random.default_rng(stream(0, "membership", "members", name).initial_seed())
    m, steps = int(order.members.sum()), _steps(order)
    return _areas(rng.multinomial(m, order.members / m, RESAMPLES), steps[_drawn(len(steps), RESAMPLES)])


def rate_resamples(order: Recognition, rate: float, name: str) -> Rates:
    """The true-positive rate, with the error of the threshold (bootstrap, as above) and that of the members (Jeffreys' prior).

    The prior keeps a rate of 0 or 1 among a few members from being sure.
    """
    rng = np.random.default_rng(stream(0, "membership", "rate", name).initial_seed())
    first = _drawn_at(int(order.non_members.sum()), RESAMPLES, _allowed(order, rate))
    exceeding = _members_above(order)[first]
    return rng.beta(exceeding + 0.5, order.members.sum() - exceeding + 0.5)


def share_resamples(hits: int, count: int, name: str) -> Rates:
    """A share of `count` images, `hits` of them, with its error by Jeffreys' prior: [RESAMPLES]."""
    rng = np.random.default_rng(stream(0, "membership", "share", name).initial_seed())
    return rng.beta(hits + 0.5, count - hits + 0.5, RESAMPLES)


def area_variance(area: float, members: int, non_members: int) -> float:
    """Of an area under the ROC curve, by its images (Hanley and McNeil, Radiology 1982, eq. 1)."""
    of_members, of_others = area / (2 - area) - area**2, 2 * area**2 / (1 + area) - area**2
    own = area * (1 - area)
    return (own + (members - 1) * of_members + (non_members - 1) * of_others) / (members * non_members)


def error_variance(value: float, resamples: Rates) -> float:
    """Of a number, from its resamples: the larger distance to where 95% of them end, over that of a standard normal, squared.

    For resamples like a normal's it is their variance; near 0 and 1, where they lie to one side, it is more.
    """
    low, high = np.quantile(resamples, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    return float((max(high - value, value - low, 0.0) / norm.ppf((1 + CONFIDENCE) / 2)) ** 2)


def _steps(order: Recognition) -> Counts:
    """The step of every non-member, in the order: [n]."""
    return np.repeat(np.arange(len(order.non_members)), order.non_members)


def _allowed(order: Recognition, rate: float) -> int:
    """How many non-members may exceed the threshold, which is the score of the next one."""
    return math.floor(rate * int(order.non_members.sum()))


def _members_above(order: Recognition) -> Counts:
    """How many members have a higher score than each non-member, in the order, and how many there are: [n + 1]."""
    above = np.cumsum(order.members) - order.members
    members: Counts = np.append(above[_steps(order)], order.members.sum())
    return members


@lru_cache(maxsize=4)
def _drawn(count: int, resamples: int) -> Counts:
    """Which of `count` images every resample draws: [resamples, count]."""
    rng = np.random.default_rng(stream(0, "membership", "non-members").initial_seed())
    drawn = np.ascontiguousarray(np.floor(rng.random((count, resamples)) * count).astype(np.int64).T)
    drawn.flags.writeable = False
    return drawn


@lru_cache(maxsize=64)
def _drawn_at(count: int, resamples: int, place: int) -> Counts:
    """The image at one place of every resample in the images' order; `count` behind the last place: [resamples]."""
    in_order = np.partition(_drawn(count, resamples), min(place, count - 1), axis=1)
    at: Counts = in_order[:, place].copy() if place < count else np.full(resamples, count)
    at.flags.writeable = False
    return at


def _areas(members: Counts, steps: Counts) -> Rates:
    """Of orders with so many members at each step [R, T], and the step of each non-member [R, n]: [R]."""
    above = np.cumsum(members, 1) - members / 2
    areas: Rates = np.take_along_axis(above, steps, 1).sum(1) / (members.sum(1) * steps.shape[1])
    return areas
