"""Each attack on each method in several forms, one of which is the base that the others are compared with, victim by victim."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from privbench.records.schema import AttackRecord
from privbench.spec import CellSpec
from reports.documents.needed_knowledge import differences
from reports.records import measured
from reports.records.labels import NAMES, unique
from reports.records.measured import Measured
from reports.records.number_text import NONE, range_text
from reports.tables import render

Words = Callable[[CellSpec], str]


class PairedRow(NamedTuple):
    """One form of an attack on a method."""

    attack: str  # in words
    method: str
    form: str
    measured: Measured
    base: Measured | None  # what it is compared with; None of the base itself

    @property
    def name(self) -> str:
        """Of a comparison."""
        return f"{self.attack}, {self.method}, {self.form}"


def attack_alone(cell: CellSpec) -> str:
    """An attack whatever its settings."""
    return f"`{cell.attack}`"


def rows(
    records: Sequence[AttackRecord], form_of: Words, base: str, attack_of: Words = attack_alone
) -> list[PairedRow]:
    """Attacks and methods as the records have them, of each the base first and the other forms by their words.

    ValueError: an attack on a method has no record of the base, or two of one form.
    """
    made: list[PairedRow] = []
    for attack, method in unique((attack_of(r.cell), r.cell.train.method) for r in records):
        of_place = [r for r in records if (attack_of(r.cell), r.cell.train.method) == (attack, method)]
        found = {form_of(r.cell): measured.of(r) for r in of_place}
        if len(found) < len(of_place) or base not in found:
            raise ValueError(f"{attack} on {method} has no record of '{base}', or two of one form")
        in_order = sorted(found.items(), key=lambda each: (each[0] != base, each[0]))
        made += [PairedRow(attack, method, form, row, None if form == base else found[base]) for form, row in in_order]
    return made


def gained(each: Sequence[PairedRow]) -> dict[str, str]:
    """Name -> PSNR less that of the base, as `differences.compared` has it over all rows."""
    return differences.compared({row.name: (row.measured, row.base) for row in each if row.base is not None})


def taken(each: Sequence[PairedRow]) -> dict[str, str]:
    """The same with the other sign: PSNR of the base less that of the row."""
    return differences.compared({row.name: (row.base, row.measured) for row in each if row.base is not None})


def cells(row: PairedRow, over_base: Mapping[str, str]) -> list[str]:
    """Attack, method, form, PSNR, gain over the floor, and the difference by name; what is significant is bold."""
    gain = range_text(row.measured.gain_db, sign=True)
    return [
        row.attack,
        NAMES.get(row.method, row.method),
        row.form,
        range_text(row.measured.psnr_db),
        render.bold(gain) if row.measured.is_significant else gain,
        over_base.get(row.name, NONE),
    ]
