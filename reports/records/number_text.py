"""How tables write a number: a mean with its spread or its interval, and a published value beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from privbench.scoring.statistics import Interval
from reports.records.labels import unique
from reports.records.published import Published

MEASURED_OTHERWISE = "†"  # behind a published value that is measured otherwise than here
NONE = "-"  # there is no such number
MORE = 2  # digits, at most, where an end would be rounded to 0
FEW = "*"  # behind an interval over few seeds


def published_text(printed: Published | None, digits: int = 2) -> str:
    """A published value, marked where the paper measures it otherwise than the suite, or the sign that there is none."""
    if printed is None:
        return NONE
    return spread_text(printed.value, printed.std, digits) + (MEASURED_OTHERWISE if printed.note else "")


def measured_otherwise(values: Iterable[Published | None]) -> list[str]:
    """One line per way in which some published values are measured otherwise than here."""
    notes: dict[str, list[str]] = {}
    for value in values:
        if value is not None and value.note:
            notes.setdefault(value.note, []).append(value.source)
    return [f"{MEASURED_OTHERWISE} {', '.join(unique(sources))}: {note}." for note, sources in notes.items()]


def spread_text(mean: float, std: float | None, digits: int = 2) -> str:
    """A mean with its standard deviation, where there is one."""
    return f"{mean:.{digits}f}" if std is None else f"{mean:.{digits}f} +- {std:.{digits}f}"


def range_text(range_: Interval, *, sign: bool = False, digits: int = 2) -> str:
    """A mean with its interval, marked where the seeds are few."""
    plus = "+" if sign else ""
    nearer = _digits(range_.low if range_.low > 0 else range_.high, digits) if not range_.holds_zero else digits

    def text(value: float) -> str:
        places = digits if round(value, digits) else nearer
        # 0 is added, as rounding has no sign. What is more keeps it, so that an end below 0 does not read as one above.
        shown = value if sign and round(value, digits + MORE) else round(value, places) + 0.0
        return f"{shown:{plus}.{places}f}"

    mean, low, high = map(text, (range_.mean, range_.low, range_.high))
    return f"{mean} [{low}, {high}]{FEW if range_.is_few else ''}"


def _digits(end: float, digits: int) -> int:
    """As many more digits as an end takes that leaves out 0 to show it, up to MORE; what is smaller is rounding."""
    return next((n for n in range(digits, digits + MORE + 1) if round(end, n)), digits)


def whole_numbers(values: Sequence[int]) -> str:
    """Some sorted whole numbers: from the first to the last where none is left out between, else each."""
    return span(values) if values[-1] - values[0] + 1 == len(values) else ", ".join(map(str, values))


def span(values: Sequence[Any]) -> str:
    """One value, or the first and the last of some sorted ones."""
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"
