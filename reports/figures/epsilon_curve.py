"""Accuracy and PSNR against epsilon, of every defence that guarantees one: what a guarantee costs and what it keeps.

Left, the accuracy of the networks that were attacked, mean and standard deviation over seeds: what a client sends is covered by
any guarantee, its personal model not by one per client. Right, the strongest attack with its 95% interval, and the best floor.
Epsilon is that of the worst client, after the rounds that were trained. Where some epsilons are of an image and others of a
client, which are no equals, names say so. The same method without a defence is a dashed line across with its spread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from privbench import registry, written_defense
from privbench.records.schema import AttackRecord
from reports.figures import of_attack
from reports.figures.drawing import line_ends, line_styles, style
from reports.figures.drawing.direct_labels import Point
from reports.figures.sweep_curve import BARE, BARE_NAME, FLOOR, FLOOR_NAME, PANEL_INCHES
from reports.records import grouping, guarantees
from reports.records.labels import defense_name, group, title_of, unique, variant_name
from reports.records.measured import Measured, strongest
from reports.records.quotable import quotable

# Defence -> (epsilon, its records), ascending.
Series = dict[str, list[tuple[float, list[AttackRecord]]]]
LEAST = 2  # epsilons of a figure
BAND = 0.12  # opacity of the spread without a defence


def curves(records: Sequence[AttackRecord], folder: Path) -> list[Path]:
    """`<data set>-<method>-epsilon-<round>` of every variant of a method with two epsilons or more; nothing of smoke runs."""
    names, paths, records = of_attack.observation_stems(records), list[Path](), quotable(records)
    for key in unique(group(r.cell) for r in records):
        attacks = [r for r in records if group(r.cell) == key and r.attack not in registry.FLOORS]
        for variant in unique(variant_name(r.cell) for r in attacks):
            of_method = [r for r in attacks if variant_name(r.cell) == variant]
            series = _series(of_method)
            if len({epsilon for points in series.values() for epsilon, _ in points}) < LEAST:
                continue
            bare = [r for r in of_method if r.cell.train.defense == "none"]
            first = of_method[0].cell
            stem = f"{names[grouping.observation(first)]}-{of_attack.variant_stem(first)}-epsilon-{first.round}"
            paths += write(series, bare, f"{variant}, {title_of(key)}", folder / of_attack.slug(stem))
    return paths


def _series(records: Sequence[AttackRecord]) -> Series:
    """The points of every defence with a finite epsilon; cells that differ in the attack alone are one."""
    series: Series = {}
    units = {
        privacy.unit for r in records if (privacy := guarantees.worst(r)) is not None and privacy.epsilon is not None
    }
    for text, where in unique((r.cell.train.defense, r.cell.train.where) for r in records):
        cells = [r for r in records if (r.cell.train.defense, r.cell.train.where) == (text, where)]
        epsilon = guarantees.epsilon(cells[0])
        if epsilon is not None:
            name = defense_name(written_defense.joined(text)) + (" (every step)" if where == "step" else "")
            name += f", {guarantees.unit_text(cells[0])}" if len(units) > 1 else ""
            series.setdefault(name, []).append((epsilon, cells))
    return {name: sorted(points, key=lambda point: point[0]) for name, points in series.items()}


def write(series: Series, bare: Sequence[AttackRecord], title: str, stem: Path) -> list[Path]:
    """`stem`.png and `stem`.pdf; `bare` are the records of the same method without a defence, if there are any."""
    figure = style.new_figure(style.PAGE_INCHES, PANEL_INCHES)
    panels = figure.subplots(1, 2)
    styles = {name: line_styles.line_style(i) | {"markersize": 4, "linewidth": 0.9} for i, name in enumerate(series)}
    epsilons = [epsilon for points in series.values() for epsilon, _ in points]
    last = max(epsilons)
    ends: list[list[Point]] = [[], []]
    floors: dict[float, float] = {}
    for name, points in series.items():
        best = [strongest(attacks) for _, attacks in points]
        accuracies = [attacks[0].accuracy_at_round for _, attacks in points]
        values = [epsilon for epsilon, _ in points]
        panels[0].errorbar(
            values, [a.mean for a in accuracies], yerr=[a.std or 0.0 for a in accuracies], capsize=2, **styles[name]
        )
        _intervals(panels[1], values, best, styles[name])
        floors |= _floors(values, best, floors)
        ends[0].append(Point(name, styles[name]["color"], values[-1], accuracies[-1].mean))
        ends[1].append(Point(name, styles[name]["color"], values[-1], best[-1].psnr_db.mean))
    panels[1].plot(sorted(floors), [floors[epsilon] for epsilon in sorted(floors)], **FLOOR)
    ends[1].append(Point(FLOOR_NAME, FLOOR["color"], last, floors[last]))
    if bare:
        ends = [[*drawn, point] for drawn, point in zip(ends, _undefended(panels, bare, last), strict=True)]
    for axes, name in zip(panels, ("accuracy of the\nattacked networks, %", "PSNR, strongest attack, dB"), strict=True):
        style.scale_across(axes, epsilons)
        axes.set_xlabel("epsilon of the worst client", fontsize=style.FONT_POINTS)
        axes.set_ylabel(name, fontsize=style.FONT_POINTS)
        style.plain(axes)
    style.heading(figure, title)
    handles = [style.handle(name, **line_style) for name, line_style in styles.items()]
    handles += [style.handle(BARE_NAME, **BARE)] if bare else []
    line_ends.draw(figure, list(zip(panels, ends, strict=True)), [*handles, style.handle(FLOOR_NAME, **FLOOR)])
    return style.save(figure, stem)


def _floors(values: Sequence[float], best: Sequence[Measured], others: Mapping[float, float]) -> dict[float, float]:
    """Epsilon -> the best floor in dB of one defence, or that of the `others` with this epsilon where it is higher."""
    each = zip(values, best, strict=True)
    return {epsilon: max(row.floor.psnr_db, others.get(epsilon, row.floor.psnr_db)) for epsilon, row in each}


def _intervals(axes: Axes, values: Sequence[float], best: Sequence[Measured], line_style: dict[str, Any]) -> None:
    """The strongest attacks with their intervals."""
    psnr = [row.psnr_db for row in best]
    ends = [[max(p.mean - p.low, 0) for p in psnr], [max(p.high - p.mean, 0) for p in psnr]]
    axes.errorbar(values, [p.mean for p in psnr], yerr=ends, capsize=2, **line_style)


def _undefended(panels: Sequence[Axes], bare: Sequence[AttackRecord], last: float) -> list[Point]:
    """Draws the dashed lines with their spread; the point that names each."""
    accuracy, psnr = bare[0].accuracy_at_round, strongest(bare).psnr_db
    spread = accuracy.std or 0.0
    spans = [(accuracy.mean, accuracy.mean - spread, accuracy.mean + spread), (psnr.mean, psnr.low, psnr.high)]
    points = []
    for axes, (mean, low, high) in zip(panels, spans, strict=True):
        axes.axhline(mean, **BARE)
        axes.axhspan(low, high, color=BARE["color"], alpha=BAND, linewidth=0)
        points.append(Point(BARE_NAME, BARE["color"], last, mean))
    return points
