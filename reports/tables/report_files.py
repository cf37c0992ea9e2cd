"""One report's tables as files: `<stem>.md`, `<stem>.csv` with every number, `<stem>.tex`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from privbench.system import files, printable
from reports.records.quotable import NOT_SHOWN, PLUMBING
from reports.records.remarks import NOT_PUBLISHED
from reports.tables import render

SCORE = re.compile(r"[+-]?\d+\.\d")


class Table(NamedTuple):
    """One table of strings."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()  # lines beneath it
    words: bool = False  # its cells are sentences, for which LaTeX has no room: they become comments there


class Report(NamedTuple):
    """What a report says: its tables, the numbers behind them, and what must be known to read them."""

    title: str
    notes: Sequence[str]
    forms: Sequence[Table]
    numbers: Sequence[Mapping[str, Any]]  # one row of the CSV file each


def without_scores(report: Report) -> Report:
    """The report of smoke runs: every cell that is a score, a number with decimals, is left out, and the notes say why."""
    forms = [
        form._replace(rows=[[NOT_SHOWN if SCORE.match(cell) else cell for cell in row] for row in form.rows])
        for form in report.forms
    ]
    numbers = [{name: math.nan if isinstance(v, float) else v for name, v in row.items()} for row in report.numbers]
    return report._replace(forms=forms, notes=[PLUMBING, *report.notes], numbers=numbers)


def write(report: Report, stem: Path) -> list[Path]:
    """Writes the three files."""
    texts = {
        ".md": markdown(report),
        ".csv": pd.DataFrame(list(report.numbers)).to_csv(index=False),
        ".tex": latex(report),
    }
    paths = [stem.with_name(stem.name + ending) for ending in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        files.write_bytes(path, printable.encoded(text))
    return paths


def markdown(report: Report) -> str:
    """Title, notes, tables."""
    parts = [f"# {report.title}", *report.notes]
    for form in report.forms:
        parts += [
            f"## {form.title}",
            *([render.markdown(form.columns, form.rows, words=form.words)] if form.rows else []),
        ]
        parts += ["\n".join(f"- {note}" for note in form.notes)] if form.notes else []
    return "\n\n".join(parts) + "\n"


def latex(report: Report) -> str:
    """The notes as comments, one table* per form."""
    notes = [f"% {note}" for note in [*report.notes, "needs \\usepackage{booktabs}"]]
    schedule = f" ({NOT_PUBLISHED})" if any(NOT_PUBLISHED in note for note in report.notes) else ""
    tables = ["\n".join(_latex(form, f"{report.title}: {form.title}{schedule}.")) for form in report.forms]
    return "\n".join(notes) + "\n" + "\n\n".join(tables) + "\n"


def _latex(form: Table, caption: str) -> list[str]:
    """A table as wide as the page, then its notes as comments."""
    notes = [f"% {note}" for note in form.notes]
    if form.words or not form.rows:
        return [f"% {form.title}:", *(f"% {' | '.join(row)}" for row in form.rows), *notes]
    return [render.latex(form.columns, form.rows, caption), *notes]
