"""The figures of a folder's records as pictures that a page holds: few enough, and small enough, that the page can be sent."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from privbench.errors import UserError
from privbench.records.schema import AttackRecord, Record
from privbench.records.store import Store
from privbench.spec import CellSpec
from reports.figures import curves, epsilon_curve, of_attack, psnr_by_round, scatter, sweep_curve
from reports.records import grouping, labels
from reports.records.labels import label, round_text, unique
from reports.tables.report import Picture

MOST_GRIDS, MOST_CELLS_OF_GRID = 12, 60
MOST_CURVES = 12
MOST_BYTES = 12 * 2**20  # of all pictures together
QUANTITIES = ("loss", "accuracy")


class Drawn(NamedTuple):
    """Some pictures, and a line for each thing that has none."""

    pictures: list[Picture]
    left_out: list[str]


class _Plan(NamedTuple):
    """A picture that can be drawn: `draw` writes it under a stem."""

    title: str
    description: str
    draw: Callable[[Path], list[Path]]
    # Why nothing may be drawn, where that is worth a line.
    absent: str = ""


def grids(store: Store, cells: Sequence[CellSpec], records: Sequence[AttackRecord]) -> Drawn:
    """The reconstructions of every setting and round, true images above; `records` are those of `cells`, in the same order."""
    plans = []
    for key in grouping.settings(records):
        of_setting = [(cell, r) for cell, r in zip(cells, records, strict=True) if grouping.setting(r.cell) == key]
        for round_ in sorted(unique(cell.round for cell, _ in of_setting), key=labels.round_place):
            of_round = [(cell, r) for cell, r in of_setting if cell.round == round_]
            chosen = [cell for cell, _ in strongest_of_each(of_round, MOST_CELLS_OF_GRID)]
            more = (
                f"; {len(of_round) - len(chosen)} of {len(of_round)} cells left out"
                if len(chosen) < len(of_round)
                else ""
            )
            place = f"{grouping.title(key)}, round {round_text(round_)}"
            methods = ", ".join(unique(label(cell) for cell in sorted(chosen, key=labels.cell_place)))
            plans.append(
                _Plan(
                    f"Reconstructions: {place}, seed {min(chosen[0].seeds)}. First row: the true images{more}.",
                    f"A grid of images of {place}: the true ones in the first row, below them what attacks on {methods} made",
                    lambda stem, chosen=chosen: of_attack.write_grid(  # type: ignore[misc]
                        store, sorted(chosen, key=labels.cell_place), min(chosen[0].seeds), stem, endings=(".png",)
                    ),
                    f"no reconstructions of {place} with their true images are at hand",
                )
            )  # fmt: skip
    return _drawn(plans, MOST_GRIDS, "grids of reconstructions")


def strongest_of_each(pairs: Sequence[tuple[CellSpec, AttackRecord]], most: int) -> list[tuple[CellSpec, AttackRecord]]:
    """At most so many, in their order: of every method first its strongest attack, then its second, and so on.

    What left out the strongest would flatter a method.
    """
    rank: dict[int, int] = {}
    for name in unique(label(cell) for cell, _ in pairs):
        indices = [i for i, (cell, _) in enumerate(pairs) if label(cell) == name]
        ordered = sorted(indices, key=lambda i: (-pairs[i][1].scores.psnr_db, i))
        rank |= {i: place for place, i in enumerate(ordered)}
    return [pairs[i] for i in sorted(sorted(rank, key=lambda i: (rank[i], i))[:most])]


def lines(records: Sequence[Record]) -> Drawn:
    """Curves of training, accuracy against PSNR, PSNR against the round, and sweeps over a defence."""
    plans = []
    attacked = [r for r in records if isinstance(r, AttackRecord)]
    for key in grouping.settings(records):
        for observation in grouping.observations(attacked):
            if observation[0] == key:
                plans += _of_observation([r for r in attacked if grouping.observation(r.cell) == observation])
        names = ", ".join(grouping.chosen(records, key))
        plans.append(
            _Plan(
                f"Loss and test accuracy by round: {grouping.title(key)}",
                f"Lines over the rounds of training: {names}. The table below has the first, best and last values",
                lambda stem, key=key: curves.write(records, key, QUANTITIES, stem),  # type: ignore[misc]
            )
        )
    plans += [
        _Plan(
            "Accuracy and PSNR against a defence's setting",
            "Lines over the values of a defence's setting: test accuracy and PSNR of the strongest attack",
            lambda stem: sweep_curve.curves(attacked, stem.parent),
        ),
        _Plan(
            "Accuracy and PSNR against epsilon",
            "Lines over epsilon: test accuracy and PSNR of the strongest attack",
            lambda stem: epsilon_curve.curves(attacked, stem.parent),
        ),
    ]
    return _drawn(plans, MOST_CURVES, "curves")


def _of_observation(attacked: Sequence[AttackRecord]) -> list[_Plan]:
    """The pictures of all attacks on what the server saw in one setting."""
    title = grouping.observation_title(grouping.observation(attacked[0].cell))
    names = ", ".join(unique(label(r.cell) for r in attacked))
    return [
        _Plan(
            f"Accuracy against PSNR of the strongest attack: {title}",
            f"A scatter plot, a point a method: {names}. The table of cells has the numbers",
            lambda stem: scatter.write(attacked, stem),
        ),
        _Plan(
            f"PSNR against the attacked round: {title}",
            f"Lines over rounds, one for each knowledge of the attacker, a panel for each of {names}",
            lambda stem: psnr_by_round.write(attacked, stem),
        ),
    ]


def _drawn(plans: Sequence[_Plan], most: int, what: str) -> Drawn:
    """The pictures of some plans until there are so many of them, or MOST_BYTES."""
    pictures: list[Picture] = []
    left_out: list[str] = []
    for number, plan in enumerate(plans):
        if _is_full(pictures, most):
            megabytes = sum(len(picture.png) for picture in pictures) / 2**20
            left_out.append(
                f"{what}: the page has the first {len(pictures)} ({megabytes:.1f} MB); "
                f"not drawn are {len(plans) - number} more, from '{plan.title}' on"
            )
            break
        with tempfile.TemporaryDirectory(prefix="privbench-") as folder:
            try:
                paths = [path for path in plan.draw(Path(folder) / "figure") if path.suffix == ".png"]
            except UserError as error:
                left_out.append(f"{plan.title}: {error}")
                continue
            left_out += [plan.absent] if plan.absent and not paths else []
            for place, path in enumerate(paths):
                if _is_full(pictures, most):
                    left_out.append(f"{plan.title}: {len(paths) - place} of {len(paths)}, from '{path.stem}' on")
                    break
                title = f"{plan.title}: {path.stem}" if len(paths) > 1 else plan.title
                pictures.append(Picture(title, plan.description, path.read_bytes()))
    return Drawn(pictures, left_out)


def _is_full(pictures: Sequence[Picture], most: int) -> bool:
    return len(pictures) >= most or sum(len(picture.png) for picture in pictures) >= MOST_BYTES
