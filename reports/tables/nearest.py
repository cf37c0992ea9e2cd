"""Which setting of the papers' own attack comes nearest to the PSNR that they print, column by column and for all columns at once.

A pure function of records. A setting is all that a source leaves open: the attacked round, the attack's own settings, images per
gradient, labels known, and whether a printed noise is a variance or a standard deviation. PSNR stands clipped to [0, 1], as the
suite has it, and raw: FedCG does not say which it printed, and 6.23 dB is below what a grey image scores. Nearness to a printed
value says that a setting could be the one used, not that it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from statistics import fmean
from typing import Any, NamedTuple

from privbench.records.schema import AttackRecord
from reports.records import grouping, measured, published, remarks
from reports.records.labels import in_order, label, unique
from reports.records.number_text import NONE, range_text, span
from reports.tables import variants
from reports.tables.report import Report, Table

# Of Eq. 8 alone: settings of all columns do not differ by it.
ALPHA = "alpha"
VARIANCE, DEVIATION = "printed noise as a variance", "printed noise as a standard deviation"
# The cells' defence, whose number is a variance -> the printed one, where its number is read as a standard deviation.
AS_DEVIATION = {"gaussian:0.000001": "gaussian:0.001", "gaussian:0.01": "gaussian:0.1"}


class MeasuredSetting(NamedTuple):
    """One record, as this report sees it."""

    record: AttackRecord
    column: str
    setting: str
    common: str  # the setting without what one attack alone has
    reading: str | None  # of the printed noise; None without noise
    printed: float | None  # dB
    clipped: float  # mean over victims, dB
    raw: float | None


def report(records: Sequence[AttackRecord], most: int | None = None) -> Report:
    """Two tables per data set: the nearest setting of each column, and the settings that all columns have.

    most: how many of the latter, the nearest first; None: all of them.
    """
    forms: list[Table] = []
    records = in_order(records)
    for key in grouping.settings(records):
        of_setting = [of_record(r) for r in records if grouping.setting(r.cell) == key]
        title = grouping.title(key)
        forms.append(
            Table(f"{title}: each column by itself", COLUMNS, [_nearest(of_setting, c) for c in _columns(of_setting)])
        )
        forms.append(_together(of_setting, title, most))
    numbers = [
        {
            "id": r.id, "setting": grouping.title(grouping.setting(r.cell)), **_fields(of_record(r)),
            "n": r.scores.n, "failures": r.scores.failures, "seeds": " ".join(map(str, r.cell.seeds)),
        }
        for r in records
    ]  # fmt: skip
    counts = sorted({r.scores.n for r in records})
    notes = [
        *remarks.training_header(records, "Printed values stand beside it for orientation alone"),
        f"PSNR in dB, mean over the {span(counts)} victims of a cell: of images clipped to [0, 1], with a 95% interval, and raw, "
        "as the optimiser left them. The distance is from the printed value, which is a mean over seeds; the nearest of many "
        "settings is near by chance, too.",
        *remarks.of_few_seeds(records),
    ]
    return Report("The papers' attack, nearest settings", notes, forms, numbers)


COLUMNS = ("", "printed", "nearest, clipped", "dB", "distance", "nearest, raw", "dB", "distance")


def of_record(r: AttackRecord) -> MeasuredSetting:
    """A record in this report's words."""
    cell, train, settings = r.cell, r.cell.train, remarks.attack_overrides(r.cell)
    defense = AS_DEVIATION.get(train.defense, train.defense)
    reading = None if defense == "none" else VARIANCE if defense == train.defense else DEVIATION
    words = variants.words(cell, settings)
    return MeasuredSetting(
        r,
        label(cell.model_copy(update={"train": train.model_copy(update={"defense": defense})})),
        f"{words}, {DEVIATION}" if reading == DEVIATION else words,
        variants.words(cell, {name: value for name, value in settings.items() if name != ALPHA}),
        reading,
        published.printed("FedCG", "2", train.dataset, train.method, defense, published.PSNR),
        r.scores.psnr_db,
        r.scores.psnr_raw_db,
    )


def _fields(row: MeasuredSetting) -> dict[str, Any]:
    return {name: value for name, value in row._asdict().items() if name != "record"}


def _columns(rows: Sequence[MeasuredSetting]) -> list[str]:
    return unique(m.column for m in rows)


def _nearest(rows: Sequence[MeasuredSetting], column: str) -> list[str]:
    of_column = [m for m in rows if m.column == column]
    printed = of_column[0].printed
    if printed is None:
        return [column, *(NONE for _ in COLUMNS[1:])]
    cells = [column, f"{printed:.2f}"]
    for how in ("clipped", "raw"):
        rivals = [
            (abs(value - printed), m.setting, value, m) for m in of_column if (value := getattr(m, how)) is not None
        ]
        if not rivals:
            cells += [NONE, NONE, NONE]
            continue
        distance, setting, value, nearest = min(rivals, key=lambda rival: rival[:2])
        text = range_text(measured.of(nearest.record).psnr_db) if how == "clipped" else f"{value:.2f}"
        cells += [setting, text, f"{distance:.2f}"]
    return cells


def _together(rows: Sequence[MeasuredSetting], title: str, most: int | None) -> Table:
    """One setting for all columns, the nearest first; of several values of alpha each setting has its nearest."""
    columns = _columns(rows)
    readings = unique(m.reading for m in rows if m.reading is not None) or [VARIANCE]
    body: list[tuple[float, list[str]]] = []
    for setting, reading, how in product(unique(m.common for m in rows), readings, ("clipped", "raw")):
        of_reading = [m for m in rows if m.common == setting and m.reading in (None, reading)]
        of_column = {c: [m for m in of_reading if m.column == c and getattr(m, how) is not None] for c in columns}
        if not all(of_column.values()):
            continue
        nearest = {c: _nearest_value(rivals, how) for c, rivals in of_column.items()}
        gaps = [abs(nearest[c] - aim) for c, rivals in of_column.items() if (aim := rivals[0].printed) is not None]
        mean = fmean(gaps) if gaps else float("inf")
        name = f"{setting}, {reading}" if reading == DEVIATION else setting
        values = [f"{nearest[c]:.2f}" for c in columns]
        body.append((mean, [name, how, *values, f"{mean:.2f}" if gaps else NONE]))
    printed = {m.column: m.printed for m in rows}
    head = ["printed", "", *(NONE if value is None else f"{value:.2f}" for value in printed.values()), NONE]
    lines = [line for _, line in sorted(body, key=lambda each: each[0])]
    return Table(
        f"{title}: one setting for all columns",
        ["", "PSNR", *columns, "mean distance"],
        [head, *lines[:most]],
    )


def _nearest_value(rivals: Sequence[MeasuredSetting], how: str) -> float:
    """The PSNR that is nearest to what is printed; the first one's where nothing is."""
    return min(
        (getattr(m, how) for m in rivals), key=lambda v: 0.0 if (aim := rivals[0].printed) is None else abs(v - aim)
    )
