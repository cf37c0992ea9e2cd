"""The figures that an attacked cell comes with: scatter plot, label histogram and reconstruction grid of each data set."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path

import torch

from privbench import artifact as artifacts
from privbench import plugins, score, storage
from privbench.errors import UserError
from privbench.record import AttackRecord, Record
from privbench.spec import CellSpec
from privbench.store import Store
from reports import grid, label_histogram, published_form, rows, scatter
from reports.label_histogram import Panel

GRID_COLUMNS = 8
LOG = logging.getLogger("privbench")


def attacked(store: Store, cells: Sequence[CellSpec], records: Sequence[AttackRecord], folder: Path) -> list[Path]:
    """Scatter plots and grids of every setting of some cells; `records` are those of `cells`, in the same order."""
    paths = []
    for key, name in stems(records).items():
        own = [(cell, r) for cell, r in zip(cells, records, strict=True) if rows.setting(r.cell) == key]
        paths += scatter.write([r for _, r in own], folder / f"{name}-scatter")
        for round_ in dict.fromkeys(cell.round for cell, _ in own):
            some = [cell for cell, _ in own if cell.round == round_]
            paths += write_grid(store, some, min(some[0].seeds), folder / f"{name}-grid-{round_}")
    return paths


def stems(records: Sequence[Record]) -> dict[rows.Setting, str]:
    """Each setting's name in names of files: the data set's alone where that is enough."""
    keys = rows.settings(records)
    datasets = [key[0] for key in keys]
    return {key: plugins.stem(key[0]) if datasets.count(key[0]) == 1 else rows.stem(key) for key in keys}


def histograms(records: Sequence[Record], folder: Path) -> list[Path]:
    """Who holds how many training images of which class, one figure per data set; layouts beneath each other, first seed."""
    paths = []
    for dataset in dict.fromkeys(r.cell.train.dataset for r in records):
        paths += _histogram(
            [r for r in records if r.cell.train.dataset == dataset], folder / f"{plugins.stem(dataset)}-clients"
        )
    return paths


def _histogram(records: Sequence[Record], stem: Path) -> list[Path]:
    """The label histogram of every Dirichlet layout among some records, first seed."""
    dealt = [r for r in records if r.cell.train.partition == "dirichlet"]
    by_title = {f"{published_form.partition_text(r.cell)}, seed {r.cell.seeds[0]}": r for r in reversed(dealt)}
    panels = [
        Panel(title, [str(k + 1) for k in range(len(r.label_counts[0]))], r.label_counts[0])
        for title, r in by_title.items()
    ]
    return label_histogram.write(panels, dealt[0].class_names, stem) if panels else []


def _attack_name(name: str) -> str:
    """The attack with its rung, where it has one."""
    rung = getattr(plugins.resolve("attack", name), "rung", None)
    return f"{rung} {name}" if rung else name


def write_grid(store: Store, cells: Sequence[CellSpec], seed: int, stem: Path) -> list[Path]:
    """One row per cell that attacked the same victims as the first; without those whose files are damaged or gone, with a line."""
    first, lines = None, []
    for cell in cells:
        spec = cell.train.model_copy(update={"seed": seed})
        try:
            tensors, info = storage.load_tensors(store.result(cell, seed), "reconstruction")
            truth = artifacts.load_truth(store.artifact(cell, spec, info["round"]) / "truth.safetensors")
        except UserError as error:
            LOG.warning("left out of the grid %s: %s", stem.name, error)
            continue
        if first is None:
            first = truth
        if truth.images.shape != first.images.shape or not torch.equal(truth.images, first.images):
            continue
        images, failed = score.aligned(tensors["images"], truth)
        psnr = score.psnr_db(images[:, 0], truth.images[:, 0]).masked_fill(failed, math.nan)
        label = published_form.label(cell).replace(" + ", "\n+ ") + f"\n{_attack_name(cell.attack or '')}"
        lines.append((label, images[:, 0].clamp(0, 1), psnr))
    return [] if first is None else grid.write(first.images[:GRID_COLUMNS, 0], lines, stem)
