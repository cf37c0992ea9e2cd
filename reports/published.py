"""The numbers that the papers report, one row a value, shipped with the suite."""

from __future__ import annotations

import csv
from functools import cache
from importlib import resources
from typing import NamedTuple


class Published(NamedTuple):
    """One published value with its standard deviation, where there is one."""

    value: float
    std: float | None
    source: str  # e.g. "FedCG Table 2"


@cache
def _rows() -> list[dict[str, str]]:
    with (resources.files("reports") / "published.csv").open() as file:
        return list(csv.DictReader(file))


def lookup(
    dataset: str, method: str, defense: str, metric: str, source: str = "FedCG", table: str = "2"
) -> Published | None:
    """The value of one cell, or None; `metric` is accuracy_percent or psnr_db."""
    name = method if defense == "none" else f"{method}+{defense}"
    for row in _rows():
        if (row["source"], row["table"], row["dataset"], row["method"], row["metric"]) == (
            source,
            table,
            dataset,
            name,
            metric,
        ):
            std = float(row["std"]) if row["std"] else None
            return Published(float(row["value"]), std, f"{source} Table {table}")
    return None
