"""The published form of the attack table: one column per method, the paper's attack and the strongest one side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from privbench.records.schema import AttackRecord
from privbench.spec import CellSpec
from reports.records import guarantees, measured
from reports.records.ceiling import ceiling_of
from reports.records.labels import (
    FIRST,
    MISSING,
    Gap,
    group,
    knowledge_text,
    label,
    place,
    rounds_text,
    title_of,
    unique,
)
from reports.records.measured import papers_attack, strongest
from reports.records.number_text import NONE, published_text, range_text, span, spread_text
from reports.records.published import Published, of, of_papers_attack, papers_attack_on
from reports.records.quotable import is_quotable


class PublishedTable(NamedTuple):
    """One table of the published form."""

    title: str
    columns: list[str]
    rows: list[list[str]]


def compact(
    records: Sequence[AttackRecord], gaps: Sequence[Gap] = (), references: Sequence[AttackRecord] = ()
) -> list[PublishedTable]:
    """The published form, one table for every data set, round and setting; a method whose cells are missing keeps its column.

    `references` are attacks on undefended FedAvg from outside the table (reports/records/ceiling.py).
    """
    specs = [r.cell for r in records] + [g.cell for g in gaps]
    forms = []
    for key in unique(group(cell) for cell in specs):
        of_group = [r for r in records if group(r.cell) == key]
        lost = [g for g in gaps if group(g.cell) == key]
        order = sorted([r.cell for r in of_group] + [g.cell for g in lost], key=place)
        columns = unique(label(cell) for cell in order)
        firsts = [next(cell for cell in order if label(cell) == c) for c in columns]
        by_column = [[r for r in of_group if label(r.cell) == c] for c in columns]
        missing = [[g.attack for g in lost if label(g.cell) == c] for c in columns]
        ceiling = ceiling_of([*of_group, *(r for r in references if group(r.cell) == key)])
        rows = _form_rows(firsts, by_column, missing, ceiling)
        if not is_quotable(firsts[0].preset):
            rows = [row for row in rows if not row[0].endswith(", dB")]
        forms.append(PublishedTable(title_of(key), ["", *columns], rows))
    return forms


def _form_rows(
    specs: Sequence[CellSpec], by_column: Sequence[list[AttackRecord]], missing: Sequence[list[str]], ceiling: str
) -> list[list[str]]:
    """The rows over columns; each column with its records and the attacks that are missing."""

    def row(name: str, text: Callable[[list[AttackRecord]], str]) -> list[str]:
        return [name, *(text(records) if records else MISSING for records in by_column)]

    def plain(records: list[AttackRecord], lost: list[str]) -> str:
        record = papers_attack(records)
        if record is not None:
            return range_text(measured.of(record).psnr_db)
        return MISSING if not records or papers_attack_on(records[0].cell.train.method) in lost else NONE

    def which(records: list[AttackRecord], lost: list[str]) -> str:
        if not records:
            return MISSING
        best = strongest(records)
        known = "; ".join(unique(knowledge_text(r) for r in best.attacks))
        floor = measured.returned_text(best)
        return (
            f"{best.name} ({known})"
            + (f"; {floor}" if floor else "")
            + (f"; {', '.join(lost)} missing" if lost else "")
        )

    every = [r for records in by_column for r in records]
    return [
        row("accuracy of the trained method, %", lambda r: spread_text(r[0].accuracy.mean, r[0].accuracy.std)),
        *_published_row("  published, %", [of(cell, "accuracy", FIRST) for cell in specs]),
        *guarantees.rows(every, row),
        row("attacked round", lambda r: rounds_text(r[0])),
        ["PSNR, the paper's attack, dB", *(plain(r, lost) for r, lost in zip(by_column, missing, strict=True))],
        ["  the paper's attack", *(papers_attack_on(cell.train.method) or NONE for cell in specs)],
        *_published_row("  published, dB", [of_papers_attack(cell) for cell in specs]),
        row("PSNR, strongest attack here, dB", lambda r: range_text(strongest(r).psnr_db)),
        ["  which", *(which(r, lost) for r, lost in zip(by_column, missing, strict=True))],
        row("  gain over the floor, dB", lambda r: range_text(strongest(r).gain_db, sign=True)),
        row("floor, dB", lambda r: f"{strongest(r).floor.psnr_db:.2f} ({strongest(r).floor.name})"),
        ["ceiling (undefended FedAvg), dB", *(ceiling for _ in by_column)],
        row("n / failures", lambda r: f"{span(sorted({x.scores.n for x in r}))} / {strongest(r).scores.failures}"),
    ]


def _published_row(name: str, values: Sequence[Published | None]) -> list[list[str]]:
    """The row of published values; none where nothing is published of any column."""
    return [[name, *map(published_text, values)]] if any(values) else []
