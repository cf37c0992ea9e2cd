"""Per-client bars: what each method gives each client over training alone, one panel per method.

Gain is accuracy less that of `local`, in percentage points; RTA is their ratio (NFL-CGAN: RTA_i = acc_i(method) / acc_i(Local)).
A pure function of records: both are of the same client and seed, then averaged over seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from privbench.records.schema import Record
from privbench.scoring import metrics
from reports.figures.drawing import style
from reports.figures.drawing.line_styles import BLUE, VERMILION
from reports.records import grouping, remarks
from reports.records.number_text import NONE
from reports.tables.report import Report, Table

PANEL_INCHES = 0.36
MARGIN_INCHES = 0.45  # of the clients' names
LABEL_INCHES = 1.1  # of a method's name
ABOVE, BELOW = BLUE, VERMILION


class BarKind(NamedTuple):
    """One comparison with `local`."""

    title: str
    of: Callable[[Sequence[float], Sequence[float]], Sequence[float | None]]  # accuracies of the clients, of `local`
    baseline: float
    form: str  # of one value
    axis: str


KINDS = {
    "gain": BarKind(
        "Gain over local training", metrics.gain_over_local, 0.0, "+.2f", "gain over Local, percentage points"
    ),
    "rta": BarKind(
        "Relative test accuracy", metrics.relative_test_accuracy, 1.0, ".3f", "accuracy / accuracy of Local"
    ),
}
Value = tuple[float | None, float | None]  # mean, standard deviation over seeds; no mean where a seed has no value


def values(r: Record, local: Record, kind: BarKind) -> list[Value]:
    """(mean, standard deviation over common seeds) of each client; (None, None) where `local` is right nowhere under some seed."""
    both = [seed for seed in r.cell.seeds if seed in local.cell.seeds]
    a = [r.accuracy.per_client[r.cell.seeds.index(seed)] for seed in both]
    b = [local.accuracy.per_client[local.cell.seeds.index(seed)] for seed in both]
    return [_spread(each_seed) for each_seed in zip(*(kind.of(x, y) for x, y in zip(a, b, strict=True)), strict=True)]


def _spread(over_seeds: Sequence[float | None]) -> Value:
    values = [value for value in over_seeds if value is not None]
    if len(values) < len(over_seeds):
        return None, None
    return fmean(values), stdev(values) if len(values) > 1 else None


def client_names(r: Record) -> list[str]:
    """The domain of each client where every client has its own, else its number from 1."""
    number = len(r.accuracy.per_client[0])
    domains = r.cell.train.domains or r.client_domains
    if r.cell.train.partition == "domain" and domains and len(domains) == number > 1:
        return list(domains)
    return [str(k + 1) for k in range(number)]


def compared(records: Sequence[Record], key: grouping.Setting) -> tuple[Record | None, dict[str, Record]]:
    """(`local` in one setting, every other method); without the one there is nothing to compare."""
    chosen = grouping.chosen(records, key)
    local = next((r for r in chosen.values() if r.cell.train.method == "local"), None)
    return local, {name: r for name, r in chosen.items() if r is not local}


def report(records: Sequence[Record], name: str) -> Report:
    """The numbers of all bars: one table per setting, methods down, clients across."""
    kind, forms, numbers = KINDS[name], [], []
    for key in grouping.settings(records):
        local, others = compared(records, key)
        if local is None:
            continue
        by_label = {label: values(r, local, kind) for label, r in others.items()}
        body = [
            [label, *(_text(v, kind) for v in each), _text((_spread([mean for mean, _ in each])[0], None), kind)]
            for label, each in by_label.items()
        ]
        names = client_names(local)
        headings = [f"client {name}" if name.isdigit() else name for name in names]
        forms.append(Table(grouping.title(key), ["", *headings, "mean"], body))
        numbers += [
            _number(key, label, name, v)
            for label, each in by_label.items()
            for name, v in zip(names, each, strict=True)
        ]
    searched = [line for key in grouping.settings(records) for line in grouping.searched(records, key)]
    notes = [*remarks.training_header(records), f"{kind.title} of each client, +- over seeds.", *searched]
    return Report(kind.title, notes, forms, numbers)


def _text(value: Value, kind: BarKind) -> str:
    mean, std = value
    if mean is None:
        return NONE
    return format(mean, kind.form) + (f" +- {format(std, kind.form.removeprefix('+'))}" if std is not None else "")


def _number(key: grouping.Setting, label: str, client: str, value: Value) -> dict[str, Any]:
    return {"setting": grouping.title(key), "row": label, "client": client, "mean": value[0], "std": value[1]}


def write(records: Sequence[Record], key: grouping.Setting, name: str, stem: Path) -> list[Path]:
    """The bars of one setting; nothing without `local` or without another method."""
    kind = KINDS[name]
    local, others = compared(records, key)
    if local is None or not others:
        return []
    by_label = {label: values(r, local, kind) for label, r in others.items()}
    height = min(PANEL_INCHES, (style.PAGE_HEIGHT_INCHES - 2 * MARGIN_INCHES) / len(by_label))
    figure = style.new_figure(style.COLUMN_INCHES, height * len(by_label) + MARGIN_INCHES)
    figure.set_layout_engine("constrained", hspace=0.0, h_pad=0.012)
    panels = figure.subplots(len(by_label), 1, squeeze=False, sharex=True, sharey=True)[:, 0]
    for axes, label, each in zip(panels, style.series_names(list(by_label)), by_label.values(), strict=True):
        _panel(axes, label, each, kind)
    names = client_names(local)
    style.name_ticks(panels[-1], names)
    panels[-1].set_xlabel("client", fontsize=style.FONT_POINTS)
    style.heading(figure, f"{grouping.title(key)}\n{kind.axis}")
    return style.save(figure, stem)


def _panel(axes: Axes, label: str, each: Sequence[Value], kind: BarKind) -> None:
    heights = [0.0 if mean is None else mean - kind.baseline for mean, _ in each]  # no bar where there is no value
    colours = [ABOVE if height >= 0 else BELOW for height in heights]
    axes.bar(range(len(each)), heights, bottom=kind.baseline, color=colours, width=0.72, linewidth=0)
    for k, (mean, std) in enumerate(each):
        if mean is not None and std is not None:
            axes.plot([k, k], [mean - std, mean + std], color="0.25", linewidth=0.8)
    axes.axhline(kind.baseline, color="0.4", linewidth=0.6)
    text = "\n".join(style.wrapped(label, LABEL_INCHES, style.SMALL_POINTS))
    axes.set_ylabel(text, fontsize=style.SMALL_POINTS, rotation=0, ha="right", va="center", labelpad=4)
    style.plain(axes)
    axes.tick_params(axis="x", length=0)
    axes.margins(y=0.15)
    axes.locator_params(axis="y", nbins=3)
    axes.yaxis.tick_right()
    axes.spines["bottom"].set_visible(False)
    axes.spines["left"].set_visible(False)
