"""The numbers that the papers report, one row a value, shipped with the suite.

The attack table compares with FedCG (Wu et al., IJCAI 2022): Table 2 (privacy and accuracy) first, then Table 1 (accuracy of
data sets and methods that Table 2 leaves out). All are of the published schedule: compare the `paper` preset with them.
"""

from __future__ import annotations

import csv
from functools import cache
from importlib import resources
from typing import NamedTuple

SOURCE = "FedCG"
TABLES = ("2", "1")  # in order of preference


class Published(NamedTuple):
    """One published value with its standard deviation, where there is one."""

    value: float
    std: float | None
    source: str  # e.g. "FedCG Table 2"
    clients: int


@cache
def _rows() -> list[dict[str, str]]:
    with (resources.files("reports") / "published.csv").open() as file:
        return list(csv.DictReader(file))


def lookup(dataset: str, method: str, defense: str, metric: str, clients: int = 4) -> Published | None:
    """The value of one cell, or None; `metric` is "accuracy_percent" or "psnr_db".

    Where nothing was published for this number of clients, the value of another number comes back, and says so.
    """
    name = method if defense == "none" else f"{method}+{defense}"
    found = [
        Published(
            float(row["value"]), float(row["std"]) if row["std"] else None, f"{SOURCE} Table {table}", _clients(row)
        )
        for table in TABLES
        for row in _rows()
        if (row["source"], row["table"]) == (SOURCE, table)
        and (row["dataset"], row["method"], row["metric"]) == (dataset, name, metric)
    ]
    same = [value for value in found if value.clients == clients]
    return next(iter(same or found), None)


def _clients(row: dict[str, str]) -> int:
    """The setting reads "4 clients" or "iid,4 clients"."""
    return int(row["setting"].split(",")[-1].split(" ")[0])
