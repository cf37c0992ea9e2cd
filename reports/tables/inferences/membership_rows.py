"""Rows on membership in the table of what else is learned: how well an inference tells a client's training images from others.

The area under the ROC curve, the balanced accuracy of "member" where its probability is above 1/2, and the true-positive rates at
1% and at 10% false positives are means over clients and seeds. Beside the area stands the blind one, of a classifier of pixels
(privbench/scoring/blind_membership.py): only above that does an area say something of networks. A client counts as recognised where
the rate at 1% is above what chance gives, corrected for the number of clients (Holm); the test is exact
(privbench/scoring/membership.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean

import numpy as np

from privbench import registry
from privbench.records.entries import Statement
from privbench.records.schema import InferenceRecord
from privbench.scoring import membership
from privbench.scoring.membership import CONFIDENCE, Rates, Recognition
from privbench.scoring.statement_scores import BLIND
from privbench.scoring.statistics import Interval, interval
from reports.records import quotable
from reports.records.labels import inferred_text, label, round_text, unique
from reports.records.number_text import NONE, range_text
from reports.tables.render import bold

LOW, HIGH = 0.01, 0.1  # false-positive rates
COLUMNS = (
    "method", "inference", "attacker knows", "round", "AUC", "blind AUC", "balanced accuracy, %", f"TPR at {LOW:.0%} FPR, %",
    f"TPR at {HIGH:.0%} FPR, %", "clients recognised",
)  # fmt: skip
# (the value of one client, what makes its resamples where they are asked for)
Statistic = Callable[[Statement], tuple[float, Callable[[], Rates]]]
SCORED = COLUMNS[COLUMNS.index("AUC") :]


def row(r: InferenceRecord) -> list[str]:
    """The cells of one record; those with a score say nothing in smoke."""
    area, orders = mean(r, auc).within(0, 1), [_order(s) for s in r.statements]
    text = range_text(area, digits=3)
    cells = {
        "method": label(r.cell),
        "inference": r.attack,
        "attacker knows": inferred_text(r),
        "round": round_text(r.cell.round),
        "AUC": bold(text) if significantly_above_floors(r) else text,
        "blind AUC": range_text(blind(r).within(0, 1), digits=3) if _has_blind(r) else NONE,
        "balanced accuracy, %": range_text(mean(r, balanced_accuracy).within(0, 100), digits=1),
        **{f"TPR at {rate:.0%} FPR, %": _rate_text(r, orders, rate) for rate in (LOW, HIGH)},
        "clients recognised": f"{membership.recognised(orders, LOW)} of {len(orders)}",
    }
    if not quotable.is_quotable(r.cell.preset):
        cells |= dict.fromkeys(SCORED, quotable.NOT_SHOWN)
    return [cells[name] for name in COLUMNS]


def how(records: Sequence[InferenceRecord]) -> list[str]:
    """What the numbers are."""
    counts = sorted({len(s.true) // 2 for r in records for s in r.statements})
    span = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return [
        f"Membership: {span} training images of each client among as many images of the same classes that no client trained on. "
        f"Chance gives an AUC of 0.5, a balanced accuracy of 50%, and a TPR of {rates_by_chance(counts[0])}. "
        "Blind: a classifier of pixels that is told four fifths of the answers and has no network; above 0.5 members differ from "
        "the others without any. A bold AUC is significantly above chance and above the blind one. 'Provable from': the lowest TPR "
        f"that so few images of a client distinguish from chance with {CONFIDENCE:.0%} confidence. 'Clients recognised': those "
        f"whose TPR at {LOW:.0%} FPR does, corrected for their number. "
        "Intervals hold the error of the non-members that seeds share.",
        *_unlike(records),
    ]


def _unlike(records: Sequence[InferenceRecord]) -> list[str]:
    """A sentence for each run whose members are told from others without any network."""
    said = [
        f"{label(r.cell)} on {registry.short(r.cell.train.dataset)}: members differ from the others without any network, so that "
        "rates of true positives and recognised clients say nothing of the networks."
        for r in records
        if _has_blind(r) and quotable.is_quotable(r.cell.preset) and significantly_above_chance(blind(r))
    ]
    return unique(said)


def rates_by_chance(others: int) -> str:
    """The true-positive rates that chance gives among so few non-members."""
    return " and of ".join(f"{100 * membership.chance(others, rate):.1f}% at {rate:.0%} FPR" for rate in (LOW, HIGH))


def significantly_above_chance(area: Interval) -> bool:
    """Whether an area under the ROC curve is significantly above 1/2."""
    return Interval(area.mean - 0.5, area.low - 0.5, area.high - 0.5, area.seeds).significantly_above


def significantly_above_floors(r: InferenceRecord) -> bool:
    """Whether the area is significantly above that of every floor; not where the blind one was not measured."""
    return _has_blind(r) and all(mean(r, partial(_gain, floor=floor)).significantly_above for floor in r.floors)


def blind(r: InferenceRecord) -> Interval:
    """The area of pixels alone, over clients and seeds; KeyError in a record from before it was measured."""
    variance = fmean(membership.area_variance(s.floors[BLIND], *_asked(s)) for s in r.statements)
    return interval([s.floors[BLIND] for s in r.statements], r.statements, shared_variance=_shared(r) * variance)


def _asked(one: Statement) -> tuple[int, int]:
    """How many members and non-members."""
    members = sum(t > 0 for t in one.true)
    return members, len(one.true) - members


def _has_blind(r: InferenceRecord) -> bool:
    return BLIND in r.floors


def _gain(one: Statement, floor: str) -> tuple[float, Callable[[], Rates]]:
    """How much an area is above that of a floor, with the error of its own images."""
    value, resamples = auc(one)
    return value - one.floors[floor], lambda: resamples() - one.floors[floor]


def mean(r: InferenceRecord, statistic: Statistic) -> Interval:
    """Over clients and seeds, with the error of each client's images.

    That error is in the spread of the seeds' values, but for non-members that several seeds ask about: of these it is common to
    them, and is added as the shared part of the variance of a client's resamples. That counts the members' error, too, and makes
    the interval rather too wide. Where it is not known what seeds share, and of one seed, everything counts as shared.
    """
    values, resamples = zip(*(statistic(s) for s in r.statements), strict=True)
    each = zip(values, resamples, strict=True)
    variance = fmean(membership.error_variance(value, draw()) for value, draw in each)
    return interval(values, r.statements, shared_variance=_shared(r) * variance)


def _shared(r: InferenceRecord) -> float:
    """What seeds share of their non-members, and everything where it is not known."""
    shared = shared_by_seeds(r.statements)
    return 1.0 if shared is None else shared


def shared_by_seeds(statements: Sequence[Statement]) -> float | None:
    """The mean share of a client's non-members that a client of another seed is asked about, too.

    None where the records do not say, and of one seed.
    """
    others = [(s.seed, frozenset(s.others)) for s in statements if s.others]
    pairs = [len(one & other) / len(one) for a, one in others for b, other in others if a != b]
    return fmean(pairs) if pairs and len(others) == len(statements) else None


def auc(one: Statement) -> tuple[float, Callable[[], Rates]]:
    """P[a member has a higher probability than another candidate], ties counted half."""
    return one.score, lambda: membership.auc_resamples(_order(one), _name(one))


def balanced_accuracy(one: Statement) -> tuple[float, Callable[[], Rates]]:
    """Percent: the mean of the shares of members and of others that are named rightly, a member above a probability of 1/2."""
    said, members = np.array(one.stated) > 0.5, np.array(one.true) > 0
    right = [(int((said == members)[group].sum()), int(group.sum())) for group in (members, ~members)]

    def resamples() -> Rates:
        each = zip(right, ("members", "others"), strict=True)
        return 50 * sum(
            (membership.share_resamples(*hits, f"{_name(one)}/{kind}") for hits, kind in each), np.zeros(())
        )

    return 50 * sum(hits / count for hits, count in right), resamples


def true_positive_rate(one: Statement, rate: float) -> tuple[float, Callable[[], Rates]]:
    """Percent, at a false-positive rate."""
    order = _order(one)
    share = membership.true_positives(order, rate) / int(order.members.sum())
    return 100 * share, lambda: 100 * membership.rate_resamples(order, rate, _name(one))


def _rate_text(r: InferenceRecord, orders: Sequence[Recognition], rate: float) -> str:
    """The mean of it, and the least that proves anything of every client."""
    provable = membership.provable(orders, rate)
    least = NONE if provable is None else f"{100 * provable:.1f}"
    text = range_text(mean(r, partial(true_positive_rate, rate=rate)).within(0, 100), digits=1)
    return f"{text} <sub>provable from {least}</sub>"


def _order(one: Statement) -> Recognition:
    stated, members = np.array(one.stated), np.array(one.true) > 0
    return membership.recognition(stated[members], stated[~members])


def _name(one: Statement) -> str:
    return f"{one.seed}/{one.client}"
