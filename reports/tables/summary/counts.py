"""The messages of checks and the missing cells of a ladder, counted: one row for many cells alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from privbench import registry
from privbench.records import checks
from privbench.records.schema import AttackRecord
from reports.records import grouping
from reports.records.labels import Gap, label, round_text, unique

CHECK_COLUMNS = ("check", "cells", "data sets", "rounds", "methods", "attacks", "for example")
GAP_COLUMNS = ("attack", "methods", "data sets", "rounds", "reason")


def check_rows(records: Sequence[AttackRecord], messages: dict[str, list[checks.CheckMessage]]) -> list[list[str]]:
    """One row per check: how many cells fail it, which, and the first of its sentences."""
    raised: dict[str, list[tuple[AttackRecord, str]]] = {}
    for r in records:
        for message in messages[r.id]:
            raised.setdefault(message.name, []).append((r, message.sentence))
    names: list[Callable[[AttackRecord], str]] = [
        lambda r: grouping.short_title(grouping.setting(r.cell)), lambda r: round_text(r.cell.round), lambda r: label(r.cell),
        lambda r: r.attack,
    ]  # fmt: skip
    body = []
    for name, cells in raised.items():
        concerned = list({r.id: r for r, _ in cells}.values())
        where = [_share([of(r) for r in concerned], unique(of(r) for r in records)) for of in names]
        first, sentence = cells[0]
        example = f"{', '.join(of(first) for of in names)}: {sentence}"
        body.append([name, f"{len(concerned)} of {len(records)}", *where, example])
    return body


def _share(values: Sequence[str], every: Sequence[str]) -> str:
    """Which values, the most frequent first, with their numbers; or that all are concerned."""
    counts = Counter(values)
    if len(counts) == len(every) > 1:
        return "all"
    return ", ".join(f"{value} ({number})" if len(counts) > 1 else value for value, number in counts.most_common())


def gap_rows(gaps: Sequence[Gap]) -> list[list[str]]:
    """One row per attack and reason."""
    rows = []
    for attack, reason in unique((g.attack, g.reason) for g in gaps):
        cells = [g.cell for g in gaps if (g.attack, g.reason) == (attack, reason)]
        where = (
            (label(c) for c in cells), (registry.short(c.train.dataset) for c in cells), (round_text(c.round) for c in cells),
        )  # fmt: skip
        rows.append([attack, *(", ".join(unique(each)) for each in where), reason])
    return rows
