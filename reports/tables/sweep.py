"""A sweep as a table: a row per combination of swept values, column, attacked round and attack.

A pure function of records. What a column does not have of the swept fields is left empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from privbench import registry
from privbench.records.schema import AttackRecord, Record
from reports.records import measured, quotable, remarks
from reports.records.labels import family_name, place, round_text, unique
from reports.records.number_text import NONE, range_text, spread_text
from reports.studies import sweeps
from reports.tables.report import Report, Table

OF_ATTACKS = ("round", "attack", "PSNR, dB", "gain over the floor, dB", "victims / failures")

R = TypeVar("R", bound=Record)


def report(sweep: Mapping[str, Sequence[Any]], records: Sequence[Record]) -> Report:
    """One table per data set, in the order of the values."""
    is_attacked = any(isinstance(r, AttackRecord) for r in records)
    columns = [*map(sweeps.words, sweep), "column", "accuracy, %", *(OF_ATTACKS if is_attacked else ())]
    tables = []
    for dataset in unique(r.cell.train.dataset for r in records):
        alike = in_order(sweep, [r for r in records if r.cell.train.dataset == dataset])
        body = [_row(sweep, r)[: len(columns)] for r in alike]
        tables.append(Table(registry.short(dataset), columns, body))
    numbers = [quotable.numbers(r.cell.preset, _numbers(sweep, r)) for r in records]
    attacked = [r for r in records if isinstance(r, AttackRecord)]
    return Report(f"Sweep of {', '.join(sweep)}", remarks.header(attacked) if attacked else [], tables, numbers)


def in_order(sweep: Mapping[str, Sequence[Any]], records: Sequence[R]) -> list[R]:
    """Records by column, then by the swept values, then by round and attack."""
    return sorted(records, key=lambda r: _order(sweep, r))


def _order(sweep: Mapping[str, Sequence[Any]], r: Record) -> tuple[Any, ...]:
    return (
        place(r.cell), family_name(r.cell), *sweeps.position(sweep, r.cell), r.cell.round, r.cell.attack or "",
    )  # fmt: skip


def _row(sweep: Mapping[str, Sequence[Any]], r: Record) -> list[str]:
    values = [sweeps.value(r.cell, name) for name in sweep]
    texts = [NONE if value is None else sweeps.value_text(value) for value in values]
    row = [*texts, family_name(r.cell), spread_text(r.accuracy.mean, r.accuracy.std)]
    if not isinstance(r, AttackRecord):
        return [*row, *[NONE] * len(OF_ATTACKS)]
    m = measured.of(r)
    return [
        *row, round_text(r.cell.round), r.attack, range_text(m.psnr_db), range_text(m.gain_db, sign=True),
        f"{m.scores.n} / {m.scores.failures}",
    ]  # fmt: skip


def _numbers(sweep: Mapping[str, Sequence[Any]], r: Record) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": r.id,
        "dataset": r.cell.train.dataset,
        **{name: sweeps.value(r.cell, name) for name in sweep},
        "column": family_name(r.cell),
        "defense": r.cell.train.defense,
        "accuracy_percent": r.accuracy.mean,
        "accuracy_std": r.accuracy.std,
        "seeds": " ".join(map(str, r.cell.seeds)),
    }
    if isinstance(r, AttackRecord):
        m = measured.of(r)
        row |= {"round": r.cell.round, "attack": r.attack, **measured.psnr_columns(m), "n": m.scores.n}
    return row
