"""How a series of a figure looks: colour, marker and dashes, one row of a table each.

Every method has the same look in every figure. Any two rows differ in marker or dashes, so that print without colour suffices. The
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
SOLID, DASHED, DOTTED = "-", (0, (5, 1.5)), (0, (1.5, 1.2))
DASH_DOT, LONG_DOT_DOT = (0, (5, 1.2, 1.2, 1.2)), (0, (7, 1.2, 1.2, 1.2, 1.2, 1.2))

FOUR_POINTS = (4, 1, 0)  # a star; markers that are nearly round, as hexagons are, look alike in print


class Look(NamedTuple):
    """Of one series."""

    colour: str
    marker: str | tuple[int, int, int]
    dashes: str | tuple[int, tuple[float, ...]]

    @property
    def line(self) -> dict[str, Any]:
        """As matplotlib takes it."""
        return {"color": self.colour, "marker": self.marker, "linestyle": self.dashes}


METHODS: Mapping[str, Look] = {
    "local": Look(BLACK, "X", DOTTED),
    "fedavg": Look(BLUE, "o", SOLID),
    "fedprox": Look(SKY, "P", DASHED),
    "feddf": Look(INDIGO, "<", DASH_DOT),
    "fedper": Look(WINE, ">", LONG_DOT_DOT),
    "fedsplit": Look(GREEN, "D", DASHED),
    "lg-fedavg": Look(GREY, "d", DOTTED),
    "fedgen": Look(OLIVE, "p", SOLID),
    "fedcg": Look(PINK, "v", DASH_DOT),
    "nfl-cgan": Look(ORANGE, FOUR_POINTS, DASHED),
    "fedmd-cg": Look(VERMILION, "*", SOLID),
}
# Of everything else: methods with a defence or with settings, users' own methods, an attacker's knowledge.
OTHERS = (
    Look(ORANGE, "s", DASHED),
    Look(VERMILION, "^", DASH_DOT),
    Look(BLACK, "d", LONG_DOT_DOT),
    Look(SKY, "s", DOTTED),
    Look(WINE, "^", SOLID),
    Look(GREEN, "v", DOTTED),
    Look(GREY, "o", DASHED),
    Look(INDIGO, "D", SOLID),
    Look(OLIVE, "<", DASHED),
    Look(PINK, "P", SOLID),
    Look(BLUE, "X", DASHED),
)
TABLE = (*METHODS.values(), *OTHERS)
# In what order series that are no methods take them: the first ones are as far apart as can be.
IN_ORDER = (
    METHODS["fedavg"], *OTHERS[:2], *(METHODS[name] for name in ("fedsplit", "fedcg", "fedprox", "feddf", "fedper", "fedgen")),
    *OTHERS[2:],
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "d")  # twelve, and eleven colours: 132 pairs
OF_NAME = {NAMES.get(name, name): look for name, look in METHODS.items()}
ALIASES = {"FedSplit (LG-FedAvg)": "FedSplit"}


def line_look(index: int) -> dict[str, Any]:
    """The n-th look as matplotlib takes it, for series that are no methods; after the last one the first again."""
    return IN_ORDER[index % len(IN_ORDER)].line


def point_look(index: int) -> tuple[str, str]:
    """(colour, marker) of the n-th of many groups of points, e.g. classes: no two of the first 132 are alike in both."""
    return COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]


def line_looks(labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Each row's look, by its label (`labels.label`, `grouping.row`): a method's own, or the next that no other row has.

    Beyond `TABLE` looks come again.
    """
    own = {label: OF_NAME[name] for label in labels if (name := ALIASES.get(label, label)) in OF_NAME}
    free = [look for look in (*OTHERS, *METHODS.values()) if look not in own.values()] or list(TABLE)
    rest = [label for label in dict.fromkeys(labels) if label not in own]
    return {label: look.line for label, look in own.items()} | {
        label: free[i % len(free)].line for i, label in enumerate(rest)
    }
