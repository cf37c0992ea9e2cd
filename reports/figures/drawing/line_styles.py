"""How a series of a figure looks: colour, marker and dashes, one row of a table each.

Every method has the same style in every figure. Any two rows differ in marker or dashes, so that print without colour suffices. The
colours are those of Okabe and Ito (2008), without their yellow, which is too light on paper, and four darker ones after Tol (2021).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from reports.records.labels import NAMES

COLOURS = (
    "#0072B2", "#E69F00", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#000000", "#332288", "#882255", "#999933", "#777777",
)  # fmt: skip
BLUE, ORANGE, VERMILION, GREEN, PINK, SKY, BLACK, INDIGO, WINE, OLIVE, GREY = COLOURS
# Of one method each; points of groups go through COLOURS, whose number has no divisor in common with MARKERS'.
TEAL, BROWN, PURPLE = "#44AA99", "#7F4F24", "#9467BD"
SOLID, DASHED, DOTTED = "-", (0, (5, 1.5)), (0, (1.5, 1.2))
DASH_DOT, LONG_DOT_DOT = (0, (5, 1.2, 1.2, 1.2)), (0, (7, 1.2, 1.2, 1.2, 1.2, 1.2))

THREE_POINTS, FOUR_POINTS = (
    (3, 1, 0),
    (4, 1, 0),
)  # stars; markers that are nearly round, as hexagons are, look alike in print


class SeriesStyle(NamedTuple):
    """Of one series."""

    colour: str
    marker: str | tuple[int, int, int]
    dashes: str | tuple[int, tuple[float, ...]]

    @property
    def line(self) -> dict[str, Any]:
        """As matplotlib takes it."""
        return {"color": self.colour, "marker": self.marker, "linestyle": self.dashes}


METHODS: Mapping[str, SeriesStyle] = {
    "local": SeriesStyle(BLACK, "X", DOTTED),
    "fedavg": SeriesStyle(BLUE, "o", SOLID),
    "fedprox": SeriesStyle(SKY, "P", DASHED),
    "feddf": SeriesStyle(INDIGO, "<", DASH_DOT),
    "fedper": SeriesStyle(WINE, ">", LONG_DOT_DOT),
    "fedsplit": SeriesStyle(GREEN, "D", DASHED),
    "lg-fedavg": SeriesStyle(GREY, "d", DOTTED),
    "fedgen": SeriesStyle(OLIVE, "p", SOLID),
    "fedcg": SeriesStyle(PINK, "v", DASH_DOT),
    "nfl-cgan": SeriesStyle(ORANGE, FOUR_POINTS, DASHED),
    "fedmd-cg": SeriesStyle(VERMILION, "*", SOLID),
    "dp-gan": SeriesStyle(TEAL, "s", LONG_DOT_DOT),
    "secure-gan": SeriesStyle(PURPLE, THREE_POINTS, SOLID),
    "reptile": SeriesStyle(BROWN, "^", DOTTED),
}
# Of everything else: methods with a defence or with settings, users' own methods, an attacker's knowledge.
OTHERS = (
    SeriesStyle(ORANGE, "s", DASHED),
    SeriesStyle(VERMILION, "^", DASH_DOT),
    SeriesStyle(BLACK, "d", LONG_DOT_DOT),
    SeriesStyle(SKY, "s", DOTTED),
    SeriesStyle(WINE, "^", SOLID),
    SeriesStyle(GREEN, "v", DOTTED),
    SeriesStyle(GREY, "o", DASHED),
    SeriesStyle(INDIGO, "D", SOLID),
    SeriesStyle(OLIVE, "<", DASHED),
    SeriesStyle(PINK, "P", SOLID),
    SeriesStyle(BLUE, "X", DASHED),
)
TABLE = (*METHODS.values(), *OTHERS)
# In what order series that are no methods take them: the first ones are as far apart as can be.
IN_ORDER = (
    METHODS["fedavg"], *OTHERS[:2], *(METHODS[name] for name in ("fedsplit", "fedcg", "fedprox", "feddf", "fedper", "fedgen")),
    *OTHERS[2:],
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "d")  # twelve, and eleven colours: 132 pairs
OF_NAME = {NAMES.get(name, name): series_style for name, series_style in METHODS.items()}
ALIASES = {"FedSplit (LG-FedAvg)": "FedSplit"}


def line_style(index: int) -> dict[str, Any]:
    """The n-th style as matplotlib takes it, for series that are no methods; after the last one the first again."""
    return IN_ORDER[index % len(IN_ORDER)].line


def point_style(index: int) -> tuple[str, str]:
    """(colour, marker) of the n-th of many groups of points, e.g. classes: no two of the first 132 are alike in both."""
    return COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]


def series_styles_of(labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Each row's style, by its label (`labels.label`, `grouping.row`): a method's own, or the next that no other row has.

    Beyond `TABLE` styles repeat.
    """
    of_methods = {label: OF_NAME[name] for label in labels if (name := ALIASES.get(label, label)) in OF_NAME}
    free = [
        series_style for series_style in (*OTHERS, *METHODS.values()) if series_style not in of_methods.values()
    ] or list(TABLE)
    rest = [label for label in dict.fromkeys(labels) if label not in of_methods]
    return {label: series_style.line for label, series_style in of_methods.items()} | {
        label: free[i % len(free)].line for i, label in enumerate(rest)
    }
