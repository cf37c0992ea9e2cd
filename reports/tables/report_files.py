"""A report as files: `<stem>.md`, `<stem>.csv` with every number, `<stem>.tex` and `<stem>.html`.

What stands in a report may come from records, and so from anybody: each form escapes what it would obey.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from privbench.system import files, printable
from privbench.system.printable import one_line
from reports.records.number_text import NONE
from reports.records.remarks import NOT_PUBLISHED
from reports.tables import render
from reports.tables.report import Report, Table

PAPER = "paper preset"
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a cell begins with that a spreadsheet computes


def write(report: Report, stem: Path) -> list[Path]:
    """Writes every form of the report, over what was there."""
    return _write({".md": markdown, ".csv": csv, ".tex": latex, ".html": html}, report, stem)


def write_pages(report: Report, stem: Path) -> list[Path]:
    """The same of a report without numbers: Markdown and HTML alone."""
    return _write({".md": markdown, ".html": html}, report, stem)


def _write(forms: Mapping[str, Callable[[Report], str]], report: Report, stem: Path) -> list[Path]:
    paths = [stem.with_name(stem.name + ending) for ending in forms]
    for path, text in zip(paths, forms.values(), strict=True):
        files.write_bytes(path, printable.encoded(text(report)))
    return paths


def csv(report: Report) -> str:
    """The numbers at full precision, a line a row; an apostrophe stands before a text that a spreadsheet would compute."""
    rows = [{_plain(name): _plain(value) for name, value in row.items()} for row in report.numbers]
    return str(pd.DataFrame(rows).to_csv(index=False))


def _plain(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value != NONE and value.startswith(FORMULA) else value


def markdown(report: Report) -> str:
    """Title, notes, links, images, tables."""
    parts = [f"# {render.markdown_text(report.title)}", *map(render.markdown_text, report.notes)]
    if report.pages:
        links = [f"- {render.link(page.name, page.stem + '.md')}" for page in report.pages]
        parts.append("\n".join(links))
    parts += [f"!{render.link(image, image)}" for image in report.images]
    parts += [part for table in report.tables for part in markdown_table(table)]
    return "\n\n".join(parts) + "\n"


def markdown_table(table: Table, level: int = 2) -> list[str]:
    """One table's paragraphs, its title a heading of that level."""
    parts = ["#" * (level + table.is_part) + f" {render.markdown_text(table.title)}"]
    parts += map(render.markdown_text, table.text)
    parts += [render.markdown(table.columns, table.rows, words=table.words)] if table.rows else []
    parts += ["\n".join(f"- {render.markdown_text(note)}" for note in table.notes)] if table.notes else []
    return parts


def latex(report: Report) -> str:
    """The notes as comments, one table* for each table that a page has room for."""
    schedule = NOT_PUBLISHED if any(NOT_PUBLISHED in note for note in report.notes) else ""
    parts, whole = [_comments([*report.notes, "needs \\usepackage{booktabs}"])], ""
    for table in report.tables:
        whole = whole if table.is_part else table.title
        title = f"{whole}: {table.title}" if table.is_part else table.title
        parts.append(_latex(table, title, _caption(report, title, schedule)))
    return "\n\n".join(part for part in parts if part) + "\n"


def _caption(report: Report, title: str, schedule: str) -> str:
    behind = f" ({schedule})" if schedule and PAPER not in title else ""
    return f"{report.title}: {title}{behind}.{' ' if report.caption else ''}{report.caption}"


def _latex(table: Table, title: str, caption: str) -> str:
    """A table as wide as the page, then its notes as comments; sentences and what has no room are comments alone."""
    if table.on_paper is not None and not table.on_paper:
        return _comments([f"{title}: in the other forms of this report"])
    columns = [table.columns.index(name) for name in table.on_paper or ()] or range(len(table.columns))
    rows = [[row[i] for i in columns] for row in table.rows]
    notes = [*table.text, *table.notes]
    if table.words or not rows:
        return _comments([f"{title}:", *(" | ".join(row) for row in rows), *notes])
    whole = render.latex([table.columns[i] for i in columns], rows, caption)
    return "\n".join([whole, _comments(notes)]) if notes else whole


def _comments(texts: Sequence[str]) -> str:
    """Each text as one comment: a line break inside would end it."""
    return "\n".join(f"% {one_line(text)}" for text in texts)


def html(report: Report) -> str:
    """One page for a screen of any width and for paper; it needs no other file but `report.images`, and no network.

    Only where rows can be filtered or pictures enlarged it has a script (report.js). Without scripts all of it stands there.
    """
    style, script = _part("report.css"), ""
    if any(table.on_page.filters or table.on_page.pictures for table in report.tables):
        script = _part("report.js")
    return _page().render(
        report=report, style=Markup(style), script=Markup(script), policy=_policy(report, style, script)
    )


def _policy(report: Report, style: str, script: str) -> str:
    """The Content-Security-Policy: the page's style and script by their digests, its images, and nothing else.

    So whatever a name from a file would smuggle in, a browser neither runs nor fetches.
    """
    images = "data: 'self' file:" if report.images else "data:"
    parts = [
        "default-src 'none'",
        f"style-src {_digest(style)}",
        f"img-src {images}",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return "; ".join([*parts, *([f"script-src {_digest(script)}"] if script else [])])


def _digest(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _data(png: bytes) -> str:
    """An image as an address that holds it."""
    return f"data:image/png;base64,{b64encode(png).decode()}"


@cache
def _part(name: str) -> str:
    """A file of this package."""
    return (resources.files("reports.tables") / name).read_text(encoding="utf-8")


@cache
def _page() -> Template:
    """The page's template; every text that it is given is escaped."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters |= {"cell": render.cell, "plain": one_line, "address": quote, "data": _data}
    return environment.from_string(_part("report.html"))
