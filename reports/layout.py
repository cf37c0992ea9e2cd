"""Tables of strings as Markdown, LaTeX (booktabs) and terminal text; knows nothing of what they say.

A cell such as "24.14 [23.70, 24.60]" may be broken before its bracket, so that wide tables stay narrow. A cell such as
"**83.81 +- 0.28**" stands out: in bold.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from itertools import zip_longest

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

Rows = Sequence[Sequence[str]]
BOLD = "**"
LABEL_WIDTH = 17  # characters of a row's name on the terminal
PADDING = 2  # characters between two columns on the terminal


def markdown(columns: Sequence[str], rows: Rows, *, words: bool = False) -> str:
    """A Markdown table, the first column to the left and the others, unless they are `words`, to the right."""
    lines = [
        "| " + " | ".join(columns) + " |",
        "|:---|" + (":---|" if words else "---:|") * (len(columns) - 1),
        *("| " + " | ".join(cell.replace("|", r"\|").replace("\n", " ") for cell in row) + " |" for row in rows),
    ]
    return "\n".join(lines)


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
        *(_tex_row(part) for row in rows for part in stacked(row)),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table*}",
    ]
    return "\n".join(lines)


def _tex_row(row: Sequence[str]) -> str:
    return " & ".join(tex(cell) for cell in row) + r" \\"


_TEX = {"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
        "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
        "|": r"\textbar{}", '"': "''", "[": "{[}", "]": "{]}"}  # fmt: skip


def tex(text: str) -> str:
    """Text with LaTeX's own characters escaped; "+-" becomes a plus-minus sign, the sign of a number a real minus."""
    if is_bold(text):
        return rf"\textbf{{{tex(text.removeprefix(BOLD).removesuffix(BOLD))}}}"
    indent = r"\quad " if text.startswith("  ") else ""
    words = [_tex_word(word) for word in text.split()]
    return indent + " ".join(words)


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


def is_bold(text: str) -> bool:
    """Whether a cell stands out."""
    return len(text) > 2 * len(BOLD) and text.startswith(BOLD) and text.endswith(BOLD)


def _styled(text: str) -> Text:
    return Text(text.removeprefix(BOLD).removesuffix(BOLD), style="bold") if is_bold(text) else Text(text)


def stacked(row: Sequence[str]) -> list[tuple[str, ...]]:
    """A row as the lines that its cells take; the first cell stays whole."""
    return list(zip_longest(row[:1], *(_broken(cell).split("\n") for cell in row[1:]), fillvalue=""))


def show(title: str, columns: Sequence[str], rows: Rows, console: Console, *, words: bool = False) -> None:
    """Prints a table; one that is wider than the terminal is split into several, each with the first column."""
    texts = [[_broken(cell) if i else _wrapped(cell) for i, cell in enumerate(row)] for row in (columns, *rows)]
    widths = [
        max(len(line) for cell in column for line in cell.split("\n")) + PADDING for column in zip(*texts, strict=True)
    ]
    for number, part in enumerate(_parts(widths, console.width)):
        heading = Text(title if number == 0 else f"{title} (continued)", style="bold")
        table = Table(title=heading, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        for i in (0, *part):
            table.add_column(Text(texts[0][i]), justify="right" if i and not words else "left", overflow="fold")
        for row in texts[1:]:
            table.add_row(*(_styled(row[i]) for i in (0, *part)))
        console.print(table)


def _broken(text: str) -> str:
    return re.sub(r" (?=[\[(]|\+ )|(?<=;) ", "\n", text)


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
