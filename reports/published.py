"""The numbers that the papers report, one row a value, shipped with the suite.

FedCG (Wu et al., IJCAI 2022): Table 2 (privacy and accuracy) first, then Table 1 (accuracy of data sets and methods that Table 2
leaves out). NFL-CGAN: Tables 4 and 5, Figures 2, 5, 6 and 9. FedMD-CG: Tables 2 and 6 to 11. All are of the published
schedule: compare the `paper` preset with them.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from privbench import partition, plugins
from privbench.spec import CellSpec

FEDMD_CG_CLIENTS = {"emnist": 20, "fmnist": 10, "cifar10": 10}
NFL_CGAN_CLIENTS = 4


class Layout(NamedTuple):
    """What the cells of one paper have in common, besides what its tables name."""

    per_client: Mapping[str, int]  # training images, of each data set that the suite lays out as the paper does
    schedule: Mapping[str, Any]  # fields of privbench.spec.Schedule
    rounds: Mapping[str, int]  # where they are not 100


_FEDCG_DATA = ("fmnist", "cifar10", "digit5", "office10", "domainnet")
# Digit5 and Office-Caltech10 are missing from NFL-CGAN's: it takes 60/20/20 of each domain, which the suite has no layout for.
LAYOUTS = {
    "FedCG": Layout(
        {name: partition.DEFAULTS[name][2] for name in _FEDCG_DATA},
        {"client_steps": None, "local_epochs": 20, "server_steps": 2000, "batch": 16},
        {},
    ),
    "NFL-CGAN": Layout(
        {"fmnist": 12_000, "cifar10": 10_000}, {"client_steps": None, "local_epochs": 10, "batch": 8}, {}
    ),
    "FedMD-CG": Layout(
        {"emnist": 12_000, "fmnist": 6000, "cifar10": 5000},
        {"client_steps": 20, "server_steps": 50, "batch": 64},
        {"cifar10": 250},
    ),
}
ROUNDS = 100
# Names of one quantity in the file: FedMD-CG's L.acc is the mean accuracy of the local models.
METRICS = {
    "accuracy": ("accuracy_percent", "local_accuracy_percent"),
    "global_accuracy": ("global_accuracy_percent",),
    "precision": ("precision_percent",),
    "auc": ("auc",),
    "psnr_db": ("psnr_db",),
}
UNCOMPARED = ("mu", "ramp_rounds")  # settings that the papers searched, or that belong to a preset


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


def of(cell: CellSpec, metric: str, first: Sequence[str] = ("2",)) -> Published | None:
    """The published value of exactly this cell: data set, layout, clients, backbone, method and its settings; or None.

    `metric` is a key of METRICS; of several tables that hold a value, those in `first` go before. In the paper preset the images
    per client and the schedule must be the source's, too; the other presets are shorter on purpose, and their reports say so.
    """
    names = METRICS.get(metric, ())
    backbone, clients = cell.train.backbone, cell.train.clients
    if cell.train.domains or (backbone == "resnet18" and cell.train.image_size != 32):
        return None
    settings = {k: v for k, v in cell.train.method_settings.items() if k not in UNCOMPARED}
    wanted: dict[str, tuple[list[str], str]] = {}  # of each source: names of the method, part of the setting
    if cell.train.partition == "dirichlet":
        if backbone != "lenet5" or clients != FEDMD_CG_CLIENTS.get(cell.train.dataset) or cell.train.defense != "none":
            return None
        wanted = {"FedMD-CG": (_fedmd_cg_names(cell.train.method, settings), f"dirichlet {cell.train.omega:.1f}")}
    else:
        usual = partition.DEFAULTS.get(cell.train.dataset, (None,))[0]
        if settings or cell.train.partition != usual:
            return None
        named = [cell.train.method if cell.train.defense == "none" else f"{cell.train.method}+{cell.train.defense}"]
        wanted = {"FedCG": (named, f"{clients} clients")} if backbone == "lenet5" else {}
        wanted |= {"NFL-CGAN": (named, f"{backbone},{NFL_CGAN_CLIENTS} clients")} if clients == NFL_CGAN_CLIENTS else {}
    wanted = {source: found for source, found in wanted.items() if _laid_out(cell, source)}
    for row in sorted(_rows(), key=lambda row: (row["source"], row["table"] not in first)):
        called, setting = wanted.get(row["source"], ((), ""))
        same = row["dataset"] == cell.train.dataset and row["method"] in called and row["metric"] in names
        if same and setting in row["setting"]:
            return Published(float(row["value"]), float(row["std"]) if row["std"] else None, _origin(row), clients or 0)
    return None


def printed(source: str, table: str, dataset: str, method: str, metric: str) -> float | None:
    """A table's value of a data set and a method, as the file names both, whatever a cell's own setting; or None.

    For the search for the setting that a source does not print (reports/nearest.py): no table may put it beside a cell.
    """
    wanted = (source, table, dataset, method, metric)
    names = ("source", "table", "dataset", "method", "metric")
    return next((float(row["value"]) for row in _rows() if tuple(row[n] for n in names) == wanted), None)


def _laid_out(cell: CellSpec, source: str) -> bool:
    """Whether the suite lays the data set out as this source does and, in the paper preset, the cell trains as there."""
    layout, dataset = LAYOUTS[source], cell.train.dataset
    if dataset not in layout.per_client or cell.preset != "paper":
        return dataset in layout.per_client
    trained = cell.train.schedule.model_dump()
    wanted = {"rounds": layout.rounds.get(dataset, ROUNDS), **layout.schedule}
    same = all(name in trained and trained[name] == value for name, value in wanted.items())
    return same and cell.train.per_client == layout.per_client[dataset]


def _fedmd_cg_names(method: str, settings: Mapping[str, Any]) -> list[str]:
    """What that paper's tables call a method with settings: Tables 9 to 11 name the default aggregator, the others do not.

    FedCG has its fully connected GAN there.
    """
    rest = dict(settings)
    if method == "fedcg" and rest.pop("gan", None) != "dense":
        return []
    defaults = {field.name: field.default for field in fields(plugins.resolve("method", method))}
    usual = defaults.get("aggregator")
    aggregator = rest.pop("aggregator", usual)
    if rest:
        return []
    name = {"fedsplit": "lg-fedavg"}.get(method, method)
    return [name] * (aggregator == usual) + ([f"{name}+{aggregator}"] if aggregator else [])


def _origin(row: Mapping[str, str]) -> str:
    """Where a row stands, e.g. "FedCG Table 1" or "NFL-CGAN Figure 5"."""
    table = row["table"]
    place = f"Figure {table.removeprefix('fig')}" if table.startswith("fig") else f"Table {table}"
    return f"{row['source']} {place}" + (
        " (methods read from their order)" if "names not given" in row["setting"] else ""
    )
