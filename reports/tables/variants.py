"""One attack in several settings: a row a setting (number format, whole updates, the attack's own), a column a method and defence.

A pure function of records. Beside each mean PSNR stand the paired gain over the best floor, bold where it is significant, and how
many reconstructions failed, or were of uploads to which the attack does not apply, whose score is a floor's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from privbench.presets import UPLOADS_PER_ROUND
from privbench.records.schema import AttackRecord
from privbench.spec import CellSpec
from reports.records import grouping, measured, remarks
from reports.records.labels import label, round_text, unique, update_text
from reports.records.number_text import NONE, range_text
from reports.tables import render
from reports.tables.report import Report, Table

PLAINEST = "as set by default"


def report(records: Sequence[AttackRecord]) -> Report:
    """One table per data set and attack."""
    forms = []
    for key in grouping.settings(records):
        of_setting = [r for r in records if grouping.setting(r.cell) == key]
        forms += [
            _form(f"{grouping.title(key)}: {attack}", [r for r in of_setting if r.cell.attack == attack])
            for attack in unique(r.cell.attack for r in of_setting)
        ]
    numbers = [
        {
            "id": r.id, "setting": grouping.title(grouping.setting(r.cell)), "column": label(r.cell), "attack": r.cell.attack,
            "variant": setting_words(r.cell), "psnr_db": r.scores.psnr_db, "low": measured.of(r).psnr_db.low,
            "high": measured.of(r).psnr_db.high, "floor": r.floor.psnr_db, "n": r.scores.n, "failures": r.scores.failures,
            "seeds": " ".join(map(str, r.cell.seeds)),
        }
        for r in records
    ]  # fmt: skip
    return Report("Variants of an attack", remarks.header(records), forms, numbers)


def _form(title: str, records: Sequence[AttackRecord]) -> Table:
    columns = unique(label(r.cell) for r in records)
    body = []
    for name in unique(setting_words(r.cell) for r in records):
        cells = [name]
        for column in columns:
            matching = [r for r in records if (setting_words(r.cell), label(r.cell)) == (name, column)]
            cells += _cells(matching[0]) if matching else [NONE, NONE, NONE]
        body.append(cells)
    return Table(title, ["", *(text for c in columns for text in (f"{c}, dB", "over the floor, dB", "failed"))], body)


def _cells(r: AttackRecord) -> list[str]:
    row, scores = measured.of(r), r.scores
    gain = range_text(row.gain_db, sign=True)
    failed = f"{scores.failures} of {scores.n}"
    if scores.not_applicable:
        failed += f"; does not apply to {scores.not_applicable}"
    return [range_text(row.psnr_db), render.bold(gain) if row.is_significant else gain, failed]


def setting_words(cell: CellSpec) -> str:
    """A setting, e.g. "round 0 (untrained), start normal, 16 images per gradient"."""
    return words(cell, remarks.attack_overrides(cell))


def words(cell: CellSpec, settings: Mapping[str, Any]) -> str:
    """The same with those of the attack's own settings that are to be told."""
    parts = [f"round {round_text(cell.round)}", *(f"{name} {value}" for name, value in sorted(settings.items()))]
    update, form = update_text(cell), cell.wire
    parts += [update] if update else []
    parts += [f"sent in {form}"] if form != "float32" else []
    parts += ["labels known"] if cell.labels_known else []
    parts += [f"{cell.batch_size} images per gradient"] if cell.batch_size > 1 else []
    parts += (
        [f"{cell.uploads_per_round} uploads kept a round"]
        if cell.uploads_per_round not in (None, UPLOADS_PER_ROUND)
        else []
    )
    return ", ".join([*parts, *([PLAINEST] if len(parts) == 1 else [])])
