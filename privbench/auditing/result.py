"""What an audit gives: a row per attack, as a table, as files and as pandas; without a truth the attacker's own evidence alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from privbench import registry
from privbench.auditing.attack_series import SEED, AttackFailure, AttackResult
from privbench.records.entries import FAILURES
from privbench.scoring import image_scores, statistics
from privbench.scoring.feature_scores import FeatureScores
from privbench.scoring.statistics import LEAST_SEEDS, Interval
from privbench.system import files
from privbench.types import Truth
from reports.figures import grid
from reports.records.measured import Measured
from reports.records.number_text import NONE, range_text
from reports.tables import render, report_files
from reports.tables.report import Report, Table

STEM = "audit"  # of the files of a result
UNSCORED = "UNSCORED: no truth was given, so that nothing here says how near an image is to the client's."
NO_SPREAD = (
    "UNSCORED: one vector alone, or vectors that are all alike, have no spread that errors could be measured in; give the mean and "
    "the standard deviation of every feature (mean, std), or auxiliary vectors."
)
ABOUT_EXPLAINED = (
    "'explained' is how much of a message its images explain, in percent (100: all of it), the median over messages, and 'by grey' "
    "how much grey images with the same labels do. Another image than the true one may explain as much; where grey explains nearly "
    "as much, neither tells how near an image is."
)
MOST_LABELS = 8  # that a table shows
PICTURES = (1, 3)  # channels that can be drawn


class AuditRow(NamedTuple):
    """One attack."""

    result: AttackResult
    knowledge: str
    rung: str
    explained: Tensor | None  # [V] percent; None where a network is private
    explained_by_grey: Tensor | None  # [V] the same of grey images
    outcomes: list[str]  # [V]

    @property
    def name(self) -> str:
        """Of the attack."""
        return self.result.attack

    @property
    def explained_percent(self) -> float | None:
        """The median over victims, as one small message can be far below 0; None where one has none."""
        return _median(self.explained)

    @property
    def grey_percent(self) -> float | None:
        """The same of grey images."""
        return _median(self.explained_by_grey)

    @property
    def ended(self) -> str:
        """How it ended, e.g. "reconstructed 3, gave up 1"."""
        return ", ".join(f"{word} {count}" for word, count in Counter(self.outcomes).items())


class _Place(NamedTuple):
    seed: int = SEED
    client: int = 0


@dataclass(frozen=True, repr=False)
class AuditResult:
    """Rows in the order of the attacks, and why others are missing."""

    rows: tuple[AuditRow, ...]
    missing: tuple[AttackFailure, ...]
    about: str  # the module, and what was received, in a sentence
    warnings: tuple[str, ...]  # what a reader must know before any number
    notes: tuple[str, ...]
    folder: Path
    truth: Truth | None = None
    # Floor -> its scores, of vectors.
    feature_floors: dict[str, FeatureScores] | None = None

    def __len__(self) -> int:
        """How many attacks were made."""
        return len(self.rows)

    def __repr__(self) -> str:
        """The table as text."""
        table = self._table()
        return "\n".join(
            [
                self.about,
                render.markdown(table.columns, table.rows),
                *(f"- {note}" for note in (*self.warnings, *table.notes, *self.notes)),
            ]
        )

    def _repr_markdown_(self) -> str:
        """As a notebook shows it."""
        return report_files.markdown(self.report())

    def frame(self) -> pd.DataFrame:
        """A row per attack, as audit.csv has them."""
        return pd.DataFrame([self._numbers(row) for row in self.rows])

    def images(self, attack: str) -> Tensor:
        """What an attack made, [M, B, C, H, W] in the unit range; KeyError for one that was not made."""
        return {row.name: row.result.reconstruction.images for row in self.rows}[attack]

    def report(self) -> Report:
        """As the files have it."""
        table, numbers = self._table(), [self._numbers(row) for row in self.rows]
        notes = [*self.warnings, self.about, *self.notes]
        # On the terminal, which has a few lines: what is particular to this audit, before how to read any.
        of_this = self._messages()
        general = [note for note in table.notes if note not in of_this]
        urgent = [*self.warnings, *self._attacks_missing(), *of_this, *self.notes, *general, self.about]
        drawn = [f"{STEM}-grid.png"] if self.is_drawn else []
        return Report("Audit", notes, [table, *self._failures()], numbers, images=drawn, messages=urgent)

    def _attacks_missing(self) -> list[str]:
        """How many attacks could not be made, with the first reason; where none could, a warning says so."""
        if not self.missing or self.is_floors_alone:
            return []
        first = self.missing[0]
        return [f"Not made: {len(self.missing)} attack(s), e.g. {first.attack}: {first.reason}"]

    @property
    def is_floors_alone(self) -> bool:
        """Whether attacks were to be made and none could be."""
        return are_floors_alone(self.rows, self.missing)

    def write(self) -> list[Path]:
        """audit.md, audit.csv, audit.tex, audit.html, and a grid of the images where they are pictures."""
        paths = report_files.write(self.report(), self.folder / STEM)
        if not self.is_drawn:
            return paths
        originals = None if self.truth is None else self.truth.images.flatten(0, 1)
        rows = [self._drawn(row) for row in self.rows]
        remark, size = UNSCORED if originals is None else "", grid.Size(rows=len(rows) + 1)
        return [*paths, *grid.write(originals, rows, self.folder / f"{STEM}-grid", size, remark=remark)]

    @property
    def is_drawn(self) -> bool:
        """Whether there are pictures."""
        shapes = {tuple(row.result.reconstruction.images.shape[2:]) for row in self.rows}
        return any(shape[0] in PICTURES and shape[1:] != (1, 1) for shape in shapes)

    def _drawn(self, row: AuditRow) -> grid.Row:
        images, psnr = row.result.reconstruction.images, None
        if self.truth is not None and row.result.measured is not None:
            images, failed = image_scores.aligned(images, self.truth)
            psnr = image_scores.psnr_db(images, self.truth.images).where(~failed[:, None], torch.nan).flatten()
        return grid.Row("", row.name, images.flatten(0, 1).float(), psnr, row.rung, row.knowledge)

    def _table(self) -> Table:
        columns = ["attack", "knowledge"]
        title = "Attacks"
        notes: list[str] = []
        if self._is_scored("measured"):
            columns += ["PSNR (dB)", "floor (dB)", "gain (dB)"]
            notes.append(
                "PSNR [95% interval over the messages, if there are several]; 'floor' is the best image that anybody returns "
                "without inverting."
            )
        elif self._is_scored("features"):
            columns += ["error (std)", "floor (std)", "R2"]
            notes.append("'error' is the mean absolute one in standard deviations of each feature; R2 over features.")
        else:
            title = "Attacks, unscored"
            notes.append(UNSCORED if self.truth is None or self.is_drawn else NO_SPREAD)
        columns += ["explained (%)", "by grey (%)", "labels", "ended"]
        notes += [ABOUT_EXPLAINED, *self._messages()]
        return Table(title, columns, [self._cells(row) for row in self.rows], notes)

    def _failures(self) -> list[Table]:
        if not self.missing:
            return []
        rows = [[each.attack, each.reason] for each in self.missing]
        return [Table("Not made", ["attack", "because"], rows, words=True, is_detail=True)]

    def _messages(self) -> list[str]:
        """Each failed check and each note once, with the attacks that it is of."""
        of_line: dict[str, list[str]] = {}
        for row in self.rows:
            lines = [*(f"{m.name}: {m.sentence}" for m in row.result.messages), *row.result.notes]
            for line in lines:
                of_line.setdefault(line, []).append(row.name)
        return [
            line if len(who) == len(self.rows) > 1 else f"{', '.join(who)}: {line}" for line, who in of_line.items()
        ]

    def _is_scored(self, kind: str) -> bool:
        return any(getattr(row.result, kind) is not None for row in self.rows)

    def _cells(self, row: AuditRow) -> list[str]:
        cells = [row.name, row.knowledge]
        if self._is_scored("measured"):
            m = row.result.measured
            cells += [NONE] * 3 if m is None else [
                _range(m.psnr_db, row), f"{m.floor.psnr_db:.2f} ({m.floor.name})", _range(m.gain_db, row, sign=True)
            ]  # fmt: skip
        elif self._is_scored("features"):
            f = row.result.features
            cells += [NONE] * 3 if f is None else [
                _range(_interval(f.error), row), self._feature_floor()[1], f"{fmean(f.r2.tolist()):.3f}"
            ]  # fmt: skip
        cells += [NONE if share is None else f"{share:.1f}" for share in (row.explained_percent, row.grey_percent)]
        return [*cells, self._labels(row), row.ended]

    def _labels(self, row: AuditRow) -> str:
        """The share that is right where the truth has labels, else those recovered."""
        labels = row.result.reconstruction.labels
        if bool((labels < 0).any()):
            return NONE
        if self.truth is not None and bool((self.truth.labels >= 0).all()):
            return f"{100 * self._label_accuracy(labels):.0f}% right"
        first = [str(int(y)) for y in labels.flatten()[:MOST_LABELS]]
        return " ".join(first) + (" ..." if labels.numel() > MOST_LABELS else "")

    def _label_accuracy(self, labels: Tensor) -> float:
        assert self.truth is not None, "the caller has asked"
        return float(image_scores.label_accuracy(labels.cpu(), self.truth.labels).mean())

    def _feature_floor(self) -> tuple[float, str]:
        """The lowest error of a floor, as a number and in words."""
        if not self.feature_floors:
            return math.nan, NONE
        means = {name: float(scores.error.mean()) for name, scores in self.feature_floors.items()}
        name = min(means, key=lambda n: means[n])
        return means[name], f"{means[name]:.2f} ({name})"

    def _numbers(self, row: AuditRow) -> dict[str, Any]:
        """One row of the CSV file."""
        m, f = row.result.measured, row.result.features
        numbers: dict[str, Any] = {"attack": row.name, "knowledge": row.knowledge, "rung": row.rung}
        if m is not None:
            numbers |= _of_pictures(m)
        if f is not None:
            error = _interval(f.error)
            numbers |= {
                "error_std": error.mean, "error_low": error.low, "error_high": error.high, "r2": float(f.r2.mean()),
                "floor_error_std": self._feature_floor()[0],
            }  # fmt: skip
        labels = row.result.reconstruction.labels
        comparable = self.truth is not None and bool((self.truth.labels >= 0).all()) and bool((labels >= 0).all())
        return numbers | {
            "explained_percent": row.explained_percent,
            "explained_by_grey_percent": row.grey_percent,
            "label_accuracy": self._label_accuracy(labels) if comparable else None,
            "messages": len(row.outcomes),
            "failures": sum(word in FAILURES for word in row.outcomes),
            "is_scored": m is not None or f is not None,
            "is_floor": row.name in registry.FLOORS,
            "images": row.result.path.name,
        }


def are_floors_alone(rows: Sequence[AuditRow], missing: Sequence[AttackFailure]) -> bool:
    """Whether attacks were to be made and none could be."""
    return bool(missing) and all(row.name in registry.FLOORS for row in rows)


def remove_former(folder: Path) -> None:
    """Removes what an earlier audit left in a folder, whose attacks may have been others: files named after the suite's attacks."""
    attacks = (*registry.ATTACKS, *registry.FLOORS)
    for name in (
        "grid.png",
        "grid.pdf",
        *(f"{each}{end}" for each in attacks for end in (".safetensors", "-error.txt")),
    ):
        files.remove(folder / f"{STEM}-{name}")


def _range(of: Interval, row: AuditRow, *, sign: bool = False) -> str:
    """A mean with its interval over the messages, which are no seeds; of one message the number alone."""
    whole = range_text(of._replace(seeds=LEAST_SEEDS), sign=sign)
    return whole if len(row.outcomes) > 1 else whole.partition(" ")[0]


def _median(shares: Tensor | None) -> float | None:
    return None if shares is None or not bool(shares.isfinite().all()) else median(shares.tolist())


def _of_pictures(m: Measured) -> dict[str, Any]:
    return {
        "psnr_db": m.psnr_db.mean, "psnr_low": m.psnr_db.low, "psnr_high": m.psnr_db.high, "floor": m.floor.name,
        "floor_db": m.floor.psnr_db, "gain_db": m.gain_db.mean, "gain_low": m.gain_db.low, "gain_high": m.gain_db.high,
        "ssim": m.scores.ssim, "lpips": m.scores.lpips, "identification": m.scores.identification,
    }  # fmt: skip


def _interval(values: Tensor) -> Interval:
    """The mean over the messages, which are all of one run."""
    places: Sequence[_Place] = [_Place()] * len(values)
    return statistics.interval(values.tolist(), places)
