"""The attacks that the ladder leaves out by default, beside what stays of those who know as little."""

from __future__ import annotations

from collections.abc import Sequence

from privbench import registry
from privbench.records.schema import AttackRecord
from reports.documents.needed_knowledge import differences
from reports.records import comparison, knowledge_sets, measured
from reports.records.labels import label, place, round_place, round_text
from reports.records.measured import Measured, strongest
from reports.records.number_text import range_text
from reports.tables import render

COLUMNS = (
    "method", "attack left out", "round", "PSNR, dB", "over the floor, dB", "over the floor of its knowledge, dB",
    "strongest that stays", "over that, dB",
)  # fmt: skip


def table(left_out: Sequence[AttackRecord], ladder: Sequence[AttackRecord]) -> str:
    """A row an attack, method and round.

    The floor of its knowledge and the attack that stays know no more than it does; what it is over each is paired by victim, and
    bold where a difference is claimed, adjusted over the column.

    ladder   records of the same methods and rounds; ValueError where no floor or no attack among them knows as little
    """
    ordered = sorted(left_out, key=lambda r: (place(r.cell), r.attack, round_place(r.cell.round)))
    rows = {_name(r): measured.of(r) for r in ordered}
    floors, stays = ({_name(r): _within(r, ladder, are_floors=are) for r in ordered} for are in (True, False))
    over_floors, over_stays = (
        differences.compared({name: (rows[name], other) for name, other in others.items()})
        for others in (floors, stays)
    )
    body = []
    for r in ordered:
        name, row = _name(r), rows[_name(r)]
        gain = range_text(row.gain_db, sign=True)
        body.append([
            label(r.cell), f"`{r.attack}`", round_text(r.cell.round), range_text(row.psnr_db),
            render.bold(gain) if row.is_significant else gain, f"{over_floors[name]} {render.small(floors[name].name)}",
            f"`{stays[name].name}`", over_stays[name],
        ])  # fmt: skip
    rule = comparison.RULE.replace("over the table", "over their column")
    return f"{render.markdown(COLUMNS, body)}\n\n{rule} Of its own floor a gain is bold by its interval alone."


def _within(record: AttackRecord, ladder: Sequence[AttackRecord], *, are_floors: bool) -> Measured:
    """Of floors, or of other attacks, on the same cell the strongest whose knowledge lies within that of an attack left out."""
    found = [
        r
        for r in ladder
        if (label(r.cell), r.cell.round) == (label(record.cell), record.cell.round)
        and (r.attack in registry.FLOORS) == are_floors
        and knowledge_sets.lies_within(r, record)
    ]
    if not found:
        raise ValueError(f"no {'floor' if are_floors else 'attack'} of the ladder knows as little as {_name(record)}")
    return strongest(found)


def _name(record: AttackRecord) -> str:
    return f"{record.attack} on {label(record.cell)}, round {record.cell.round}"
