"""The reconstruction grid as in papers: true images in the first row, one row per attack, PSNR under each image.

It is as wide as a page at most. Where there are more rows than were asked for, the strongest attack of each knowledge stays, of
every method first its strongest, as a grid that left out the worst leaks would flatter a method. What is left out is said
under the grid.
The attack of the method's own paper is marked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.axes import Axes
from torch import Tensor

from privbench import registry
from reports.figures.drawing import style
from reports.records.labels import unique

MOST_ROWS = 8  # with the true images
MOST_COLUMNS = 8
CELL_INCHES = 0.72
LABEL_INCHES = 1.2  # of a row's name, at most
NUMBER_INCHES = 0.16  # of the line under an image
GAP_INCHES = 0.03  # between two rows
METHOD_LINES, ATTACK_LINES = 3, 2  # of a row's name, at most
ROOM_FOR_UNIT_INCHES = 0.55  # from which width of an image on "dB" stands behind its PSNR
FLOORS = "floors"
PAPERS = "the paper's"  # behind the name of an attack
MOST_NAMED = 3  # rows left out that are named under the grid


class Row(NamedTuple):
    """What one attack on one method gave."""

    method: str
    attack: str
    images: Tensor  # [V, C, H, W] in [0, 1]
    psnr_db: Tensor | None  # [V], NaN where the attack failed; None where no score may be shown
    rung: str = ""
    # What the attacker knows, in words; rows of one method that know the same are compared with each other.
    knowledge: str = ""
    # Whether it is the attack by which the papers measured the method.
    is_papers: bool = False

    @property
    def name(self) -> str:
        """Method, where there is one, and attack in one line."""
        return f"{self.method}, {self.attack}" if self.method else self.attack


class Size(NamedTuple):
    """How large a grid may be."""

    rows: int = MOST_ROWS  # with the true images
    columns: int = MOST_COLUMNS


class GridLine(NamedTuple):
    """One drawn row: the attacks that gave these very images."""

    members: list[Row]

    @property
    def first(self) -> Row:
        """Whose images are drawn."""
        return self.members[0]

    @property
    def strength(self) -> float:
        """Mean PSNR in dB, failures lowest; without a score that of nothing."""
        if self.first.psnr_db is None or bool(self.first.psnr_db.isnan().all()):
            return -math.inf
        return float(self.first.psnr_db.nanmean())


def lines_of(rows: Sequence[Row]) -> list[GridLine]:
    """Rows in their order; those that are the same bit for bit, failures included, become one."""
    lines: list[GridLine] = []
    for row in rows:
        twin = next((line for line in lines if _same(line.first, row)), None)
        if twin is None:
            lines.append(GridLine([row]))
        else:
            twin.members.append(row)
    return lines


def _same(a: Row, b: Row) -> bool:
    return _equal(a.images, b.images) and (
        a.psnr_db is b.psnr_db or (a.psnr_db is not None and b.psnr_db is not None and _equal(a.psnr_db, b.psnr_db))
    )


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are the same, NaN equal to NaN."""
    return a.shape == b.shape and bool(torch.all((a == b) | (a.isnan() & b.isnan())))


def select_lines(lines: Sequence[GridLine], most: int) -> list[GridLine]:
    """At most so many lines in their order: the strongest of each method and knowledge, then the others.

    Among both, the strongest of every method comes first, then the second of each, and so on. All floors count as one method.
    """
    strongest = {
        max((i for i in range(len(lines)) if _known(lines[i]) == known), key=lambda i: (lines[i].strength, -i))
        for known in unique(map(_known, lines))
    }
    rank: dict[int, tuple[bool, int]] = {}
    for method in unique(_group(line) for line in lines):
        indices = [i for i, line in enumerate(lines) if _group(line) == method]
        ordered = sorted(indices, key=lambda i: (i not in strongest, -lines[i].strength, i))
        rank |= {i: (i not in strongest, place) for place, i in enumerate(ordered)}
    chosen = sorted(range(len(lines)), key=lambda i: (rank[i], i))[:most]
    return [lines[i] for i in sorted(chosen)]


def _known(line: GridLine) -> tuple[str, str]:
    return (_group(line), "" if _group(line) == FLOORS else line.first.knowledge)


def _group(line: GridLine) -> str:
    return FLOORS if line.first.attack in registry.FLOORS else line.first.method


def write(
    originals: Tensor | None,
    rows: Sequence[Row],
    stem: Path,
    size: Size = Size(),  # noqa: B008 (immutable)
    endings: Sequence[str] = style.ENDINGS,
    *,
    others: int = 0,
    remark: str = "",
) -> list[Path]:
    """Writes `stem`.png and `stem`.pdf; originals [V, C, H, W], of which at most `size.columns` are drawn; None: nobody has them.

    `others` is how many attacks have no row, because they are on other images; `remark` is a sentence to stand under the grid.
    """
    victims = len(rows[0].images if originals is None else originals)
    columns = min(victims, size.columns)
    every = lines_of(rows)
    first = 0 if originals is None else 1
    shown = select_lines(every, size.rows - first)
    members = [row for line in shown for row in line.members]
    short: dict[str, str] = {}
    for names in (unique(row.method for row in members), unique(row.attack for row in members)):
        short |= dict(zip(names, style.series_names(names), strict=True))
    labels = [_label(line, short) for line in shown]
    wide = max(style.width_inches(part, style.FONT_POINTS) for text in labels for part in text.split("\n")) + 0.22
    cell = min(CELL_INCHES, (style.PAGE_INCHES - wide) / columns)
    spill = sum(max(0.0, _label_inches(text) - cell - NUMBER_INCHES) for text in labels)
    tall = cell * (len(shown) + first) + (NUMBER_INCHES + GAP_INCHES) * len(shown) + spill
    figure = style.new_figure(wide + cell * columns, tall)
    figure.set_layout_engine("constrained", w_pad=0.02, h_pad=0.01, wspace=0.0, hspace=0.0, rect=(0.006, 0, 0.994, 1))
    cells = figure.subplots(len(shown) + first, columns, squeeze=False)
    if originals is not None:
        _draw(cells[0], "original", originals[:columns], None, cell)
    for axes, text, line in zip(cells[first:], labels, shown, strict=True):
        psnr = line.first.psnr_db
        _draw(axes, text, line.first.images[:columns], None if psnr is None else psnr[:columns], cell)
    under = " ".join(text for text in (remark, left_out(every, shown, victims, columns, others)) if text)
    if under:
        style.footnote(figure, under)
    return style.save(figure, stem, endings, in_words(shown, columns))


def in_words(shown: Sequence[GridLine], columns: int) -> str:
    """What a grid shows, a line per attack: "FedCG, staged: 12.3, 11.0 dB", for those who cannot see it."""

    def scores(row: Row) -> str:
        if row.psnr_db is None:
            return "no score"
        return ", ".join(_number(float(psnr), 0.0) for psnr in row.psnr_db[:columns]) + " dB"

    return "\n".join(f"{row.name}: {scores(row)}" for line in shown for row in line.members)


def left_out(every: Sequence[GridLine], shown: Sequence[GridLine], victims: int, columns: int, others: int = 0) -> str:
    """What a grid does not show, and who shares a row with many, in words; nothing where it shows all."""
    # Two rows of one name are equal up to their images, and tensors have no single truth.
    hidden = [line for line in every if not any(line is each for each in shown)]
    named = "; ".join(line.first.name for line in hidden[:MOST_NAMED]) + (", ..." if len(hidden) > MOST_NAMED else "")
    which = "more" if any(line.first.psnr_db is None for line in hidden) else "weaker"
    parts = [f"{len(hidden)} {which} row{'s' * (len(hidden) > 1)} ({named})"] if hidden else []
    parts += [f"{others} attack{'s' * (others > 1)} on other images"] if others else []
    parts += [f"{victims - columns} of {victims} images"] if victims > columns else []
    same = [line for line in shown if len(line.members) > 2]
    sentences = [f"The same images: {'; '.join(row.name for row in line.members)}." for line in same]
    return " ".join([*([f"Not shown: {', '.join(parts)}."] if parts else []), *sentences])


def _label(line: GridLine, short: dict[str, str]) -> str:
    """A row's name: the method, then the attack; of several that gave the same, each once."""
    methods = unique(short[row.method] for row in line.members)
    attacks = unique(f"{row.rung} {short[row.attack]}".strip() for row in line.members)
    marked = [f"({PAPERS})"] if any(row.is_papers for row in line.members) else []
    return "\n".join([*_joined(methods, METHOD_LINES), *_joined(attacks, ATTACK_LINES), *marked])


def _joined(names: Sequence[str], most: int) -> list[str]:
    """The lines of "A = B = C", or of "A = 2 more" where that takes fewer."""
    for count in range(len(names), 0, -1):
        rest = f" = {len(names) - count} more" if count < len(names) else ""
        lines = style.wrapped(" = ".join(names[:count]) + rest, LABEL_INCHES, style.FONT_POINTS)
        if len(lines) <= most:
            return lines
    return [*lines[: most - 1], f"{lines[most - 1]}…"]


def _label_inches(text: str) -> float:
    return (text.count("\n") + 1) * style.FONT_POINTS * style.LINE_SPACING / 72


def _draw(axes: Sequence[Axes], name: str, images: Tensor, psnr: Tensor | None, inches: float) -> None:
    axes[0].set_ylabel(
        name, fontsize=style.FONT_POINTS, rotation=0, ha="right", va="center", linespacing=style.LINE_SPACING
    )
    for v, cell in enumerate(axes):
        image = images[v].clamp(0, 1).permute(1, 2, 0).numpy()
        grey = image.shape[2] == 1
        cell.imshow(
            image[..., 0] if grey else image, cmap="gray" if grey else None, vmin=0, vmax=1, interpolation="nearest"
        )
        # The box of a single column is wider than its square image, whose row's name would be pushed out of the figure.
        cell.set_anchor("E" if len(axes) == 1 else "C")
        cell.set_xticks([])
        cell.set_yticks([])
        cell.spines[:].set_linewidth(0.3)
        if psnr is not None:
            cell.set_xlabel(_number(float(psnr[v]), inches), fontsize=style.FONT_POINTS, labelpad=1.5)


def _number(psnr_db: float, inches: float) -> str:
    """A PSNR under an image so wide."""
    if math.isnan(psnr_db):
        return "failed" if inches >= ROOM_FOR_UNIT_INCHES / 1.5 else "-"
    text = "∞" if math.isinf(psnr_db) else f"{psnr_db:.1f}"
    return f"{text} dB" if inches >= ROOM_FOR_UNIT_INCHES else text
