"""The reconstruction grid as in papers: originals in the first row, one row per attacked method, PSNR under each image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from torch import Tensor

from reports import figures

# (label, images [V, C, H, W] in [0, 1], PSNR dB [V] or nothing, NaN where the attack failed)
Row = tuple[str, Tensor, Tensor | None]
CELL_INCHES = 0.72
LABEL_INCHES = 1.25


def write(originals: Tensor, rows: Sequence[Row], stem: Path) -> list[Path]:
    """Writes `stem`.png and `stem`.pdf; originals [V, C, H, W] fix the number of columns."""
    columns = len(originals)
    height = CELL_INCHES * 1.02 + (CELL_INCHES + 0.17) * len(rows)
    figure = figures.new_figure(LABEL_INCHES + CELL_INCHES * columns, height)
    figure.set_layout_engine("constrained", w_pad=0.01, h_pad=0.03, wspace=0.02, hspace=0.02)
    cells = figure.subplots(
        len(rows) + 1, columns + 1, squeeze=False, width_ratios=[LABEL_INCHES / CELL_INCHES, *[1] * columns]
    )
    _row(cells[0], "original", originals, None)
    for axes, (name, images, psnr) in zip(cells[1:], rows, strict=True):
        _row(axes, name, images[:columns], None if psnr is None else psnr[:columns])
    return figures.save(figure, stem)


def _row(axes: Sequence[Axes], name: str, images: Tensor, psnr: Tensor | None) -> None:
    axes[0].axis("off")
    axes[0].text(1.0, 0.5, name, ha="right", va="center", fontsize=figures.FONT_POINTS, transform=axes[0].transAxes)
    for v, cell in enumerate(axes[1:]):
        image = images[v].clamp(0, 1).permute(1, 2, 0).numpy()
        grey = image.shape[2] == 1
        cell.imshow(
            image[..., 0] if grey else image, cmap="gray" if grey else None, vmin=0, vmax=1, interpolation="nearest"
        )
        cell.set_xticks([])
        cell.set_yticks([])
        cell.spines[:].set_linewidth(0.3)
        if psnr is not None:
            value = float(psnr[v])
            text = "failed" if math.isnan(value) else f"{value:.1f} dB"
            cell.set_xlabel(text, fontsize=figures.FONT_POINTS - 0.5, labelpad=1.5)
