"""Accuracy against omega, the concentration of a Dirichlet label partition (FedMD-CG Figures 3d-f): one figure a data set.

A pure function of records: one panel per metric, one line per method, mean over clients and then over seeds; bars are one standard
deviation over seeds. Hollow markers are published values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from privbench import registry
from privbench.records.schema import Record
from privbench.system import files
from reports.figures.drawing import line_ends, style
from reports.figures.drawing.direct_labels import Point
from reports.figures.drawing.line_styles import series_styles_of
from reports.records import grouping, published, remarks
from reports.records.labels import unique
from reports.records.number_text import NONE, measured_otherwise, published_text, spread_text
from reports.tables.report import Report, Table
from reports.tables.training.accuracy_table import METRICS

# What is drawn of a study's metrics, and the names of its axes.
AXES = {"accuracy": "accuracy, own model, %", "global_accuracy": "accuracy, averaged, %"}
PANEL_INCHES = 1.75
FACTOR = 1.05  # by which neighbouring methods are moved apart along omega, so that their bars do not hide each other
MOST_OF_GAP = 0.4  # of the way to the next omega, which all methods together take at most
Key = tuple[Any, ...]  # what the layouts of one comparison have in common
Curves = dict[str, dict[float, Record]]  # row -> omega -> record


def comparison(r: Record) -> Key:
    """Everything of a setting but its layout."""
    dataset, domains, _, clients, nets, preset = grouping.setting(r.cell)
    return (dataset, domains, clients, nets, preset)


def omega_of(r: Record) -> float:
    """Of a Dirichlet layout."""
    assert r.cell.train.omega is not None, "a Dirichlet layout has an omega"
    return r.cell.train.omega


def comparisons(records: Sequence[Record]) -> list[Key]:
    """Those with two Dirichlet layouts or more, in the order of the records."""
    dealt = [r for r in records if r.cell.train.partition == "dirichlet"]
    keys = unique(comparison(r) for r in dealt)
    return [key for key in keys if len({r.cell.train.omega for r in dealt if comparison(r) == key}) > 1]


def curves(records: Sequence[Record], key: Key) -> Curves:
    """Every row of one comparison over its omegas, in increasing order."""
    dealt = [r for r in records if r.cell.train.partition == "dirichlet" and comparison(r) == key]
    rows: Curves = {}
    for setting in grouping.settings(dealt):
        for name, r in grouping.chosen(dealt, setting).items():
            rows.setdefault(name, {})[omega_of(r)] = r
    return {name: dict(sorted(points.items())) for name, points in rows.items()}


def report(records: Sequence[Record], metrics: Sequence[str], first: Sequence[str] = ()) -> Report:
    """One table per comparison and metric, omegas across; beside them the published values, where there are any."""
    forms: list[Table] = []
    numbers: list[dict[str, Any]] = []
    values: list[published.Published | None] = []
    for key in comparisons(records):
        lines = curves(records, key)
        omegas = sorted({omega for points in lines.values() for omega in points})
        for metric in metrics:
            body = []
            for name, points in lines.items():
                printed = {omega: published.of(r.cell, metric, first) for omega, r in points.items()}
                values += printed.values()
                body.append([name, *(_text(points.get(omega), metric) for omega in omegas)])
                if any(printed.values()):
                    texts = (published_text(printed.get(omega), METRICS[metric].digits) for omega in omegas)
                    body.append(["  published", *texts])
                numbers += [_number(key, name, metric, r, printed[omega]) for omega, r in points.items()]
            headings = ["", *(f"omega {omega:g}" for omega in omegas)]
            forms.append(Table(f"{title(key)}: {METRICS[metric].title}", headings, body))
    notes = [*remarks.training_header(records), "Mean +- standard deviation over seeds.", *measured_otherwise(values)]
    return Report("Accuracy against omega", notes, forms, numbers)


def title(key: Key) -> str:
    """A comparison in words."""
    dataset, domains, clients, nets, preset = key
    return grouping.title((dataset, domains, "", clients, nets, preset))


def _text(r: Record | None, metric: str) -> str:
    mean, std = (None, None) if r is None else METRICS[metric].of(r)
    return NONE if mean is None else spread_text(mean, std, METRICS[metric].digits)


def _number(key: Key, name: str, metric: str, r: Record, printed: published.Published | None) -> dict[str, Any]:
    mean, std = METRICS[metric].of(r)
    return {
        "setting": title(key),
        "row": name,
        "metric": metric,
        "omega": r.cell.train.omega,
        "mean": mean,
        "std": std,
        "published": printed.value if printed else None,
        "published_std": printed.std if printed else None,
        "source": printed.source if printed else None,
    }


def write(
    records: Sequence[Record], key: Key, metrics: Sequence[str], folder: Path, first: Sequence[str] = ()
) -> list[Path]:
    """omega-DATASET.png and .pdf of one comparison: a panel for every metric that some row has at two omegas."""
    lines = curves(records, key)
    panels = [metric for metric in metrics if any(len(_points(points, metric)) > 1 for points in lines.values())]
    if not panels:
        return []
    series_styles = series_styles_of(list(lines))
    figure, drawn = style.panels(len(panels), PANEL_INCHES, large=True, sharex=True)
    shown = dict(zip(lines, style.series_names(grouping.legend_names(list(lines))), strict=True))
    ends = []
    for axes, metric in zip(drawn, panels, strict=True):
        last = _panel(axes, lines, series_styles, metric, first)
        ends.append((axes, [Point(shown[name], series_styles[name]["color"], *end) for name, end in last.items()]))
    drawn[-1].set_xlabel("omega (small: few classes a client)", fontsize=style.FONT_POINTS)
    style.heading(figure, title(key))
    handles, others = [style.handle(short, **series_styles[name]) for name, short in shown.items()], []
    if any(
        published.of(r.cell, metric, first) for points in lines.values() for r in points.values() for metric in panels
    ):
        others.append(
            style.handle("published", color="0.3", marker="o", markerfacecolor="none", linestyle="", markersize=5)
        )
    line_ends.draw(figure, ends, handles, others)
    dataset, _, _, nets, _ = key
    name = "-".join(part for part in ("omega", registry.stem(dataset), nets[:8]) if part)
    return style.save(figure, files.inside(folder, name))


def _points(points: dict[float, Record], metric: str) -> dict[float, tuple[float, float | None]]:
    each = {omega: METRICS[metric].of(r) for omega, r in points.items()}
    return {omega: (mean, std) for omega, (mean, std) in each.items() if mean is not None}


def _panel(
    axes: Axes, lines: Curves, series_styles: Mapping[str, dict[str, Any]], metric: str, first: Sequence[str]
) -> dict[str, tuple[float, float]]:
    """One metric; where the line of each row ends."""
    axes.set_xscale("log")
    ends = {}
    omegas = sorted({omega for points in lines.values() for omega in points})
    nearest = min(high / low for low, high in pairwise(omegas))
    factor = min(FACTOR, nearest ** (MOST_OF_GAP / max(1, len(lines) - 1)))
    for i, (name, points) in enumerate(lines.items()):
        values, series_style = _points(points, metric), series_styles[name]
        move = factor ** (i - (len(lines) - 1) / 2)
        means, spreads = [mean for mean, _ in values.values()], [std or 0.0 for _, std in values.values()]
        axes.errorbar(
            [omega * move for omega in values], means, yerr=spreads if any(spreads) else None,
            linewidth=1.1, markersize=3.5, elinewidth=0.6, capsize=1.2, capthick=0.6, **series_style,
        )  # fmt: skip
        if values:
            ends[name] = (max(values) * move, means[-1])
        for omega, r in points.items():
            printed = published.of(r.cell, metric, first)
            if printed is not None:
                hollow = series_style | {"linestyle": ""}
                axes.plot(omega * move, printed.value, markerfacecolor="none", markersize=5, **hollow)
    axes.xaxis.set_major_locator(FixedLocator(omegas))
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylabel(AXES.get(metric, METRICS[metric].short), fontsize=style.FONT_POINTS)
    style.plain(axes)
    return ends
