"""The attack table, accuracy against what a curious server reconstructs: Markdown, CSV, LaTeX and terminal.

A pure function of records and gaps. Two views: the published form (reports/records/labels.py) and the long form, one row per
record with floor, interval, gain, knowledge, n, failures and seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from privbench.records import checks
from privbench.records.checks import CheckMessage
from privbench.records.schema import AttackRecord
from privbench.system import files, printable
from privbench.system.console import Console
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
from reports.records.remarks import CAVEAT, NOT_PUBLISHED, gap_lines, header, remarks
from reports.tables import endnotes, render

LATEX_COLUMNS = (
    "method",
    "attack",
    "PSNR dB",
    "raw PSNR dB",
    "gain dB",
    "SSIM",
    "n",
    "failures",
    "doubts",
    "published PSNR dB",
)


def write_tables(
    records: Sequence[AttackRecord], folder: Path, gaps: Sequence[Gap] = (), references: Sequence[AttackRecord] = ()
) -> list[Path]:
    """table.md, table.csv and table.tex; `references` as `labels.compact` takes them."""
    texts = {
        "table.md": markdown(records, gaps, references),
        "table.csv": csv(records, references),
        "table.tex": latex(records, gaps, references),
    }
    for name, text in texts.items():
        files.write_bytes(folder / name, printable.encoded(text))
    return [folder / name for name in texts]


def print_tables(
    records: Sequence[AttackRecord],
    console: Console,
    whole: Path,
    gaps: Sequence[Gap] = (),
    references: Sequence[AttackRecord] = (),
    first: Sequence[str] = (),
) -> None:
    """The published form on the terminal, and under it what matters most of `whole`, the file with everything.

    `first` are notes that go before all others.
    """
    for title, columns, rows in compact(records, gaps, references):
        render.show(title, columns, rows, console)
    missing = [f"missing: {line}" for line in gap_lines(gaps)]
    endnotes.show([*first, *missing, *remarks(records, references), CAVEAT], whole, console)


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
        "doubts": checks.names(told),
    }


def markdown(records: Sequence[AttackRecord], gaps: Sequence[Gap] = (), references: Sequence[AttackRecord] = ()) -> str:
    """The whole report as Markdown."""
    records = in_order(records)
    parts = ["# Attack table", *header(records)]
    forms = compact(records, gaps, references)
    parts += [f"## {title}\n\n" + render.markdown(columns, rows) for title, columns, rows in forms]
    tests = comparison.between_methods_of_each(records)
    if tests:
        parts += ["## Between methods", comparison.HOW, render.markdown(comparison.COLUMNS, comparison.rows(tests))]
    rows = long_rows(records, references)
    parts.append("## Every record\n\n" + render.markdown(list(rows[0]), [list(row.values()) for row in rows]))
    for heading, lines in (("Gaps", gap_lines(gaps)), ("Remarks", remarks(records, references))):
        if lines:
            parts.append(f"## {heading}\n\n" + "\n".join(f"- {line}" for line in lines))
    return "\n\n".join(parts) + "\n"


def latex(records: Sequence[AttackRecord], gaps: Sequence[Gap] = (), references: Sequence[AttackRecord] = ()) -> str:
    """The published form and the records behind it as LaTeX tables (booktabs), two per data set and round."""
    records = in_order(records)
    tables = []
    for title, columns, rows in compact(records, gaps, references):
        presets = title if "paper preset" in title else f"{title} ({NOT_PUBLISHED})"
        tables.append(
            render.latex(
                columns, rows, f"{presets}. [95% interval over seeds, clients and victims]. {measured.CHOSEN} {CAVEAT}"
            )
        )
    every = long_rows(records, references)
    for key in groups(records):
        own = [row for r, row in zip(records, every, strict=True) if group(r.cell) == key]
        rows = [[row[name] for name in LATEX_COLUMNS] for row in own]
        tables.append(render.latex(LATEX_COLUMNS, rows, f"Every attack: {title_of(key)}. {CAVEAT}"))
    notes = "\n".join(f"% {line}" for line in [*header(records), *gap_lines(gaps), "needs \\usepackage{booktabs}"])
    return notes + "\n" + "\n\n".join(tables) + "\n"


def csv(records: Sequence[AttackRecord], references: Sequence[AttackRecord] = ()) -> str:
    """Numbers at full precision, one row per record, with what is needed to judge them."""
    return frame(in_order(records), references).to_csv(index=False)


def frame(records: Sequence[AttackRecord], references: Sequence[AttackRecord] = ()) -> pd.DataFrame:
    """The same numbers as a pandas table; of smoke runs without scores."""
    found = table_checks.by_record(records, references)
    return pd.DataFrame([quotable.numbers(r.cell.preset, _csv_row(r, found[r.id])) for r in records])


def short_markdown(records: Sequence[AttackRecord], references: Sequence[AttackRecord] = ()) -> str:
    """The published form alone, with what a reader must know before the numbers."""
    forms = [
        f"### {title}\n\n{render.markdown(columns, rows)}" for title, columns, rows in compact(records, (), references)
    ]
    return "\n\n".join([*forms, *header(records), CAVEAT]) + "\n"


def _csv_row(r: AttackRecord, told: Sequence[CheckMessage]) -> dict[str, Any]:
    accuracy, psnr = published(r.cell)
    kept = ("preset", "dataset", "method", "defense", "where", "attack", "round", "clients", "batch_size")
    own, s = measured.of(r), r.scores
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
        "psnr_db": s.psnr_db,
        "psnr_low": own.psnr_db.low,
        "psnr_high": own.psnr_db.high,
        "psnr_raw_db": s.psnr_raw_db,
        "floor": r.floor.name,
        "floor_db": r.floor.psnr_db,
        **{f"floor_{name}_db": value for name, value in r.floors.items()},
        "gain_db": own.gain_db.mean,
        "gain_low": own.gain_db.low,
        "gain_high": own.gain_db.high,
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
        "doubts": " ".join(checks.each_name(told)),
        **{name: r.environment[name] for name in ("device", "machine", "torch", "date")},
    }
