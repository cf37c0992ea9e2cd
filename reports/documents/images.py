"""The figures of docs/images that committed records are enough for; all others show networks or reconstructions of whole runs.

They are no blocks: fonts and versions of the drawing library change single pixels, so that no test can compare them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from privbench.system import files
from reports.documents import benchmarks, published
from reports.documents.findings import BEST
from reports.documents.table_names import CIFAR10, DEFENCES, EARLIER_ROUNDS, KNOWN_IMAGES, PHOTOS, SECURE_GAN, TRAINED
from reports.figures import curves, epsilon_curve, psnr_by_round, scatter, sweep_curve
from reports.records import grouping
from reports.studies import definition

FOLDER = Path("docs/images")
# What curves of private extractors were measured on.
CURVES = {KNOWN_IMAGES: ("photos", "digits", "cifar10"), EARLIER_ROUNDS: ("digits", "photos", "cifar10")}


def _photos_scatter(root: Path, stem: Path) -> list[Path]:
    return scatter.write(published.attacked(root, PHOTOS), stem)


def _cifar10_curves(root: Path, stem: Path) -> list[Path]:
    records = published.read(published.path_of(root, CIFAR10))
    return curves.write(records, grouping.setting(records[0].cell), ("loss", "accuracy"), stem)


def _rounds(table: str, root: Path, stem: Path) -> list[Path]:
    return psnr_by_round.write(published.attacked(root, table), stem)


def _earlier_rounds(dataset: str, root: Path, stem: Path) -> list[Path]:
    return psnr_by_round.write(published.attacked(root, EARLIER_ROUNDS, dataset), stem)


def _known_images(dataset: str, root: Path, stem: Path) -> list[Path]:
    """Against their number; a line per quality."""
    sweep = definition.read(KNOWN_IMAGES).sweep
    drawn = sweep_curve.of_study(sweep, published.attacked(root, KNOWN_IMAGES, dataset), stem.parent)
    return _renamed([path for path in drawn if "-known_images-" in path.name], stem)


def _stability(root: Path, stem: Path) -> list[Path]:
    records = [r for r in published.read(published.path_of(root, SECURE_GAN)) if r.cell.train.method == "dp-gan"]
    return curves.write(records, grouping.setting(records[0].cell), ("discriminator", "generator", "accuracy"), stem)


def _defences_epsilon(root: Path, stem: Path) -> list[Path]:
    """FedAvg after training."""
    records = [
        r for r in published.attacked(root, DEFENCES) if r.cell.train.method == "fedavg" and r.cell.round == BEST
    ]
    return _renamed(epsilon_curve.curves(records, stem.parent), stem)


def _renamed(drawn: Sequence[Path], stem: Path) -> list[Path]:
    return [path.replace(stem.with_suffix(path.suffix)) for path in drawn]


def _benchmarks(name: str, root: Path, stem: Path) -> list[Path]:
    return benchmarks.draw(root, name, stem)


IMAGES: dict[str, Callable[[Path, Path], list[Path]]] = {
    "photos-scatter": _photos_scatter,
    f"{CIFAR10}-curves": _cifar10_curves,
    f"{TRAINED}-rounds": partial(_rounds, TRAINED),
    **{f"{KNOWN_IMAGES}-{name}": partial(_known_images, name) for name in CURVES[KNOWN_IMAGES]},
    **{f"{EARLIER_ROUNDS}-{name}": partial(_earlier_rounds, name) for name in CURVES[EARLIER_ROUNDS]},
    f"{DEFENCES}-epsilon": _defences_epsilon,
    f"{SECURE_GAN}-stability": _stability,
}


def write(root: Path, target: Path) -> list[Path]:
    """Draws every figure anew from the records under `root`, as PNG files of the folder `target`.

    Those of benchmarks are drawn where a run is committed.
    """
    drawings = dict(IMAGES)
    if (root / benchmarks.FILE).exists():
        drawings |= {name: partial(_benchmarks, name) for name in benchmarks.FIGURES}
    paths = []
    with tempfile.TemporaryDirectory() as folder:
        for name, draw in drawings.items():
            (drawn,) = (path for path in draw(root, Path(folder) / name) if path.suffix == ".png")
            path = target / drawn.name
            files.write_bytes(path, drawn.read_bytes())
            paths.append(path)
    return paths
