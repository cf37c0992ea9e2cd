"""PSNR against the training round, from the untrained model on: when does a method leak, and to whom?

One panel per method, all on one scale; one line per set of knowledge, at each round the best attack within it, as in the ladder's
table; bars are 95% intervals. The dashed line is the best floor, its band the interval; the dotted one is the oracle, a reference.
Where something exceeds 50 dB, all that lies above 30 dB is drawn at a quarter of the height, so that the rest stays legible.
Rounds are drawn on a scale that is linear to 1 and logarithmic beyond, because a network changes most in its first rounds. Where
lines run together, markers lie within one another: a higher rung has a smaller one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from privbench import registry
from privbench.records.schema import AttackRecord
from reports.figures.drawing import line_aside, line_ends, style
from reports.figures.drawing.direct_labels import Point
from reports.figures.drawing.line_aside import Bar
from reports.figures.drawing.line_styles import line_style
from reports.records import grouping, knowledge_sets, labels
from reports.records.labels import label, place, unique
from reports.records.measured import ORACLE, Measured, strongest
from reports.records.quotable import quotable
from reports.tables import ladder

PANEL_INCHES = 1.75
SINGLE_INCHES = 2.0  # of one method by itself
MANY_LINES = 8  # of a panel: more of them need larger panels
MOST_NAMED = 2  # panels; beside more of them there is no room for names
FLOOR_NAME = "best floor"
LARGEST_MARKER, SMALLEST_MARKER = 6.0, 2.5  # points
FLOOR: dict[str, Any] = {"color": "0.45", "linestyle": (0, (4, 2)), "linewidth": 0.9}
ORACLE_LINE: dict[str, Any] = {"color": "0.1", "linestyle": (0, (1, 1.4)), "linewidth": 1.1}
KNEE_DB, PRESSED = 30.0, 4.0  # above the knee the scale is pressed so many times
TALL_DB = 50.0  # once something is as tall
SIDE_POINTS = 9.0  # beside the first and the last round, at least
STEP_POINTS = 1.6  # between the lines of one panel, at most
SPREAD = 0.7  # of the way between two attacked rounds, at most, over which the lines of a round are spread
LEAST_GAP_INCHES = 0.07  # between the names of two ticks
BEHIND = 1.1  # times as far as a numbered round stands "best" whose average over seeds it is

attacker_text = partial(labels.attacker_text, over_rounds=True)


def write(records: Sequence[AttackRecord], stem: Path) -> list[Path]:
    """`stem`.png and `stem`.pdf for records of ONE `grouping.observation`; nothing for a single round, floors alone, or smoke runs.

    A round asked for as "best" or "last" stands where it was, on average over seeds; where that is the same one, it is one round.
    Where seeds have unlike ones, and their average is a round attacked by its number, it stands a little behind that.
    Floors are drawn once, not as attacks.
    """
    records = quotable(records)
    attacks = [r for r in records if r.attack not in registry.FLOORS]
    rounds = _names(attacks)
    if len(rounds) < 2:
        return []
    methods = unique(label(r.cell) for r in sorted(attacks, key=lambda r: place(r.cell)))
    tags = unique(map(attacker_text, sorted(attacks, key=lambda r: ladder.order(r)[:2])))
    series_styles = {tag: _series_style(tags, tag, [r for r in attacks if attacker_text(r) == tag]) for tag in tags}
    of_methods = {name: [r for r in attacks if label(r.cell) == name] for name in methods}
    lines = {name: len(set(map(attacker_text, of_method))) for name, of_method in of_methods.items()}
    many = max(lines.values()) > MANY_LINES
    height = PANEL_INCHES if len(methods) > 1 and not many else SINGLE_INCHES
    # One or two panels stand beneath each other: that leaves room for names beside them.
    figure, panels = style.panels(len(methods), height, large=len(methods) <= MOST_NAMED or many, sharey=True)
    top = max(r.scores.psnr_db for r in attacks)
    tall = top > TALL_DB
    across = len({axes.get_subplotspec().colspan.start for axes in panels})  # type: ignore[union-attr]
    wide = figure.get_figwidth() / across
    names = {tag: f"{ladder.rungs([r for r in attacks if attacker_text(r) == tag])} {tag}" for tag in tags}
    for axes in panels:
        _scale(axes, rounds)
    steps = {
        name: _step_points(axes, of_methods[name], rounds, wide - 0.45)
        for axes, name in zip(panels, methods, strict=True)
    }
    side = max(SIDE_POINTS, *((lines[name] - 1) / 2 * steps[name] + LARGEST_MARKER for name in methods))
    ends = []
    for axes, name, short in zip(panels, methods, style.series_names(methods), strict=True):
        last = _panel(axes, of_methods[name], series_styles, steps[name])
        floor = Point(FLOOR_NAME, FLOOR["color"], *last.pop(FLOOR_NAME))
        ends.append(
            (axes, [*(Point(names[tag], series_styles[tag]["color"], *end) for tag, end in last.items()), floor])
        )
        _axes(axes, rounds, _names(of_methods[name]), wide - 0.45, side)
        if tall:
            _press(axes, top)
        title = style.wrapped(short, wide - 0.2, style.FONT_POINTS)
        axes.set_title("\n".join(title), fontsize=style.FONT_POINTS)
    style.name_axes(panels, "round attacked", "PSNR, dB")
    pressed = f"\nabove {KNEE_DB:g} dB at 1/{PRESSED:g} of the height" if tall else ""
    style.heading(figure, grouping.observation_title(grouping.observation(attacks[0].cell)) + pressed)
    handles = [style.handle(names[tag], **series_style) for tag, series_style in series_styles.items()]
    handles.append(style.handle(FLOOR_NAME, **FLOOR))
    if len(methods) <= MOST_NAMED:
        line_ends.draw(figure, ends, handles)
    else:
        style.legend(figure, handles)
    return style.save(figure, stem)


def _names(records: Sequence[AttackRecord]) -> dict[float, str]:
    """What each attacked round is called, in the order of rounds."""
    each = [(_when(r, records), r) for r in records]
    return {when: _round_text(r) for when, r in sorted(each, key=lambda one: one[0])}


def _when(r: AttackRecord, beside: Sequence[AttackRecord]) -> float:
    """Where an attack stands among others: at its round, on average over seeds, but at no other attacked round."""
    mean = fmean(r.rounds)
    is_other = len(set(r.rounds)) > 1 and any(set(other.rounds) == {mean} for other in beside)
    return BEHIND * mean if is_other else mean


def by_round(records: Sequence[AttackRecord]) -> list[tuple[float, list[AttackRecord]]]:
    """(round, attacks on it) of one method, in the order of rounds; two names of one round count once."""
    of_round: dict[float, list[AttackRecord]] = {}
    for r in records:
        of_round.setdefault(_when(r, records), []).append(r)
    return sorted(of_round.items())


def lines_of(records: Sequence[AttackRecord]) -> dict[str, list[tuple[float, Measured]]]:
    """Set of knowledge -> (round, best attack within it) of one method, in the order of rounds.

    A set that no attack on this method needs as a whole has no line; the table has a row for it where another method has one.
    """
    each: dict[str, list[tuple[float, Measured]]] = {}
    for when, attacks in by_round(records):
        for row in knowledge_sets.rows(attacks, attacker_text):
            each.setdefault(row.knowledge, []).append((when, row.best))
    return each


def _series_style(tags: Sequence[str], tag: str, alike: Sequence[AttackRecord]) -> dict[str, Any]:
    """How the line of a tag is drawn."""
    if all(ladder.rung(r) == ORACLE for r in alike):
        return ORACLE_LINE
    step = (LARGEST_MARKER - SMALLEST_MARKER) / max(1, len(tags) - 1)
    size = LARGEST_MARKER - step * tags.index(tag)
    return line_style(tags.index(tag)) | {"markersize": size, "linewidth": 0.9}


def _scale(axes: Axes, rounds: dict[float, str]) -> None:
    """Linear to round 1 and logarithmic beyond; logarithmic throughout where no round is below 1."""
    if min(rounds) < 1:
        axes.set_xscale("symlog", linthresh=1, linscale=0.7)
    else:
        axes.set_xscale("log")


def _step_points(axes: Axes, records: Sequence[AttackRecord], rounds: dict[float, str], inches: float) -> float:
    """How far to the side each line of a panel stands from the one before: never so far that it seems to be of another round."""
    lines = len(unique(map(attacker_text, records)))
    shown = sorted({_when(r, records) for r in records})
    least, most = _drawn_at(axes, [min(rounds), max(rounds)])
    gaps = [b - a for a, b in pairwise(_drawn_at(axes, shown))]
    nearest = min(gaps, default=most - least) / (most - least) * (inches * 72 - 2 * SIDE_POINTS)
    return float(min(STEP_POINTS, SPREAD * nearest / max(1, lines - 1)))


def _drawn_at(axes: Axes, rounds: Sequence[float]) -> list[float]:
    """Where rounds stand on the scale of their axis."""
    return [float(x) for x, _ in axes.transScale.transform([(r, 1) for r in rounds])]


def _panel(
    axes: Axes, records: Sequence[AttackRecord], series_styles: dict[str, dict[str, Any]], step: float
) -> dict[str, tuple[float, float]]:
    """One method, its lines `step` points beside each other; where the line of each tag ends, and that of the floor."""
    rows = [(when, strongest(attacks)) for when, attacks in by_round(records)]
    floor = [(when, row.floor.psnr_db, row.floor_db) for when, row in rows]
    rounds = [when for when, *_ in floor]
    band: dict[str, Any] = {"color": "0.85", "linewidth": 0, "zorder": 0}
    if len(rounds) == 1:
        # Between one round and itself nothing would be seen.
        axes.axhline(floor[0][1], zorder=20, **FLOOR)
        axes.axhspan(floor[0][2].low, floor[0][2].high, **band)
    else:
        axes.plot(rounds, [mean for _, mean, _ in floor], zorder=20, **FLOOR)
        axes.fill_between(rounds, [i.low for *_, i in floor], [i.high for *_, i in floor], **band)
    ends = {FLOOR_NAME: floor[-1][:2]}
    of_tags = lines_of(records)
    present = [tag for tag in series_styles if tag in of_tags]
    for i, tag in enumerate(present):
        series_style = series_styles[tag]
        line = of_tags[tag]
        bars = [Bar(when, row.psnr_db.mean, row.psnr_db.low, row.psnr_db.high) for when, row in line]
        line_aside.draw(
            axes, bars, i, len(present), step,
            elinewidth=0.6, capsize=1.2, capthick=0.6, zorder=3 + i, **series_style,
        )  # fmt: skip
        ends[tag] = (bars[-1].at, bars[-1].mean)
    return ends


def _axes(axes: Axes, rounds: dict[float, str], own: dict[float, str], inches: float, side: float) -> None:
    """The limits that all panels share, `side` points beyond the rounds, and the names of a panel's `own` rounds.

    inches   about how wide the axis is drawn
    """
    ends = _drawn_at(axes, [min(rounds), max(rounds)])
    beside = side / 72 / inches * (ends[1] - ends[0])
    wide = axes.transScale.inverted().transform([(ends[0] - beside, 1), (ends[1] + beside, 1)])
    axes.set_xlim(wide[0, 0], wide[1, 0])
    named = _spaced(axes, own, inches)
    axes.xaxis.set_major_locator(FixedLocator(named))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda x, _: next((own[r] for r in named if abs(x - r) < 1e-9), ""))
    style.plain(axes)
    axes.margins(y=0.08)


def _round_text(record: AttackRecord) -> str:
    """The round attacked; where seeds have different ones, what was asked for, e.g. "best"."""
    rounds = set(record.rounds)
    return str(rounds.pop()) if len(rounds) == 1 else str(record.cell.round)


def _press(axes: Axes, top: float) -> None:
    """A scale of decibels up to `top` whose upper part is lower, with a line where that begins."""

    def drawn(y: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.where(y > KNEE_DB, KNEE_DB + (y - KNEE_DB) / PRESSED, y)

    def read(y: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.where(y > KNEE_DB, KNEE_DB + (y - KNEE_DB) * PRESSED, y)

    axes.set_yscale("function", functions=(drawn, read))
    axes.set_yticks([tick for tick in (0, 10, 20, KNEE_DB, 50, 70, 90) if tick < top + 5])
    axes.axhline(KNEE_DB, color="0.8", linewidth=0.5, zorder=0)


def _spaced(axes: Axes, rounds: dict[float, str], inches: float) -> list[float]:
    """The rounds whose names fit on an axis of so many inches: the first, then "best" and "last", the last of all, then others."""
    to_screen = axes.transScale.transform
    low, high = (to_screen((x, 1.0))[0] for x in axes.get_xlim())

    def span(r: float) -> tuple[float, float]:
        middle = (to_screen((r, 1.0))[0] - low) / (high - low) * inches
        half = style.width_inches(rounds[r], style.SMALL_POINTS) / 2 + LEAST_GAP_INCHES / 2
        return middle - half, middle + half

    named: list[float] = []
    for r in sorted(rounds, key=lambda r: (r != min(rounds), rounds[r].isdigit(), r != max(rounds), r)):
        if all(span(r)[1] <= span(k)[0] or span(k)[1] <= span(r)[0] for k in named):
            named.append(r)
    return named
