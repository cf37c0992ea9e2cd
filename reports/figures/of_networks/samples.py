"""Generated images by class beside real ones: every generator of a comparison, and every holder of one over the rounds.

The networks are those of a cell's first seed, read from its run's snapshots. A column is a class. Images are drawn, not chosen, and
z is the same for every generator, so that the rows of one generator over the rounds show how it changes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from privbench.data.readers.resize import pixels
from privbench.execution import generator_scores
from privbench.execution.generator_scores import Generator
from privbench.records.store import Store
from privbench.scoring import generator_attacks
from privbench.seeds import stream
from privbench.spec import CellSpec, TrainSpec
from privbench.training import checkpoint, federation, harness
from privbench.training.state import Setup
from reports.figures.drawing import style

MOST_CLASSES = 10
LINES = 2  # images of a class in a block
MOST_CLIENTS, MOST_ROUNDS = 4, 3
CELL_INCHES = 0.5
LABEL_INCHES = 1.5  # of a block's name
GAP_INCHES = 0.07  # between two blocks
CLASS_INCHES = 0.15  # of the classes' names
LABEL_GAP_INCHES = 0.06  # between a block's name and its images
TITLE_GAP_INCHES = 0.03
CHARACTER_INCHES = 0.06  # of such a name
BORDER = 1  # pixels between two images
NAMES = ("samples",)  # of the random streams


class SampleBlock(NamedTuple):
    """Rows of one generator, or of real images."""

    name: str
    images: Tensor  # [LINES, n, C, H, W] in [0, 1], by line and class


def compared(store: Store, rows: Sequence[tuple[str, CellSpec]], data_root: Path | None) -> list[SampleBlock]:
    """Real images, then those of every row's first client, or of its server where that has a generator, after its best round.

    UserError: networks that are no longer on disk, or a data set that is not there.
    """
    blocks = list[SampleBlock]()
    for name, cell in rows:
        setup, rounds = _setup(store, cell, data_root)
        generators = _at(store, setup, rounds.best)
        shown = next((g for g in generators if g.holder == "server"), generators[0])
        blocks += [] if blocks else [_real(setup)]
        blocks.append(SampleBlock(f"{name}\n{holder(shown)}, round {rounds.best}", _images(setup, shown)))
    return blocks


def over_rounds(store: Store, cell: CellSpec, data_root: Path | None) -> tuple[list[SampleBlock], int]:
    """(real images, then every holder's after some of the rounds that were kept; how many clients are left out)."""
    setup, rounds = _setup(store, cell, data_root)
    each = {round_: _at(store, setup, round_) for round_ in rounds.shown}
    clients = len(setup.federation.clients)
    holders = [i for i, g in enumerate(each[rounds.best]) if g.client < (1 if g.holder == "server" else MOST_CLIENTS)]
    blocks = [
        SampleBlock(f"{holder(each[round_][i])}\nround {round_}", _images(setup, each[round_][i]))
        for i in holders
        for round_ in rounds.shown
    ]
    return [_real(setup), *blocks], max(clients - MOST_CLIENTS, 0)


def file_name(row: str) -> str:
    """A row's name in the names of files."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", row).strip("-").lower()


def holder(generator: Generator) -> str:
    """Whose it is, in words."""
    return "server" if generator.holder == "server" else f"client {generator.client + 1}"


class _Rounds(NamedTuple):
    best: int
    shown: list[int]  # among them the best


def _setup(store: Store, cell: CellSpec, data_root: Path | None) -> tuple[Setup, _Rounds]:
    """The first seed's run, and the rounds of it to show: the first, the best and one between of those that were kept."""
    spec: TrainSpec = cell.train.model_copy(update={"seed": cell.seeds[0]})
    setup = harness.prepare(spec, federation.of(spec, data_root)[0], torch.device("cpu"))
    entries = checkpoint.history(store.train(spec), spec.id) or []
    best = generator_scores.scored_round(entries)
    stored = sorted(n for n in checkpoint.stored_rounds(spec, entries)[0] if 0 < n <= best) or [best]
    step = (len(stored) - 1) / max(min(MOST_ROUNDS, len(stored)) - 1, 1)
    return setup, _Rounds(best, sorted({stored[round(i * step)] for i in range(min(MOST_ROUNDS, len(stored)))}))


def _at(store: Store, setup: Setup, round_: int) -> list[Generator]:
    folder = store.train(setup.spec)
    shot = checkpoint.load_snapshot(folder, setup.spec.id, round_)
    return generator_scores.of_snapshot(setup.model, harness.snapshot_of(setup, folder, shot))


def _images(setup: Setup, generator: Generator) -> Tensor:
    count = min(setup.model.classes, MOST_CLASSES)
    z = torch.randn(LINES * count, setup.model.noise_dim, generator=stream(setup.spec.seed, *NAMES))
    generated = generator_attacks.sampled(generator.generate, z, torch.arange(count).repeat(LINES))
    return generated.images.unflatten(0, (LINES, count)).nan_to_num()


def _real(setup: Setup) -> SampleBlock:
    """Test images of the first client's domain; of a class that has too few the same one again, grey where it has none."""
    test = generator_scores.test_images(setup.federation, 0)
    side = setup.model.image_size
    columns = []
    for label in range(min(setup.model.classes, MOST_CLASSES)):
        rows = (test.labels == label).nonzero()[:, 0]
        if len(rows):
            chosen = rows[torch.randperm(len(rows), generator=stream(setup.spec.seed, *NAMES, "real", label))]
            columns.append(pixels(test.images[chosen[torch.arange(LINES) % len(rows)]], side))
        else:
            columns.append(torch.full((LINES, test.images.shape[1], side, side), 0.5))
    return SampleBlock("real test images", torch.stack(columns, 1))


def write(
    blocks: Sequence[SampleBlock], classes: Sequence[str], title: str, stem: Path, remark: str = ""
) -> list[Path]:
    """Writes `stem`.png and `stem`.pdf: a block of images each, a column per class; `remark` stands under them."""
    lines, columns = blocks[0].images.shape[:2]
    names = [_wrapped(block.name) for block in blocks]
    wide = max(style.width_inches(part, style.FONT_POINTS) for name in names for part in name) + 0.15
    room = style.PAGE_HEIGHT_INCHES - 1 - GAP_INCHES * len(blocks)
    cell = min(CELL_INCHES, (style.PAGE_INCHES - wide) / columns, room / (lines * len(blocks)))
    body = (lines * cell + GAP_INCHES) * len(blocks)
    figure = style.new_figure(wide + cell * columns, body + CLASS_INCHES)
    # Places are computed: a layout that makes room for what is drawn would draw the images in unlike sizes.
    figure.set_layout_engine("none")
    style.heading(figure, title)
    height = figure.get_figheight()
    left_out = f"{len(classes) - columns} of {len(classes)} classes" if len(classes) > columns else ""
    if words := "; ".join(part for part in (remark, left_out) if part):
        style.footnote(figure, f"Not shown: {words}.")
    whole, width = figure.get_figheight(), figure.get_figwidth()
    figure.suptitle(
        figure.get_suptitle(), y=1 - TITLE_GAP_INCHES / whole, va="top", fontsize=style.TITLE_POINTS,
        linespacing=style.LINE_SPACING,
    )  # fmt: skip
    for i, (name, block) in enumerate(zip(names, blocks, strict=True)):
        low = whole - height + body - (lines * cell + GAP_INCHES) * (i + 1) + GAP_INCHES
        axes = figure.add_axes((wide / width, low / whole, cell * columns / width, lines * cell / whole))
        axes.imshow(mosaic(block.images), cmap="gray", vmin=0, vmax=1, interpolation="nearest", aspect="auto")
        axes.set_axis_off()
        middle = (low + lines * cell / 2) / whole
        figure.text(
            (wide - LABEL_GAP_INCHES) / width, middle, "\n".join(name), fontsize=style.FONT_POINTS, ha="right", va="center",
            linespacing=style.LINE_SPACING,
        )  # fmt: skip
    most = round(cell / CHARACTER_INCHES)
    for i, label in enumerate(classes[:columns]):
        figure.text(
            (wide + cell * (i + 0.5)) / width, (whole - height + body + 0.03) / whole, style.shortened(label, most),
            fontsize=style.SMALL_POINTS, ha="center", va="bottom",
        )  # fmt: skip
    return style.save(figure, stem)


def mosaic(images: Tensor) -> NDArray[np.float32]:
    """[L, n, C, H, W] -> one picture [L (H + 1), n (W + 1)] or [.., .., 3], white lines of a pixel between the images."""
    bordered = F.pad(images.clamp(0, 1), (0, BORDER, 0, BORDER), value=1.0)
    picture = bordered.permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1).numpy()
    return picture[..., 0] if picture.shape[-1] == 1 else picture


def _wrapped(name: str) -> list[str]:
    return [part for line in name.split("\n") for part in style.wrapped(line, LABEL_INCHES, style.FONT_POINTS)]
