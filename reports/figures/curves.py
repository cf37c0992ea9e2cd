"""Curves over rounds: losses, test accuracy, and the consistency of generator and classifier.

A pure function of records: mean over clients, then over seeds; of few curves the band is the standard deviation over seeds.
Where seeds stopped early at different rounds, a curve ends with the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from privbench.records.schema import Record
from privbench.training.history import Round
from reports.figures.drawing import line_ends, style
from reports.figures.drawing.direct_labels import Point
from reports.figures.drawing.line_styles import series_styles_of
from reports.records import grouping, remarks
from reports.tables.report import Report, Table

PANEL_INCHES = 1.7
MARKS = 6  # markers on a curve
NOT_FINITE: dict[str, Any] = {"color": "0.1", "marker": "x", "linestyle": "", "markersize": 6}
MOST_BANDS = 5  # with more curves their bands would hide each other


class Quantity(NamedTuple):
    """One number a round."""

    title: str
    of: Callable[[Round], Sequence[float | None]]  # per client, of losses per client that took part
    digits: int
    log: bool = False


QUANTITIES = {
    "loss": Quantity("training loss (task)", lambda entry: entry.loss.get("task", []), 3, log=True),
    "discriminator": Quantity(
        "discriminator's loss, nats", lambda entry: entry.loss.get("discriminator", []), 3, log=True
    ),
    "generator": Quantity("generator's loss, nats", lambda entry: entry.loss.get("generator", []), 3, log=True),
    "accuracy": Quantity("test accuracy, %", lambda entry: entry.test_accuracy, 2),
    "consistency": Quantity("consistency loss, nats", lambda entry: entry.consistency, 3, log=True),
}


def series(r: Record, quantity: Quantity) -> list[tuple[float, float]]:
    """(mean, standard deviation over seeds; 0 for one) of each round; empty where a value is missing."""
    seeds = []
    for training in r.training:
        means: list[float] = []
        for entry in training.rounds:
            each = [value for value in quantity.of(entry) if value is not None]
            if not each or len(each) < len(quantity.of(entry)):
                break
            means.append(fmean(each))
        seeds.append(means)
    together = zip(*seeds, strict=False)
    return [(fmean(values), stdev(values) if len(values) > 1 else 0.0) for values in together]


def report(records: Sequence[Record], names: Sequence[str], title: str) -> Report:
    """The first, lowest, highest and last value of every curve; every round in the numbers."""
    forms, numbers = [], []
    for key in grouping.settings(records):
        for name in names:
            quantity = QUANTITIES[name]
            curves = {label: series(r, quantity) for label, r in grouping.chosen(records, key).items()}
            curves = {label: curve for label, curve in curves.items() if curve}
            if not curves:
                continue
            body = [[label, *_ends(curve, quantity), str(len(curve))] for label, curve in curves.items()]
            heading = f"{grouping.title(key)}: {quantity.title}"
            forms.append(Table(heading, ["", "first round", "lowest", "highest", "last round", "rounds"], body))
            numbers += [_number(key, label, name, n, v) for label, c in curves.items() for n, v in enumerate(c)]
    notes = [
        *remarks.training_header(records),
        *(line for key in grouping.settings(records) for line in grouping.searched(records, key)),
        "Per round, mean over clients and seeds; the figure's band (of up to five curves) is one standard deviation over seeds.",
    ]
    return Report(title, notes, forms, numbers)


def _ends(curve: Sequence[tuple[float, float]], quantity: Quantity) -> list[str]:
    means = [mean for mean, _ in curve]
    return [f"{value:.{quantity.digits}f}" for value in (means[0], min(means), max(means), means[-1])]


def _number(key: grouping.Setting, label: str, name: str, round_: int, value: tuple[float, float]) -> dict[str, Any]:
    mean, std = value
    return {
        "setting": grouping.title(key),
        "row": label,
        "quantity": name,
        "round": round_ + 1,
        "mean": mean,
        "std": std,
    }


def write(records: Sequence[Record], key: grouping.Setting, names: Sequence[str], stem: Path) -> list[Path]:
    """One panel per quantity of one setting, a curve per method; nothing where no curve has two rounds."""
    chosen = grouping.chosen(records, key)
    panels = {name: {label: series(r, QUANTITIES[name]) for label, r in chosen.items()} for name in names}
    panels = {name: curves for name, curves in panels.items() if any(len(curve) > 1 for curve in curves.values())}
    labels = [label for label in chosen if any(curves[label] for curves in panels.values())]
    if not labels:
        return []
    series_styles = series_styles_of(labels)
    figure, drawn = style.panels(len(panels), PANEL_INCHES, large=True, sharex=True)
    lost, ends = False, []
    shown = dict(zip(labels, style.series_names(grouping.legend_names(labels)), strict=True))
    for axes, (name, curves) in zip(drawn, panels.items(), strict=True):
        ends.append(
            (
                axes,
                [
                    Point(shown[label], series_styles[label]["color"], len(curves[label]), curves[label][-1][0])
                    for label in labels
                    if curves[label]
                ],
            )
        )
        _panel(axes, {label: curves[label] for label in labels}, series_styles, QUANTITIES[name])
        lost |= _mark_ends(axes, {label: curves[label] for label in labels if ends_early(chosen[label], curves[label])})
    drawn[-1].set_xlabel("round", fontsize=style.FONT_POINTS)
    style.heading(figure, grouping.title(key))
    handles = [style.handle(short, **series_styles[label]) for label, short in shown.items()]
    line_ends.draw(figure, ends, handles, [style.handle("not finite from here on", **NOT_FINITE)] if lost else [])
    return style.save(figure, stem)


def ends_early(r: Record, curve: Sequence[tuple[float, float]]) -> bool:
    """Whether a curve ends before its training did, because a value is missing there."""
    return 0 < len(curve) < min(len(training.rounds) for training in r.training)


def _mark_ends(axes: Axes, curves: dict[str, list[tuple[float, float]]]) -> bool:
    """Marks the last round of some curves; whether there is any."""
    for curve in curves.values():
        axes.plot(len(curve), curve[-1][0], zorder=10, **NOT_FINITE)
    return bool(curves)


def _panel(
    axes: Axes,
    curves: dict[str, list[tuple[float, float]]],
    series_styles: dict[str, dict[str, Any]],
    quantity: Quantity,
) -> None:
    for index, (label, curve) in enumerate(curves.items()):
        if not curve:
            continue
        series_style, x = series_styles[label], range(1, len(curve) + 1)
        step = max(1, len(curve) // MARKS)
        means = [mean for mean, _ in curve]
        axes.plot(x, means, linewidth=1.1, markersize=3.5, markevery=(index % step, step), **series_style)
        if len(curves) <= MOST_BANDS and any(std for _, std in curve):
            low, high = [m - s for m, s in curve], [m + s for m, s in curve]
            axes.fill_between(x, low, high, color=series_style["color"], alpha=0.13, linewidth=0)
    means = [mean for curve in curves.values() for mean, _ in curve]
    if quantity.log and 0 < 10 * min(means) < max(means):
        axes.set_yscale("log")
    axes.set_ylabel(quantity.title, fontsize=style.FONT_POINTS)
    style.plain(axes)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
