"""Two figures: how cost grows, and how many times faster than the usual way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.ticker import NullLocator

from benchmarks.measure import Row
from reports.figures.drawing import style
from reports.figures.drawing.line_styles import BLUE, line_look

TIMES = (1, 2, 5, 10, 20, 50, 100, 200)  # ticks of the ratios, as far as they are needed


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """`scaling` and `speedup`, PNG and PDF, in a folder."""
    return [*scaling(rows, folder / "scaling"), *speedup(rows, folder / "speedup")]


def scaling(rows: Sequence[Row], stem: Path) -> list[Path]:
    """A panel per kind of growth: median cost per item, with the range of the repetitions."""
    kinds = list(dict.fromkeys(row.work for row in rows if row.group == "scaling"))
    figure, panels = style.panels(len(kinds), 1.7)
    for index, (axes, kind) in enumerate(zip(panels, kinds, strict=True)):
        own = [row for row in rows if row.work == kind and row.values and row.x is not None]
        x, y = [row.x or 0.0 for row in own], [row.median for row in own]
        low = [row.median - min(row.values) for row in own]
        high = [max(row.values) - row.median for row in own]
        axes.errorbar(x, y, yerr=[low, high], markersize=4, capsize=2, **line_look(index))
        axes.set_xscale("log", base=2)
        axes.set_xticks(x, [f"{value:g}" for value in x])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_ylim(bottom=0)
        axes.set_title(kind, fontsize=style.FONT_POINTS + 0.5)
        axes.set_ylabel(own[0].unit, fontsize=style.FONT_POINTS)
        axes.tick_params(labelsize=style.FONT_POINTS)
    return style.save(figure, stem)


def speedup(rows: Sequence[Row], stem: Path) -> list[Path]:
    """Bars of every ratio against the usual way, on a logarithmic axis."""
    own = [row for row in rows if row.times is not None]
    times = [row.times or 0.0 for row in own]
    figure = style.new_figure(style.PAGE_INCHES, 0.3 * len(own) + 0.6)
    axes = figure.subplots()
    names = [f"{row.work}\n{row.way}" for row in own]
    axes.barh(names, times, color=BLUE, height=0.6)
    for place, ratio in enumerate(times):
        axes.text(
            ratio,
            place,
            f" {ratio:.1f}x",
            va="center",
            fontsize=style.FONT_POINTS,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )
    axes.set_xscale("log")
    axes.set_xticks(TIMES, [f"{t:g}x" for t in TIMES])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.axvline(1, color="0.45", linewidth=0.8, linestyle="--")
    axes.invert_yaxis()
    axes.set_xlim(0.5, 1.6 * max(times))
    axes.tick_params(labelsize=style.SMALL_POINTS)
    axes.set_xlabel("times faster than the usual way", fontsize=style.FONT_POINTS)
    return style.save(figure, stem)
