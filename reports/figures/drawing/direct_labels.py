"""Names beside the points that they are of, in place of a legend, where there is room for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox

from reports.figures.drawing import style

# Where a name may stand: so many points to the right of its point and above it. One that stands farther off needs a legend.
ACROSS = (6, -6, 0, 14, -14, 26, -26)
UP = (0, 6, -6, 12, -12, 18, -18, 25, -25)
# From here on a thin line leads from the name to its point.
LEADS_FROM_POINTS = 10
GAP_PIXELS = 3.0
MARK_POINTS = 6.0
LEAD_PIECES = 24


class Point(NamedTuple):
    """One named point in the data's units."""

    name: str
    colour: str
    x: float
    y: float


def draw(axes: Axes, points: Sequence[Point], obstacles: Sequence[Bbox]) -> list[Annotation] | None:
    """Names every point of an axis whose limits and place are settled; None, and nothing drawn, where one finds no room.

    No name covers another, a mark, or one of the `obstacles`, in pixels.
    """
    inside, covered = axes.get_window_extent(), [*obstacles, *(_mark(axes, point) for point in points)]
    names: list[Bbox] = []
    drawn: list[Annotation] = []
    places = sorted(product(ACROSS, UP), key=lambda place: place[0] ** 2 + place[1] ** 2)
    for point in points:
        for across, up in places:
            label = _label(axes, point, across, up)
            label.get_window_extent()
            # That settled where it stands; this is of the text alone, without the line that leads to it.
            box = Text.get_window_extent(label)
            lead = _lead(axes, point, box) if label.arrow_patch is not None else []
            free = not any(box.padded(GAP_PIXELS).overlaps(other) for other in covered)
            if free and _is_inside(box, inside) and not any(name.overlaps(part) for name in names for part in lead):
                names.append(box.padded(GAP_PIXELS))
                covered += [box, *lead]
                drawn.append(label)
                break
            label.remove()
        else:
            for each in drawn:
                each.remove()
            return None
    return drawn


def _lead(axes: Axes, point: Point, box: Bbox) -> list[Bbox]:
    """What the line from a name to its point covers, in pixels, piece by piece."""
    x, y = axes.transData.transform((point.x, point.y))
    near = min(max(x, box.x0), box.x1), min(max(y, box.y0), box.y1)
    along = [i / LEAD_PIECES for i in range(1, LEAD_PIECES)]
    spots = [(near[0] + part * (x - near[0]), near[1] + part * (y - near[1])) for part in along]
    return [Bbox([(a - 1, b - 1), (a + 1, b + 1)]) for a, b in spots]


def _label(axes: Axes, point: Point, across: float, up: float) -> Annotation:
    leads = max(abs(across) - 6, abs(up)) >= LEADS_FROM_POINTS
    lead = {"arrowstyle": "-", "linewidth": 0.4, "color": point.colour, "shrinkA": 0, "shrinkB": 2} if leads else None
    return axes.annotate(
        point.name, (point.x, point.y), (across, up), textcoords="offset points", color=point.colour,
        ha="left" if across > 0 else "right" if across < 0 else "center", va="center", linespacing=1.0,
        fontsize=style.SMALL_POINTS, arrowprops=lead, annotation_clip=False,
    )  # fmt: skip


def _mark(axes: Axes, point: Point) -> Bbox:
    """What a point's mark covers, in pixels."""
    x, y = axes.transData.transform((point.x, point.y))
    half = MARK_POINTS / 2 * axes.figure.dpi / 72
    return Bbox.from_extents(x - half, y - half, x + half, y + half)


def _is_inside(box: Bbox, whole: Bbox) -> bool:
    return bool(whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0 and box.y1 <= whole.y1)
