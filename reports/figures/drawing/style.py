"""What all figures share: sizes that fit a printed page, how a series looks, headings and legends that are never clipped.

A figure is one column (3.25 inches) or a page (6.75) wide: the narrowest two-column pages in use are those of ICML (3.25 and 6.75)
and CVPR (3.25 and 6.88); IEEE's and ACM's are wider. No text is below 7 points at these widths. Names come from outside and
are drawn as they are: no text is read as TeX, and a long name is wrapped.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.textpath import text_to_path
from matplotlib.ticker import LogFormatter, LogLocator, NullFormatter, StrMethodFormatter

from privbench.system import files
from reports.figures.drawing.fonts import drawable, families, properties
from reports.records.labels import NAMES

COLUMN_INCHES = 3.25
PAGE_INCHES = 6.75
PAGE_HEIGHT_INCHES = 8.75  # of the text of such a page
FONT_POINTS = 7.5
SMALL_POINTS = 7.0  # numbers of an axis, entries of a legend
TITLE_POINTS = 8.0
DPI = 300
MARGIN_INCHES = 0.55  # beside an axis, of its numbers and name
TICK_CHARACTERS = 16  # of a tick that has a name
LINE_SPACING = 1.25
MOST_LEGEND_COLUMNS = 10
WIDE = 10.0  # positive values whose ends differ by that factor or more are far apart
DECADES = 100.0  # a logarithmic axis as long as that has powers of ten alone
NARROW = 0.1  # values hardly differ where their range is less than this share of the largest
# What keeps a line from breaking, and what is drawn in its place.
UNBROKEN = str.maketrans({"\N{NO-BREAK SPACE}": " ", "\N{NON-BREAKING HYPHEN}": "-"})
ENDINGS = (".png", ".pdf")
ABOUT = {".png": "Description", ".pdf": "Subject"}
DEFENCE = re.compile(r"\+ (\S+) (?=\d)")  # "+ Gaussian 0.1", which stays in one line
# Names of methods that stay in one line, as "LG-FedAvg" does.
HYPHENATED = re.compile("|".join(re.escape(name) for name in NAMES.values() if "-" in name))
MODULE = re.compile(r"\b[A-Za-z_][\w.]*:(?=\w)")  # in front of a user's own class: "package.module:Class"


class _Wrapper(textwrap.TextWrapper):
    """Breaks lines at blanks, and where they must within paths and dotted names."""

    wordsep_re = re.compile(r"([ \t\n]+|(?<=[.:/\\_-])(?=[A-Za-z]))")


def new_figure(width: float, height: float) -> Figure:
    """A figure without global state."""
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def panels(
    count: int, height: float, *, large: bool = False, page: bool = False, **options: Any
) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels, each `height` inches high, in rows of a column or a page; none of them is left empty.

    One, two or four panels fit a column, other numbers take a page. Of `large` panels one or two fit a column, beneath each
    other; with `page` all are as wide as the page. `options` are those of `Figure.subplots`.
    """
    if page:
        across, width = 1, PAGE_INCHES
    elif large:
        across, width = (1, COLUMN_INCHES) if count <= 2 else (_across(count, (3, 2)), PAGE_INCHES)
    elif count in (1, 2, 4):
        across, width = min(2, count), COLUMN_INCHES
    else:
        across, width = _across(count, (5, 4, 3)), PAGE_INCHES
    down = -(-count // across)
    figure = new_figure(width, height * down)
    drawn = figure.subplots(down, across, squeeze=False, **options)
    for spare in drawn.flat[count:]:
        spare.remove()
    used = list(drawn.flat[:count])
    for axes in used:
        axes.tick_params(labelbottom=True)
    return figure, used


def _across(count: int, choices: Sequence[int]) -> int:
    """How many panels stand in a row: as many as leave the fewest places empty."""
    return min(choices, key=lambda across: (-count % across, -across))


def plain(axes: Axes) -> None:
    """An axis without ornament, its numbers in the common size."""
    axes.tick_params(which="both", labelsize=SMALL_POINTS)
    axes.spines[["top", "right"]].set_visible(False)


def scale_across(axes: Axes, values: Sequence[float]) -> None:
    """The lower axis of values: logarithmic where they are positive and far apart, linear elsewhere.

    Where values hardly differ the axis begins at zero, so that a small difference does not look like a large one.
    """
    least, most = min(values), max(values)
    if least > 0 and most / least >= WIDE:
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
        if most / least < DECADES:
            # Powers of ten alone would be one number or two.
            axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    elif least > 0 and most - least < NARROW * most:
        axes.set_xlim(0, most * (1 + NARROW))


def name_axes(panels: Sequence[Axes], x: str, y: str) -> None:
    """Names the axes: of the panels of the last row, and of the first column."""
    for axes in panels:
        place = axes.get_subplotspec()
        if place is not None and place.is_last_row():
            axes.set_xlabel(x, fontsize=FONT_POINTS)
        if place is not None and place.is_first_col():
            axes.set_ylabel(y, fontsize=FONT_POINTS)


def axis_inches(axes: Axes) -> float:
    """About how wide an axis is drawn, before the figure is laid out."""
    place, whole = axes.get_subplotspec(), axes.get_figure()
    assert place is not None, "a panel stands in a grid"
    assert isinstance(whole, Figure), "and in a figure"
    return whole.get_figwidth() / place.get_gridspec().ncols - MARGIN_INCHES


def name_ticks(axes: Axes, names: Sequence[str], upright: Sequence[str] | None = None) -> None:
    """Names the ticks 0, 1, ... of the lower axis: upright (as `upright`) if all fit, else vertically, at worst every n-th."""
    names = [shortened(drawable(name), TICK_CHARACTERS) for name in names]
    upright = [drawable(name) for name in upright] if upright else names
    room = axis_inches(axes) / len(names)
    widest = max(width_inches(line, SMALL_POINTS) for name in upright for line in name.split("\n")) + 0.04
    numbers = all(name.isdigit() for name in upright)
    if widest <= room or numbers:
        every, shown, rotation = math.ceil(widest / room), upright, 0
    else:
        every, shown, rotation = math.ceil(SMALL_POINTS * LINE_SPACING / 72 / room), names, 90
    axes.set_xticks(range(0, len(names), every), shown[::every], fontsize=SMALL_POINTS, rotation=rotation)


def heading(figure: Figure, text: str) -> None:
    """The title above all panels, wrapped to the figure's width; the figure grows by it."""
    lines = [part for line in text.split("\n") for part in wrapped(line, figure.get_figwidth() - 0.15, TITLE_POINTS)]
    figure.suptitle("\n".join(lines), fontsize=TITLE_POINTS, linespacing=LINE_SPACING)
    _grow(figure, len(lines) * TITLE_POINTS * LINE_SPACING / 72 + 0.05)


def footnote(figure: Figure, text: str) -> None:
    """A remark below all panels, wrapped to the figure's width; the figure grows by it."""
    lines = wrapped(text, figure.get_figwidth() - 0.15, SMALL_POINTS)
    figure.supxlabel("\n".join(lines), fontsize=SMALL_POINTS, linespacing=LINE_SPACING, ha="left", x=0.01)
    _grow(figure, len(lines) * SMALL_POINTS * LINE_SPACING / 72 + 0.05)


def handle(label: str, **series_style: Any) -> Line2D:
    """A legend's entry."""
    return Line2D([], [], label=label, **({"linewidth": 1.1, "markersize": 3.5} | series_style))


def legend(
    figure: Figure, handles: Sequence[Artist], title: str | None = None, tallest: float = SMALL_POINTS
) -> Legend:
    """The legend below all panels, in as many columns as fit, long names wrapped; the figure grows by it.

    `tallest` is the size of the largest marker in points.
    """
    inches = figure.get_figwidth()
    for each in handles:
        each.set_label("\n".join(wrapped(str(each.get_label()), inches - 0.6, SMALL_POINTS)))
    for columns in range(min(MOST_LEGEND_COLUMNS, len(handles)), 0, -1):
        drawn = figure.legend(
            handles=handles, loc="outside lower center", ncols=columns, fontsize=SMALL_POINTS, frameon=False,
            handlelength=2.6, columnspacing=1.0, labelspacing=0.3, handletextpad=0.5, borderaxespad=0.2, borderpad=0.2,
            title=title, title_fontsize=SMALL_POINTS, handleheight=max(0.7, tallest / SMALL_POINTS),
        )  # fmt: skip
        _choose_fonts(drawn)
        for text in (*drawn.get_texts(), drawn.get_title()):
            # Its size is asked for before the figure is saved (`_as_written`).
            text.set_parse_math(False)
        box = drawn.get_window_extent()
        if columns == 1 or box.width < figure.bbox.width:
            break
        drawn.remove()
    _grow(figure, box.height / figure.dpi + 0.05)
    return drawn


def _grow(figure: Figure, inches: float) -> None:
    figure.set_figheight(figure.get_figheight() + inches)


def width_inches(text: str, points: float) -> float:
    """How wide one line of text is drawn."""
    text = drawable(text)
    width: float = text_to_path.get_text_width_height_descent(text, properties(text, points), ismath=False)[0]
    return width / 72


def wrapped(text: str, inches: float, points: float) -> list[str]:
    """The lines of a text, none wider than so many inches; a single word is broken where nothing else helps."""
    text = drawable(text)
    text = DEFENCE.sub("+\N{NO-BREAK SPACE}\\1\N{NO-BREAK SPACE}", text)
    text = HYPHENATED.sub(lambda match: match[0].replace("-", "\N{NON-BREAKING HYPHEN}"), text)
    most = len(text)
    while True:
        lines = _Wrapper(max(1, most), break_on_hyphens=True).wrap(text) or [""]
        lines = [line.translate(UNBROKEN) for line in lines]
        widest = max(width_inches(line, points) for line in lines)
        if widest <= inches or most <= 1:
            return lines
        most = min(most - 1, int(max(map(len, lines)) * inches / widest))


def shortened(text: str, most: int) -> str:
    """A text of at most so many characters, its end left out where it is longer."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def series_names(names: Sequence[str]) -> list[str]:
    """Names without the modules of users' own classes, where they are as distinct without."""
    short = [MODULE.sub("", name) for name in names]
    return short if len(set(short)) == len(set(names)) else list(names)


def save(figure: Figure, stem: Path, endings: Sequence[str] = ENDINGS, about: str = "") -> list[Path]:
    """`stem`.png at 300 dpi and `stem`.pdf, or one of them, written whole or not at all.

    `about` says in words what the figure shows; it stands in the file, as the key ABOUT names it, for those who cannot see it.
    """
    paths = [stem.with_name(stem.name + ending) for ending in endings]
    _as_written(figure)
    for path in paths:
        buffer = io.BytesIO()
        metadata: dict[str, Any] = {"CreationDate": None} if path.suffix == ".pdf" else {}
        if about:
            metadata[ABOUT[path.suffix]] = about
        figure.savefig(buffer, format=path.suffix[1:], dpi=DPI, metadata=metadata)
        files.write_bytes(path, buffer.getvalue())
    return paths


def _choose_fonts(artist: Artist) -> None:
    """Gives every text the fonts that have its characters; what no font has was replaced where the text came in, or is here."""
    for text in artist.findobj(Text):
        if isinstance(text, Text) and not text.get_text().isascii():
            text.set_text(drawable(text.get_text()))
            text.set_fontfamily(families(text.get_text()))


def _as_written(figure: Figure) -> None:
    """Names as they are: drawn in fonts that have their characters, and no formula begins at a dollar sign.

    Only the numbers of logarithmic axes are mathematics.
    """
    for each in figure.axes:
        # Until they are asked for, numbers and names of ticks are no texts.
        each.get_xticklabels(), each.get_yticklabels()
    _choose_fonts(figure)
    axes = [axis for each in figure.axes for axis in (each.xaxis, each.yaxis)]
    powers = [axis for axis in axes if isinstance(axis.get_major_formatter(), LogFormatter)]
    numbers = {label for axis in powers for label in axis.get_ticklabels(which="both")}
    for text in figure.findobj(Text):
        if isinstance(text, Text) and text not in numbers:
            text.set_parse_math(False)
