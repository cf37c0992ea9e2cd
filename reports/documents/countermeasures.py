"""What each cheap defence takes from each attack: paired differences of PSNR with and without it, and what it costs in accuracy."""

from __future__ import annotations

from collections.abc import Sequence

from privbench import written_defense
from privbench.presets import UPLOADS_PER_ROUND
from privbench.records.schema import AttackRecord
from privbench.spec import CellSpec
from reports.records import comparison, measured
from reports.records.comparison import Comparison
from reports.records.labels import NAMES, unique
from reports.records.measured import Measured
from reports.records.number_text import NONE, range_text, spread_text
from reports.tables import render

COLUMNS = ("attack", "method", "defence", "PSNR, dB", "over the floor, dB", "takes, dB", "accuracy, %")
WITHOUT = "none"


def table(records: Sequence[AttackRecord]) -> str:
    """A row for each attack, method and defence: attacks as the records have them, "none" first, other defences by their words.

    What a defence takes is the PSNR without it less that with it, victim by victim; bold where both rules of
    reports/records/comparison.py say that they differ, p values adjusted by Holm over the whole table.

    ValueError: an attack on a method has no record without a defence, or two of one.
    """
    places = {place: _by_defence(records, *place) for place in unique((r.attack, r.cell.train.method) for r in records)}
    pairs = [
        (_name(*place, words), of[WITHOUT], row)
        for place, of in places.items()
        for words, row in of.items()
        if words != WITHOUT
    ]
    taken = {one.name: one for one in comparison.paired(pairs)}
    rows = [
        _row(*place, words, row, taken.get(_name(*place, words)))
        for place, of in places.items()
        for words, row in of.items()
    ]
    return f"{render.markdown(COLUMNS, rows)}\n\n{comparison.RULE}"


def defence(cell: CellSpec) -> str:
    """What of the study's defences a cell has, in words: "none", or e.g. "dropout 0.5"."""
    train = cell.train
    dropout = train.method_settings.get("dropout", 0)
    clips = [value for kind, items in written_defense.members(train.defense) if kind == "clip" for _, value in items]
    parts = ["a start per client"] if train.initialisation == "per-client" else []
    parts += [f"dropout {dropout:g}"] if dropout else []
    parts += [f"clip {value}" for value in clips]
    if cell.uploads_per_round not in (None, UPLOADS_PER_ROUND):
        parts.append(f"{cell.uploads_per_round} uploads kept a round")
    return ", ".join(parts) or WITHOUT


def _by_defence(records: Sequence[AttackRecord], attack: str, method: str) -> dict[str, Measured]:
    """Defence -> the victims of one attack on one method."""
    of_place = [r for r in records if (r.attack, r.cell.train.method) == (attack, method)]
    found = {defence(r.cell): measured.of(r) for r in of_place}
    if len(found) < len(of_place) or WITHOUT not in found:
        raise ValueError(f"{attack} on {method} has no record without a defence, or two of one defence")
    return dict(sorted(found.items(), key=lambda each: (each[0] != WITHOUT, each[0])))


def _name(attack: str, method: str, words: str) -> str:
    return f"{attack}, {method}, {words}"


def _row(attack: str, method: str, words: str, row: Measured, taken: Comparison | None) -> list[str]:
    gain = range_text(row.gain_db, sign=True)
    takes = NONE if taken is None else range_text(taken.difference_db, sign=True)
    accuracy = row.first.accuracy
    return [
        f"`{attack}`",
        NAMES.get(method, method),
        words,
        range_text(row.psnr_db),
        render.bold(gain) if row.is_sure else gain,
        render.bold(takes) if taken is not None and taken.differ else takes,
        spread_text(accuracy.mean, accuracy.std, 1).replace("+-", "±"),
    ]
