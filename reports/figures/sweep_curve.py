"""Accuracy and PSNR against what is swept: a number of a defence, e.g. the variance of its noise, or any field of a study.

Left, the accuracy of the trained method, mean and standard deviation over seeds; right, the strongest attack with its 95% interval,
and the best floor. What is not swept, as the same method without any defence, is a dashed line across.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from privbench import registry, written_defense
from privbench.records.schema import AttackRecord, Record
from privbench.spec import CellSpec
from privbench.system import files
from reports.figures import of_attack
from reports.figures.drawing import line_aside, line_ends, style
from reports.figures.drawing.direct_labels import Point
from reports.figures.drawing.line_aside import Bar
from reports.figures.drawing.line_styles import METHODS, line_style
from reports.records import grouping, labels
from reports.records.labels import defense_name, family_name, group, place, round_text, title_of, unique
from reports.records.measured import strongest
from reports.records.quotable import quotable
from reports.studies import sweeps

Points = Sequence[tuple[Any, Sequence[Record]]]  # (value, records of it), in order
PANEL_INCHES = 2.0
DEFENDED = METHODS["fedavg"].line | {"markersize": 4, "linewidth": 0.9}
BARE: dict[str, Any] = {"color": "0.1", "linestyle": (0, (4, 2)), "linewidth": 0.9, "marker": ""}
# Of the first line across, the second and so on.
BARE_DASHES = (BARE["linestyle"], (0, (8, 2)), (0, (4, 2, 1, 2)), (0, (4, 2, 1, 2, 1, 2)))
DEFENDED_NAME, BARE_NAME, FLOOR_NAME = "with the defence", "without a defence", "best floor"
# Between the intervals of two lines at one value, in points: at the same place they would hide each other.
APART = 2.5
FLOOR: dict[str, Any] = {"color": "0.5", "linestyle": (0, (1, 1.4)), "linewidth": 1.1, "marker": ""}


class _Curves(NamedTuple):
    """What both panels of a figure draw."""

    lines: Mapping[str, Points]
    across: Mapping[str, Sequence[Record]]  # without the swept value
    place: Mapping[Any, float]  # of each value on the axis
    styles: Mapping[str, dict[str, Any]]  # of each line, those across too

    @property
    def last(self) -> float:
        """The right end of the axis."""
        return max(self.place.values())


def curves(records: Sequence[AttackRecord], folder: Path) -> list[Path]:
    """`<data set>-<defence>` for every sweep among some records; nothing where no defence has two values or more.

    No curve of smoke runs is drawn.
    """
    names, paths, records = of_attack.observation_stems(records), list[Path](), quotable(records)
    for key in unique(group(r.cell) for r in records):
        attacks = [r for r in records if group(r.cell) == key and r.attack not in registry.FLOORS]
        for family in unique(_family(r.cell) for r in attacks if r.cell.train.defense != "none"):
            sweep = _sweep([r for r in attacks if _family(r.cell) == family])
            if sweep is None:
                continue
            field, points = sweep
            variant, defense, where = family
            bare = [r for r in attacks if _family(r.cell)[0] == variant and r.cell.train.defense == "none"]
            round_ = attacks[0].cell.round
            stem = "-".join(
                (
                    names[grouping.observation(attacks[0].cell)],
                    of_attack.variant_stem(points[0][1][0].cell),
                    defense,
                    *([where] if where == "step" else []),
                    round_,
                )
            )
            stem = of_attack.slug(stem)
            shown = defense_name(defense)
            title = f"{variant} + {shown}, {title_of(key)}"
            without = {BARE_NAME: bare} if bare else {}
            paths += write({DEFENDED_NAME: points}, without, f"{shown}: {field}", title, folder / stem)
    return paths


def of_study(sweep: Mapping[str, Sequence[Any]], records: Sequence[Record], folder: Path) -> list[Path]:
    """`sweep-<field>-<data set>` for every swept field with two values or more; a line per column and values of the other fields.

    No curve of smoke runs is drawn.
    """
    paths = list[Path]()
    shown = sorted(
        quotable(records), key=lambda r: (place(r.cell), family_name(r.cell), sweeps.position(sweep, r.cell))
    )
    for name in (name for name, values in sweep.items() if len(values) > 1):
        others = [other for other in sweep if other != name]
        for dataset, round_ in unique((r.cell.train.dataset, r.cell.round) for r in shown):
            alike = [r for r in shown if (r.cell.train.dataset, r.cell.round) == (dataset, round_)]
            alike = [r for r in alike if not (isinstance(r, AttackRecord) and r.attack in registry.FLOORS)]
            lines: dict[str, Points] = {}
            across: dict[str, Sequence[Record]] = {}
            swept = {r.cell.attack for r in alike if sweeps.value(r.cell, name) is not None}
            unswept = {r.cell.attack for r in alike} - swept
            for line in unique(_line(r.cell, others, unswept) for r in alike):
                of_line = [r for r in alike if _line(r.cell, others, unswept) == line]
                points = [(v, [r for r in of_line if sweeps.value(r.cell, name) == v]) for v in sweep[name]]
                points = [(v, each) for v, each in points if each]
                if len(points) > 1:
                    lines[line] = points
                elif not points:
                    across[line] = of_line
            if lines:
                stem = f"sweep-{name}-{registry.stem(dataset)}" + (f"-{round_}" if round_ != "best" else "")
                title = f"{registry.short(dataset)}, round {round_text(round_)}"
                is_trained = not sweeps.is_of_attacks(name)
                stem_path = files.inside(folder, stem)
                paths += write(lines, across, sweeps.words(name), title, stem_path, accuracy=is_trained)
    return paths


def _line(cell: CellSpec, others: Sequence[str], unswept: Collection[str | None]) -> str:
    """What the points of one line have in common: method and defence, what is swept besides, an attack that lacks what is swept."""
    values = [(other, sweeps.value(cell, other)) for other in others]
    texts = [sweeps.with_value(other.rpartition(".")[2], value) for other, value in values if value is not None]
    return ", ".join([family_name(cell), *([str(cell.attack)] if cell.attack in unswept else []), *texts])


def _family(cell: CellSpec) -> tuple[str, str, str]:
    """(method with its settings, defence, where it acts): what the points of one curve have in common."""
    return (labels.variant_name(cell), written_defense.joined(cell.train.defense), cell.train.where)


def _sweep(records: Sequence[AttackRecord]) -> tuple[str, list[tuple[float, list[AttackRecord]]]] | None:
    """(the field that is swept, its points) of records of one family; None unless one number alone differs, twice or more.

    Of several defences the field stands behind the name of its own.
    """
    several = len(written_defense.members(records[0].cell.train.defense)) > 1

    def field_of(name: str, key: str) -> str:
        key = key or written_defense.first_field(name)
        return f"{defense_name(name)} {key}" if several else key

    each = {r.cell.train.defense: written_defense.numbers(r.cell.train.defense) for r in records}
    numbers = {text: {field_of(*place): value for place, value in fields.items()} for text, fields in each.items()}
    differing = [
        key for key in unique(k for n in numbers.values() for k in n) if len({n.get(key) for n in numbers.values()}) > 1
    ]
    # What epsilon costs and keeps is drawn for all defences together (reports/figures/epsilon_curve.py).
    if len(differing) != 1 or differing[0].endswith("epsilon") or any(differing[0] not in n for n in numbers.values()):
        return None
    (field,) = differing
    values = sorted({n[field] for n in numbers.values()})
    return field, [(v, [r for r in records if numbers[r.cell.train.defense][field] == v]) for v in values]


def write(
    lines: Mapping[str, Points],
    across: Mapping[str, Sequence[Record]],
    x_label: str,
    title: str,
    stem: Path,
    *,
    accuracy: bool = True,
) -> list[Path]:
    """`stem`.png and `stem`.pdf: a line per name; `across` are records without the swept value, a dashed line each.

    Values that are no numbers stand side by side. Without attacks there is one panel, of the accuracy. `accuracy` says whether it
    is drawn beside attacks; where every point has the same networks, it is not.
    """
    values = unique(value for points in lines.values() for value, _ in points)
    is_scale = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    at_value = {value: float(value) if is_scale else float(i) for i, value in enumerate(values)}
    is_attacked = any(isinstance(r, AttackRecord) for points in lines.values() for _, each in points for r in each)
    figure = style.new_figure(style.PAGE_INCHES, PANEL_INCHES)
    has_accuracy = accuracy or not is_attacked
    panels = figure.subplots(1, has_accuracy + is_attacked, squeeze=False)[0]
    series_styles = {DEFENDED_NAME: DEFENDED} if set(lines) == {DEFENDED_NAME} else {
        name: DEFENDED | line_style(i) for i, name in enumerate(lines)
    }  # fmt: skip
    if not is_scale:
        # Between words there is nothing that a line could stand for.
        series_styles = {name: each | {"linestyle": ""} for name, each in series_styles.items()}
    across_styles = {name: BARE | {"linestyle": BARE_DASHES[i % len(BARE_DASHES)]} for i, name in enumerate(across)}
    drawn = _Curves(lines, across, at_value, series_styles | across_styles)
    ends = [(panels[0], _accuracy(panels[0], drawn))] if has_accuracy else []
    if is_attacked:
        ends.append((panels[-1], _psnr(panels[-1], drawn)))
    for axes in panels:
        if not is_scale:
            axes.set_xticks(list(at_value.values()), list(map(sweeps.value_text, values)))
        else:
            style.scale_across(axes, values)
        axes.set_xlabel(x_label, fontsize=style.FONT_POINTS)
        style.plain(axes)
    style.heading(figure, title)
    handles = [style.handle(name, **series_style) for name, series_style in series_styles.items()]
    handles += [style.handle(name, **across_style) for name, across_style in across_styles.items()]
    line_ends.draw(figure, ends, [*handles, *([style.handle(FLOOR_NAME, **FLOOR)] if is_attacked else [])])
    return style.save(figure, stem)


def _accuracy(axes: Axes, drawn: _Curves) -> list[Point]:
    """Draws the accuracies; the ends of their lines."""
    ends = []
    for name, points in drawn.lines.items():
        means, at = [each[0].accuracy for _, each in points], [drawn.place[value] for value, _ in points]
        std = [a.std or 0.0 for a in means]
        bars = [Bar(x, a.mean, a.mean - s, a.mean + s) for x, a, s in zip(at, means, std, strict=True)]
        line_aside.draw(axes, bars, *_place(drawn, name), APART, capsize=2, **drawn.styles[name])
        ends.append(Point(name, drawn.styles[name]["color"], at[-1], means[-1].mean))
    for name, each in drawn.across.items():
        axes.axhline(each[0].accuracy.mean, **drawn.styles[name])
        ends.append(Point(name, BARE["color"], drawn.last, each[0].accuracy.mean))
    axes.set_ylabel("test accuracy, %", fontsize=style.FONT_POINTS)
    return ends


def _psnr(axes: Axes, drawn: _Curves) -> list[Point]:
    """Draws the strongest attacks, and the floor of the first line's victims; the ends of their lines."""
    ends: list[Point] = []
    for name, points in drawn.lines.items():
        attacked = [(drawn.place[value], strongest(_attacks(each))) for value, each in points if _attacks(each)]
        if not attacked:
            continue
        at, best = [x for x, _ in attacked], [row for _, row in attacked]
        psnr = [row.psnr_db for row in best]
        bars = [Bar(x, p.mean, p.low, p.high) for x, p in zip(at, psnr, strict=True)]
        line_aside.draw(axes, bars, *_place(drawn, name), APART, capsize=2, **drawn.styles[name])
        if not any(end.name == FLOOR_NAME for end in ends):
            axes.plot(at, [row.floor.psnr_db for row in best], **FLOOR)
            ends.append(Point(FLOOR_NAME, FLOOR["color"], at[-1], best[-1].floor.psnr_db))
        ends.append(Point(name, drawn.styles[name]["color"], at[-1], psnr[-1].mean))
    for name, each in drawn.across.items():
        if attacks := _attacks(each):
            axes.axhline(strongest(attacks).psnr_db.mean, **drawn.styles[name])
            ends.append(Point(name, BARE["color"], drawn.last, strongest(attacks).psnr_db.mean))
    axes.set_ylabel("PSNR, strongest attack, dB", fontsize=style.FONT_POINTS)
    return ends


def _place(drawn: _Curves, name: str) -> tuple[int, int]:
    """Which line it is, and of how many."""
    return list(drawn.lines).index(name), len(drawn.lines)


def _attacks(records: Sequence[Record]) -> list[AttackRecord]:
    return [r for r in records if isinstance(r, AttackRecord)]
