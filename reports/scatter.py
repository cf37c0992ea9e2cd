"""Accuracy against PSNR: what a method costs and what it protects, in one picture per data set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from privbench import plugins
from privbench.record import AttackRecord
from reports import figures
from reports.measured import strongest
from reports.published import of_papers_attack
from reports.published_form import label, place, published, unique

PANEL_INCHES = 2.2
LEGEND_ROW_INCHES = 0.17


def write(records: Sequence[AttackRecord], stem: Path) -> list[Path]:
    """One panel per attacked round: each method's strongest attack, filled; published values, hollow; the floor, dashed.

    Bars are the standard deviation over seeds (accuracy) and the 95% interval (PSNR). The strongest attack is
    chosen on one half of the victims and drawn where the other half puts it (reports/measured.py).
    """
    rounds = unique(r.cell.round for r in records)
    names = unique(label(cell) for cell in sorted((r.cell for r in records), key=place))
    handles = [_sign("--", "0.45", "best floor"), *(_sign(*_look(i), name) for i, name in enumerate(names))]
    if any(published(r.cell)[0] and of_papers_attack(r.cell) for r in records):
        handles.append(_sign("o", "0.3", "published", hollow=True))
    legend_rows = (len(handles) + 1) // 2
    figure = figures.new_figure(
        figures.COLUMN_INCHES, PANEL_INCHES * len(rounds) + LEGEND_ROW_INCHES * (legend_rows + 1)
    )
    panels = figure.subplots(len(rounds), 1, squeeze=False, sharex=True)[:, 0]
    for axes, asked in zip(panels, rounds, strict=True):
        _panel(axes, [r for r in records if r.cell.round == asked], names)
        when = "untrained model" if asked == "0" else f"{asked} round"
        first = records[0].cell
        axes.set_title(
            f"{plugins.short(first.train.dataset)}, {when} ({first.preset} preset)", fontsize=figures.FONT_POINTS + 0.5
        )
    panels[-1].set_xlabel("test accuracy of the trained method, %", fontsize=figures.FONT_POINTS)
    figure.legend(
        handles=handles, loc="outside lower center", ncols=2, fontsize=figures.FONT_POINTS, frameon=False,
        handlelength=1.6, columnspacing=1.2, labelspacing=0.3,
    )  # fmt: skip
    return figures.save(figure, stem)


def _panel(axes: Axes, records: Sequence[AttackRecord], names: Sequence[str]) -> None:
    floor = sum(r.floor.psnr_db for r in records) / len(records)
    axes.axhline(floor, color="0.45", linestyle="--", linewidth=0.8, zorder=0)
    for index, name in enumerate(names):
        own = [r for r in records if label(r.cell) == name]
        if not own:
            continue
        best = strongest(own)
        psnr, accuracy, (marker, colour) = best.psnr_db, best.first.accuracy, _look(index)
        axes.errorbar(
            accuracy.mean, psnr.mean, xerr=accuracy.std or 0.0,
            yerr=[[max(psnr.mean - psnr.low, 0)], [max(psnr.high - psnr.mean, 0)]],
            fmt=marker, color=colour, markersize=5, linewidth=0.8, capsize=2,
        )  # fmt: skip
        x, y = published(best.first.cell)[0], of_papers_attack(best.first.cell)
        if x is not None and y is not None:
            axes.plot(x.value, y.value, marker, color=colour, markerfacecolor="none", markersize=5)
    axes.set_ylabel("PSNR, strongest attack, dB", fontsize=figures.FONT_POINTS)
    axes.tick_params(labelsize=figures.FONT_POINTS, labelbottom=True)
    axes.margins(0.12)
    axes.spines[["top", "right"]].set_visible(False)


def _look(index: int) -> tuple[str, str]:
    """(marker, colour) of a method; where the colours begin again, the markers are shifted by one."""
    again, own = divmod(index, len(figures.COLOURS))
    return figures.MARKERS[(own + again) % len(figures.MARKERS)], figures.COLOURS[own]


def _sign(marker: str, colour: str, name: str, *, hollow: bool = False) -> Line2D:
    """A legend entry; "--" is a line."""
    if marker == "--":
        return Line2D([], [], color=colour, linestyle="--", linewidth=0.8, label=name)
    face = "none" if hollow else colour
    return Line2D([], [], marker=marker, color=colour, markerfacecolor=face, linestyle="", markersize=5, label=name)
