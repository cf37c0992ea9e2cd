"""`privbench report`, `compare` and `merge`: what lies in a folder of results, what changed between two, and several as one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from privbench.errors import UserError
from privbench.execution.sweep import merging
from privbench.records import pooling, record_lines
from privbench.records.schema import Record
from privbench.records.store import Store
from privbench.system import console, files, printable
from reports.folders import comparing, contents, one_page
from reports.tables import render, report_files, terminal
from reports.tables.report import Report

PAGE = "report.html"
COMPARISON = "comparison"  # stem of the files


def write_page(runs: Path, out: Path | None) -> Path:
    """Writes the page of a folder and returns where it lies: `out`, or report.html in the folder.

    UserError where there are no records, or where `out` is no .html file.
    """
    path = page_path(runs, out)
    if path.suffix != ".html":
        raise UserError(f"--out {path}: a page is an .html file")
    page = report_files.html(one_page.report(contents.read(runs)))
    files.write_bytes(path, printable.encoded(page))
    return path


def page_path(runs: Path, out: Path | None) -> Path:
    """Where the page of a folder lies; that of a file of records beside it, under its name."""
    if out is not None:
        return out
    return runs / PAGE if runs.is_dir() else runs.with_name(f"{runs.name.removesuffix(record_lines.ENDING)}.html")


def show_page(runs: Path, out: Path | None) -> None:
    """The same, with a line that names the file and its size."""
    path = write_page(runs, out)
    console.results().say(f"wrote {path} ({path.stat().st_size / 2**20:.1f} MB, one file, needs no network)")


def show(runs: Path) -> None:
    """Prints findings, cells, what inferences state and what is left out; draws and writes nothing."""
    to, section = console.results(), ""
    for table in one_page.report(contents.read(runs), with_pictures=False).tables:
        section = section if table.is_part else table.title
        if table.is_detail or (table.is_part and section not in one_page.SHOWN):
            continue
        if table.rows:
            render.show(table.title, table.columns, table.rows, to)
        elif table.notes and table.title in one_page.SHOWN:
            to.print(table.title)
            for note in table.notes:
                to.print(f"- {note}")
    to.say("- pictures, checks and where each number comes from: the same with --html")


def compared(a: Path, b: Path, but_for: Sequence[str], out: Path) -> Report:
    """Compares two folders and writes every form of the report into the folder `out`; UserError where one has no records."""
    report = comparing.report(contents.read(a, earlier=True), contents.read(b, earlier=True), but_for)
    report_files.write(report, out / COMPARISON)
    return report


def show_compared(a: Path, b: Path, but_for: Sequence[str], out: Path) -> None:
    """The same, and prints it."""
    terminal.show(compared(a, b, but_for, out), out / f"{COMPARISON}.md", console.results())


def merge(into: Path, places: Sequence[Path]) -> None:
    """Merges and says what was merged. UserError: what cannot be read or merged, and cells that cannot be recorded."""
    if into.name.endswith(record_lines.ENDING):
        merge_records(into, places)
    elif into.suffix.lower() in (".jsonl", ".xz") or into.name == "-":
        raise UserError(f"{into} is neither a folder nor a file of records, whose name ends in {record_lines.ENDING}")
    else:
        merge_folders(into, places)


def merge_records(into: Path, places: Sequence[Path]) -> list[Record]:
    """Writes one file of all records, those of the same cell with other seeds as one, and returns them.

    UserError: the file is there, a place has no records, or two records of a cell have a seed in common and differ.
    """
    if into.exists() or into.is_symlink():
        raise UserError(f"{into} is there already, and nothing is overwritten; name a new file")
    each = [contents.read(place) for place in places]
    merged = pooling.pooled(record for one in each for record in one.records)
    record_lines.write(merged, into)
    to, count = console.results(), sum(len(one.records) for one in each)
    to.say(f"wrote {into}: {count} record(s) as {len(merged)} cell(s)")
    for place, one in zip(places, each, strict=True):
        for line in one.left_out:
            to.say(f"- left out of {place}: {line}")
        if one.gaps:
            to.say(f"- {place} has {len(one.gaps)} cell(s) without a record")
    return merged


def merge_folders(into: Path, folders: Sequence[Path]) -> None:
    """Copies runs, observations and results into one folder of results, and records the cells that are complete then."""
    merged = merging.merge(Store(into), folders)
    to, copied = console.results(), merged.copied
    to.say(
        f"merged into {into}: {copied.runs} training run(s), {copied.artifacts} observation(s), {copied.results} result(s); "
        f"{merged.recorded} cell(s) complete, {merged.open_cells} not"
    )
    for path in copied.differing:
        to.say(f"- {path} differs from the result that was there, which stays")
    if merged.failures:
        raise UserError(f"{len(merged.failures)} cell(s) could not be recorded: {merged.failures[0]}")
