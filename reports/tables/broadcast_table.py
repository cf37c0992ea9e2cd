"""What clients could notice of active servers: their own checks on what they were sent, as multiples of the honest numbers.

A pure function of records; the checks are those of privbench/scoring/broadcast_checks.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from privbench import registry
from privbench.records.schema import AttackRecord
from privbench.scoring.broadcast_checks import CHECKS
from reports.records.labels import label, place, round_text
from reports.records.number_text import NONE
from reports.records.quotable import is_quotable
from reports.tables.report import Table

TITLE = "What clients could notice of active servers"
HOW = (
    "A client computes these numbers of the networks that it received: the largest weight; on 16 of its images the loss, the norm "
    "of its gradient, and how far one image's gradient exceeds all others together; and how far a received generator's features "
    "are from its own. A cell says how many times the honest number that is: median [least, most] over clients and seeds. "
    "A multiple of 1 cannot be noticed. A server that knows the checks may pass them."
)


def tables(records: Sequence[AttackRecord]) -> list[Table]:
    """The table, where any of the records has such checks; none of smoke runs."""
    shown = [r for r in records if is_quotable(r.cell.preset) and any(s.broadcast for s in r.seeds)]
    if not shown:
        return []
    ordered = sorted(shown, key=lambda r: (place(r.cell), r.cell.round, r.attack))
    rows = [
        [
            registry.short(r.cell.train.dataset),
            label(r.cell),
            round_text(r.cell.round),
            r.attack,
            *(_text(r, check) for check in CHECKS),
        ]
        for r in ordered
    ]
    return [Table(TITLE, ("data set", "method", "round", "attack", *CHECKS), rows, text=[HOW], on_paper=())]


def _text(record: AttackRecord, check: str) -> str:
    """One cell; "not finite" where the sent number of any client is not."""
    checks = [each for seed in record.seeds for each in seed.broadcast or ()]
    if any(check in each.sent and each.sent[check] is None for each in checks):
        return "not finite"
    ratios = [ratio for each in checks if (ratio := each.ratio(check)) is not None]
    if not ratios:
        return NONE
    return f"{median(ratios):.3g} [{min(ratios):.3g}, {max(ratios):.3g}]"
