"""Per-client bars: what each method gives each client over training alone, one strip per method.

Gain is accuracy less that of `local`, in percentage points; RTA is their ratio (NFL-CGAN: RTA_i = acc_i(method) / acc_i(Local)).
A pure function of records: both are of the same client and seed, then averaged over seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from privbench.record import Record
from reports import figures, remarks, rows
from reports.tables import Form, Report

STRIP_INCHES = 0.36
MARGIN_INCHES = 0.8
ABOVE, BELOW = figures.COLOURS[0], figures.COLOURS[2]


class Kind(NamedTuple):
    """One comparison with `local`."""

    title: str
    of: Callable[[float, float], float]  # (accuracy, accuracy of local) -> value
    baseline: float
    form: str  # of one value
    axis: str


KINDS = {
    "gain": Kind("Gain over local training", lambda a, b: a - b, 0.0, "+.2f", "gain over Local, percentage points"),
    "rta": Kind(
        "Relative test accuracy", lambda a, b: a / b if b else float("nan"), 1.0, ".3f", "accuracy / accuracy of Local"
    ),
}


def values(r: Record, local: Record, kind: Kind) -> list[tuple[float, float | None]]:
    """(mean, standard deviation over common seeds) of each client."""
    both = [seed for seed in r.spec["seeds"] if seed in local.spec["seeds"]]
    a = [r.accuracy.per_client[r.spec["seeds"].index(seed)] for seed in both]
    b = [local.accuracy.per_client[local.spec["seeds"].index(seed)] for seed in both]
    series = [[kind.of(x, y) for x, y in zip(xs, ys, strict=True)] for xs, ys in zip(a, b, strict=True)]
    return [(fmean(own), stdev(own) if len(own) > 1 else None) for own in zip(*series, strict=True)]


def compared(records: Sequence[Record], key: rows.Setting) -> tuple[Record | None, dict[str, Record]]:
    """(`local` in one setting, every other method); without the one there is nothing to compare."""
    own = rows.chosen(records, key)
    local = next((r for r in own.values() if r.spec["method"] == "local"), None)
    return local, {name: r for name, r in own.items() if r is not local}


def report(records: Sequence[Record], name: str) -> Report:
    """The numbers of all bars: one table per setting, methods down, clients across."""
    kind, forms, numbers = KINDS[name], [], []
    for key in rows.settings(records):
        local, others = compared(records, key)
        if local is None:
            continue
        own = {label: values(r, local, kind) for label, r in others.items()}
        body = [
            [label, *(_text(v, kind) for v in each), format(fmean(v for v, _ in each), kind.form)]
            for label, each in own.items()
        ]
        clients = len(local.accuracy.per_client[0])
        forms.append(Form(rows.title(key), ["", *(f"client {k + 1}" for k in range(clients)), "mean"], body))
        numbers += [_number(key, label, k, v) for label, each in own.items() for k, v in enumerate(each)]
    told = [line for key in rows.settings(records) for line in rows.searched(records, key)]
    notes = [*remarks.training_header(records), f"{kind.title} of each client, +- over seeds.", *told]
    return Report(kind.title, notes, forms, numbers)


def _text(value: tuple[float, float | None], kind: Kind) -> str:
    mean, std = value
    return format(mean, kind.form) + (f" +- {format(std, kind.form.removeprefix('+'))}" if std is not None else "")


def _number(key: rows.Setting, label: str, client: int, value: tuple[float, float | None]) -> dict[str, Any]:
    return {"setting": rows.title(key), "row": label, "client": client + 1, "mean": value[0], "std": value[1]}


def write(records: Sequence[Record], key: rows.Setting, name: str, stem: Path) -> list[Path]:
    """The bars of one setting; nothing without `local` or without another method."""
    kind = KINDS[name]
    local, others = compared(records, key)
    if local is None or not others:
        return []
    own = {label: values(r, local, kind) for label, r in others.items()}
    figure = figures.new_figure(figures.COLUMN_INCHES, STRIP_INCHES * len(own) + MARGIN_INCHES)
    figure.set_layout_engine("constrained", hspace=0.0, h_pad=0.012)
    panels = figure.subplots(len(own), 1, squeeze=False, sharex=True, sharey=True)[:, 0]
    for axes, (label, each) in zip(panels, own.items(), strict=True):
        _strip(axes, label, each, kind)
    clients = len(local.accuracy.per_client[0])
    every = 1 if clients <= 12 else 2
    names = local.spec.get("domains") or [str(k + 1) for k in range(clients)]
    panels[-1].set_xticks(range(0, clients, every), names[::every], fontsize=figures.FONT_POINTS - 0.5)
    panels[-1].set_xlabel("client", fontsize=figures.FONT_POINTS)
    figure.suptitle(f"{rows.title(key)}\n{kind.axis}", fontsize=figures.FONT_POINTS + 0.5)
    return figures.save(figure, stem)


def _strip(axes: Axes, label: str, each: Sequence[tuple[float, float | None]], kind: Kind) -> None:
    heights = [mean - kind.baseline for mean, _ in each]
    colours = [ABOVE if height >= 0 else BELOW for height in heights]
    axes.bar(range(len(each)), heights, bottom=kind.baseline, color=colours, width=0.72, linewidth=0)
    for k, (mean, std) in enumerate(each):
        if std is not None:
            axes.plot([k, k], [mean - std, mean + std], color="0.25", linewidth=0.8)
    axes.axhline(kind.baseline, color="0.4", linewidth=0.6)
    text = label.replace(" (", "\n(")
    axes.set_ylabel(text, fontsize=figures.FONT_POINTS - 0.5, rotation=0, ha="right", va="center", labelpad=4)
    figures.plain(axes)
    axes.tick_params(axis="x", length=0)
    axes.margins(y=0.15)
    axes.locator_params(axis="y", nbins=3)
    axes.yaxis.tick_right()
    axes.spines["bottom"].set_visible(False)
    axes.spines["left"].set_visible(False)
