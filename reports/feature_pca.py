"""A teacher's features and what generators imitate of them, on the features' first two principal components (FedMD-CG Figure 2).

The networks are those of the last round of each cell's first seed: the teacher is the first client's extractor, the generators are
those that it sent. The paper does not say on which axes each panel is drawn: here all are on those of the teacher's features, so
that outputs without variety are seen as points. Images are the client's test images; z ~ N(0, I), and y are the images' labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from sklearn.decomposition import PCA

from privbench import checkpoint, federations, harness, plugins
from privbench.data.resize import pixels
from privbench.methods.form import Nets
from privbench.record import Record
from privbench.seeds import stream
from privbench.spec import CellSpec
from privbench.store import Store
from reports import figures, published, remarks, rows
from reports.tables import Form, Report

MOST_IMAGES = 2000  # of the client's test images; more points hide each other
PANEL_INCHES = 1.45
LEGEND_ROW_INCHES = 0.2
CLASS_COLOURS = (
    "#0072B2",
    "#E69F00",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#000000",
    "#F0E442",
    "#999999",
    "#7F3C8D",
)
Points = NDArray[np.float64]


class Cloud(NamedTuple):
    """Points of one panel before projection."""

    title: str
    values: Points  # [N, c * s * s]


class Clouds(NamedTuple):
    """All panels of one setting."""

    labels: NDArray[np.int64]  # [N], the same of every panel
    each: list[Cloud]  # the teacher's features first


def clouds(store: Store, cells: Sequence[CellSpec], data_root: Path | None) -> Clouds:
    """Features of the test images of the first client, and the outputs of every cell's generator for the same labels.

    UserError: networks that are no longer on disk, or a data set that is not there.
    """
    found: list[Cloud] = []
    labels = torch.empty(0, dtype=torch.int64)
    for cell in cells:
        spec = cell.train.model_copy(update={"seed": cell.seeds[0]})
        federation, _ = federations.of(spec, data_root)
        model = harness.prepare(spec, federation, torch.device("cpu")).model
        folder = store.train(spec)
        snapshot = checkpoint.load_snapshot(folder, spec.id, len(checkpoint.history(folder, spec.id) or []))
        test = federation.clients[0].test
        labels = test.labels[:MOST_IMAGES]
        client, (params, buffers) = snapshot.clients[0], snapshot.uploads[0]
        nets = Nets(model, client.params | params, client.buffers | buffers)
        with torch.no_grad():
            if not found:
                images = pixels(test.images[:MOST_IMAGES], model.image_size)
                found.append(Cloud("features of the teacher", _flat(nets.extractor(images))))
            z = torch.randn(len(labels), model.noise_dim, generator=stream(spec.seed, "pca"))
            found.append(Cloud(name_of(cell), _flat(nets.generator(z, labels))))
    return Clouds(labels.numpy(), found)


def _flat(features: torch.Tensor) -> Points:
    return features.flatten(1).double().numpy()


def name_of(cell: CellSpec) -> str:
    """A panel's title, e.g. "L_div1"."""
    settings = published.effective(cell.train)
    return "without L_div" if "div" in settings["without"] else f"L_div{settings['diversity']}"


def within(values: Points, labels: NDArray[np.int64]) -> float:
    """Variance around the mean of each label, summed over dimensions, mean over points: what noise alone changes."""
    means = {label: values[labels == label].mean(0) for label in np.unique(labels)}
    return float(np.square(values - np.stack([means[label] for label in labels])).sum(1).mean())


def report(key: rows.Setting, found: Clouds, records: Sequence[Record]) -> Report:
    """How much the points of each panel vary, in all and within a class, and how much of it the two axes show."""
    axes = PCA(2, svd_solver="full").fit(found.each[0].values)
    body, numbers = [], []
    first = found.each[0].values
    whole, inside = float(first.var(0).sum()), within(first, found.labels)
    for cloud in found.each:
        total, own = float(cloud.values.var(0).sum()), within(cloud.values, found.labels)
        seen = float(axes.transform(cloud.values).var(0).sum())
        shares = {
            "variance": total / whole,
            "variance_within_class": own / inside,
            "seen": seen / total if total > 0 else None,
        }
        texts = ["-" if share is None else f"{share:.4f}" for share in shares.values()]
        body.append([cloud.title, *texts])
        numbers.append({"setting": rows.title(key), "panel": cloud.title, "images": len(found.labels)} | shares)
    headings = ["", "variance, of the features'", "within a class, of the features'", "share on the two axes"]
    notes = [
        *remarks.training_header(records),
        f"{len(found.labels)} test images of the first client, first seed, last round; the axes are the features' first two "
        "principal components.",
    ]
    return Report("Features and their imitations", notes, [Form(rows.title(key), headings, body)], numbers)


def write(key: rows.Setting, found: Clouds, classes: Sequence[str], stem: Path) -> list[Path]:
    """A panel each, all on one scale, points coloured by class."""
    axes = PCA(2, svd_solver="full").fit(found.each[0].values)
    down = -(-len(found.each) // 2)
    legend = LEGEND_ROW_INCHES * (-(-len(classes) // 5) + 1)
    figure = figures.new_figure(figures.COLUMN_INCHES, PANEL_INCHES * down + legend + 0.35)
    drawn = figure.subplots(down, 2, squeeze=False, sharex=True, sharey=True)
    for i, (panel, cloud) in enumerate(zip(drawn.flat, found.each, strict=False)):
        _panel(panel, axes.transform(cloud.values), found.labels, cloud.title)
        if i % 2 == 0:
            panel.set_ylabel("component 2", fontsize=figures.FONT_POINTS)
        if i + 2 >= len(found.each):
            panel.set_xlabel("component 1", fontsize=figures.FONT_POINTS)
            panel.tick_params(labelbottom=True)
    for panel in list(drawn.flat)[len(found.each) :]:
        panel.set_axis_off()
    figure.suptitle(rows.title(key), fontsize=figures.FONT_POINTS + 0.5)
    handles: list[Any] = [
        Line2D([], [], marker="o", linestyle="", markersize=4, color=_colour(k), label=plugins.short(name))
        for k, name in enumerate(classes)
    ]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=5, fontsize=figures.FONT_POINTS - 0.5, frameon=False,
        columnspacing=0.9, labelspacing=0.25, handletextpad=0.1,
    )  # fmt: skip
    return figures.save(figure, stem)


def _colour(label: int) -> str:
    return CLASS_COLOURS[label % len(CLASS_COLOURS)]


def _panel(axes: Axes, points: Points, labels: NDArray[np.int64], title: str) -> None:
    # In the order of the images, so that no class lies on top of all others.
    axes.scatter(
        points[:, 0], points[:, 1], s=1.5, c=[_colour(int(label)) for label in labels], linewidths=0, rasterized=True
    )
    axes.set_title(title, fontsize=figures.FONT_POINTS)
    figures.plain(axes)
