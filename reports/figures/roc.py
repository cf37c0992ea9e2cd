"""ROC curves, one against the rest: the macro average over classes, clients and seeds, one curve per method.

A pure function of records. The average is vertical: the mean true-positive rate at each false-positive rate, over every class that
is among a client's test images (Fawcett 2006, doi 10.1016/j.patrec.2005.10.010, section 8.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from privbench.records.schema import Record
from privbench.scoring import metrics
from reports.figures.drawing import style
from reports.figures.drawing.line_styles import series_styles_of
from reports.records import grouping, remarks
from reports.records.number_text import NONE, spread_text
from reports.records.published import of
from reports.tables.report import Report, Table

GRID = np.concatenate(
    [np.linspace(0, 0.1, 101), np.linspace(0.1, 1, 91)[1:]]
)  # false-positive rates, denser where curves rise
PANEL_INCHES = 2.5


def average(r: Record) -> np.ndarray | None:
    """The mean true-positive rate on GRID, [191]; None without any curve."""
    curves = [curve for t in r.training for client in t.clients for curve in client.roc if curve is not None]
    rates = [(curve.false_positive_rate, curve.true_positive_rate) for curve in curves]
    return metrics.mean_roc(rates, GRID) if rates else None


def report(records: Sequence[Record]) -> Report:
    """The areas under the curves, with the published ones; the averaged curves in the numbers."""
    forms, numbers = [], []
    for key in grouping.settings(records):
        body = []
        for label, r in grouping.chosen(records, key).items():
            printed, auc = of(r.cell, "auc"), r.averages.auc
            text = NONE if auc.mean is None else spread_text(auc.mean, auc.std, 3)
            body.append([label, text, NONE if printed is None else f"{printed.value:.3f}"])
            numbers += _numbers(key, label, average(r))
        forms.append(
            Table(f"{grouping.title(key)}: area under the macro-averaged ROC curve", ["", "AUC", "published"], body)
        )
    searched = [line for key in grouping.settings(records) for line in grouping.searched(records, key)]
    return Report("ROC curves", [*remarks.training_header(records), *searched], forms, numbers)


def _numbers(key: grouping.Setting, label: str, curve: np.ndarray | None) -> list[dict[str, Any]]:
    pairs = [] if curve is None else zip(GRID.tolist(), curve.tolist(), strict=True)
    title = grouping.title(key)
    return [
        {"setting": title, "row": label, "false_positive_rate": round(x, 5), "true_positive_rate": round(y, 6)}
        for x, y in pairs
    ]


def write(records: Sequence[Record], key: grouping.Setting, stem: Path) -> list[Path]:
    """One panel of one setting, the areas in the legend; nothing without any curve."""
    by_label = {
        label: (r, curve) for label, r in grouping.chosen(records, key).items() if (curve := average(r)) is not None
    }
    if not by_label:
        return []
    series_styles = series_styles_of(list(by_label))
    figure, (axes,) = style.panels(1, PANEL_INCHES)
    axes.plot([0, 1], [0, 1], color="0.6", linewidth=0.7, linestyle=(0, (2, 2)))
    handles = []
    for index, ((label, (r, curve)), name) in enumerate(
        zip(by_label.items(), style.series_names(list(by_label)), strict=True)
    ):
        axes.plot(GRID, curve, linewidth=1.0, markersize=3.5, markevery=(6 + 3 * index, 45), **series_styles[label])
        area = "" if r.averages.auc.mean is None else f" {r.averages.auc.mean:.3f}"
        handles.append(style.handle(name + area, **series_styles[label]))
    axes.set_xlabel("false-positive rate", fontsize=style.FONT_POINTS)
    axes.set_ylabel("true-positive rate", fontsize=style.FONT_POINTS)
    axes.set_xlim(-0.01, 1.01)
    axes.set_ylim(-0.01, 1.02)
    style.plain(axes)
    style.heading(figure, grouping.title(key))
    style.legend(figure, handles, "method, area under the curve")
    return style.save(figure, stem)
