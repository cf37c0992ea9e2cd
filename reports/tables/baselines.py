"""The papers' comparisons of reconstructions: NFL-CGAN against FedGen; FedPer, LG-FedAvg, FedCG and FedMD-CG against FedAvg.

A pure function of records. Methods of one setting and seed are attacked on the same victims, so that differences are paired
per victim; negative says that the method gives less away to this attacker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from privbench.records.schema import AttackRecord
from privbench.scoring import statistics
from privbench.scoring.statistics import Interval
from reports.records import measured
from reports.records.labels import group, groups, label, published, title_of, unique
from reports.records.measured import Measured, papers_attack, strongest
from reports.records.number_text import NONE, range_text
from reports.records.remarks import header
from reports.tables.report import Report, Table

AGAINST = {
    "nfl-cgan": "fedgen",
    "fedper": "fedavg",
    "fedsplit": "fedavg",
    "lg-fedavg": "fedavg",
    "fedcg": "fedavg",
    "fedmd-cg": "fedavg",
}
COLUMNS = ["", "attack", "PSNR dB", "against", "its PSNR dB", "difference dB", "published difference dB"]


def report(records: Sequence[AttackRecord]) -> Report:
    """One table per data set and round: the papers' attack and the strongest one on both sides."""
    forms, numbers = [], []
    for key in groups(records):
        undefended = [r for r in records if group(r.cell) == key and r.cell.train.defense == "none"]
        body = []
        for name in unique(label(r.cell) for r in undefended):
            attacks = [r for r in undefended if label(r.cell) == name]
            rivals = [r for r in undefended if r.cell.train.method == AGAINST.get(attacks[0].cell.train.method)]
            if not rivals:
                continue
            for what, one, other in (
                ("the paper's", plain(attacks), plain(rivals)),
                ("strongest", strongest(attacks), strongest(rivals)),
            ):
                if one is not None and other is not None:
                    body.append([name, f"{what}: {one.name}", *_cells(one, other)])
                    numbers.append(_numbers(key, what, one, other))
        if body:
            forms.append(Table(title_of(key), COLUMNS, body))
    return Report(
        "Reconstruction against the papers' baselines",
        [*header(records), __doc__.split("\n\n")[1].replace("\n", " ")],
        forms,
        numbers,
    )


def plain(records: Sequence[AttackRecord]) -> Measured | None:
    """The papers' own attack."""
    record = papers_attack(records)
    return None if record is None else measured.of(record)


def difference(one: Measured, other: Measured) -> Interval | None:
    """Mean paired difference in dB with its 95% interval; None when the victims are not the same."""
    if {v.name for v in one.victims} != {v.name for v in other.victims}:
        return None
    return statistics.interval(*measured.differences(one, other))


def _cells(one: Measured, other: Measured) -> list[str]:
    paired, printed = difference(one, other), [published(row.first.cell)[1] for row in (one, other)]
    both = None if printed[0] is None or printed[1] is None else printed[0].value - printed[1].value
    return [
        range_text(one.psnr_db),
        f"{label(other.first.cell)} ({other.name})",
        range_text(other.psnr_db),
        NONE if paired is None else range_text(paired, sign=True),
        NONE if both is None else f"{both:+.2f}",
    ]


def _numbers(key: tuple[Any, ...], what: str, one: Measured, other: Measured) -> dict[str, Any]:
    paired = difference(one, other)
    return {
        "setting": title_of(key),
        "row": label(one.first.cell),
        "which": what,
        "attack": one.name,
        "psnr_db": one.scores.psnr_db,
        "against": label(other.first.cell),
        "against_attack": other.name,
        "against_psnr_db": other.scores.psnr_db,
        "difference_db": None if paired is None else paired.mean,
        "difference_low": None if paired is None else paired.low,
        "difference_high": None if paired is None else paired.high,
    }
