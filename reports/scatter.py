"""Accuracy against PSNR: what a method costs and what it protects, in one picture per data set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from privbench.record import Record
from reports import figures
from reports.attack_table import label
from reports.published import lookup


def write(records: Sequence[Record], stem: Path) -> list[Path]:
    """One panel per attacked round: each method's strongest attack, filled; published values, hollow; the floor, dashed."""
    rounds = list(dict.fromkeys(r.spec["round"] for r in records))
    names = list(dict.fromkeys(label(r) for r in records))
    figure = figures.new_figure(figures.COLUMN_INCHES, 2.3 * len(rounds) + 0.7)
    for number, asked in enumerate(rounds):
        axes = figure.add_subplot(len(rounds), 1, number + 1)
        some = [r for r in records if r.spec["round"] == asked]
        floor = sum(r.floor.psnr_db for r in some) / len(some)
        axes.axhline(floor, color="0.45", linestyle="--", linewidth=0.8, label="no-information floor")
        for index, name in enumerate(names):
            own = [r for r in some if label(r) == name]
            if not own:
                continue
            best = max(own, key=lambda r: r.scores.psnr_db.mean)
            psnr, colour = best.scores.psnr_db, figures.COLOURS[index % len(figures.COLOURS)]
            marker = figures.MARKERS[index % len(figures.MARKERS)]
            axes.errorbar(
                best.accuracy.mean, psnr.mean, xerr=best.accuracy.std or 0.0,
                yerr=[[max(psnr.mean - psnr.low, 0)], [max(psnr.high - psnr.mean, 0)]],
                fmt=marker, color=colour, markersize=5, linewidth=0.8, capsize=2, label=name,
            )  # fmt: skip
            key = (best.spec["dataset"], best.spec["method"], best.spec["defense"])
            x, y = lookup(*key, "accuracy_percent"), lookup(*key, "psnr_db")
            if x is not None and y is not None:
                axes.plot(x.value, y.value, marker, color=colour, markerfacecolor="none", markersize=5)
        when = "untrained" if asked == "0" else f"{asked} round"
        axes.set_title(
            f"{records[0].spec['dataset']}, {when} ({records[0].spec['preset']} preset)",
            fontsize=figures.FONT_POINTS + 0.5,
        )
        axes.set_xlabel("test accuracy, %", fontsize=figures.FONT_POINTS)
        axes.set_ylabel("PSNR of the strongest attack, dB", fontsize=figures.FONT_POINTS)
        axes.tick_params(labelsize=figures.FONT_POINTS)
        axes.margins(0.12)
        axes.spines[["top", "right"]].set_visible(False)
    handles, texts = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, texts, loc="outside lower center", ncols=2, fontsize=figures.FONT_POINTS, frameon=False)
    return figures.save(figure, stem)
