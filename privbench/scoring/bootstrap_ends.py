"""Quantiles of the hierarchical bootstrap's mean (privbench/scoring/statistics.py), without a draw.

A resample draws S seeds with replacement, C_s clients within each drawn seed, V_c victims within each drawn client. Its mean is at
most q where T = sum over drawn victims of (x - q) is at most 0. Draws are independent, so that the characteristic function of T is
    phi(u) = [1/S sum_s [1/C_s sum_c [1/V_c sum_v exp(i u (x_v - q))]^V_c]^C_s]^S,
and Gil-Pelaez (Biometrika 1951) gives P[T <= 0] = 1/2 - 1/pi int_0^oo Im phi(u) / u du. T lies within a known span, so that the
midpoint rule at u_k = (k + 1/2) 2 pi / span has no error but that of its end (Davies, Biometrika 1973). A resample among few or
equal values has jumps, of which phi does not fade: every drawn value is spread by a normal of SMOOTH times the values' standard
deviation, which adds 0.02% or less to that of their mean.

Resampling leaves an end a random error, which decides a mark where the end is near 0: at 4,000 resamples 4% of the mean's
standard deviation, in tables of five seeds up to 0.1 dB.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq

SMOOTH = 0.02
MARGIN = 0.05  # of the span, on either side of the values
MOST_BLOCKS = 1000
FADED = 1e-10  # of phi in a whole block of nodes, behind which nothing is added
BLOCK = 64  # of nodes
Complex = np.ndarray[Any, np.dtype[np.complex128]]
Numbers = np.ndarray[Any, np.dtype[np.float64]]


class Tree(NamedTuple):
    """Values in [0, 1] by seed and client, and how a resample draws them."""

    seeds: list[list[Numbers]]
    seeds_fixed: bool  # every seed once

    @property
    def most(self) -> int:
        """The most victims that a resample has."""
        each = [len(clients) * max(map(len, clients)) for clients in self.seeds]
        return sum(each) if self.seeds_fixed else len(each) * max(each)

    @property
    def is_even(self) -> bool:
        """Whether every resample has as many."""
        sizes = {(len(clients), *sorted({len(one) for one in clients})) for clients in self.seeds}
        return all(len({len(one) for one in clients}) == 1 for clients in self.seeds) and (
            self.seeds_fixed or len(sizes) == 1
        )


def quantiles(
    values: Sequence[float], places: Sequence[tuple[int, int]], levels: Sequence[float], *, seeds_fixed: bool
) -> list[float]:
    """Of the mean of a resample, the values at some levels in (0, 1); `places` are (seed, client). The values are not all equal."""
    data = np.asarray(values, dtype=np.float64)
    # What is spread of a jump at either end has to lie within the span, too.
    span = float(np.ptp(data)) / (1 - 2 * MARGIN)
    least = float(data.min()) - MARGIN * span
    order = sorted(range(len(places)), key=lambda i: places[i])
    seeds = [
        [(data[list(members)] - least) / span for _, members in groupby(of_seed, key=lambda i: places[i][1])]
        for of_seed in (list(each) for _, each in groupby(order, key=lambda i: places[i][0]))
    ]
    if seeds_fixed and len(seeds) == len(data):
        # There is one resample.
        return [float(data.mean())] * len(levels)
    distribution = Distribution(Tree(seeds, seeds_fixed))
    each = [least + span * distribution.quantile(level) for level in levels]
    return [min(max(one, float(data.min())), float(data.max())) for one in each]


class Distribution:
    """The mean of a resample of values in [0, 1]."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        every = np.concatenate([one for clients in tree.seeds for one in clients])
        self.spread = SMOOTH * float(every.std())
        nodes, clients = list[Numbers](), list[list[list[Complex]]]()
        for number in range(MOST_BLOCKS):
            first = BLOCK * number
            u: Numbers = np.arange(first, first + BLOCK, dtype=np.float64) * 2 * np.pi + np.pi
            nodes.append(u)
            clients.append(self._of_clients(u))
            if np.abs(self._phi(clients[-1], u, self._mean())).max() < FADED:
                break
        self.u = np.concatenate(nodes)
        self.clients = [
            [np.concatenate([block[s][c] for block in clients]) for c in range(len(of_seed))]
            for s, of_seed in enumerate(tree.seeds)
        ]
        self.at_0 = self._phi(self.clients, self.u, 0.0) if tree.is_even else None

    def quantile(self, level: float) -> float:
        """The mean that a resample's exceeds with a probability of 1 - level."""
        if self.below(0.0) >= level:
            return 0.0
        if self.below(1.0) <= level:
            return 1.0
        return float(brentq(lambda q: self.below(q) - level, 0.0, 1.0, xtol=1e-12))

    def below(self, q: float) -> float:
        """P[mean <= q]."""
        phi = self._phi(self.clients, self.u, q) if self.at_0 is None else self.at_0 * np.exp(-1j * self.u * q)
        # The nodes lie 2 pi apart.
        return 0.5 - 2 * float((phi.imag / self.u).sum())

    def _mean(self) -> float:
        return float(np.mean([np.mean([one.mean() for one in clients]) for clients in self.tree.seeds]))

    def _of_clients(self, u: Numbers) -> list[list[Complex]]:
        """1/V_c sum_v exp(i u x_v / most) of every client [K], each x_v spread."""
        at = u / self.tree.most
        spread = np.exp(-0.5 * (self.spread * at) ** 2)
        return [[spread * np.exp(1j * np.outer(at, one)).mean(1) for one in clients] for clients in self.tree.seeds]

    def _phi(self, clients: list[list[Complex]], u: Numbers, q: float) -> Complex:
        """The characteristic function [K] of T / most, from that of every client's victims."""
        turn = np.exp(-1j * u * q / self.tree.most)
        of_seeds = []
        for of_seed, each in zip(clients, self.tree.seeds, strict=True):
            drawn = [(one * turn) ** len(victims) for one, victims in zip(of_seed, each, strict=True)]
            of_seeds.append(np.mean(drawn, axis=0) ** len(drawn))
        if self.tree.seeds_fixed:
            return np.prod(of_seeds, axis=0)
        return np.mean(of_seeds, axis=0) ** len(of_seeds)
