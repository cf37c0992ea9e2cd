"""The attack table: accuracy against what a curious server reconstructs.

A pure function of records and gaps. Two views: the published form (reports/records/labels.py) and the long form, one row per
record with floor, interval, gain, knowledge, n, failures and seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from privbench.records import checks
from privbench.records.checks import CheckMessage
from privbench.records.schema import AttackRecord
from reports.records import comparison, measured, quotable, table_checks
from reports.records.labels import (
    NONE,
    Gap,
    ceiling_of,
    compact,
    fields_of,
    group,
    groups,
    in_order,
    knowledge_text,
    label,
    pooled_text,
    published,
    published_text,
    range_text,
    round_label,
    spread_text,
    title_of,
)
from reports.records.remarks import CAVEAT, gap_lines, header, remarks
from reports.tables.report import Report, Table

PAPER_COLUMNS = (
    "method",
    "attack",
    "PSNR dB",
    "raw PSNR dB",
    "gain dB",
    "SSIM",
    "n",
    "failures",
    "checks",
    "published PSNR dB",
)


def report(
    records: Sequence[AttackRecord], gaps: Sequence[Gap] = (), references: Sequence[AttackRecord] = ()
) -> Report:
    """The whole table; `references` as `labels.compact` takes them."""
    records = in_order(records)
    every, told = long_rows(records, references), remarks(records, references)
    tables = [Table(*form) for form in compact(records, gaps, references)]
    if tests := comparison.between_methods_of_each(records):
        rows = comparison.rows(tests)
        tables.append(
            Table("Between methods", comparison.COLUMNS, rows, text=[comparison.HOW], is_detail=True, on_paper=())
        )
    for key in groups(records):
        own = [row for r, row in zip(records, every, strict=True) if group(r.cell) == key]
        body = [list(row.values()) for row in own]
        tables.append(
            Table(f"Every record: {title_of(key)}", list(own[0]), body, is_detail=True, on_paper=PAPER_COLUMNS)
        )
    missing = gap_lines(gaps)
    tables += [Table(title, (), (), lines) for title, lines in (("Gaps", missing), ("Remarks", told)) if lines]
    return Report(
        "Attack table",
        header(records),
        tables,
        _numbers(records, references),
        messages=[*(f"missing: {line}" for line in missing), *told, CAVEAT],
        caption=f"[95% interval over seeds, clients and victims]. {measured.CHOSEN} {CAVEAT}",
    )


def long_rows(records: Sequence[AttackRecord], references: Sequence[AttackRecord] = ()) -> list[dict[str, str]]:
    """One row per record, in the order given."""
    ceilings = {
        key: ceiling_of([r for r in (*records, *references) if group(r.cell) == key]) for key in groups(records)
    }
    found = table_checks.by_record(records, references)
    rows = [_long_row(record, ceilings[group(record.cell)], found[record.id]) for record in records]
    return [quotable.cells(r.cell.preset, row, NONE) for r, row in zip(records, rows, strict=True)]


def _long_row(r: AttackRecord, ceiling: str, told: Sequence[CheckMessage]) -> dict[str, str]:
    accuracy, psnr = published(r.cell)
    own, s = measured.of(r), r.scores
    return {
        "data set": r.cell.train.dataset,
        "round": round_label(r),
        "method": label(r.cell),
        "attack": r.attack + (f" ({floor})" if (floor := measured.returned_text(own)) else ""),
        "knowledge": f"{knowledge_text(r)}{pooled_text(r)}; labels {r.knowledge.labels}",
        "accuracy": spread_text(r.accuracy.mean, r.accuracy.std),
        "accuracy of the attacked networks": f"{r.accuracy_at_round:.1f}",
        "PSNR dB": range_text(own.psnr_db),
        "raw PSNR dB": NONE if s.psnr_raw_db is None else f"{s.psnr_raw_db:.2f}",
        "floor dB": f"{r.floor.psnr_db:.2f} ({r.floor.name})",
        "gain dB": range_text(own.gain_db, sign=True),
        "ceiling dB": ceiling,
        "SSIM": f"{s.ssim:.3f}",
        "feature error": NONE if s.feature_error is None else f"{s.feature_error:.3f}",
        "worst 5%, dB": f"{s.worst_db:.2f}",
        "above 20 dB": f"{100 * s.exposed:.0f}%",
        "identified": f"{100 * s.identification:.0f}% (chance {100 * s.identification_chance:.3g}%)",
        "labels right": f"{100 * s.label_accuracy:.0f}%",
        "n": str(s.n),
        "failures": str(s.failures),
        "seeds": str(len(r.cell.seeds)),
        "published accuracy": published_text(accuracy),
        "published PSNR dB": published_text(psnr),
        "PSNR - published": NONE if psnr is None else f"{s.psnr_db - psnr.value:+.2f}",
        "seconds": f"{r.cost.attack_seconds:.0f}",
        "checks": checks.names(told),
    }


def frame(records: Sequence[AttackRecord], references: Sequence[AttackRecord] = ()) -> pd.DataFrame:
    """Numbers at full precision, a row per record, with what is needed to judge them; of smoke runs without scores."""
    return pd.DataFrame(_numbers(records, references))


def _numbers(records: Sequence[AttackRecord], references: Sequence[AttackRecord]) -> list[dict[str, Any]]:
    found = table_checks.by_record(records, references)
    return [quotable.numbers(r.cell.preset, _csv_row(r, found[r.id])) for r in records]


def in_short(records: Sequence[AttackRecord], references: Sequence[AttackRecord] = ()) -> Report:
    """The published form alone, with what a reader must know before the numbers."""
    return Report("Attack table", header(records), [Table(*form) for form in compact(records, (), references)], [])


def _csv_row(r: AttackRecord, told: Sequence[CheckMessage]) -> dict[str, Any]:
    accuracy, psnr = published(r.cell)
    kept = ("preset", "dataset", "method", "defense", "where", "attack", "round", "clients", "batch_size")
    own = measured.of(r)
    return {
        "id": r.id,
        **fields_of(r.cell, kept),
        "observe": r.cell.observe,
        "backbone": r.cell.train.backbone,
        "image_size": r.cell.train.image_size,
        "attacked_rounds": " ".join(map(str, r.rounds)),
        "knowledge": knowledge_text(r),
        "uploads_pooled": r.knowledge.pools,
        "labels": r.knowledge.labels,
        "accuracy_percent": r.accuracy.mean,
        "accuracy_std": r.accuracy.std,
        "accuracy_at_round_percent": r.accuracy_at_round,
        **measured.psnr_columns(own),
        **{f"floor_{name}_db": value for name, value in r.floors.items()},
        **measured.score_columns(own),
        **{f"returned_{name}": measured.returned(own).get(name, 0) for name in r.floors},
        "published_accuracy_percent": None if accuracy is None else accuracy.value,
        "published_accuracy_std": None if accuracy is None else accuracy.std,
        "published_psnr_db": None if psnr is None else psnr.value,
        "published_psnr_std": None if psnr is None else psnr.std,
        "train_seconds": r.cost.train_seconds,
        "attack_seconds": r.cost.attack_seconds,
        "gradient_evaluations": r.cost.gradient_evaluations,
        "guarantee": r.guarantee,
        "checks": " ".join(checks.each_name(told)),
        **{name: r.environment[name] for name in ("device", "machine", "torch", "date")},
    }
