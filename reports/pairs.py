"""The papers' comparisons of reconstructions: NFL-CGAN against FedGen; FedPer, LG-FedAvg, FedCG and FedMD-CG against FedAvg.

A pure function of records. Methods of one setting and seed are attacked on the same victims, so that differences are paired
per victim; negative says that the method gives less away to this attacker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from privbench.record import AttackRecord, Range
from privbench.score import interval
from reports.published_form import (
    NONE,
    group,
    groups,
    label,
    papers_attack,
    published,
    range_text,
    strongest,
    title_of,
    unique,
)
from reports.remarks import header
from reports.tables import Form, Report

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
        own = [r for r in records if group(r.spec) == key and r.spec["defense"] == "none"]
        body = []
        for name in unique(label(r.spec) for r in own):
            mine = [r for r in own if label(r.spec) == name]
            rivals = [r for r in own if r.spec["method"] == AGAINST.get(mine[0].spec["method"])]
            if not rivals:
                continue
            for what, one, other in (
                ("the paper's", papers_attack(mine), papers_attack(rivals)),
                ("strongest", strongest(mine), strongest(rivals)),
            ):
                if one is not None and other is not None:
                    body.append([name, f"{what}: {one.spec['attack']}", *_cells(one, other)])
                    numbers.append(_numbers(key, what, one, other))
        if body:
            forms.append(Form(title_of(key), COLUMNS, body))
    return Report(
        "Reconstruction against the papers' baselines",
        [*header(records), __doc__.split("\n\n")[1].replace("\n", " ")],
        forms,
        numbers,
    )


def difference(one: AttackRecord, other: AttackRecord) -> Range | None:
    """Mean paired difference in dB with its 95% bootstrap interval; None when the victims are not the same."""
    who = [[(v.seed, v.client, v.floors.get("grey")) for v in r.victims] for r in (one, other)]
    if who[0] != who[1]:
        return None
    return Range(**interval([a.psnr_db - b.psnr_db for a, b in zip(one.victims, other.victims, strict=True)])._asdict())


def _cells(one: AttackRecord, other: AttackRecord) -> list[str]:
    paired, printed = difference(one, other), [published(r.spec)[1] for r in (one, other)]
    both = None if printed[0] is None or printed[1] is None else printed[0].value - printed[1].value
    return [
        range_text(one.scores.psnr_db),
        f"{label(other.spec)} ({other.spec['attack']})",
        range_text(other.scores.psnr_db),
        NONE if paired is None else range_text(paired, sign=True),
        NONE if both is None else f"{both:+.2f}",
    ]


def _numbers(key: tuple[Any, ...], what: str, one: AttackRecord, other: AttackRecord) -> dict[str, Any]:
    paired = difference(one, other)
    return {
        "setting": title_of(key),
        "row": label(one.spec),
        "which": what,
        "attack": one.spec["attack"],
        "psnr_db": one.scores.psnr_db.mean,
        "against": label(other.spec),
        "against_attack": other.spec["attack"],
        "against_psnr_db": other.scores.psnr_db.mean,
        "difference_db": None if paired is None else paired.mean,
        "difference_low": None if paired is None else paired.low,
        "difference_high": None if paired is None else paired.high,
    }
