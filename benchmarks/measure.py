"""A timed row, and the table and JSON of all rows."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table


@dataclass
class Row:
    """One way of doing a piece of work, measured several times; no values means not measured, and `note` says why."""

    group: str  # "way", "scaling", "memory", "start", "kernel", "projection"
    work: str
    way: str
    values: list[float] = field(default_factory=list)
    unit: str = "s"
    times: float | None = None  # how many times faster than the plain way, medians
    x: float | None = None  # of a scaling row: how many victims, clients, seeds, images
    note: str = ""

    @property
    def median(self) -> float:
        """Median of the repetitions, in `unit`."""
        return statistics.median(self.values)


class Way(NamedTuple):
    """One of two ways that are measured by turns."""

    name: str
    action: Callable[[], float]  # returns what it measured, in seconds
    note: str = ""


class Rows:
    """Rows in the order they were measured."""

    def __init__(self, repeats: int) -> None:
        self.repeats, self.rows = repeats, list[Row]()

    def measure(
        self, group: str, work: str, way: str, action: Callable[[], float], *, plain: Row | None = None, **more: Any
    ) -> Row:
        """Repeats `action`, which returns what it measured; `plain` is the row to be compared with."""
        row = Row(group, work, way, [action() for _ in range(self.repeats)], **more)
        row.times = plain.median / row.median if plain is not None else None
        return self.add(row)

    def measure_by_turns(self, group: str, work: str, plain: Way, fast: Way) -> Row:
        """The same of two ways, one repetition of each after the other: a machine that slows down slows both. The plain row."""
        taken = [(plain.action(), fast.action()) for _ in range(self.repeats)]
        rows = [
            Row(group, work, way.name, list(values), note=way.note)
            for way, values in zip((plain, fast), zip(*taken, strict=True), strict=True)
        ]
        rows[1].times = rows[0].median / rows[1].median
        for row in rows:
            self.add(row)
        return rows[0]

    def add(self, row: Row) -> Row:
        """Takes and prints a row."""
        self.rows.append(row)
        shown = f"{row.median:.4g} {row.unit}" if row.values else "not measured"
        ratio = f", {row.times:.1f}x" if row.times is not None else ""
        print(f"{row.group}: {row.work}: {row.way}: {shown}{ratio} {row.note}".rstrip(), flush=True)
        return row


def save(rows: list[Row], environment: dict[str, Any], path: Path) -> None:
    """Every repetition of every row as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"environment": environment, "rows": [asdict(row) for row in rows]}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def load(path: Path) -> tuple[list[Row], dict[str, Any]]:
    """What `save` wrote."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return [Row(**row) for row in content["rows"]], content["environment"]


def cells(row: Row) -> list[str]:
    """A row as a table prints it."""
    if not row.values:
        return [row.work, row.way, "not measured", "", "", row.note]
    spread = f"{min(row.values):.4g}-{max(row.values):.4g}" if len(row.values) > 1 else "one value"
    times = f"{row.times:.1f}x" if row.times is not None else ""
    return [row.work, row.way, f"{row.median:.4g} {row.unit}", spread, times, row.note]


COLUMNS = ("work", "way", "median", "min-max", "against plain", "note")


def show(rows: list[Row], title: str) -> None:
    """Prints all rows."""
    table = Table(title=title)
    for column in COLUMNS:
        table.add_column(column, justify="right" if column in ("median", "min-max", "against plain") else "left")
    for row in rows:
        table.add_row(*cells(row))
    Console().print(table)


def markdown(rows: list[Row]) -> str:
    """The rows as a Markdown table."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|:--|:--|--:|--:|--:|:--|"]
    return "\n".join(lines + ["| " + " | ".join(cells(row)) + " |" for row in rows]) + "\n"
