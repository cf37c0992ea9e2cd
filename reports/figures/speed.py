"""Two figures: how cost grows, and how many times faster than the usual way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.ticker import NullLocator

from reports.figures.drawing import style
from reports.figures.drawing.line_styles import BLUE, line_style
from reports.records.benchmark_rows import BenchmarkRow

TIMES = (1, 2, 5, 10, 20, 50, 100, 200)  # ticks of the ratios, as far as they are needed


def draw(rows: Sequence[BenchmarkRow], folder: Path) -> list[Path]:
    """`scaling` and `speedup`, PNG and PDF, in a folder."""
    return [*scaling(rows, folder / "scaling"), *speedup(rows, folder / "speedup")]


def scaling(rows: Sequence[BenchmarkRow], stem: Path) -> list[Path]:
    """A panel per kind of growth: median cost per item, with the range of the repetitions."""
    kinds = list(dict.fromkeys(row.work for row in rows if row.group == "scaling"))
    figure, panels = style.panels(len(kinds), 1.7, large=True)
    for index, (axes, kind) in enumerate(zip(panels, kinds, strict=True)):
        measured = [row for row in rows if row.work == kind and row.values and row.x is not None]
        x, y = [row.x or 0.0 for row in measured], [row.median for row in measured]
        low = [row.median - min(row.values) for row in measured]
        high = [max(row.values) - row.median for row in measured]
        axes.errorbar(x, y, yerr=[low, high], markersize=4, capsize=2, **line_style(index))
        axes.set_xscale("log", base=2)
        axes.set_xticks(x, [f"{value:g}" for value in x])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_ylim(0, 1.12 * max(max(row.values) for row in measured))
        axes.set_title(kind, fontsize=style.FONT_POINTS)
        axes.set_ylabel(measured[0].unit, fontsize=style.FONT_POINTS)
        style.plain(axes)
    return style.save(figure, stem)


def speedup(rows: Sequence[BenchmarkRow], stem: Path) -> list[Path]:
    """Bars of every ratio against the usual way, on a logarithmic axis."""
    measured = [row for row in rows if row.times is not None]
    times = [row.times or 0.0 for row in measured]
    figure = style.new_figure(style.PAGE_INCHES, 0.3 * len(measured) + 0.6)
    axes = figure.subplots()
    names = [f"{row.work}\n{row.way}" for row in measured]
    axes.barh(names, times, color=BLUE, height=0.6)
    for place, ratio in enumerate(times):
        axes.annotate(
            f"{ratio:.1f}x", (ratio, place), (3, 0), textcoords="offset points", va="center", fontsize=style.FONT_POINTS,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_xticks(TIMES, [f"{t:g}x" for t in TIMES])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.axvline(1, color="0.45", linewidth=0.8, linestyle="--")
    axes.invert_yaxis()
    axes.set_xlim(0.5, 1.6 * max(times))
    style.plain(axes)
    axes.set_xlabel("times faster than the usual way", fontsize=style.FONT_POINTS)
    return style.save(figure, stem)
