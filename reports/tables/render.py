"""Tables of strings as Markdown, LaTeX (booktabs) and terminal text; knows nothing of what they say, and escapes all of it.

A cell such as "24.14 [23.70, 24.60]" may be broken before its bracket, so that wide tables stay narrow. A cell such as
"**83.81 +- 0.28**" stands out: in bold.
One such as "24.14 <sub>dlg</sub>" ends with small print. Both may be: "**24.14** <sub>dlg</sub>".
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple
from urllib.parse import quote

from rich import box
from rich.table import Table
from rich.text import Text

from privbench.system.console import Console
from privbench.system.printable import one_line

Rows = Sequence[Sequence[str]]
BOLD = "**"
SMALL = ("<sub>", "</sub>")
_MARKED = re.compile(r"(?P<bold>\*\*(?=.))?(?P<text>.*?)(?(bold)\*\*)(?: ?<sub>(?P<small>[^<]*)</sub>)?", re.DOTALL)
_MARKUP = re.compile(r"[][_*~<>`!|&\\]")
LABEL_WIDTH = 17  # characters of a row's name on the terminal
PADDING = 2  # characters between two columns on the terminal


class Cell(NamedTuple):
    """A cell without its marks."""

    # Broken before a bracket, an addend and behind a semicolon, so that the cell can stand narrow.
    lines: list[str]
    bold: bool
    small: str


def cell(text: str) -> Cell:
    """A cell as its parts."""
    plain, stands_out, print_ = _read(text)
    return Cell(_lines(plain), stands_out, print_)


def markdown(columns: Sequence[str], rows: Rows, *, words: bool = False) -> str:
    """A Markdown table, the first column to the left and the others, unless they are `words`, to the right."""
    lines = [
        _markdown_row(columns),
        "|:---|" + (":---|" if words else "---:|") * (len(columns) - 1),
        *map(_markdown_row, rows),
    ]
    return "\n".join(lines)


def _markdown_row(row: Sequence[str]) -> str:
    return "| " + " | ".join(map(_markdown_cell, row)) + " |"


def _markdown_cell(text: str) -> str:
    plain, stands_out, print_ = _read(text)
    parts = [_markdown_inline(part).replace("|", r"\|") for part in (plain, print_)]
    parts[0] = bold(parts[0]) if stands_out else parts[0]
    return " ".join([parts[0], small(parts[1])]) if print_ else parts[0]


def link(text: str, path: str) -> str:
    """A Markdown link to a file by its path from the page; both as they are, whatever Markdown or a URL would make of them."""
    shown = _MARKUP.sub(r"\\\g<0>", one_line(text.replace("\n", " ")))
    return f"[{shown}]({quote(path)})"


def markdown_text(text: str) -> str:
    """A line of text that Markdown shows as it is: no HTML, links, emphasis, lists or headings; `code` stays code."""
    line = re.sub(r"^([#>+=-])", r"\\\1", _markdown_inline(text).strip())
    return re.sub(r"^(\d+)([.)])(?=\s|$)", r"\1\\\2", line)


def _markdown_inline(text: str) -> str:
    """The same inside of a line."""
    text = one_line(text.replace("\n", " ")).replace("\\", r"\\")
    # One alone, as behind an interval over few seeds, is no emphasis.
    for sign in (sign for sign in "*~" if text.count(sign) > 1):
        text = text.replace(sign, f"\\{sign}")
    text = re.sub(r"<(?=[A-Za-z/!?])", "&lt;", re.sub(r"&(?=#?\w+;)", "&amp;", text))
    text = re.sub(r"\](?=[(:])", r"]\\", text)
    # Inside of a word an underscore is one.
    return re.sub(r"(?<![^\W_])_+|_+(?![^\W_])", lambda match: match[0].replace("_", r"\_"), text)


def latex(columns: Sequence[str], rows: Rows, caption: str) -> str:
    """A LaTeX table as wide as the page; needs the package booktabs."""
    lines = [
        r"\begin{table*}",
        r"\centering\footnotesize\setlength{\tabcolsep}{4pt}",
        rf"\caption{{{tex(caption)}}}",
        rf"\begin{{tabular}}{{@{{}}l{'r' * (len(columns) - 1)}@{{}}}}",
        r"\toprule",
        *(_tex_row(part) for part in stacked(columns)),
        r"\midrule",
        *_tex_rows(rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table*}",
    ]
    return "\n".join(lines)


def _tex_rows(rows: Rows) -> list[str]:
    """All rows, line by line; a gap behind a row of several lines, whose cells would read as the next row's otherwise."""
    lines: list[str] = []
    for row in rows:
        parts = [_tex_row(part) for part in stacked(row)]
        lines += parts if len(parts) == 1 else [*parts, r"\addlinespace[2pt]"]
    return lines


def _tex_row(row: Sequence[str]) -> str:
    return " & ".join(tex(cell) for cell in row) + r" \\"


_TEX = {"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
        "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
        "|": r"\textbar{}", "†": r"\textdagger{}", '"': "''", "[": "{[}", "]": "{]}"}  # fmt: skip


def tex(text: str) -> str:
    """Text with LaTeX's own characters escaped; "+-" becomes a plus-minus sign, the sign of a number a real minus."""
    plain, stands_out, print_ = _read(text)
    indent = r"\quad " if text.startswith("  ") else ""
    words = " ".join(_tex_word(word) for word in plain.split())
    parts = [rf"\textbf{{{words}}}"] if stands_out else [words] if words else []
    return indent + " ".join([*parts, *([rf"{{\scriptsize {tex(print_)}}}"] if print_ else [])])


def _tex_word(word: str) -> str:
    if word == "+-":
        return r"$\pm$"
    if word == "-":
        return "--"
    escaped = "".join(_TEX.get(character, character) for character in word)
    opening = "{[}" if escaped.startswith("{[}") else ""
    number = escaped.removeprefix(opening)
    if number[:1] == "-" and number[1:2].isdigit():
        return f"{opening}$-${number[1:]}"
    return escaped


def bold(text: str) -> str:
    """A cell that stands out."""
    return f"{BOLD}{text}{BOLD}"


def is_bold(cell: str) -> bool:
    """Whether a cell stands out."""
    return _read(cell)[1]


def small(text: str) -> str:
    """Small print, as the end of a cell."""
    return text.join(SMALL)


def _read(cell: str) -> tuple[str, bool, str]:
    """A cell as (text, whether it stands out, small print)."""
    match = _MARKED.fullmatch(cell)
    assert match is not None, "any text is a cell"
    return match["text"], match["bold"] is not None, match["small"] or ""


def _styled(cell: str) -> Text:
    """A cell's lines for the terminal."""
    read = [_read(line) for line in cell.split("\n")]
    return Text("\n").join(
        Text(text, style="bold" if stands_out else "") if text else Text(print_, style="dim")
        for text, stands_out, print_ in read
    )


def stacked(row: Sequence[str]) -> list[tuple[str, ...]]:
    """A row as the lines that its cells take; the first cell stays whole."""
    return list(zip_longest(row[:1], *(_broken(cell).split("\n") for cell in row[1:]), fillvalue=""))


def show(title: str, columns: Sequence[str], rows: Rows, console: Console, *, words: bool = False) -> None:
    """Prints a table; one of numbers that is wider than the terminal is split into several, each with the first column.

    Columns of `words` are made narrow enough in place of that.
    """
    texts = [[_broken(cell) if i else _wrapped(cell) for i, cell in enumerate(row)] for row in (columns, *rows)]
    widths = [
        max(len(line) for cell in column for line in _styled(cell).plain.split("\n")) + PADDING
        for column in zip(*texts, strict=True)
    ]
    whole = [list(range(1, len(columns)))]
    for number, part in enumerate(whole if words else _parts(widths, console.width)):
        heading = Text(title if number == 0 else f"{title} (continued)", style="bold")
        table = Table(title=heading, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        for i in (0, *part):
            table.add_column(Text(texts[0][i]), justify="right" if i and not words else "left", overflow="fold")
        for row in texts[1:]:
            table.add_row(*(_styled(row[i]) for i in (0, *part)))
        console.print(table)


def _broken(cell: str) -> str:
    """A cell over several lines, each marked as the cell is; small print has a line of its own."""
    text, stands_out, print_ = _read(cell)
    lines = _lines(text)
    return "\n".join([*(bold(line) if stands_out else line for line in lines), *([small(print_)] if print_ else [])])


def _lines(text: str) -> list[str]:
    """A text broken where a narrow column should break it."""
    return re.sub(r" (?=[\[(]|\+ )|(?<=;) ", "\n", text).split("\n")


def _wrapped(text: str) -> str:
    indent = " " * (len(text) - len(text.lstrip()))
    return "\n".join(textwrap.wrap(text, LABEL_WIDTH, subsequent_indent=indent)) or text


def _parts(widths: Sequence[int], available: int) -> list[list[int]]:
    """Columns 1.. in groups that fit beside column 0; each group has at least one."""
    parts: list[list[int]] = []
    for i, width in enumerate(widths[1:], start=1):
        if parts and widths[0] + sum(widths[k] for k in parts[-1]) + width <= available:
            parts[-1].append(i)
        else:
            parts.append([i])
    return parts
