"""The numbers that the papers report, one row a value, shipped with the suite.

FedCG (Wu et al., IJCAI 2022): Table 2 (privacy and accuracy) first, then Table 1 (accuracy of data sets and methods that Table 2
leaves out). NFL-CGAN: Tables 4 and 5, Figures 2, 5, 6 and 9. FedMD-CG: Tables 2 and 6 to 11. All are of the published
schedule: compare the `paper` preset with them.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from privbench import partition

SOURCE = "FedCG"
TABLES = ("2", "1")  # in order of preference
FEDMD_CG_CLIENTS = {"emnist": 20, "fmnist": 10, "cifar10": 10}
NFL_CGAN_CLIENTS = 4
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


def of(spec: Mapping[str, Any], metric: str, last: str = "1") -> Published | None:
    """The published value of exactly this cell: data set, layout, clients, backbone, method and its settings; or None.

    `metric` is a key of METRICS; table `last` is asked last, where two hold a value. Rounds, images and seeds are the preset's
    affair.
    """
    names = METRICS.get(metric, ())
    backbone, clients = spec.get("backbone", "lenet5"), spec.get("clients")
    if spec.get("domains") or (backbone == "resnet18" and spec.get("image_size", 32) != 32):
        return None
    settings = {k: v for k, v in (spec.get("method_settings") or {}).items() if k not in UNCOMPARED}
    if spec.get("partition") == "dirichlet":
        named = _fedmd_cg_name(spec["method"], settings)
        if backbone != "lenet5" or clients != FEDMD_CG_CLIENTS.get(spec["dataset"]) or spec["defense"] != "none":
            return None
        wanted = {"FedMD-CG": (named, f"dirichlet {spec['omega']:.1f}")}
    else:
        usual = partition.DEFAULTS.get(spec["dataset"], (None,))[0]
        if settings or spec.get("partition", usual) != usual:
            return None
        named = spec["method"] if spec["defense"] == "none" else f"{spec['method']}+{spec['defense']}"
        wanted = {"FedCG": (named, f"{clients} clients")} if backbone == "lenet5" else {}
        wanted |= {"NFL-CGAN": (named, f"{backbone},{NFL_CGAN_CLIENTS} clients")} if clients == NFL_CGAN_CLIENTS else {}
    for row in sorted(_rows(), key=lambda row: (row["source"], row["table"] == last)):
        name, setting = wanted.get(row["source"], (None, ""))
        same = (row["dataset"], row["method"]) == (spec["dataset"], name) and row["metric"] in names
        if same and setting in row["setting"]:
            return Published(float(row["value"]), float(row["std"]) if row["std"] else None, _origin(row), clients or 0)
    return None


def _fedmd_cg_name(method: str, settings: Mapping[str, Any]) -> str | None:
    """A method with settings as that paper's tables call it; FedCG has its fully connected GAN there."""
    rest = dict(settings)
    if method == "fedcg" and rest.pop("gan", None) != "dense":
        return None
    aggregator = rest.pop("aggregator", None)
    if rest:
        return None
    name = {"fedsplit": "lg-fedavg"}.get(method, method)
    return name if aggregator is None else f"{name}+{aggregator}"


def _origin(row: Mapping[str, str]) -> str:
    """Where a row stands, e.g. "FedCG Table 1" or "NFL-CGAN Figure 5"."""
    table = row["table"]
    place = f"Figure {table.removeprefix('fig')}" if table.startswith("fig") else f"Table {table}"
    return f"{row['source']} {place}" + (
        " (methods read from their order)" if "names not given" in row["setting"] else ""
    )
