"""`privbench partition` and `privbench grid`: who holds which images, and what attacks made of them, as pictures."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from privbench import names, registry
from privbench.cli import listing
from privbench.data import partition
from privbench.errors import UserError
from privbench.records import clients
from privbench.records.store import Store
from privbench.spec import TrainSpec
from privbench.system import console, files
from privbench.system.printable import one_line
from privbench.training import federation
from reports.figures import grid, label_histogram, of_attack
from reports.figures.drawing import style
from reports.figures.label_histogram import Panel
from reports.records.labels import cell_place

LOG = logging.getLogger("privbench")


def draw_clients(specs: Sequence[TrainSpec], data_dir: Path | None, stem: Path) -> None:
    """Lays the data out as each specification says, without training; prints who holds what and draws it."""
    feds = [federation.of_data(spec, data_dir) for spec in specs]
    panels = []
    for spec, (fed, note) in zip(specs, feds, strict=True):
        panels.append(_show_clients(spec, partition.census(fed), 0 if fed.public is None else len(fed.public.labels)))
        if note:
            console.results().say(f"note: {note}")
    _write_panels(panels, feds[0][0].classes, stem)


def draw_clients_of_run(prefix: str, out: Path) -> None:
    """The same for a training run on disk, from its record alone: nothing is read or trained again."""
    store = Store(out)
    spec = listing.only([spec for _, spec in store.trained()], prefix, f"training run under {out}")
    content = clients.read_clients(store, spec)
    panel = _show_clients(spec, content.clients, content.public)
    _write_panels([panel], content.classes, out / f"clients-{spec.id}")


def _show_clients(spec: TrainSpec, census: Sequence[dict[str, Any]], public: int) -> Panel:
    how = (
        f"Dirichlet({spec.omega:g})"
        if spec.omega is not None
        else {"iid": "IID", "domain": "by domain", "classes": "by class"}[spec.partition]
    )
    title = f"{registry.short(spec.dataset)}, {how}, {len(census)} clients, seed {spec.seed}"
    table = Table(title=title, box=None, padding=(0, 2, 0, 0))
    for column in ("client", "domain", "training", "classes", "largest class", "validation", "test"):
        table.add_column(column, justify="left" if column in ("client", "domain") else "right")
    for k, client in enumerate(census):
        train = client["train"]
        classes, share = sum(count > 0 for count in train), max(train) / max(1, sum(train))
        sizes = (f"{sum(client[name]):,}" for name in ("validation", "test"))
        table.add_row(
            str(k + 1), one_line(client["domain"]), f"{sum(train):,}", str(classes), f"{100 * share:.0f}%", *sizes
        )
    to = console.results()
    to.print(table)
    to.print(f"{public:,} public images of no client")
    one_each = spec.partition == "domain"
    names = [client["domain"] if one_each else str(k + 1) for k, client in enumerate(census)]
    return Panel(title, names, [client["train"] for client in census])


def _write_panels(panels: Sequence[Panel], classes: Sequence[str], stem: Path) -> None:
    for path in label_histogram.write(panels, classes, stem):
        console.results().say(f"wrote {path}")


def draw_grid(dataset: str, round_: str, seed: int, out: Path, target: Path | None, rows: int, columns: int) -> None:
    """Draws the grid of every cell of a data set at one round that has the seed; `target` is one file, else a .png and a .pdf."""
    try:
        names.round_(round_)
    except ValueError as error:
        raise UserError(f"--round {error}") from None
    if target is not None and target.suffix not in style.ENDINGS:
        raise UserError(f"--target {target}: a grid is drawn as .png or .pdf; give the file one of these endings")
    store = Store(out)
    cells = [cell for cell in store.cells() if cell.train.dataset == dataset and cell.round == round_]
    for cell in cells:
        is_on_images = cell.attack is not None and cell.attack not in registry.INFERENCES
        if (
            is_on_images
            and seed in cell.seeds
            and store.record(cell).exists()
            and not store.result(cell, seed).exists()
        ):
            LOG.warning(
                "left out of the grid: the images of cell %s with seed %d are gone; to make them again, remove %s and run the "
                "command that made it",
                cell.id, seed, store.record(cell),
            )  # fmt: skip
    cells = [cell for cell in cells if cell.attack is not None and _has_images(store.result(cell, seed))]
    if not cells:
        raise UserError(
            f"no finished cell of {registry.short(dataset)} at round {round_} with seed {seed} under {out}; "
            "run `privbench attack` first"
        )
    if begun := [cell for cell in cells if not store.record(cell).exists()]:
        LOG.warning(
            "%d of %d cells in the grid are unfinished: they have seed %d, and not yet all that were asked for",
            len(begun), len(cells), seed,
        )  # fmt: skip
    stem = files.inside(out, f"{registry.stem(dataset)}-grid-{round_}") if target is None else target.with_suffix("")
    endings = style.ENDINGS if target is None else (target.suffix,)
    size = grid.Size(rows, columns)
    paths = of_attack.write_grid(store, sorted(cells, key=cell_place), seed, stem, size, endings)
    if not paths:
        raise UserError(f"no grid was drawn: none of {len(cells)} cell(s) has its images; the lines above say why")
    for path in paths:
        console.results().say(f"wrote {path}")


def _has_images(result: Path) -> bool:
    """Whether there is a result, of an attack on images; a damaged one counts, so that the grid says of it what it lacks."""
    if not result.exists():
        return False
    try:
        return "answers" not in files.load_header(result, "reconstruction")[0]
    except UserError:
        return True
