"""Names at the ends of lines: none on another, in the order of the ends, and a legend where they have no room."""

from itertools import pairwise

import numpy as np
import pytest
from matplotlib.text import Annotation, Text
from scipy.optimize import minimize

from reports.figures.drawing import line_ends, style
from reports.figures.drawing.direct_labels import Point


@pytest.mark.parametrize(
    ("wanted", "low", "high", "middles"),
    [
        ([1.0, 5.0, 9.0], 0, 10, [1, 5, 9]),
        ([5.0, 5.0, 5.0], 0, 10, [3, 5, 7]),
        ([0.0, 0.0, 0.0], 0, 10, [1, 3, 5]),
        ([9.0, 9.9, 30.0], 0, 10, [5, 7, 9]),
        ([], 0, 10, []),
    ],
)
def test_boxes_are_moved_apart_as_little_as_they_must(wanted, low, high, middles):
    np.testing.assert_allclose(line_ends.apart(np.array(wanted), np.full(len(wanted), 2.0), low, high), middles)


def test_places_are_the_nearest_that_a_general_solver_finds():
    rng = np.random.default_rng(0)
    wanted, heights = np.sort(rng.uniform(-2, 12, 6)), rng.uniform(0.5, 2.0, 6)
    here = line_ends.apart(wanted, heights, 0.0, 10.0)
    limits = [
        {"type": "ineq", "fun": lambda p, i=i: p[i + 1] - p[i] - (heights[i] + heights[i + 1]) / 2} for i in range(5)
    ]
    limits += [{"type": "ineq", "fun": lambda p: p[0] - heights[0] / 2}]
    limits += [{"type": "ineq", "fun": lambda p: 10 - heights[-1] / 2 - p[-1]}]
    there = minimize(lambda p: np.square(p - wanted).sum(), np.linspace(1, 9, 6), constraints=limits, method="SLSQP")
    assert there.success
    np.testing.assert_allclose(here, there.x, atol=1e-4)


def drawn(names, others=0):
    """A figure of one panel with a line for each name, and what was drawn beside it."""
    figure, (axes,) = style.panels(1, 1.7)
    heights = [np.sin(i) for i in range(len(names))]
    for height in heights:
        axes.plot([0, 1], [0, height])
    points = [Point(name, "0.2", 1, height) for name, height in zip(names, heights, strict=True)]
    handles = [style.handle(name) for name in names]
    line_ends.draw(figure, [(axes, points)], handles, [style.handle("other")] * others)
    figure.draw_without_rendering()
    return figure, axes, points, [text for text in axes.texts if isinstance(text, Annotation)]


@pytest.mark.parametrize("others", [0, 1])
def test_names_stand_beside_the_axis_in_the_order_of_the_ends(others):
    figure, axes, points, names = drawn([f"method {i}" for i in range(7)], others)
    assert len(names) == 7
    boxes = {name.get_text(): Text.get_window_extent(name) for name in names}
    order = [point.name for point in sorted(points, key=lambda point: point.y)]
    assert sorted(boxes, key=lambda name: boxes[name].y0) == order
    room = axes.get_window_extent()
    for low, high in pairwise(order):
        assert boxes[low].y1 <= boxes[high].y0
    for box in boxes.values():
        assert room.x1 < box.x0 < box.x1 <= figure.bbox.x1
        assert room.y0 - 1 <= box.y0 < box.y1 <= room.y1 + 1
    assert [[text.get_text() for text in legend.get_texts()] for legend in figure.legends] == [["other"]] * others


@pytest.mark.parametrize(
    "names", [[f"m{i}" for i in range(20)], ["a name that takes more than three lines of an inch each, as it is"]]
)
def test_without_room_for_every_name_all_stand_in_a_legend(names):
    figure, axes, _, beside = drawn(names)
    assert beside == []
    (legend,) = figure.legends
    assert [text.get_text().replace("\n", " ") for text in legend.get_texts()] == names
    assert not legend.get_window_extent().overlaps(axes.get_window_extent())


@pytest.mark.parametrize(
    "ends",
    [
        pytest.param([(0.3, 0.2), (1.0, 0.8)], id="a line that ends far from the names"),
        pytest.param([(1.0, 0.5)] * 9, id="names that would stand far above their ends"),
    ],
)
def test_where_a_thin_line_would_lead_far_all_names_stand_in_a_legend(ends):
    figure, (axes,) = style.panels(1, 1.7)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    points = [Point(f"method {i}", "0.2", x, y) for i, (x, y) in enumerate(ends)]
    line_ends.draw(figure, [(axes, points)], [style.handle(point.name) for point in points])
    assert not [text for text in axes.texts if isinstance(text, Annotation)]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [point.name for point in points]
