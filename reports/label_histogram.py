"""Who holds how many training images of which class: one dot per client and class, its area the count.

A pure function of label counts, as a record or a run's clients.json holds them. Dots of one colour need no colour vision, and
unlike stacked bars they still tell 47 classes apart. Beneath the clients stand their numbers of images.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from reports import figures

COLOUR = figures.COLOURS[0]
ROW_INCHES = (0.075, 0.19)  # least and most height of one class
MARGIN_INCHES = 0.78  # of a panel: its title, the clients' names and their totals
LEGEND_INCHES = 0.3
LEAST_POINTS = 0.9  # diameter of a dot for one image
LABELS_INCHES = 0.5  # beside the panel: the classes' names
MOST_NAMES = 26  # with more classes every second or third one is named


class Panel(NamedTuple):
    """One layout of a data set."""

    title: str
    clients: Sequence[str]  # K names, short
    counts: Sequence[Sequence[int]]  # client, class


def write(panels: Sequence[Panel], classes: Sequence[str], stem: Path) -> list[Path]:
    """Writes `stem`.png and `stem`.pdf, one panel above the other; dots of all panels have one scale."""
    row = max(ROW_INCHES[0], min(ROW_INCHES[1], 3.6 / len(classes)))
    height = (row * len(classes) + MARGIN_INCHES) * len(panels) + LEGEND_INCHES
    figure = figures.new_figure(figures.COLUMN_INCHES, height)
    most = max(count for panel in panels for own in panel.counts for count in own)
    column = (figures.COLUMN_INCHES - LABELS_INCHES) / max(len(panel.counts) for panel in panels)
    largest = 72 * 0.97 * min(column, row)  # diameter in points: the largest dots touch, but cover none
    for axes, panel in zip(figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels, strict=True):
        _draw(axes, panel, classes, most, largest)
    handles = [
        Line2D([], [], marker="o", linestyle="", color=COLOUR, markeredgewidth=0, alpha=0.85, label=f"{count:,}",
               markersize=_diameter(count, most, largest))
        for count in _round_counts(most)
    ]  # fmt: skip
    figure.legend(
        handles=handles, loc="outside lower center", ncols=len(handles), fontsize=figures.FONT_POINTS, frameon=False,
        title="training images", title_fontsize=figures.FONT_POINTS, handletextpad=0.3, columnspacing=1.2, borderpad=0,
    )  # fmt: skip
    return figures.save(figure, stem)


def _draw(axes: Axes, panel: Panel, classes: Sequence[str], most: int, largest: float) -> None:
    dots = [(k, y, count) for k, own in enumerate(panel.counts) for y, count in enumerate(own) if count]
    axes.scatter(
        [k for k, _, _ in dots], [y for _, y, _ in dots], s=[_diameter(n, most, largest) ** 2 for _, _, n in dots],
        color=COLOUR, linewidths=0, alpha=0.85, clip_on=False, zorder=3,
    )  # fmt: skip
    totals = [sum(own) for own in panel.counts]
    names = [f"{name}\n{total:,}" for name, total in zip(panel.clients, totals, strict=True)]
    crowded = max(len(part) for name in names for part in name.split("\n")) * len(names) > 46
    if crowded:
        names = [f"{name}: {total:,}" for name, total in zip(panel.clients, totals, strict=True)]
    axes.set_xticks(range(len(names)), names, fontsize=figures.FONT_POINTS - 1, rotation=90 if crowded else 0)
    every = math.ceil(len(classes) / MOST_NAMES)
    ticks = range(0, len(classes), every)
    axes.set_yticks(ticks, [_short(classes[y]) for y in ticks], fontsize=figures.FONT_POINTS - 1)
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.set_ylim(len(classes) - 0.4, -0.6)
    axes.set_xlabel(
        "client: its training images" if crowded else "client, its training images", fontsize=figures.FONT_POINTS
    )
    axes.set_ylabel("class", fontsize=figures.FONT_POINTS)
    axes.set_title(panel.title, fontsize=figures.FONT_POINTS + 0.5, pad=4)
    axes.tick_params(length=0, pad=2)
    axes.grid(color="0.9", linewidth=0.4)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)


def _diameter(count: int, most: int, largest: float) -> float:
    """Points; the area is in proportion to the count, but for the smallest dots, which must still be seen."""
    return max(LEAST_POINTS, largest * math.sqrt(count / most))


def _round_counts(most: int) -> list[int]:
    """Up to three counts for the legend: the largest of 1, 2, 5, 10, ... within the largest count, a quarter, a twentieth of it."""
    ladder = [step * 10**power for power in range(len(str(most))) for step in (1, 2, 5)]
    return sorted({max([1, *(n for n in ladder if n <= most / part)]) for part in (1, 4, 20)})


def _short(name: str) -> str:
    return name if len(name) <= 12 else f"{name[:11]}…"
