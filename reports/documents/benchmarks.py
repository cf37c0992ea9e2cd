"""The block of benchmarks: figures, table, and what they were measured on, from the committed file of one run of `make bench`.

Without a file the block says so: numbers of a run that nobody can look up again do not stand there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from reports.documents import published
from reports.figures import speed
from reports.records import benchmark_rows
from reports.records.benchmark_rows import BenchmarkRow

FILE = published.FOLDER / "records" / "benchmarks.json"
BUSY = 0.5  # processes that ran before the first row; from here on times are those of a shared machine
NONE = "**Not measured.** No run of the present code is committed."
# Name of the figure -> what it shows, how it is drawn.
FIGURES: dict[str, tuple[str, Callable[[list[BenchmarkRow], Path], list[Path]]]] = {
    "speedup": ("How many times faster than the usual way", speed.speedup),
    "scaling": ("How cost grows with victims, clients, seeds and batch size", speed.scaling),
}


def section(root: Path) -> str:
    """The figures, every row also where it was not measured, and machine, versions, date and load."""
    if not (root / FILE).exists():
        return NONE
    rows, on = benchmark_rows.load(root / FILE)
    figures = [f"![{what}](images/{name}.png)" for name, (what, _) in FIGURES.items()]
    file = f"Every repetition: [{FILE.name}]({FILE.relative_to('docs').as_posix()})."
    return "\n\n".join([*figures, benchmark_rows.markdown(rows).strip(), f"{_setting(on)}\n{file}"])


def _setting(on: Mapping[str, Any]) -> str:
    before, after = on["load"]
    versions = f"device {on['device']}, Python {on['python']}, torch {on['torch']}"
    return "\n".join(
        [
            f"{on['machine']}, {on['cores']} cores, {versions}, {on['date']}; {on['repeats']} repetitions where a range is given.",
            f"Processes that ran or waited: {before:.1f} before the first row, {after:.1f} after the last, "
            "the benchmark's included.",
            *(["**The machine was shared,** so all times are too long."] if before >= BUSY else []),
        ]
    )


def commit(path: Path, root: Path) -> None:
    """Takes the file of a run as the published one; UserError where it is not there."""
    benchmark_rows.save(*benchmark_rows.load(path), root / FILE)


def draw(root: Path, name: str, stem: Path) -> list[Path]:
    """One figure of the committed file."""
    return FIGURES[name][1](benchmark_rows.load(root / FILE)[0], stem)
