"""The records of a ladder in the order of its page: round by round, a column a method, from less knowledge to more."""

from __future__ import annotations

from collections.abc import Sequence

from privbench import registry
from privbench.records.schema import AttackRecord
from reports.records import grouping
from reports.records.labels import Gap, attacker_text, group, label, place, round_place, unique
from reports.tables import ladder

Column = list[AttackRecord]  # of one method


def rounds_of(records: Sequence[AttackRecord]) -> list[list[AttackRecord]]:
    """Records table by table, the untrained model first; data sets in the order given."""
    settings = grouping.settings(records)
    keys = sorted(
        unique((settings.index(grouping.setting(r.cell)), round_place(r.cell.round), group(r.cell)) for r in records),
        key=lambda key: key[:2],
    )
    return [[r for r in records if group(r.cell) == key] for *_, key in keys]


def columns_of(records: Sequence[AttackRecord], lost: Sequence[Gap]) -> dict[str, Column]:
    """Method -> its records, in the published order; a method of which nothing is there keeps its column."""
    names = unique(label(cell) for cell in sorted([*(r.cell for r in records), *(g.cell for g in lost)], key=place))
    return {name: [r for r in records if label(r.cell) == name] for name in names}


def tags_of(records: Sequence[AttackRecord]) -> dict[str, list[AttackRecord]]:
    """Set of knowledge -> the attacks that need all of it, rungs from below."""
    attacks = in_rungs([r for r in records if r.attack not in registry.FLOORS])
    return {tag: [r for r in attacks if attacker_text(r) == tag] for tag in unique(map(attacker_text, attacks))}


def in_rungs(records: Sequence[AttackRecord]) -> list[AttackRecord]:
    """Rungs from below."""
    return sorted(records, key=lambda r: ladder.order(r)[:2])
