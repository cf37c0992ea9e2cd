"""A teacher's features and what generators imitate of them, on the features' first two principal components (FedMD-CG Figure 2).

The networks are those of the last round of each cell's first seed: the teacher is the first client's extractor, the generators are
those that it sent. The paper does not say on which axes each panel is drawn: here all are on those of the teacher's features, so
that outputs without variety are seen as points. Images are the client's test images; z ~ N(0, I), and y are the images' labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.markers import MarkerStyle
from numpy.typing import NDArray
from sklearn.decomposition import PCA

from privbench import registry
from privbench.data.readers.resize import pixels
from privbench.methods.base import Nets
from privbench.records.schema import Record
from privbench.records.store import Store
from privbench.seeds import stream
from privbench.spec import CellSpec
from privbench.training import checkpoint, harness
from privbench.training import federation as federations
from reports.figures.drawing import style as figures
from reports.figures.drawing.line_styles import point_style
from reports.records import grouping, published, remarks
from reports.tables.report import Report, Table

MOST_IMAGES = 2000  # of the client's test images; more points hide each other
PANEL_INCHES = 1.75
NAME_CHARACTERS = 18  # of a class
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
    panels: list[Cloud] = []
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
            if not panels:
                images = pixels(test.images[:MOST_IMAGES], model.image_size)
                panels.append(Cloud("features of the teacher", _flat(nets.extractor(images))))
            z = torch.randn(len(labels), model.noise_dim, generator=stream(spec.seed, "pca"))
            panels.append(Cloud(name_of(cell), _flat(nets.generator(z, labels))))
    return Clouds(labels.numpy(), panels)


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


def report(key: grouping.Setting, clouds: Clouds, records: Sequence[Record]) -> Report:
    """How much the points of each panel vary, in all and within a class, and how much of it the two axes show."""
    axes = PCA(2, svd_solver="full").fit(clouds.each[0].values)
    body, numbers = [], []
    first = clouds.each[0].values
    whole, inside = float(first.var(0).sum()), within(first, clouds.labels)
    for cloud in clouds.each:
        total, within_class = float(cloud.values.var(0).sum()), within(cloud.values, clouds.labels)
        seen = float(axes.transform(cloud.values).var(0).sum())
        shares = {
            "variance": total / whole,
            "variance_within_class": within_class / inside,
            "seen": seen / total if total > 0 else None,
        }
        texts = ["-" if share is None else f"{share:.4f}" for share in shares.values()]
        body.append([cloud.title, *texts])
        numbers.append({"setting": grouping.title(key), "panel": cloud.title, "images": len(clouds.labels)} | shares)
    headings = ["", "variance, of the features'", "within a class, of the features'", "share on the two axes"]
    notes = [
        *remarks.training_header(records),
        f"{len(clouds.labels)} test images of the first client, first seed, last round; the axes are the features' first two "
        "principal components.",
    ]
    return Report("Features and their imitations", notes, [Table(grouping.title(key), headings, body)], numbers)


def write(key: grouping.Setting, clouds: Clouds, classes: Sequence[str], stem: Path) -> list[Path]:
    """A panel each, all on one scale, points with the colour and marker of their class."""
    axes = PCA(2, svd_solver="full").fit(clouds.each[0].values)
    figure, drawn = figures.panels(len(clouds.each), PANEL_INCHES, sharex=True, sharey=True)
    for panel, cloud in zip(drawn, clouds.each, strict=True):
        _panel(panel, axes.transform(cloud.values), clouds.labels, cloud.title)
    figures.name_axes(drawn, "component 1", "component 2")
    figures.heading(figure, grouping.title(key))
    handles = []
    for k, name in enumerate(classes):
        colour, marker = point_style(k)
        short = figures.shortened(registry.short(name), NAME_CHARACTERS)
        handles.append(figures.handle(short, color=colour, marker=marker, linestyle="", markersize=4))
    figures.legend(figure, handles)
    return figures.save(figure, stem)


def _panel(axes: Axes, points: Points, labels: NDArray[np.int64], title: str) -> None:
    # In the order of the images, so that no class lies on top of all others.
    series_styles = [point_style(int(label)) for label in labels]
    drawn = axes.scatter(
        points[:, 0], points[:, 1], s=4, c=[colour for colour, _ in series_styles], linewidths=0, rasterized=True
    )
    styles = {marker: MarkerStyle(marker) for _, marker in series_styles}
    paths = {marker: style.get_path().transformed(style.get_transform()) for marker, style in styles.items()}
    drawn.set_paths([paths[marker] for _, marker in series_styles])
    axes.set_title("\n".join(figures.wrapped(title, 1.3, figures.FONT_POINTS)), fontsize=figures.FONT_POINTS)
    figures.plain(axes)
