"""Accuracy against PSNR: what a method costs and what it protects, in one picture per data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from privbench.records.schema import AttackRecord
from reports.figures import style
from reports.figures.line_styles import line_looks
from reports.records import grouping
from reports.records.labels import asked_text, label, place, published, unique
from reports.records.measured import strongest
from reports.records.published import of_papers_attack
from reports.records.quotable import is_quotable

PANEL_INCHES = 2.0
FLOOR: dict[str, Any] = {"color": "0.45", "linestyle": "--", "linewidth": 0.8, "marker": ""}


def write(records: Sequence[AttackRecord], stem: Path) -> list[Path]:
    """One panel per attacked round: each method's strongest attack, filled; published values, hollow; the floor, dashed.

    `records` are of one setting. Bars are the standard deviation over seeds (accuracy) and the 95% interval (PSNR). The strongest
    attack is chosen on one half of the victims and drawn where the other half puts it (reports/records/measured.py). Nothing for
    a single method, which has nothing to be compared with, nor for smoke runs, whose scores say nothing.
    """
    names = unique(label(cell) for cell in sorted((r.cell for r in records), key=place))
    if len(names) < 2 or not is_quotable(records[0].cell.preset):
        return []
    rounds = unique(r.cell.round for r in records)
    looks = {name: look | {"linestyle": ""} for name, look in line_looks(names).items()}
    figure, panels = style.panels(len(rounds), PANEL_INCHES, large=True, sharex=True, sharey=True)
    for axes, asked in zip(panels, rounds, strict=True):
        _panel(axes, [r for r in records if r.cell.round == asked], looks)
        axes.set_title(
            f"{asked} round" if asked in ("best", "last") else f"round {asked_text(asked)}",
            fontsize=style.FONT_POINTS,
        )
    style.name_axes(panels, "test accuracy, %", "PSNR, strongest attack, dB")
    style.heading(figure, grouping.title(grouping.setting(records[0].cell)))
    handles = [
        style.handle(short, **looks[name], markersize=5)
        for name, short in zip(names, style.series_names(names), strict=True)
    ]
    handles.append(style.handle("best floor", **FLOOR))
    if any(published(r.cell)[0] and of_papers_attack(r.cell) for r in records):
        handles.append(
            style.handle("published", color="0.3", marker="o", markerfacecolor="none", linestyle="", markersize=5)
        )
    style.legend(figure, handles)
    return style.save(figure, stem)


def _panel(axes: Axes, records: Sequence[AttackRecord], looks: Mapping[str, dict[str, Any]]) -> None:
    floor = sum(r.floor.psnr_db for r in records) / len(records)
    axes.axhline(floor, zorder=0, **FLOOR)
    for name, look in looks.items():
        own = [r for r in records if label(r.cell) == name]
        if not own:
            continue
        best = strongest(own)
        psnr, accuracy = best.psnr_db, best.first.accuracy
        axes.errorbar(
            accuracy.mean, psnr.mean, xerr=accuracy.std or 0.0,
            yerr=[[max(psnr.mean - psnr.low, 0)], [max(psnr.high - psnr.mean, 0)]],
            markersize=5, elinewidth=0.8, capsize=2, **look,
        )  # fmt: skip
        x, y = published(best.first.cell)[0], of_papers_attack(best.first.cell)
        if x is not None and y is not None:
            axes.plot(x.value, y.value, markerfacecolor="none", markersize=5, **look)
    style.plain(axes)
    axes.margins(0.12)
