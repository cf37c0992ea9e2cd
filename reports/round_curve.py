"""PSNR against the training round, from the untrained model on: when does a method leak, and to whom?

One panel per method; one line per knowledge tag, the strongest attack of that tag at each round; bars are 95% intervals over
victims, the dashed line is the floor. Rounds are drawn on a scale that is linear to 1 and logarithmic beyond, because a network
changes most in its first rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from privbench import plugins
from privbench.record import AttackRecord
from reports import figures
from reports.published_form import knowledge_text, label, place, strongest, unique

PANEL_INCHES = 1.75
LEGEND_ROW_INCHES = 0.17
LINES: tuple[Literal["-", "--", ":", "-."], ...] = ("-", "--", ":", "-.")
LEAST_FRACTION = 0.055  # of the axis between two ticks that may both be named


def write(records: Sequence[AttackRecord], stem: Path) -> list[Path]:
    """`stem`.png and `stem`.pdf for the records of ONE data set and setting at several rounds; nothing when there is one round.

    A round asked for as "best" or "last" stands where it was, on average over seeds. Floors are drawn once, not as attacks.
    """
    if len({r.spec["round"] for r in records}) < 2:
        return []
    attacks = [r for r in records if r.spec["attack"] not in plugins.FLOORS]
    methods = unique(label(r.spec) for r in sorted(attacks, key=lambda r: place(r.spec)))
    order = sorted(attacks, key=lambda r: str(r.knowledge.get("rung")))
    tags = unique(map(knowledge_text, order))
    handles = [_sign(i, tag) for i, tag in enumerate(tags)]
    handles.append(Line2D([], [], color="0.45", linestyle=(0, (4, 2)), linewidth=0.9, label="best floor"))
    columns = 1 if max(map(len, tags)) > 24 else 2
    legend_rows = -(-len(handles) // columns)
    figure = figures.new_figure(
        figures.COLUMN_INCHES, PANEL_INCHES * len(methods) + LEGEND_ROW_INCHES * legend_rows + 0.25
    )
    panels = figure.subplots(len(methods), 1, squeeze=False, sharex=True)[:, 0]
    for axes, name in zip(panels, methods, strict=True):
        _panel(axes, [r for r in attacks if label(r.spec) == name], tags)
        axes.set_title(f"{plugins.short(records[0].spec['dataset'])}, {name}", fontsize=figures.FONT_POINTS + 0.5)
    panels[-1].set_xlabel("training round at which the server looks", fontsize=figures.FONT_POINTS)
    figure.legend(
        handles=handles, loc="outside lower center", ncols=columns, fontsize=figures.FONT_POINTS, frameon=False,
        handlelength=3.6, columnspacing=1.2, labelspacing=0.3,
    )  # fmt: skip
    return figures.save(figure, stem)


def points(records: Sequence[AttackRecord]) -> list[tuple[float, AttackRecord]]:
    """(round, strongest record) of one method and tag, in the order of rounds; two names of one round count once."""
    by_round: dict[float, list[AttackRecord]] = {}
    for r in records:
        by_round.setdefault(fmean(r.rounds), []).append(r)
    return [(when, strongest(some)) for when, some in sorted(by_round.items())]


def _panel(axes: Axes, records: Sequence[AttackRecord], tags: Sequence[str]) -> None:
    floor = [(when, r.floor.psnr_db) for when, r in points(records)]
    axes.plot(*zip(*floor, strict=True), color="0.45", linestyle=(0, (4, 2)), linewidth=0.9, zorder=1)
    for i, tag in enumerate(tags):
        own = points([r for r in records if knowledge_text(r) == tag])
        if not own:
            continue
        psnr = [r.scores.psnr_db for _, r in own]
        axes.errorbar(
            [when for when, _ in own], [p.mean for p in psnr],
            yerr=[[max(p.mean - p.low, 0) for p in psnr], [max(p.high - p.mean, 0) for p in psnr]],
            marker=_marker(i), color=_colour(i), linestyle=LINES[i % len(LINES)], markersize=4, linewidth=1.0, elinewidth=0.7,
            capsize=1.5, zorder=3,
        )  # fmt: skip
    rounds = sorted({when for when, _ in points(records)})
    axes.set_xscale("symlog", linthresh=1, linscale=0.7)
    axes.set_xlim(-0.15, rounds[-1] * 1.15 + 0.1)
    axes.xaxis.set_major_locator(FixedLocator(rounds))
    axes.xaxis.set_minor_locator(NullLocator())
    named = _apart(axes, rounds)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}" if any(abs(x - r) < 1e-9 for r in named) else "")
    axes.set_ylabel("PSNR, dB", fontsize=figures.FONT_POINTS)
    axes.tick_params(labelsize=figures.FONT_POINTS, labelbottom=True)
    axes.margins(y=0.12)
    axes.spines[["top", "right"]].set_visible(False)


def _apart(axes: Axes, rounds: Sequence[float]) -> list[float]:
    """The rounds that can be named without running into one another, the first always."""
    to_screen = axes.transScale.transform
    low, high = (to_screen((x, 1.0))[0] for x in axes.get_xlim())
    kept: list[float] = []
    for r in rounds:
        if not kept or (to_screen((r, 1.0))[0] - to_screen((kept[-1], 1.0))[0]) / (high - low) >= LEAST_FRACTION:
            kept.append(r)
    return kept


def _marker(i: int) -> str:
    return figures.MARKERS[i % len(figures.MARKERS)]


def _colour(i: int) -> str:
    return figures.COLOURS[i % len(figures.COLOURS)]


def _sign(i: int, name: str) -> Line2D:
    return Line2D(
        [],
        [],
        marker=_marker(i),
        color=_colour(i),
        linestyle=LINES[i % len(LINES)],
        markersize=4,
        linewidth=1.0,
        label=name,
    )
