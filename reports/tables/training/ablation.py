"""What each setting of a method is worth: its variants down, each metric with the difference from the method as published.

A pure function of records: a variant's base is the record of the same setting and method whose own settings are the plainest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from privbench.records.schema import Record
from reports.records import grouping, remarks
from reports.records.labels import Gap, settings_of, unique
from reports.records.number_text import NONE, spread_text
from reports.tables import render
from reports.tables.report import Report, Table
from reports.tables.training.accuracy_table import METRICS, how


def base_of(records: Sequence[Record], record: Record) -> Record | None:
    """The same method in the same setting with none of the settings that the others vary; None when it is missing."""
    alike = [
        r for r in records
        if grouping.setting(r.cell) == grouping.setting(record.cell)
        and (r.cell.train.method, r.cell.train.defense) == (record.cell.train.method, record.cell.train.defense)
    ]  # fmt: skip
    return next((r for r in alike if not settings_of(r.cell)), None)


def report(records: Sequence[Record], gaps: Sequence[Gap], metrics: Sequence[str]) -> Report:
    """One table per setting."""
    forms, numbers = [], []
    for key in grouping.settings(records):
        chosen = grouping.chosen(records, key)
        lost = {grouping.row(g.cell): g.state for g in gaps if grouping.setting(g.cell) == key}
        body = [_line(chosen, name, lost, metrics) for name in unique([*chosen, *lost])]
        headings = ["", *(text for m in metrics for text in (METRICS[m].short, "difference"))]
        forms.append(Table(grouping.title(key), headings, body))
        numbers += [_numbers(chosen, r, metric) for r in chosen.values() for metric in metrics]
    notes = [
        *remarks.training_header(records),
        how(records),
        "The difference is from the method as published, the first row: of a loss term switched off, negative accuracy says "
        "that the term helps. With few seeds, differences below the spread over seeds say nothing.",
    ]
    return Report("Ablation table", notes, forms, numbers)


def _line(chosen: dict[str, Record], name: str, lost: dict[str, str], metrics: Sequence[str]) -> list[str]:
    if name not in chosen:
        return [name, *(text for _ in metrics for text in (lost[name], NONE))]
    cells = [name]
    for metric in metrics:
        how = METRICS[metric]
        mean, std = how.of(chosen[name])
        change = _change(chosen, chosen[name], metric)
        text = NONE if mean is None else spread_text(mean, std, how.digits)
        means = [round(m, how.digits) for r in chosen.values() if (m := how.of(r)[0]) is not None]
        best = (min if how.lower_is_better else max)(means) if len(set(means)) > 1 else None
        cells.append(
            render.bold(text) if mean is not None and best is not None and round(mean, how.digits) == best else text
        )
        cells.append(NONE if change is None else f"{change:+.{how.digits}f}")
    return cells


def _change(chosen: dict[str, Record], r: Record, metric: str) -> float | None:
    base = base_of(list(chosen.values()), r)
    mean = METRICS[metric].of(r)[0]
    first = None if base is None or base.id == r.id else METRICS[metric].of(base)[0]
    return None if mean is None or first is None else mean - first


def _numbers(chosen: dict[str, Record], r: Record, metric: str) -> dict[str, Any]:
    mean, std = METRICS[metric].of(r)
    return {
        "id": r.id,
        "setting": grouping.title(grouping.setting(r.cell)),
        "row": grouping.row(r.cell),
        "metric": metric,
        "mean": mean,
        "std": std,
        "difference": _change(chosen, r, metric),
        "seeds": " ".join(map(str, r.cell.seeds)),
    }
