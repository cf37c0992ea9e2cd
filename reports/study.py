"""A study is a list of cells: read from `reports/studies/<name>.toml`, one file per published table.

A study names columns (method and defence) and for each the attacks; presets say how often and how long (privbench.spec).
"""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Any

from privbench import spec
from privbench.errors import UserError


def read(name: str) -> dict[str, Any]:
    """The study's content; an unknown name raises UserError."""
    folder = resources.files("reports") / "studies"
    path = folder / f"{name}.toml"
    if not path.is_file():
        known = sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))
        raise UserError(f"unknown study '{name}'; known: {', '.join(known)}")
    return tomllib.loads(path.read_text())


def cells(
    name: str,
    preset: str,
    dataset: str,
    *,
    seeds: int | None = None,
    victims: int | None = None,
    where: str = "update",
    domains: tuple[str, ...] | None = None,
    how: str | None = None,
    omega: float | None = None,
    min_per_client: int | None = None,
) -> list[spec.CellSpec]:
    """Every cell of a study on one data set: columns x rounds x the column's attacks."""
    study = read(name)
    found = []
    for column in study["column"]:
        train = spec.train_spec(
            preset, dataset, column["method"], defense=column.get("defense", "none"), where=where, domains=domains,
            how=how, omega=omega, min_per_client=min_per_client,
        )  # fmt: skip
        found += [
            spec.cell_spec(preset, train, attack, round_=round_, seeds=seeds, victims=victims)
            for round_ in study["rounds"]
            for attack in column["attacks"]
        ]
    return found
