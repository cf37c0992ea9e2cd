"""What `make bench` measured: its rows, their file, and the table of them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from privbench.errors import UserError


@dataclass
class BenchmarkRow:
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


def save(rows: Sequence[BenchmarkRow], environment: dict[str, Any], path: Path) -> None:
    """Every repetition of every row as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"environment": environment, "rows": [asdict(row) for row in rows]}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def load(path: Path) -> tuple[list[BenchmarkRow], dict[str, Any]]:
    """What `save` wrote: the rows, and what they were measured on. UserError where there is no such file."""
    if not path.exists():
        raise UserError(f"there are no benchmarks at {path}")
    content = json.loads(path.read_text(encoding="utf-8"))
    return [BenchmarkRow(**row) for row in content["rows"]], content["environment"]


def cells(row: BenchmarkRow) -> list[str]:
    """A row as a table prints it."""
    if not row.values:
        return [row.work, row.way, "not measured", "", "", row.note]
    spread = f"{min(row.values):.4g}-{max(row.values):.4g}" if len(row.values) > 1 else "one value"
    times = f"{row.times:.1f}x" if row.times is not None else ""
    return [row.work, row.way, f"{row.median:.4g} {row.unit}", spread, times, row.note]


COLUMNS = ("work", "way", "median", "min-max", "against plain", "note")


def markdown(rows: Sequence[BenchmarkRow]) -> str:
    """The rows as a Markdown table."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|:--|:--|--:|--:|--:|:--|"]
    return "\n".join(lines + ["| " + " | ".join(cells(row)) + " |" for row in rows]) + "\n"
