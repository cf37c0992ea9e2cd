"""Generated blocks of a page: what stands between `<!-- generated: NAME -->` and `<!-- end -->`.

What stands outside of blocks is never touched. A block that is indented, as in a list, is written as far in. A mark in a code block
of the page is text like any other there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from privbench.errors import UserError

BEGIN = re.compile(r"<!-- generated: (\S+) -->")
END = "<!-- end -->"
Blocks = Mapping[str, Callable[[Path], str]]


def pages(root: Path) -> list[Path]:
    """README.md and every page under docs/."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def names(text: str, page: Path) -> list[str]:
    """The blocks of a page, in its order; UserError where marks do not pair up."""
    return [name.strip() for name, _ in _parts(text, page) if name]


def rendered(text: str, page: Path, root: Path, blocks: Blocks) -> str:
    """The page with every block rendered anew; UserError for marks that do not pair up and for a block that is not known."""
    parts = []
    for name, content in _parts(text, page):
        if name.strip() and name.strip() not in blocks:
            raise UserError(f"{page}: there is no block '{name.strip()}'; known: {', '.join(sorted(blocks))}")
        parts.append(_block(name, blocks[name.strip()](root).strip()) if name else content)
    return "".join(parts)


def _block(name: str, content: str) -> str:
    """A block with its marks, as far in as its name."""
    lines = [f"<!-- generated: {name.strip()} -->", *content.splitlines(), END]
    return "".join(f"{name[: -len(name.strip())]}{line}".rstrip() + "\n" for line in lines)


def _parts(text: str, page: Path) -> Iterator[tuple[str, str]]:
    """(name of a block behind its indentation, its content) and ("", what stands between blocks), line by line."""
    name, content, is_code = "", "", False
    for line in text.splitlines(keepends=True):
        is_code = is_code != (line.lstrip().startswith("```") and not name)
        begins = None if is_code else BEGIN.fullmatch(line.strip())
        ends = line.strip() == END and not is_code
        if begins and name:
            raise UserError(f"{page}: block '{begins[1]}' begins inside of block '{name.strip()}'")
        if ends and not name:
            raise UserError(f"{page}: a block ends that did not begin")
        if begins or ends:
            yield name, content
            name, content = line[: len(line) - len(line.lstrip())] + begins[1] if begins else "", ""
        else:
            content += line
    if name:
        raise UserError(f"{page}: block '{name.strip()}' does not end with {END}")
    yield name, content
