"""Paired tests on the same victims: does one method, or one attack, really score otherwise than another?

Each pair of methods is compared at its strongest attacks (reports/records/measured.py), victim by victim: the same image, the
same seed.
A difference is claimed where its p value, adjusted for the number of comparisons, is below ALPHA. Victims of one seed share
trained networks and are no independent sample, so the test is at the level of seeds (privbench.scoring.statistics.p_value):
Student's t of the seeds' mean differences, adjusted by Holm over the comparisons that are asked together: those of methods in one
data set and round, or all of one table. The 95% interval beside it is of the same test, not adjusted. Below LEAST_SEEDS seeds no
verdict is given, and nothing is counted for the adjustment.

Where seeds chose several attacks on one side, the same must hold with each of them alone. Of two that are about as strong, seeds
choose the one that is better elsewhere, and so worse on them: a mixture of equals lies below each of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean
from typing import NamedTuple

from privbench.records.entries import Victim
from privbench.records.schema import AttackRecord
from privbench.scoring import statistics
from privbench.scoring.statistics import ALPHA, LEAST_SEEDS, Interval
from reports.records import grouping, measured
from reports.records.measured import Measured, strongest
from reports.records.number_text import NONE, range_text
from reports.records.quotable import quotable

RULE = (
    "Two cells differ where Student's t of the seeds' mean differences, adjusted by Holm over the table, "
    f"has p < {ALPHA}; below {LEAST_SEEDS} seeds there is no verdict."
)
EACH_ALONE = (
    " Where seeds chose several attacks on one side, the same must hold with each of them alone: chosen on other seeds, a mixture "
    "of equals lies below each of them."
)
# Of a table that also has gains over the floor.
BY_INTERVAL = " Gains over the floor are bold by their interval alone."
HOW = (
    f"Strongest attack on each, paired by victim. {measured.CHOSEN} "
    f"{RULE.replace('over the table', 'over the pairs of one data set and round')}{EACH_ALONE}"
)
COLUMNS = ("comparison", "n", "seeds", "difference dB", "p (t over seeds)", "p (Holm)", "verdict")


class Comparison(NamedTuple):
    """One paired comparison, first minus second."""

    name: str
    ids: tuple[str, ...]  # of the records compared, the first's first
    n: int  # victims both attacked
    difference_db: Interval
    p: float | None  # None with one seed
    holm: float | None  # None below LEAST_SEEDS seeds
    intervals_overlap: bool  # of the two means, each by itself
    holds_alone: bool = True  # with each attack of a side alone, where seeds chose several

    @property
    def differ(self) -> bool:
        """Whether a difference is claimed."""
        return self.holm is not None and self.holm < ALPHA and self.holds_alone

    @property
    def verdict(self) -> str:
        """In words."""
        if self.difference_db.is_few:
            return "too few seeds"
        return "differ" if self.differ else "no difference shown"


class _Pair(NamedTuple):
    name: str
    ids: tuple[str, ...]
    differences: list[float]
    victims: Sequence[Victim]
    intervals_overlap: bool
    alone: Sequence[
        tuple[list[float], Sequence[Victim]]
    ] = ()  # the same of each attack of a side, where there are several


def between_methods(records: Sequence[AttackRecord]) -> list[Comparison]:
    """Every pair of methods among records of one table, each by its strongest attack; pairs without common victims are left out.

    Methods that were not trained alike are no pair (grouping.py).
    """
    return [c for table in grouping.trained_alike(records) for c in _of_columns(table.columns)]


def between_methods_of_each(records: Sequence[AttackRecord]) -> list[Comparison]:
    """The same for each of the tables that some records make; each table's p values are adjusted by themselves.

    Smoke runs are not compared: they test that every part runs, and nothing else.
    """
    records = quotable(records)
    tables = grouping.trained_alike(records)
    comparisons = []
    for table in tables:
        of_table = _of_columns(table.columns)
        comparisons += [c._replace(name=f"{table.title}: {c.name}") if len(tables) > 1 else c for c in of_table]
    return comparisons


def _of_columns(columns: Mapping[str, Sequence[AttackRecord]]) -> list[Comparison]:
    """Every pair of methods of one table; of a method that is there several times the best by validation accuracy."""
    best = {name: strongest(column) for name, column in grouping.best_of_each(columns).items()}
    return _tested([_paired(f"{one} - {other}", best[one], best[other]) for one, other in combinations(best, 2)])


def against_floor(rows: Sequence[Measured], names: Sequence[str]) -> list[Comparison]:
    """Each row's attack against its best floor on the same victims."""
    pairs = []
    for name, row in zip(names, rows, strict=True):
        overlap = _overlap(row.psnr_db, row.floor_db)
        pairs.append(_Pair(f"{name} - {row.floor.name}", (row.first.id,), row.gains, row.victims, overlap))
    return _tested(pairs)


def paired(pairs: Sequence[tuple[str, Measured, Measured]]) -> list[Comparison]:
    """The first of each named pair less the second, victim by victim; pairs without a common victim are left out."""
    return _tested([_paired(name, a, b) for name, a, b in pairs])


def paired_means(one: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    """(mean, low, high) of one less the other, seed by seed: 95% interval of Student's t; ValueError below two seeds."""
    if len(one) != len(other) or len(one) < 2:
        raise ValueError("paired differences need two seeds or more, and the same ones")
    difference = statistics.of_means([a - b for a, b in zip(one, other, strict=True)])
    return difference.mean, difference.mean - difference.half_width, difference.mean + difference.half_width


def _paired(name: str, a: Measured, b: Measured) -> _Pair:
    each = [(measured.of(one), measured.of(other)) for one in a.attacks for other in b.attacks]
    alone = [measured.differences(*pair) for pair in each] if len(each) > 1 else []
    return _Pair(name, (a.first.id, b.first.id), *measured.differences(a, b), _overlap(a.psnr_db, b.psnr_db), alone)


def _overlap(a: Interval, b: Interval) -> bool:
    return a.low <= b.high and b.low <= a.high


def _tested(pairs: Sequence[_Pair]) -> list[Comparison]:
    pairs = [pair for pair in pairs if pair.differences]
    p_values = [statistics.p_value(pair.differences, pair.victims) for pair in pairs]
    tested = [None if _is_few(pair.victims) else p for pair, p in zip(pairs, p_values, strict=True)]
    return [
        Comparison(
            pair.name, pair.ids, len(pair.differences), statistics.interval(pair.differences, pair.victims), p, holm,
            pair.intervals_overlap, _holds_alone(pair, [*tested[:i], *tested[i + 1 :]]),
        )
        for i, (pair, p, holm) in enumerate(zip(pairs, p_values, _adjusted(tested), strict=True))
    ]  # fmt: skip


def _is_few(victims: Sequence[Victim]) -> bool:
    """Whether their seeds are too few for a verdict."""
    return len({v.seed for v in victims}) < LEAST_SEEDS


def _adjusted(p_values: Sequence[float | None]) -> list[float | None]:
    """Each adjusted for how many there are; None where there is no verdict."""
    adjusted = iter(statistics.holm([p for p in p_values if p is not None]))
    return [None if p is None else next(adjusted) for p in p_values]


def _holds_alone(pair: _Pair, others: Sequence[float | None]) -> bool:
    """Whether each attack of a pair's sides alone differs as they do together, among the other p values of the table."""
    mean = fmean(pair.differences)
    for differences, victims in pair.alone:
        if not differences or _is_few(victims) or fmean(differences) * mean <= 0:
            return False
        holm = _adjusted([statistics.p_value(differences, victims), *others])[0]
        if holm is None or holm >= ALPHA:
            return False
    return True


def rows(comparisons: Sequence[Comparison]) -> list[list[str]]:
    """The comparisons as a table's rows, under COLUMNS."""
    return [
        [
            c.name, str(c.n), str(c.difference_db.seeds), range_text(c.difference_db, sign=True), p_text(c.p), p_text(c.holm),
            c.verdict,
        ]
        for c in comparisons
    ]  # fmt: skip


def p_text(p: float | None) -> str:
    """A p value as papers print it."""
    if p is None:
        return NONE
    return "< 0.0001" if p < 1e-4 else f"{p:.4f}"
