"""Epsilon as tables say it: what a defence guarantees to the client that it guarantees least, and what an audit proves of it.

Seeds are audited apart, each with canaries of its own. Together they are one audit of as many canaries, because what several
independent runs send is (epsilon, delta)-differentially private for each canary where every run is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from privbench.execution.privacy import UNITS
from privbench.records.checks import CheckMessage
from privbench.records.entries import Audit, Privacy
from privbench.records.schema import Record
from privbench.scoring import epsilon_bounds
from reports.records import grouping
from reports.records.labels import unique

R = TypeVar("R", bound=Record)
EPSILON, AUDITED = "epsilon, worst client", "  audited epsilon, at least"
COVERED, LEFT_OUT = "  networks that epsilon covers", "  not covered by epsilon"
NONE, NO_BOUND = "-", "none"
LARGE = 1000  # an epsilon that is printed without exponent
_CLAIMED = (
    "Epsilon is what the accountant proves of the worst client's training: smaller is more private. An attacked gradient is one "
    "more release, in which the attacked image takes part for certain; of a guarantee per client, so is each upload that an attack "
    "has of the client."
)
_AUDITED = (
    " The audited epsilon is what canaries show that it is at least, with 95% confidence; 'of' is what the same guesses could have "
    "shown at most."
)


class Proved(NamedTuple):
    """What the audits of all seeds prove together."""

    canaries: int
    guesses: int
    right: int
    lower_bound: float
    provable: float


def worst(record: Record) -> Privacy | None:
    """Of the client, over all seeds, that is guaranteed least; None where nothing is guaranteed."""
    each = [privacy for seed in record.seeds for privacy in seed.privacy or ()]
    return max(each, key=_epsilon, default=None)


def _epsilon(privacy: Privacy) -> float:
    return math.inf if privacy.epsilon is None else privacy.epsilon


def epsilon(record: Record) -> float | None:
    """The epsilon of that client; None where none is finite."""
    privacy = worst(record)
    return None if privacy is None else privacy.epsilon


def any_stated(records: Sequence[Record]) -> bool:
    """Whether a defence of some records guarantees anything, so that their table has a place for epsilon."""
    return any(worst(r) is not None for r in records)


def are_audited(records: Sequence[Record]) -> bool:
    """Whether the epsilon of some record was audited."""
    return any(_audits(r) for r in records)


def how(records: Sequence[Record]) -> list[str]:
    """How to read epsilon, where some records have one."""
    if not any_stated(records):
        return []
    return [_CLAIMED + (_AUDITED if are_audited(records) else "")]


def rows(records: Sequence[Record], row: Callable[[str, Callable[[Sequence[R]], str]], list[str]]) -> list[list[str]]:
    """The rows of a table whose columns are methods, made by its `row`; none where nothing is guaranteed."""
    if not any_stated(records):
        return []
    texts = {EPSILON: text, COVERED: covered_text, LEFT_OUT: left_out_text}
    texts |= {AUDITED: audited_text} if are_audited(records) else {}
    return [row(name, _of_first(of)) for name, of in texts.items()]


def _of_first(of: Callable[[Record], str]) -> Callable[[Sequence[R]], str]:
    """Of a column whose records are of one training."""
    return lambda column: of(column[0])


def proved(record: Record) -> Proved | None:
    """What was audited; None where nothing was."""
    audits = _audits(record)
    if not audits:
        return None
    canaries, guesses, right = (sum(getattr(a, name) for a in audits) for name in ("canaries", "guesses", "right"))
    delta = max(a.delta for a in audits)
    low, most = (epsilon_bounds.lower_bound(canaries, guesses, v, delta) for v in (right, guesses))
    return Proved(canaries, guesses, right, low, most)


def _audits(record: Record) -> list[Audit]:
    return [seed.audit for seed in record.seeds if seed.audit is not None]


def text(record: Record) -> str:
    """E.g. "7.99 (delta 1e-05, per image)", rounded up; "none" where there is no finite one."""
    privacy = worst(record)
    if privacy is None or privacy.epsilon is None:
        return NO_BOUND
    large = privacy.epsilon >= LARGE
    size = f"{math.ceil(privacy.epsilon):,}" if large else f"{epsilon_bounds.rounded_up(privacy.epsilon):.3g}"
    return f"{size} (delta {privacy.delta:g}, {unit_text(record)})"


def unit_text(record: Record) -> str:
    """What a guarantee is of, e.g. "per image"; NONE without one."""
    privacy = worst(record)
    return NONE if privacy is None else f"per {UNITS[privacy.unit]}"


def audited_text(record: Record) -> str:
    """E.g. "2.93 of 3.68 (1,000 canaries)", rounded down; "-" where nothing was audited."""
    each = proved(record)
    if each is None:
        return NONE
    low, most = map(epsilon_bounds.rounded_down, (each.lower_bound, each.provable))
    return f"{low:.2f} of {most:.2f} ({each.canaries:,} canaries)"


def covered_text(record: Record) -> str:
    """The networks whose training the guarantee is of, e.g. "classifier, extractor"; "-" where there is none."""
    privacy = worst(record)
    return NONE if privacy is None or privacy.epsilon is None else ", ".join(privacy.covers) or NONE


def left_out_text(record: Record) -> str:
    """What leaves the client besides, e.g. "number of training images, label counts"; "-" where nothing is guaranteed."""
    privacy = worst(record)
    return NONE if privacy is None or privacy.epsilon is None else ", ".join(privacy.leaves_out) or "nothing"


def coverage(records: Sequence[Record]) -> list[str]:
    """What epsilon covers and what it leaves out, one line for all rows of which the same holds; nothing without a guarantee."""
    each: dict[tuple[str, str], list[str]] = {}
    for r in records:
        if epsilon(r) is not None:
            each.setdefault((covered_text(r), left_out_text(r)), []).append(grouping.row(r.cell))
    of = [f" of {'; '.join(unique(names))}" if len(each) > 1 else "" for names in each.values()]
    return [
        f"Epsilon{names} covers the training of: {covers}. Not covered: {besides}."
        for names, (covers, besides) in zip(of, each, strict=True)
    ]


def whole_text(record: Record) -> str:
    """Both in one cell."""
    audited = audited_text(record)
    return text(record) if audited == NONE else f"{text(record)}; audited at least {audited}"


def cells(record: Record, among: Sequence[Record]) -> dict[str, str]:
    """The cell of one row of a long table; nothing where no row of the table has a guarantee."""
    if not any_stated(among):
        return {}
    return {
        "epsilon": whole_text(record),
        COVERED.strip(): covered_text(record),
        LEFT_OUT.strip(): left_out_text(record),
    }


def columns(record: Record, among: Sequence[Record]) -> dict[str, Any]:
    """The columns of one row of a CSV file; nothing where no row of the file has a guarantee."""
    if not any_stated(among):
        return {}
    privacy, audit = worst(record), proved(record)
    return {
        "epsilon": epsilon(record),
        "delta": privacy and privacy.delta,
        "privacy_unit": privacy and privacy.unit,
        "privacy_covers": privacy and "; ".join(privacy.covers),
        "privacy_leaves_out": privacy and "; ".join(privacy.leaves_out),
        "audited_epsilon": audit and audit.lower_bound,
        "audit_could_prove": audit and audit.provable,
        "audit_canaries": audit and audit.canaries,
        "audit_guesses": audit and audit.guesses,
        "audit_right": audit and audit.right,
    }


def refuted(record: Record) -> list[CheckMessage]:
    """A claim that cannot be true: contradicted by the audit of a seed, which is one of several."""
    audits = _audits(record)
    if not any(audit.contradicted(len(audits)) for audit in audits):
        return []
    sentence = "the audit contradicts the claimed epsilon, so that it is not to be relied on"
    return [CheckMessage(name="audit-refutes", sentence=sentence)]
