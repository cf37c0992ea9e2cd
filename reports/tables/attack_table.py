"""The attack table: accuracy against what a curious server reconstructs.

A pure function of records and gaps. Two views: the published form (reports/records/labels.py) and the long form, one row per
record with floor, interval, gain, knowledge, n, failures and seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from privbench.records import checks, environments
from privbench.records.checks import CheckMessage
from privbench.records.schema import AttackRecord
from reports.records import comparison, grouping, guarantees, measured, quotable, table_checks
from reports.records.ceiling import ceiling_of
from reports.records.grouping import override_text
from reports.records.labels import (
    Gap,
    fields_of,
    group,
    groups,
    in_order,
    knowledge_text,
    label,
    pooled_text,
    published,
    round_label,
    title_of,
)
from reports.records.number_text import NONE, published_text, range_text, spread_text
from reports.records.remarks import (
    CAVEAT,
    attack_overrides,
    gap_lines,
    header,
    override_lines,
    remarks,
)
from reports.tables import broadcast_table
from reports.tables.published_form import compact
from reports.tables.report import Report, Table

PAPER_COLUMNS = (
    "method",
    "attack",
    "epsilon",
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
    every, remark_lines = long_rows(records, references), remarks(records, references)
    tables = [Table(*form) for form in compact(records, gaps, references)]
    tables += between_methods(records)
    for key in groups(records):
        group_rows = [row for r, row in zip(records, every, strict=True) if group(r.cell) == key]
        body = [list(row.values()) for row in group_rows]
        tables.append(
            Table(
                f"Every record: {title_of(key)}",
                list(group_rows[0]),
                body,
                is_detail=True,
                on_paper=[name for name in PAPER_COLUMNS if name in group_rows[0]],
            )
        )
    tables += broadcast_table.tables(records)
    missing = gap_lines(gaps)
    tables += [Table(title, (), (), lines) for title, lines in (("Gaps", missing), ("Remarks", remark_lines)) if lines]
    return Report(
        "Attack table",
        [*header(records), *override_lines(records), *guarantees.how(records)],
        tables,
        _numbers(records, references),
        messages=[*(f"missing: {line}" for line in missing), *remark_lines, CAVEAT],
        caption=f"[95% interval of Student's t over seeds]. {measured.CHOSEN} {CAVEAT}",
    )


def between_methods(records: Sequence[AttackRecord]) -> list[Table]:
    """Every pair of methods of each table, paired by victim; nothing where there is no pair."""
    rows = comparison.rows(comparison.between_methods_of_each(records))
    return (
        [Table("Between methods", comparison.COLUMNS, rows, text=[comparison.HOW], is_detail=True, on_paper=())]
        if rows
        else []
    )


def long_rows(records: Sequence[AttackRecord], references: Sequence[AttackRecord] = ()) -> list[dict[str, str]]:
    """One row per record, in the order given."""
    ceilings = {
        r.id: ceiling_of([*table.records, *grouping.beside(table, references)])
        for table in grouping.trained_alike(records)
        for r in table.records
    }
    messages = table_checks.by_record(records, references)
    rows = [
        _long_row(record, ceilings[record.id], messages[record.id], guarantees.cells(record, records))
        for record in records
    ]
    return [quotable.cells(r.cell.preset, row, NONE) for r, row in zip(records, rows, strict=True)]


def _labels_text(r: AttackRecord) -> str:
    return "no labels" if r.knowledge.labels == "none" else f"labels {r.knowledge.labels}"


def _long_row(
    r: AttackRecord, ceiling: str, messages: Sequence[CheckMessage], epsilon: Mapping[str, str]
) -> dict[str, str]:
    accuracy, psnr = published(r.cell)
    row, s = measured.of(r), r.scores
    return {
        "data set": r.cell.train.dataset,
        "round": round_label(r),
        "method": label(r.cell),
        "attack": r.attack + (f" ({floor})" if (floor := measured.returned_text(row)) else ""),
        "knowledge": f"{knowledge_text(r)}{pooled_text(r)}; {_labels_text(r)}",
        "accuracy": spread_text(r.accuracy.mean, r.accuracy.std),
        **epsilon,
        "accuracy of the attacked networks": f"{r.accuracy_at_round.mean:.1f}",
        "PSNR dB": range_text(row.psnr_db),
        "raw PSNR dB": NONE if s.psnr_raw_db is None else f"{s.psnr_raw_db:.2f}",
        "floor dB": f"{r.floor.psnr_db:.2f} ({r.floor.name})",
        "gain dB": range_text(row.gain_db, sign=True),
        "ceiling dB": ceiling,
        "SSIM": f"{s.ssim:.3f}",
        "feature error": NONE if s.feature_error is None else f"{s.feature_error:.3f}",
        "worst 5%, dB": f"{s.worst_db:.2f}",
        "above 20 dB": f"{100 * s.exposed:.0f}%",
        "identified": measured.identified_text(s),
        "labels right": f"{100 * s.label_accuracy:.0f}%",
        "n": str(s.n),
        "failures": str(s.failures),
        "seeds": str(len(r.cell.seeds)),
        "published accuracy": published_text(accuracy),
        "published PSNR dB": published_text(psnr),
        "PSNR - published": NONE if psnr is None else f"{s.psnr_db - psnr.value:+.2f}",
        "seconds": f"{r.cost.attack_seconds:.0f}",
        "checks": checks.names(messages),
    }


def frame(records: Sequence[AttackRecord], references: Sequence[AttackRecord] = ()) -> pd.DataFrame:
    """Numbers at full precision, a row per record, with what is needed to judge them; of smoke runs without scores."""
    return pd.DataFrame(_numbers(records, references))


def _numbers(records: Sequence[AttackRecord], references: Sequence[AttackRecord]) -> list[dict[str, Any]]:
    messages = table_checks.by_record(records, references)
    rows = [_csv_row(r, messages[r.id]) | guarantees.columns(r, records) for r in records]
    return [quotable.numbers(r.cell.preset, row) for r, row in zip(records, rows, strict=True)]


def in_short(records: Sequence[AttackRecord], references: Sequence[AttackRecord] = ()) -> Report:
    """The published form alone, with what a reader must know before the numbers."""
    tables = [Table(*form) for form in compact(records, (), references)]
    return Report("Attack table", [*header(records), *override_lines(records)], tables, [])


def _csv_row(r: AttackRecord, messages: Sequence[CheckMessage]) -> dict[str, Any]:
    accuracy, psnr = published(r.cell)
    columns = ("preset", "dataset", "method", "defense", "where", "attack", "round", "clients", "batch_size")
    row = measured.of(r)
    return {
        "id": r.id,
        **fields_of(r.cell, columns),
        "observe": r.cell.observe,
        "wire": r.cell.wire,
        "attack_settings": override_text(attack_overrides(r.cell)),
        "training_settings": override_text(grouping.training_overrides(r.cell)),
        "backbone": r.cell.train.backbone,
        "image_size": r.cell.train.image_size,
        "attacked_rounds": " ".join(map(str, r.rounds)),
        "knowledge": knowledge_text(r),
        "uploads_pooled": r.knowledge.pools,
        "labels": r.knowledge.labels,
        "accuracy_percent": r.accuracy.mean,
        "accuracy_std": r.accuracy.std,
        "accuracy_at_round_percent": r.accuracy_at_round.mean,
        **measured.psnr_columns(row),
        **{f"floor_{name}_db": value for name, value in r.floors.items()},
        **measured.score_columns(row),
        **{f"returned_{name}": measured.returned(row).get(name, 0) for name in r.floors},
        "published_accuracy_percent": None if accuracy is None else accuracy.value,
        "published_accuracy_std": None if accuracy is None else accuracy.std,
        "published_psnr_db": None if psnr is None else psnr.value,
        "published_psnr_std": None if psnr is None else psnr.std,
        "train_seconds": r.cost.train_seconds,
        "attack_seconds": r.cost.attack_seconds,
        "gradient_evaluations": r.cost.gradient_evaluations,
        "guarantee": r.guarantee,
        "checks": " ".join(checks.each_name(messages)),
        **{name: environments.text(r, name) for name in ("device", "machine", "torch", "date")},
    }
