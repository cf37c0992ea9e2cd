"""One report's tables as files: `<stem>.md`, `<stem>.csv` with every number, `<stem>.tex`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from privbench import storage
from reports import layout
from reports.remarks import NOT_PUBLISHED


class Form(NamedTuple):
    """One table of strings."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


class Report(NamedTuple):
    """What a report says: its tables, the numbers behind them, and what must be known to read them."""

    title: str
    notes: Sequence[str]
    forms: Sequence[Form]
    numbers: Sequence[Mapping[str, Any]]  # one row of the CSV file each


def write(report: Report, stem: Path) -> list[Path]:
    """Writes the three files."""
    texts = {
        ".md": markdown(report),
        ".csv": pd.DataFrame(list(report.numbers)).to_csv(index=False),
        ".tex": latex(report),
    }
    paths = [stem.with_name(stem.name + ending) for ending in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        storage.write_bytes(path, text.encode())
    return paths


def markdown(report: Report) -> str:
    """Title, notes, tables."""
    tables = [f"## {form.title}\n\n{layout.markdown(form.columns, form.rows)}" for form in report.forms]
    return "\n\n".join([f"# {report.title}", *report.notes, *tables]) + "\n"


def latex(report: Report) -> str:
    """The notes as comments, one table* per form."""
    notes = [f"% {note}" for note in [*report.notes, "needs \\usepackage{booktabs}"]]
    schedule = f" ({NOT_PUBLISHED})" if any(NOT_PUBLISHED in note for note in report.notes) else ""
    tables = [
        layout.latex(form.columns, form.rows, f"{report.title}: {form.title}{schedule}.") for form in report.forms
    ]
    return "\n".join(notes) + "\n" + "\n\n".join(tables) + "\n"
