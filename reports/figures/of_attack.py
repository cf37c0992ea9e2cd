"""The figures that an attacked cell comes with: scatter plot, label histogram and reconstruction grid of each data set."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from privbench import registry
from privbench.errors import Damaged, Missing
from privbench.observation import artifact_files as artifacts
from privbench.observation import artifact_upgrade
from privbench.records import summary
from privbench.records.schema import AttackRecord, Record
from privbench.records.store import Store
from privbench.scoring import image_scores
from privbench.spec import CellSpec
from privbench.system import files
from privbench.training import training_files
from privbench.types import Truth
from reports.figures import grid, label_histogram, scatter
from reports.figures.drawing import style
from reports.figures.label_histogram import Panel
from reports.records import grouping, labels
from reports.records.published import papers_attack_on
from reports.records.quotable import is_quotable
from reports.tables import variants

LOG = logging.getLogger("privbench")


def attacked(store: Store, cells: Sequence[CellSpec], records: Sequence[AttackRecord], folder: Path) -> list[Path]:
    """Scatter plots and grids of every setting of some cells; `records` are those of `cells`, in the same order."""
    paths = []
    for observation, name in observation_stems(records).items():
        seen = [r for r in records if grouping.observation(r.cell) == observation]
        paths += scatter.write(seen, files.inside(folder, f"{name}-scatter"))
    for key, name in stems(records).items():
        in_setting = [(cell, r) for cell, r in zip(cells, records, strict=True) if grouping.setting(r.cell) == key]
        for round_ in dict.fromkeys(cell.round for cell, _ in in_setting):
            of_round = sorted((cell for cell, _ in in_setting if cell.round == round_), key=labels.cell_place)
            paths += write_grid(store, of_round, min(of_round[0].seeds), files.inside(folder, f"{name}-grid-{round_}"))
    return paths


def stems(records: Sequence[Record]) -> dict[grouping.Setting, str]:
    """Each setting's name in names of files: the data set's alone where that is enough; no two have the same."""
    keys = grouping.settings(records)
    datasets = [key[0] for key in keys]
    names = [registry.stem(key[0]) if datasets.count(key[0]) == 1 else grouping.stem(key) for key in keys]
    # What the short name leaves out: networks in full, and the preset.
    return {
        key: name if names.count(name) == 1 else f"{name}-{slug(' '.join(key[-2:]).strip())}"
        for key, name in zip(keys, names, strict=True)
    }


def observation_stems(records: Sequence[Record]) -> dict[grouping.Observation, str]:
    """The same for each setting and what the server saw in it, which has a name where several of one setting are there."""
    keys, names = grouping.observations(records), stems(records)
    of_settings = [key for key, _ in keys]
    return {
        (key, words): f"{names[key]}-{slug(' '.join(words))}" if words and of_settings.count(key) > 1 else names[key]
        for key, words in keys
    }


def variant_stem(cell: CellSpec) -> str:
    """A method with its settings in names of files, e.g. "fedcg" or "fedcg-dense-GAN"."""
    name = labels.variant_name(cell)
    settings = name.removeprefix(labels.NAMES.get(cell.train.method, cell.train.method))
    return slug(cell.train.method + settings).rstrip("-")


def slug(text: str) -> str:
    """A text as a part of a file's name, e.g. "16-images-per-gradient"."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)


def histograms(records: Sequence[Record], folder: Path) -> list[Path]:
    """Who holds how many training images of which class, one figure per data set; layouts beneath each other, first seed."""
    paths = []
    for dataset in dict.fromkeys(r.cell.train.dataset for r in records):
        paths += _histogram(
            [r for r in records if r.cell.train.dataset == dataset],
            files.inside(folder, f"{registry.stem(dataset)}-clients"),
        )
    return paths


def _histogram(records: Sequence[Record], stem: Path) -> list[Path]:
    """The label histogram of every Dirichlet layout among some records, first seed."""
    dealt = [r for r in records if r.cell.train.partition == "dirichlet"]
    by_title = {f"{labels.partition_text(r.cell)}, seed {r.cell.seeds[0]}": r for r in reversed(dealt)}
    panels = [
        Panel(title, [str(k + 1) for k in range(len(r.label_counts[0]))], r.label_counts[0])
        for title, r in by_title.items()
    ]
    return label_histogram.write(panels, dealt[0].class_names, stem) if panels else []


def write_grid(
    store: Store,
    cells: Sequence[CellSpec],
    seed: int,
    stem: Path,
    size: grid.Size = grid.Size(),  # noqa: B008 (immutable)
    endings: Sequence[str] = style.ENDINGS,
) -> list[Path]:
    """One row per cell that attacked the same victims, in the order given; of several sets of victims those of most cells.

    Of smoke runs no PSNR stands under the images. Cells whose files are damaged or gone are left out, with a line.
    """
    loaded = []
    for cell in cells:
        try:
            loaded.append((cell, *_loaded(store, cell, seed)))
        except (Damaged, Missing) as error:
            LOG.warning("left out of the grid %s: %s", stem.name, error)
    if not loaded:
        return []
    alike = [[one for one in loaded if _of_same_images(one[2], other[2])] for other in loaded]
    chosen = max(alike, key=len)
    names = [(labels.label(cell), cell.attack) for cell, *_ in chosen]
    drawn = []
    for (cell, images, truth, failed, (rung, tag)), (method, attack) in zip(chosen, names, strict=True):
        score_db = image_scores.psnr_db(images[:, 0], truth.images[:, 0]).masked_fill(failed, math.nan)
        setting = variants.setting_words(cell).partition(", ")[2] if names.count((method, attack)) > 1 else ""
        drawn.append(
            grid.Row(
                method, f"{attack} ({setting})" if setting else f"{attack}", images[:, 0].clamp(0, 1),
                score_db if is_quotable(cell.preset) else None, rung, tag,
                is_papers=cell.attack == papers_attack_on(cell.train.method),
            )
        )  # fmt: skip
    return grid.write(chosen[0][2].images[:, 0], drawn, stem, size, endings, others=len(loaded) - len(chosen))


def _loaded(store: Store, cell: CellSpec, seed: int) -> tuple[Tensor, Truth, Tensor, tuple[str, str]]:
    """(reconstructions, what they are of, whether they failed, the attacker's rung and what it knew in words) of one seed."""
    tensors, info = summary.result(store, cell, seed)
    spec = cell.train.model_copy(update={"seed": seed})
    folder = store.artifact(cell, spec, info["round"])
    origin = artifacts.origin_of(spec, folder)
    artifact_upgrade.upgrade(folder, origin, cell.preset)
    truth = artifacts.truth_of(folder, origin)
    with training_files.reading(store.result(cell, seed)):
        rung, tag = (info["knowledge"].get(name) or "" for name in ("rung", "tag"))
        if not isinstance(rung, str) or not isinstance(tag, str):
            raise ValueError("no knowledge in words")
        if tensors["images"].shape != truth.images.shape:
            raise ValueError("its images do not have the shape of the true ones")
    images, failed = image_scores.aligned(tensors["images"], truth)
    return images, truth, failed, (rung, tag)


def _of_same_images(a: Truth, b: Truth) -> bool:
    return torch.equal(a.images, b.images)
