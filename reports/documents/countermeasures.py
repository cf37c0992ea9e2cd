"""What each cheap defence takes from each attack: paired differences of PSNR with and without it, and what it costs in accuracy."""

from __future__ import annotations

from collections.abc import Sequence

from privbench import written_defense
from privbench.presets import UPLOADS_PER_ROUND
from privbench.records.schema import AttackRecord
from privbench.spec import CellSpec
from reports.documents.needed_knowledge import paired_rows
from reports.documents.needed_knowledge.paired_rows import PairedRow
from reports.records import comparison, grouping, remarks
from reports.records.number_text import spread_text
from reports.tables import render

COLUMNS = ("attack", "method", "defence", "PSNR, dB", "over the floor, dB", "takes, dB", "accuracy, %")
WITHOUT = "none"


def table(records: Sequence[AttackRecord]) -> str:
    """A row for each attack, method and defence: attacks as the records have them, "none" first, other defences by their words.

    What a defence takes is the PSNR without it less that with it, victim by victim; bold where
    reports/records/comparison.py says that they differ, p values adjusted by Holm over the whole table.

    ValueError: an attack on a method has no record without a defence, or two of one.
    """
    each = paired_rows.rows(records, defence, WITHOUT, attack_in_words)
    taken = paired_rows.taken(each)
    rows = [[*paired_rows.cells(row, taken), _accuracy(row)] for row in each]
    return f"{render.markdown(COLUMNS, rows)}\n\n{comparison.RULE}{comparison.BY_INTERVAL}"


def attack_in_words(cell: CellSpec) -> str:
    """An attack with its settings, where these are not the preset's: "`joint`, alignment sliced"."""
    return ", ".join(
        each for each in (f"`{cell.attack}`", grouping.override_text(remarks.attack_overrides(cell))) if each
    )


def defence(cell: CellSpec) -> str:
    """What of the study's defences a cell has, in words: "none", or e.g. "dropout 0.5"."""
    train = cell.train
    dropout = train.method_settings.get("dropout", 0)
    members = [
        (kind, value) for kind, items in written_defense.members(train.defense) for name, value in items if not name
    ]
    parts = ["a start per client"] if train.initialisation == "per-client" else []
    parts += [f"dropout {dropout:g}"] if dropout else []
    parts += [f"clip {value}" for kind, value in members if kind == "clip"]
    parts += [f"noise of variance {value}" for kind, value in members if kind == "gaussian"]
    if cell.uploads_per_round not in (None, UPLOADS_PER_ROUND):
        parts.append(f"{cell.uploads_per_round} uploads kept a round")
    return ", ".join(parts) or WITHOUT


def _accuracy(row: PairedRow) -> str:
    accuracy = row.measured.first.accuracy
    return spread_text(accuracy.mean, accuracy.std, 1).replace("+-", "±")
