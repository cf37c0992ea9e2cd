"""Names at the right ends of lines, in place of a legend, where there is room for all of them.

They stand beside the axis in the order of the ends, moved apart where they would overlap. A thin line leads from each to its end.
A long one would look like a curve of the data: where one would be needed, a legend stands below the panels instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text
from matplotlib.transforms import ScaledTranslation
from numpy.typing import NDArray
from sklearn.isotonic import isotonic_regression

from reports.figures.drawing import style
from reports.figures.drawing.direct_labels import Point

NAME_INCHES = 1.0  # of a name; a longer one is wrapped
MOST_LINES = 3  # of text in one name
LEAST_AXIS_INCHES = 1.3  # how wide an axis stays beside the names
ASIDE_POINTS = 9.0  # between the axis and a name
GAP_POINTS = 1.5  # between two names
# How far the thin line of a name may lead, as a share of the panel's width and of its height.
LONGEST_ACROSS, LONGEST_UP = 0.2, 0.25


def draw(
    figure: Figure,
    panels: Sequence[tuple[Axes, Sequence[Point]]],
    handles: Sequence[Artist],
    others: Sequence[Artist] = (),
) -> None:
    """Names the lines of every panel, or puts all `handles` into a legend below where one name finds no room.

    A `Point` is the right end of a line. `others` are entries that no line has, which stand in a legend always. Names keep their
    places only as long as the panels do, so nothing may be added to the figure afterwards.
    """
    names = [[_name(axes, point) for point in points] for axes, points in panels]
    figure.draw_without_rendering()
    has_room = all(_fit(axes, points, drawn) for (axes, points), drawn in zip(panels, names, strict=True))
    if not has_room:
        for each in (name for drawn in names for name in drawn):
            each.remove()
    if others or not has_room:
        style.legend(figure, [*(() if has_room else handles), *others])
    if has_room:
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        for (axes, points), drawn in zip(panels, names, strict=True):
            _place(axes, points, drawn)


def _name(axes: Axes, point: Point) -> Annotation:
    """A name at half the height, which the layout makes room for."""
    beside = axes.transAxes + ScaledTranslation(ASIDE_POINTS / 72, 0, axes.figure.dpi_scale_trans)
    return axes.annotate(
        "\n".join(style.wrapped(point.name, NAME_INCHES, style.SMALL_POINTS)), (point.x, point.y), (1, 0.5),
        textcoords=beside, color=point.colour, ha="left", va="center", linespacing=1.0, fontsize=style.SMALL_POINTS,
        annotation_clip=False, arrowprops={
            "arrowstyle": "-", "linewidth": 0.5, "color": point.colour, "alpha": 0.7, "shrinkA": 1, "shrinkB": 2,
            "relpos": (0, 0.5),
        },
    )  # fmt: skip


def _fit(axes: Axes, points: Sequence[Point], names: Sequence[Annotation]) -> bool:
    """Whether the names of one panel fit beside it, one above the other and near their lines, and leave it wide enough."""
    room = axes.get_window_extent()
    short = all(name.get_text().count("\n") < MOST_LINES for name in names)
    wide = room.width >= LEAST_AXIS_INCHES * axes.figure.dpi
    return short and wide and sum(_heights(axes, names)) <= room.height and _near(axes, points, names)


def _near(axes: Axes, points: Sequence[Point], names: Sequence[Annotation]) -> bool:
    """Whether no thin line would lead far."""
    room = axes.get_window_extent()
    ends = np.array([axes.transData.transform((point.x, point.y)) for point in points]).reshape(-1, 2)
    across = (room.x1 - ends[:, 0]) / room.width
    up = (np.array(_middles(axes, points, names)) - ends[:, 1]) / room.height
    return bool(np.all(across <= LONGEST_ACROSS) and np.all(np.abs(up) <= LONGEST_UP))


def _heights(axes: Axes, names: Sequence[Annotation]) -> list[float]:
    """The height of each name with the gap above it, in pixels."""
    gap = GAP_POINTS / 72 * axes.figure.dpi
    return [float(Text.get_window_extent(name).height) + gap for name in names]


def _place(axes: Axes, points: Sequence[Point], names: Sequence[Annotation]) -> None:
    """Moves each name as near to the height of its line's end as the others allow."""
    room = axes.get_window_extent()
    for name, middle in zip(names, _middles(axes, points, names), strict=True):
        name.set_position((1, (middle - room.y0) / room.height))


def _middles(axes: Axes, points: Sequence[Point], names: Sequence[Annotation]) -> list[float]:
    """The height of the middle of each name, in pixels."""
    room = axes.get_window_extent()
    ends = np.array([axes.transData.transform((point.x, point.y))[1] for point in points])
    order = np.argsort(ends, kind="stable")
    middles = np.empty(len(ends))
    middles[order] = apart(ends[order], np.array(_heights(axes, names))[order], room.y0, room.y1)
    return [float(middle) for middle in middles]


def apart(wanted: NDArray[np.float64], heights: NDArray[np.float64], low: float, high: float) -> NDArray[np.float64]:
    """The middles of boxes of these heights, none on another, all within [low, high]: [N], nearest to `wanted` in squares.

    `wanted` ascends, and so do the middles. Let c_i be how far the i-th middle lies above the first where all boxes touch. Then the
    middles are z_i + c_i with ascending z_i, an isotonic regression of wanted_i - c_i. The boxes must fit into [low, high].
    """
    if not len(wanted):
        return wanted
    touching = np.concatenate([[0.0], np.cumsum((heights[:-1] + heights[1:]) / 2)])
    lowest, highest = low + heights[0] / 2, high - heights[-1] / 2 - touching[-1]
    free = isotonic_regression(wanted - touching, y_min=lowest, y_max=max(lowest, highest))
    return np.asarray(free + touching, dtype=np.float64)
