"""Paired tests on the same victims: does one method, or one attack, really score otherwise than another?

Each pair of methods is compared at its strongest attacks, victim by victim (the same image, the same seed), by the Wilcoxon
signed-rank test (privbench.score.paired_p); p values are adjusted by Holm over all comparisons of one table. Victims of one seed
share a trained network, so a small p says that these networks differ on these and like images, not that training again would.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

from privbench import score
from privbench.record import AttackRecord, Range
from reports.published_form import group, groups, label, place, range_text, strongest, title_of, unique

ALPHA = 0.05
HOW = (
    "Strongest attack on each, paired by victim; Wilcoxon signed-rank, Holm over the table. Victims of one seed share a trained "
    "network, so a small p speaks of these networks and like images, not of training again."
)
COLUMNS = ("comparison", "n", "difference dB", "p (Wilcoxon)", "p (Holm)", "verdict")


class Comparison(NamedTuple):
    """One paired comparison, first minus second."""

    name: str
    ids: tuple[str, ...]  # of the records compared
    n: int  # victims both attacked
    difference_db: Range
    p: float
    holm: float
    intervals_overlap: bool  # of the two means, each by itself

    @property
    def differ(self) -> bool:
        """Whether a difference is claimed."""
        return self.holm < ALPHA


class _Pair(NamedTuple):
    name: str
    ids: tuple[str, ...]
    differences: list[float]
    intervals_overlap: bool


def between_methods(records: Sequence[AttackRecord]) -> list[Comparison]:
    """Every pair of methods among records of one table, each by its strongest attack; pairs without common victims are left out."""
    order = unique(label(r.spec) for r in sorted(records, key=lambda r: place(r.spec)))
    best = [strongest([r for r in records if label(r.spec) == name]) for name in order]
    return _tested([_pair(a, b, label(a.spec), label(b.spec)) for a, b in combinations(best, 2)])


def between_methods_of_each(records: Sequence[AttackRecord]) -> list[Comparison]:
    """The same for each of the tables that some records make; each table's p values are adjusted by themselves."""
    several = len(groups(records)) > 1
    found = []
    for key in groups(records):
        own = between_methods([r for r in records if group(r.spec) == key])
        found += [c._replace(name=f"{title_of(key)}: {c.name}") if several else c for c in own]
    return found


def against_floor(records: Sequence[AttackRecord], names: Sequence[str]) -> list[Comparison]:
    """Each record's attack against its best floor on the same victims."""
    pairs = []
    for name, r in zip(names, records, strict=True):
        floor = range_of([v.floors[r.floor.name] for v in r.victims])
        overlap = _overlap(r.scores.psnr_db, floor)
        gains = [v.psnr_db - v.floors[r.floor.name] for v in r.victims]
        pairs.append(_Pair(f"{name} - {r.floor.name}", (r.id,), gains, overlap))
    return _tested(pairs)


def differences_db(first: AttackRecord, second: AttackRecord) -> list[float]:
    """PSNR of the first less the second's, for every victim that both attacked: the same images under the same seed."""
    other = {(v.seed, *v.images): v.psnr_db for v in second.victims}
    return [v.psnr_db - other[v.seed, *v.images] for v in first.victims if (v.seed, *v.images) in other]


def _pair(a: AttackRecord, b: AttackRecord, first: str, second: str) -> _Pair:
    overlap = _overlap(a.scores.psnr_db, b.scores.psnr_db)
    return _Pair(f"{first} - {second}", (a.id, b.id), differences_db(a, b), overlap)


def _overlap(a: Range, b: Range) -> bool:
    return a.low <= b.high and b.low <= a.high


def range_of(values: Sequence[float]) -> Range:
    """Mean and 95% bootstrap interval over victims; the reports of one study ask for the same ones again and again."""
    return _range(tuple(values))


@lru_cache(maxsize=16_384)
def _range(values: tuple[float, ...]) -> Range:
    return Range(**score.interval(values)._asdict())


def _tested(pairs: Sequence[_Pair]) -> list[Comparison]:
    pairs = [pair for pair in pairs if pair.differences]
    p_values = [score.paired_p(pair.differences) for pair in pairs]
    return [
        Comparison(
            pair.name, pair.ids, len(pair.differences), range_of(pair.differences), p, holm, pair.intervals_overlap
        )
        for pair, p, holm in zip(pairs, p_values, score.holm(p_values), strict=True)
    ]


def rows(comparisons: Sequence[Comparison]) -> list[list[str]]:
    """The comparisons as a table's rows, under COLUMNS."""
    return [
        [
            c.name, str(c.n), range_text(c.difference_db, sign=True), p_text(c.p), p_text(c.holm),
            "differ" if c.differ else "no difference shown",
        ]
        for c in comparisons
    ]  # fmt: skip


def p_text(p: float) -> str:
    """A p value as papers print it."""
    return "< 0.0001" if p < 1e-4 else f"{p:.4f}"
