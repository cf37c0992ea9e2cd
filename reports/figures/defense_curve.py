"""Accuracy and PSNR against one number of a defence, e.g. the variance of its noise: the curve of a sweep.

Left, the accuracy of the trained method, mean and standard deviation over seeds; right, the strongest attack with its 95% interval,
and the best floor. The same without any defence is a dashed line across, where it was attacked too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from privbench import registry, written_defense
from privbench.records.schema import AttackRecord
from privbench.spec import CellSpec
from reports.figures import of_attack
from reports.figures.drawing import style
from reports.figures.drawing.line_styles import METHODS
from reports.records import grouping
from reports.records.labels import NAMES, group, title_of, unique
from reports.records.measured import Measured, strongest
from reports.records.quotable import quotable

Points = list[tuple[float, list[AttackRecord]]]  # (value, records of it), ascending
WIDE = 10.0  # a range of positive values whose ends differ by that factor or more is drawn on a logarithmic scale
PANEL_INCHES = 2.0
DEFENDED = METHODS["fedavg"].line | {"markersize": 4, "linewidth": 0.9}
BARE: dict[str, Any] = {"color": "0.1", "linestyle": (0, (4, 2)), "linewidth": 0.9, "marker": ""}
FLOOR: dict[str, Any] = {"color": "0.5", "linestyle": (0, (1, 1.4)), "linewidth": 1.1, "marker": ""}


def curves(records: Sequence[AttackRecord], folder: Path) -> list[Path]:
    """`<data set>-<defence>` for every sweep among some records; nothing where no defence has two values or more.

    No curve of smoke runs is drawn.
    """
    names, paths, records = of_attack.stems(records), list[Path](), quotable(records)
    for key in unique(group(r.cell) for r in records):
        own = [r for r in records if group(r.cell) == key and r.attack not in registry.FLOORS]
        for family in unique(_family(r.cell) for r in own if r.cell.train.defense != "none"):
            found = _sweep([r for r in own if _family(r.cell) == family])
            if found is None:
                continue
            field, points = found
            method, defense, where = family
            bare = [r for r in own if _family(r.cell)[0] == method and r.cell.train.defense == "none"]
            round_ = own[0].cell.round
            stem = "-".join(
                (names[grouping.setting(own[0].cell)], method, defense, *([where] if where == "step" else []), round_)
            )
            stem = re.sub(r"[^A-Za-z0-9._-]+", "-", stem)
            title = f"{NAMES.get(method, method)} + {defense}, {title_of(key)}"
            paths += write(points, bare, f"{field} of {defense}", title, folder / stem)
    return paths


def _family(cell: CellSpec) -> tuple[str, str, str]:
    """(method, defence, where it acts): what the points of one curve have in common."""
    return (cell.train.method, written_defense.parts(cell.train.defense).name, cell.train.where)


def _sweep(records: Sequence[AttackRecord]) -> tuple[str, Points] | None:
    """(the field that is swept, its points) of records of one family; None unless one number alone differs, twice or more."""
    first = written_defense.first_field(records[0].cell.train.defense)
    each = {r.cell.train.defense: written_defense.numbers(r.cell.train.defense) for r in records}
    numbers = {text: {key or first: value for key, value in found.items()} for text, found in each.items()}
    differing = [
        key for key in unique(k for n in numbers.values() for k in n) if len({n.get(key) for n in numbers.values()}) > 1
    ]
    if len(differing) != 1 or any(differing[0] not in n for n in numbers.values()):
        return None
    (field,) = differing
    values = sorted({n[field] for n in numbers.values()})
    return field, [(v, [r for r in records if numbers[r.cell.train.defense][field] == v]) for v in values]


def write(points: Points, bare: Sequence[AttackRecord], x_label: str, title: str, stem: Path) -> list[Path]:
    """`stem`.png and `stem`.pdf; `bare` are the records of the same method without a defence, if there are any."""
    figure = style.new_figure(style.PAGE_INCHES, PANEL_INCHES)
    left, right = figure.subplots(1, 2)
    _accuracy(left, points, bare)
    _psnr(right, points, bare)
    values = [value for value, _ in points]
    for axes in (left, right):
        if min(values) > 0 and max(values) / min(values) >= WIDE:
            axes.set_xscale("log")
        axes.set_xlabel(x_label, fontsize=style.FONT_POINTS)
        style.plain(axes)
    style.heading(figure, title)
    handles = [style.handle("defended (PSNR: strongest attack)", **DEFENDED)]
    handles += [style.handle("without a defence", **BARE)] if bare else []
    style.legend(figure, [*handles, style.handle("best floor", **FLOOR)])
    return style.save(figure, stem)


def _accuracy(axes: Axes, points: Points, bare: Sequence[AttackRecord]) -> None:
    means = [own[0].accuracy for _, own in points]
    axes.errorbar(
        [value for value, _ in points], [a.mean for a in means], yerr=[a.std or 0.0 for a in means], capsize=2,
        **DEFENDED,
    )  # fmt: skip
    if bare:
        axes.axhline(bare[0].accuracy.mean, **BARE)
    axes.set_ylabel("accuracy, %", fontsize=style.FONT_POINTS)


def _psnr(axes: Axes, points: Points, bare: Sequence[AttackRecord]) -> None:
    best: list[Measured] = [strongest(own) for _, own in points]
    psnr, values = [row.psnr_db for row in best], [value for value, _ in points]
    axes.errorbar(
        values, [p.mean for p in psnr],
        yerr=[[max(p.mean - p.low, 0) for p in psnr], [max(p.high - p.mean, 0) for p in psnr]],
        capsize=2, **DEFENDED,
    )  # fmt: skip
    axes.plot(values, [row.floor.psnr_db for row in best], **FLOOR)
    if bare:
        axes.axhline(strongest(bare).psnr_db.mean, **BARE)
    axes.set_ylabel("PSNR, dB", fontsize=style.FONT_POINTS)
