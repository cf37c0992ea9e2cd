"""What a report says, as a value: tables of strings, the numbers behind them, and what must be known to read them.

A function of records makes it; reports/tables/report_files.py writes it, and reports/tables/terminal.py prints it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from reports.records.quotable import NOT_SHOWN, SMOKE_NOTE

SCORE = re.compile(r"[+-]?\d+\.\d")


class Picture(NamedTuple):
    """An image that an HTML page holds within itself, and that a click enlarges."""

    title: str
    # What it shows, for who does not see it.
    description: str
    png: bytes


class Entry(NamedTuple):
    """What stands behind one row of a table: an HTML page folds it up under its title."""

    # Where a row leads; letters, digits and hyphens.
    anchor: str
    title: str
    # Pairs of a name and a text.
    facts: Sequence[tuple[str, str]]
    notes: Sequence[str] = ()
    # What makes the row again.
    command: str = ""


class OnPage(NamedTuple):
    """What an HTML page has of a table beyond its other forms."""

    # By which a reader filters its rows, and may then sort them by any column; (): the table stays as it is.
    filters: Sequence[str] = ()
    # The anchor of each row's entry.
    anchors: Sequence[str] = ()
    pictures: Sequence[Picture] = ()
    entries: Sequence[Entry] = ()


class Table(NamedTuple):
    """One table of strings; a cell may be marked as reports/tables/render.py says."""

    title: str
    columns: Sequence[str]
    # None of them: the table is its text and notes.
    rows: Sequence[Sequence[str]]
    # Lines beneath it.
    notes: Sequence[str] = ()
    # Its cells are sentences, for which LaTeX has no room: they become comments there.
    words: bool = False
    # Paragraphs between its title and its rows.
    text: Sequence[str] = ()
    # Of the table before it, which its title assumes.
    is_part: bool = False
    # It stands in the files, and not on the terminal.
    is_detail: bool = False
    # The columns that LaTeX's page has room for, None: all of them, (): the table is left out there.
    on_paper: Sequence[str] | None = None
    on_page: OnPage = OnPage()


class Page(NamedTuple):
    """Another report that this one names: its files are `stem` with the endings of the forms."""

    name: str
    stem: str


class Report(NamedTuple):
    """What a report says."""

    title: str
    # Before the first table.
    notes: Sequence[str]
    tables: Sequence[Table]
    # One row of the CSV file each.
    numbers: Sequence[Mapping[str, Any]]
    # What the terminal says under the tables; None: the tables' notes and then the report's.
    messages: Sequence[str] | None = None
    # What the caption of each LaTeX table says behind its title.
    caption: str = ""
    pages: Sequence[Page] = ()
    # Names of image files in the report's folder.
    images: Sequence[str] = ()


def without_scores(report: Report) -> Report:
    """The report of smoke runs: every cell that is a score, a number with decimals, is left out, and the notes say why."""
    tables = [
        table._replace(rows=[[NOT_SHOWN if SCORE.match(cell) else cell for cell in row] for row in table.rows])
        for table in report.tables
    ]
    numbers = [{name: math.nan if isinstance(v, float) else v for name, v in row.items()} for row in report.numbers]
    return report._replace(tables=tables, notes=[SMOKE_NOTE, *report.notes], numbers=numbers)
