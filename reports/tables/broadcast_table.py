"""What clients could notice of active servers: their own checks on what they were sent, as multiples of the honest numbers.

A pure function of records; the checks are those of privbench/scoring/broadcast_checks.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from privbench.records.entries import AttackedSeed, BroadcastCheck
from privbench.records.schema import AttackRecord
from privbench.scoring.broadcast_checks import CHECKS
from reports.records import grouping
from reports.records.labels import label, place, round_place, round_text, unique
from reports.records.number_text import NONE
from reports.records.quotable import is_quotable
from reports.tables.report import Table

TITLE = "What clients could notice of active servers"
HOW = (
    "A client computes these numbers of the networks that it received: the largest weight; on 16 of its images the loss, the norm "
    "of its gradient, and how far one image's gradient exceeds all others together; and how far a received generator's features "
    "are from its own. A cell says how many times the honest number that is: median [least, most] over clients and seeds. "
    "A multiple of 1 cannot be noticed. A server that knows the checks may pass them. Where crafted networks would bring back no "
    "more, it sends the honest ones: there is nothing to notice, and such seeds have no multiple."
)
HONEST = "sent the honest networks"


def tables(records: Sequence[AttackRecord]) -> list[Table]:
    """A table a setting and batch size, where any of the records has such checks; none of smoke runs."""
    shown = [r for r in records if is_quotable(r.cell.preset) and any(s.broadcast for s in r.seeds)]
    by_title = {title: [r for r in shown if _title(r) == title] for title in unique(map(_title, shown))}
    columns = ("method", "round", "attack", *CHECKS)
    # They are explained once.
    return [
        Table(title, columns, _rows(records), text=[] if i else [HOW], on_paper=())
        for i, (title, records) in enumerate(by_title.items())
    ]


def _title(record: AttackRecord) -> str:
    size = record.cell.batch_size
    return f"{TITLE}: {grouping.title(grouping.setting(record.cell))}" + (f", {size} images each" if size > 1 else "")


def _rows(records: Sequence[AttackRecord]) -> list[list[str]]:
    ordered = sorted(records, key=lambda r: (place(r.cell), round_place(r.cell.round), r.cell.round, r.attack))
    return [[label(r.cell), round_text(r.cell.round), *_attack_and_texts(r)] for r in ordered]


def _attack_and_texts(record: AttackRecord) -> list[str]:
    """The attack, and of each check the multiples in those seeds in which the server sent crafted networks."""
    checked = [seed for seed in record.seeds if seed.broadcast]
    crafted = [seed for seed in checked if not _is_honest(seed)]
    if not crafted:
        return [record.attack, HONEST, *[NONE] * (len(CHECKS) - 1)]
    honest = len(checked) - len(crafted)
    remark = f" (honest in {honest} of {len(checked)} seeds)" if honest else ""
    each = [check for seed in crafted for check in seed.broadcast or ()]
    return [record.attack + remark, *(_text(each, check) for check in CHECKS)]


def _is_honest(seed: AttackedSeed) -> bool:
    """Whether the server sent the honest networks to all: the attack applies to no victim, and no number of any client differs.

    Equal numbers alone would not say so, as these checks do not see every change of what was sent.
    """
    applies = any(v.outcome != "not applicable" for v in seed.victims)
    return not applies and all(check.sent == check.honest for check in seed.broadcast or ())


def _text(checks: Sequence[BroadcastCheck], check: str) -> str:
    """One cell; "not finite" where the sent number of any client is not."""
    if any(check in each.sent and each.sent[check] is None for each in checks):
        return "not finite"
    ratios = [ratio for each in checks if (ratio := each.ratio(check)) is not None]
    if not ratios:
        return NONE
    return f"{median(ratios):.3g} [{min(ratios):.3g}, {max(ratios):.3g}]"
