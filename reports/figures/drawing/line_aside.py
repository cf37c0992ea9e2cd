"""A line with its intervals drawn a little beside its values, so that those of several lines do not hide each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.transforms import ScaledTranslation

POINTS_PER_INCH = 72


class Bar(NamedTuple):
    """One value and its interval, which holds it."""

    at: Any  # the place on the axis across
    mean: float
    low: float
    high: float


def draw(axes: Axes, bars: Sequence[Bar], number: int, of: int, step: float, **line: Any) -> None:
    """The line `number`, from 0, of so many that lie `step` points beside each other, centred on their values."""
    aside = (number - (of - 1) / 2) * step / POINTS_PER_INCH
    moved = axes.transData + ScaledTranslation(aside, 0, axes.figure.dpi_scale_trans)
    axes.errorbar(
        [bar.at for bar in bars],
        [bar.mean for bar in bars],
        yerr=[[max(bar.mean - bar.low, 0) for bar in bars], [max(bar.high - bar.mean, 0) for bar in bars]],
        transform=moved,
        **line,
    )
    # The limits of an axis leave out what is drawn aside.
    axes.update_datalim([(bar.at, end) for bar in bars for end in (bar.low, bar.high, bar.mean)])
    axes.autoscale_view()
