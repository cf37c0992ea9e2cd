"""Accuracy against PSNR: what a method costs and what it protects, in one picture per data set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox, ScaledTranslation

from privbench.records.schema import AttackRecord
from reports.figures.drawing import direct_labels, style
from reports.figures.drawing.direct_labels import Point
from reports.figures.drawing.line_styles import series_styles_of
from reports.records import grouping
from reports.records.labels import label, place, published, round_place, round_text, unique
from reports.records.measured import strongest
from reports.records.published import of_papers_attack
from reports.records.quotable import is_quotable

PANEL_INCHES = 2.6
NAME_INCHES = 1.0
FLOOR: dict[str, Any] = {"color": "0.45", "linestyle": "--", "linewidth": 0.8, "marker": ""}
MARKER_POINTS = 5.0
# Bars that would lie on each other are drawn so far apart.
STEP_POINTS = 3.0
MOVED = "bars that would cover each other are drawn apart"
# Methods whose floors differ by less share the dashed line; scores are printed to a tenth.
SAME_FLOOR_DB = 0.1
OWN_FLOOR = "short line: a method's own floor, where it differs"
OWN_FLOOR_POINTS = 20.0
SeriesStyles = Mapping[str, dict[str, Any]]


def write(records: Sequence[AttackRecord], stem: Path) -> list[Path]:
    """A panel per attacked round, side by side: each method's strongest attack, filled; published ones, hollow; the floor, dashed.

    The dashed line is the floor that most methods have. Another floor (fewer labels are read from noised uploads) is a
    short line of the method's colour.

    `records` are of one setting and of what the server saw in one way (`grouping.observation`). Bars are the standard deviation
    over seeds (accuracy) and the 95% interval (PSNR). The strongest
    attack is chosen on other seeds or victims than those that say where it is drawn (reports/records/measured.py). Nothing for
    a single method, which has nothing to be compared with, nor for smoke runs, whose scores say nothing.
    """
    names = unique(label(cell) for cell in sorted((r.cell for r in records), key=place))
    if len(names) < 2 or not is_quotable(records[0].cell.preset):
        return []
    series_styles = {name: series_style | {"linestyle": ""} for name, series_style in series_styles_of(names).items()}
    numbers = sorted(unique(r.cell.round for r in records), key=round_place)
    rounds = {number: [r for r in records if r.cell.round == number] for number in numbers}
    figure, panels = _panels(len(rounds))
    every = [_spreads(of_round, names, series_styles) for of_round in rounds.values()]
    for axes, (number, of_round), spreads in zip(panels, rounds.items(), every, strict=True):
        _draw(axes, of_round, spreads, series_styles)
        title = f"{number} round" if number in ("best", "last") else f"round {round_text(number)}"
        axes.set_title(title, fontsize=style.FONT_POINTS)
    style.name_axes(panels, "test accuracy, %", "PSNR, strongest attack, dB")
    differ = any(_own_floors(spreads) for spreads in every)
    words = f"{MOVED}\n{OWN_FLOOR}" if differ else MOVED
    style.heading(figure, f"{grouping.observation_title(grouping.observation(records[0].cell))}\n{words}")
    figure.draw_without_rendering()
    covered = [_bars(axes, spreads) for axes, spreads in zip(panels, every, strict=True)]
    short = dict(zip(names, style.series_names(names), strict=True))
    has_published = any(published(r.cell)[0] and of_papers_attack(r.cell) for r in records)
    floors = [_floor(spreads) for spreads in every]
    if has_published or not _named(figure, panels, every, covered, floors, short):
        _legend(figure, {short[name]: series_styles[name] for name in names}, has_published=has_published)
    return style.save(figure, stem)


class ErrorBar(NamedTuple):
    """A method's strongest attack, and the ends of its bars: (low, high)."""

    point: Point
    accuracy: tuple[float, float]
    psnr_db: tuple[float, float]
    floor_db: float


def _panels(number: int) -> tuple[Figure, list[Axes]]:
    """Two panels in a row of a page; one alone is as wide as a column."""
    across = min(number, 2)
    down = -(-number // across)
    figure = style.new_figure(style.PAGE_INCHES if across > 1 else style.COLUMN_INCHES, PANEL_INCHES * down)
    grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    for spare in grid.flat[number:]:
        spare.remove()
    return figure, list(grid.flat[:number])


def _spreads(records: Sequence[AttackRecord], names: Sequence[str], series_styles: SeriesStyles) -> list[ErrorBar]:
    """Of every method that was attacked, in the order of their names."""
    bars = []
    for name in names:
        attacks = [r for r in records if label(r.cell) == name]
        if not attacks:
            continue
        best = strongest(attacks)
        psnr, accuracy = best.psnr_db, best.first.accuracy
        std = accuracy.std or 0.0
        point = Point(name, series_styles[name]["color"], accuracy.mean, psnr.mean)
        ends = (min(psnr.low, psnr.mean), max(psnr.high, psnr.mean))
        bars.append(ErrorBar(point, (accuracy.mean - std, accuracy.mean + std), ends, best.floor.psnr_db))
    return bars


def _floor(spreads: Sequence[ErrorBar]) -> float:
    """The floor that most methods have, to SAME_FLOOR_DB."""
    shared = Counter(round(s.floor_db / SAME_FLOOR_DB) for s in spreads).most_common(1)[0][0]
    return next(s.floor_db for s in spreads if round(s.floor_db / SAME_FLOOR_DB) == shared)


def _own_floors(spreads: Sequence[ErrorBar]) -> list[ErrorBar]:
    """The methods that have another one."""
    return [s for s in spreads if abs(s.floor_db - _floor(spreads)) >= SAME_FLOOR_DB]


def _draw(
    axes: Axes, records: Sequence[AttackRecord], spreads: Sequence[ErrorBar], series_styles: SeriesStyles
) -> None:
    """Everything but the bars, whose room the limits hold."""
    axes.axhline(_floor(spreads), zorder=0, **FLOOR)
    for point, *_, floor in _own_floors(spreads):
        axes.plot(point.x, floor, marker="_", markersize=OWN_FLOOR_POINTS, color=point.colour, zorder=2)
    for point, across, upright, _ in spreads:
        axes.plot(point.x, point.y, markersize=MARKER_POINTS, zorder=4, **series_styles[point.name])
        axes.update_datalim([(across[0], upright[0]), (across[1], upright[1])])
        cell = next(r.cell for r in records if label(r.cell) == point.name)
        x = published(cell)[0]
        y = next((p for r in records if r.cell.train == cell.train and (p := of_papers_attack(r.cell))), None)
        if x is not None and y is not None:
            axes.plot(x.value, y.value, markerfacecolor="none", markersize=MARKER_POINTS, **series_styles[point.name])
    style.plain(axes)
    axes.tick_params(labelbottom=True)
    axes.margins(x=0.12, y=0.26)


def _bars(axes: Axes, spreads: Sequence[ErrorBar]) -> list[Bbox]:
    """The bars of both kinds, moved apart where they would lie on each other; what they cover, in pixels."""
    rows = _moves(axes, [(s.accuracy, s.point.y) for s in spreads], upright=False)
    columns = _moves(axes, [(s.psnr_db, s.point.x) for s in spreads], upright=True)
    covered = []
    for (point, accuracy, psnr_db, _), down, aside in zip(spreads, rows, columns, strict=True):
        how: dict[str, Any] = {
            "fmt": "none",
            "ecolor": point.colour,
            "elinewidth": 0.8,
            "capsize": 2,
            "capthick": 0.8,
            "zorder": 3,
        }
        reach = [[point.x - accuracy[0]], [accuracy[1] - point.x]]
        axes.errorbar(point.x, point.y, xerr=reach, transform=(moved := _moved(axes, 0, down)), **how)
        covered.append(Bbox(moved.transform([(end, point.y) for end in accuracy])).padded(2))
        reach = [[point.y - psnr_db[0]], [psnr_db[1] - point.y]]
        axes.errorbar(point.x, point.y, yerr=reach, transform=(moved := _moved(axes, aside, 0)), **how)
        covered.append(Bbox(moved.transform([(point.x, end) for end in psnr_db])).padded(2))
    half = OWN_FLOOR_POINTS / 2 / 72 * axes.figure.dpi
    for point, *_, floor in _own_floors(spreads):
        x, y = axes.transData.transform((point.x, floor))
        covered.append(Bbox([(x - half, y), (x + half, y)]).padded(2))
    return covered


def _moved(axes: Axes, right: int, up: int) -> Any:
    """The data's transformation, moved by so many steps."""
    inches = STEP_POINTS / 72
    return axes.transData + ScaledTranslation(right * inches, up * inches, axes.figure.dpi_scale_trans)


def _moves(axes: Axes, bars: Sequence[tuple[tuple[float, float], float]], *, upright: bool) -> list[int]:
    """By how many steps each bar, (its two ends, where it lies across them), is moved: as few as leave none on another."""
    step = STEP_POINTS / 72 * axes.figure.dpi
    placed: list[tuple[float, float, float]] = []
    moves = []
    for ends, at in bars:
        corners = [(at, end) if upright else (end, at) for end in ends]
        screen = axes.transData.transform(corners)
        (low, high), middle = sorted(screen[:, int(upright)]), screen[0, 1 - int(upright)]
        for number in count():
            move = (number + 1) // 2 * (-1 if number % 2 else 1)
            shifted = middle + move * step
            if not any(
                abs(shifted - other) < 0.9 * step and low <= end and begin <= high for begin, end, other in placed
            ):
                break
        placed.append((low, high, shifted))
        moves.append(move)
    return moves


def _named(
    figure: Figure,
    panels: Sequence[Axes],
    every: Sequence[Sequence[ErrorBar]],
    covered: Sequence[Sequence[Bbox]],
    floors: Sequence[float],
    short: Mapping[str, str],
) -> bool:
    """Whether every point of every panel has its name beside it; where one has no room, none has one."""
    drawn: list[Annotation] = []
    for axes, spreads, bars, floor in zip(panels, every, covered, floors, strict=True):
        line = Bbox(axes.transData.transform([(x, floor) for x in axes.get_xlim()])).padded(2)
        name = _floor_name(axes, floor, bars)
        drawn += [name] if name is not None else []
        obstacles = [*bars, line, *(each.get_window_extent() for each in drawn[-1:])]
        points = [s.point._replace(name=_wrapped(short[s.point.name])) for s in spreads]
        names = None if name is None else direct_labels.draw(axes, points, obstacles)
        if names is None:
            for each in drawn:
                each.remove()
            return False
        drawn += names
    # Names stand beside their points only as long as the panels stay where they are.
    figure.set_layout_engine("none")
    return True


def _floor_name(axes: Axes, floor: float, bars: Sequence[Bbox]) -> Annotation | None:
    """The name of the floor's line at its right or left end; None where bars leave no room."""
    for x, side in ((1, "right"), (0, "left")):
        name = axes.annotate(
            "best floor", (x, floor), (-2 if x else 2, 2), xycoords=("axes fraction", "data"), textcoords="offset points",
            ha=side, va="bottom", fontsize=style.SMALL_POINTS, color=FLOOR["color"],
        )  # fmt: skip
        if not any(name.get_window_extent().overlaps(bar) for bar in bars):
            return name
        name.remove()
    return None


def _wrapped(name: str) -> str:
    return "\n".join(style.wrapped(name, NAME_INCHES, style.SMALL_POINTS))


def _legend(figure: Figure, series_styles: SeriesStyles, *, has_published: bool) -> None:
    handles = [
        style.handle(name, **series_style, markersize=MARKER_POINTS) for name, series_style in series_styles.items()
    ]
    handles.append(style.handle("best floor", **FLOOR))
    if has_published:
        hollow = {
            "color": "0.3",
            "marker": "o",
            "markerfacecolor": "none",
            "linestyle": "",
            "markersize": MARKER_POINTS,
        }
        handles.append(style.handle("published", **hollow))
    style.legend(figure, handles)
