"""Times one way of doing a piece of work, or two by turns, and prints the rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from reports.records.benchmark_rows import COLUMNS, BenchmarkRow, cells


class Way(NamedTuple):
    """One of two ways that are measured by turns."""

    name: str
    action: Callable[[], float]  # returns what it measured, in seconds
    note: str = ""


class Rows:
    """Rows in the order they were measured."""

    def __init__(self, repeats: int) -> None:
        self.repeats, self.rows = repeats, list[BenchmarkRow]()

    def measure(
        self,
        group: str,
        work: str,
        way: str,
        action: Callable[[], float],
        *,
        plain: BenchmarkRow | None = None,
        **more: Any,
    ) -> BenchmarkRow:
        """Repeats `action`, which returns what it measured; `plain` is the row to be compared with."""
        row = BenchmarkRow(group, work, way, [action() for _ in range(self.repeats)], **more)
        row.times = plain.median / row.median if plain is not None else None
        return self.add(row)

    def measure_by_turns(self, group: str, work: str, plain: Way, fast: Way) -> BenchmarkRow:
        """The same of two ways, one repetition of each after the other: a machine that slows down slows both. The plain row."""
        seconds = [(plain.action(), fast.action()) for _ in range(self.repeats)]
        rows = [
            BenchmarkRow(group, work, way.name, list(values), note=way.note)
            for way, values in zip((plain, fast), zip(*seconds, strict=True), strict=True)
        ]
        rows[1].times = rows[0].median / rows[1].median
        for row in rows:
            self.add(row)
        return rows[0]

    def add(self, row: BenchmarkRow) -> BenchmarkRow:
        """Takes and prints a row."""
        self.rows.append(row)
        median = f"{row.median:.4g} {row.unit}" if row.values else "not measured"
        ratio = f", {row.times:.1f}x" if row.times is not None else ""
        print(f"{row.group}: {row.work}: {row.way}: {median}{ratio} {row.note}".rstrip(), flush=True)
        return row


def show(rows: list[BenchmarkRow], title: str) -> None:
    """Prints all rows."""
    table = Table(title=title)
    for column in COLUMNS:
        table.add_column(column, justify="right" if column in ("median", "min-max", "against plain") else "left")
    for row in rows:
        table.add_row(*cells(row))
    Console().print(table)
