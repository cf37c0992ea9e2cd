"""What all figures share: colours safe for colour-blind readers, sizes that stay legible in one printed column."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import LogFormatter

from privbench import storage

COLOURS = ("#0072B2", "#E69F00", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#000000")  # Okabe and Ito 2008
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)))  # told apart without colour: one for every round through the colours
COLUMN_INCHES = 3.3
FONT_POINTS = 7.5
DPI = 300


def new_figure(width: float, height: float) -> Figure:
    """A figure without global state."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def plain(axes: Axes) -> None:
    """An axis without ornament, its numbers in the common size."""
    axes.tick_params(labelsize=FONT_POINTS - 0.5)
    axes.spines[["top", "right"]].set_visible(False)


def line_look(index: int) -> dict[str, Any]:
    """Colour, dashes and marker of the n-th line: no two of the first 21 are alike in both colour and dashes."""
    own = index % len(COLOURS)
    return {"color": COLOURS[own], "linestyle": DASHES[index // len(COLOURS) % len(DASHES)], "marker": MARKERS[own]}


def legend_columns(names: Sequence[str]) -> int:
    """How many columns of a legend of lines fit in one printed column."""
    longest = max(map(len, names))
    return 3 if longest <= 11 else 2 if longest <= 24 else 1


def save(figure: Figure, stem: Path) -> list[Path]:
    """`stem`.png at 300 dpi and `stem`.pdf, written whole or not at all. Texts are drawn as they are, dollar signs included."""
    _no_formulas(figure)
    paths = [stem.with_name(stem.name + ending) for ending in (".png", ".pdf")]
    for path in paths:
        buffer = io.BytesIO()
        metadata = {"CreationDate": None} if path.suffix == ".pdf" else None
        figure.savefig(buffer, format=path.suffix[1:], dpi=DPI, metadata=metadata)
        storage.write_bytes(path, buffer.getvalue())
    return paths


def _no_formulas(figure: Figure) -> None:
    """Has matplotlib read no formula in a text: names from outside may hold what looks like one. Powers of ten stay formulas."""
    powers = {
        label
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        if isinstance(axis.get_major_formatter(), LogFormatter)
        for label in (*axis.get_ticklabels(), *axis.get_ticklabels(minor=True))
    }
    for text in figure.findobj(Text):
        if text not in powers:
            text.set_parse_math(False)
