"""`python -m reports.documents`, from the repository's root: writes every generated block; `make docs` calls it.

`python -m reports.documents --images` draws the figures that committed records are enough for, too.
`python -m reports.documents --benchmarks runs/benchmarks.json` commits what `make bench` measured.
`python -m reports.documents --records NAME FILE...` commits the records of a table: the record.json of its cells.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from privbench.errors import UserError
from privbench.records import record_lines, schema
from privbench.system import files
from reports.documents import benchmarks, images, pages, published
from reports.documents.blocks import BLOCKS


def main(words: list[str] | None = None) -> int:
    """Writes the pages whose blocks changed and names them; 2 where something is wrong, after one line that says what."""
    parser = argparse.ArgumentParser(prog="python -m reports.documents", description="Writes every generated block.")
    parser.add_argument("--root", type=Path, default=Path(), help="the repository (default: here)")
    parser.add_argument("--images", action="store_true", help="draw the figures of docs/images, too")
    parser.add_argument("--records", metavar="NAME", help="commit these records as those of a table of docs/results")
    parser.add_argument("--benchmarks", metavar="FILE", type=Path, help="commit this file of `make bench`")
    parser.add_argument("files", type=Path, nargs="*", help="record.json of its cells")
    chosen = parser.parse_args(words)
    if bool(chosen.records) != bool(chosen.files):
        parser.error("--records NAME takes the record files of a table, and files take --records NAME")
    try:
        if chosen.records:
            record_lines.write(
                [schema.read(path) for path in chosen.files], published.path_of(chosen.root, chosen.records)
            )
        if chosen.benchmarks:
            benchmarks.commit(chosen.benchmarks, chosen.root)
        changed = write(chosen.root)
        changed += images.write(chosen.root, chosen.root / images.FOLDER) if chosen.images else []
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"changed: {', '.join(map(str, changed)) or 'nothing'}")
    return 0


def write(root: Path) -> list[Path]:
    """Renders every block of README.md and docs/; the pages that changed, from the root."""
    changed = []
    for page in pages.pages(root):
        before = page.read_text(encoding="utf-8")
        after = pages.rendered(before, page.relative_to(root), root, BLOCKS)
        if after != before:
            files.write_bytes(page, after.encode())
            changed.append(page.relative_to(root))
    return changed


if __name__ == "__main__":
    sys.exit(main())
