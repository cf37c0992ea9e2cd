"""A report on the terminal: its tables, and under them at most five lines, the last of which names the file with everything."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from privbench.system.console import Console
from reports.tables import render
from reports.tables.report import Report

MOST_LINES = 5


def show(report: Report, whole: Path, console: Console, first: Sequence[str] = ()) -> None:
    """Prints the tables that are no details, and what matters most of the file `whole`; `first` are notes before all others."""
    shown = [table for table in report.tables if not table.is_detail]
    for table in shown:
        if table.rows:
            for paragraph in table.text:
                console.say(paragraph)
            render.show(table.title, table.columns, table.rows, console, words=table.words)
    usual = [*(note for table in shown for note in table.notes), *report.notes]
    _show_notes([*first, *(usual if report.messages is None else report.messages)], whole, console)


def _show_notes(notes: Sequence[str], whole: Path, console: Console) -> None:
    """Prints the first of some notes, as many as fit in four lines of the terminal, and where all of them stand.

    A note that does not fit is cut off at a word; those behind it are left to the file.
    """
    left, shown = MOST_LINES - 1, 0
    for note in notes:
        lines = textwrap.wrap(f"- {note}", console.width, subsequent_indent="  ", break_on_hyphens=False)
        cut = len(lines) > left
        if cut and left:
            lines = [
                *lines[: left - 1],
                textwrap.shorten(" ".join(lines[left - 1 :]), console.width, placeholder=" ..."),
            ]
        for line in lines[:left]:
            console.print(line, no_wrap=True, overflow="ignore", crop=False)
        shown, left = shown + (not cut), left - len(lines[:left])
        if not left:
            break
    rest = len(notes) - shown
    more = f"{rest} more remark{'s' if rest > 1 else ''}, and how" if rest else "how"
    console.say(f"- {more} to read this: {whole}")
