"""Who holds how many training images of which class: one dot per client and class, its area the count.

A pure function of label counts, as a record or a run's clients.json holds them. Dots of one colour need no colour vision, and
unlike stacked bars they still distinguish 47 classes. Under each client is its number of images.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes

from reports.figures.drawing import style
from reports.figures.drawing.fonts import drawable
from reports.figures.drawing.line_styles import BLUE

ROW_INCHES = (0.075, 0.19)  # least and most height of one class
MARGIN_INCHES = 1.05  # of a panel: its title and the clients' names
LEAST_POINTS = 0.9  # diameter of a dot for one image
MOST_NAMES = 26  # with more classes every second or third one is named
MOST_IN_COLUMN = 24  # clients; more take the width of a page
NAME_CHARACTERS = 12  # of a class


class Panel(NamedTuple):
    """One layout of a data set."""

    title: str
    clients: Sequence[str]  # K names, short
    counts: Sequence[Sequence[int]]  # client, class


def write(panels: Sequence[Panel], classes: Sequence[str], stem: Path) -> list[Path]:
    """Writes `stem`.png and `stem`.pdf, one panel above the other; dots of all panels have one scale."""
    most_clients = max(len(panel.counts) for panel in panels)
    row = max(ROW_INCHES[0], min(ROW_INCHES[1], 3.6 / len(classes)))
    height = row * len(classes) + MARGIN_INCHES
    figure, drawn = style.panels(len(panels), height, large=True, page=most_clients > MOST_IN_COLUMN)
    most = max(count for panel in panels for client_counts in panel.counts for count in client_counts)
    largest = 72 * 0.97 * min(style.axis_inches(drawn[0]) / most_clients, row)  # points: dots touch, but cover none
    for axes, panel in zip(drawn, panels, strict=True):
        _draw(axes, panel, classes, most, largest)
    style.name_axes(drawn, "client and its training images", "class")
    handles = [
        style.handle(
            f"{count:,}", color=BLUE, marker="o", linestyle="", markeredgewidth=0, alpha=0.85,
            markersize=_diameter(count, most, largest),
        )
        for count in _round_counts(most)
    ]  # fmt: skip
    style.legend(figure, handles, "training images", largest)
    return style.save(figure, stem)


def _draw(axes: Axes, panel: Panel, classes: Sequence[str], most: int, largest: float) -> None:
    dots = [
        (k, y, count) for k, client_counts in enumerate(panel.counts) for y, count in enumerate(client_counts) if count
    ]
    axes.scatter(
        [k for k, _, _ in dots], [y for _, y, _ in dots], s=[_diameter(n, most, largest) ** 2 for _, _, n in dots],
        color=BLUE, linewidths=0, alpha=0.85, clip_on=False, zorder=3,
    )  # fmt: skip
    totals = [sum(client_counts) for client_counts in panel.counts]
    upright = [f"{name}\n{total:,}" for name, total in zip(panel.clients, totals, strict=True)]
    style.name_ticks(axes, [f"{name}: {total:,}" for name, total in zip(panel.clients, totals, strict=True)], upright)
    every = math.ceil(len(classes) / MOST_NAMES)
    ticks = range(0, len(classes), every)
    axes.set_yticks(
        ticks, [style.shortened(drawable(classes[y]), NAME_CHARACTERS) for y in ticks], fontsize=style.SMALL_POINTS
    )
    axes.set_xlim(-0.6, len(totals) - 0.4)
    axes.set_ylim(len(classes) - 0.4, -0.6)
    lines = style.wrapped(panel.title, 0.8 * style.axis_inches(axes), style.FONT_POINTS)
    axes.set_title("\n".join(lines), fontsize=style.FONT_POINTS, pad=4)
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
