"""Hyper-parameter box plots: accuracy of every client and seed against the value of one setting, one panel per setting.

A pure function of records. A setting counts where several records of one method differ in it alone; the record that has none of
them is the method's default and stands in every panel at its default value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.axes import Axes

from privbench import registry
from privbench.records.schema import Record
from reports.figures.drawing import style
from reports.figures.drawing.line_styles import VERMILION
from reports.records import grouping, remarks
from reports.records.labels import settings_of, unique
from reports.tables.report import Report, Table

PANEL_INCHES = 1.6
Panels = dict[str, dict[Any, Record]]  # setting -> value -> record


def panels(records: Sequence[Record], key: grouping.Setting) -> Panels:
    """Every setting with two values or more, its values in order."""
    chosen = list(grouping.chosen(records, key).values())
    base = next((r for r in chosen if not settings_of(r.cell)), None)
    varied: Panels = {}
    for name in unique(name for r in chosen for name in settings_of(r.cell)):
        alone = [r for r in chosen if list(settings_of(r.cell)) == [name]]
        values = {settings_of(r.cell)[name]: r for r in alone}
        if base is not None:
            defaults = {f.name: f.default for f in fields(registry.resolve("method", base.cell.train.method))}
            values.setdefault(defaults[name], base)
        if len(values) > 1:
            varied[name] = dict(sorted(values.items(), key=lambda item: (isinstance(item[0], str), item[0])))
    return varied


def accuracies(r: Record) -> list[float]:
    """Of every client and seed, percent."""
    return [value for seed in r.accuracy.per_client for value in seed]


def report(records: Sequence[Record]) -> Report:
    """Median and range of every box."""
    forms, numbers = [], []
    for key in grouping.settings(records):
        body = []
        for name, values in panels(records, key).items():
            for value, r in values.items():
                percents = accuracies(r)
                body.append(
                    [
                        f"{name} = {value}",
                        f"{median(percents):.2f}",
                        f"{min(percents):.2f}",
                        f"{max(percents):.2f}",
                        str(len(percents)),
                    ]
                )
                numbers += [
                    {"setting": grouping.title(key), "name": name, "value": value, "accuracy": a} for a in percents
                ]
        if body:
            forms.append(
                Table(f"{grouping.title(key)}: test accuracy, %", ["", "median", "lowest", "highest", "n"], body)
            )
    notes = [
        *remarks.training_header(records),
        "Each box is over all clients and seeds; the other settings are at their defaults.",
    ]
    return Report("Sensitivity", notes, forms, numbers)


def write(records: Sequence[Record], key: grouping.Setting, stem: Path) -> list[Path]:
    """One panel per setting; nothing where no setting varies."""
    varied = panels(records, key)
    if not varied:
        return []
    figure, drawn = style.panels(len(varied), PANEL_INCHES, sharey=True)
    for axes, (name, values) in zip(drawn, varied.items(), strict=True):
        _panel(axes, name, values)
        if axes.get_subplotspec().is_first_col():  # type: ignore[union-attr]
            axes.set_ylabel("test accuracy, %", fontsize=style.FONT_POINTS)
    style.heading(figure, f"{grouping.title(key)}\neach client and seed")
    return style.save(figure, stem)


def _panel(axes: Axes, name: str, values: dict[Any, Record]) -> None:
    axes.boxplot(
        [accuracies(r) for r in values.values()], positions=range(len(values)), widths=0.55, patch_artist=True,
        boxprops={"facecolor": "#cfe3f2", "linewidth": 0.7}, medianprops={"color": VERMILION, "linewidth": 1.2},
        whiskerprops={"linewidth": 0.7}, capprops={"linewidth": 0.7}, flierprops={"marker": ".", "markersize": 3},
    )  # fmt: skip
    texts = [f"{value:g}" if isinstance(value, float | int) else str(value) for value in values]
    style.name_ticks(axes, texts)
    axes.set_xlabel(name, fontsize=style.FONT_POINTS, labelpad=1)
    style.plain(axes)
