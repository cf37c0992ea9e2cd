"""Every generated block by its name; each takes the repository's root and gives Markdown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from reports.documents import catalogue, findings, published
from reports.documents.pages import Blocks
from reports.tables import accuracy_table, attack_table, report_files
from reports.tables.report import Report

PHOTOS, CIFAR10 = "quick-photos", "published-cifar10"
# Names of blocks -> columns of the attack table.
COLUMNS = {
    "fedavg": "FedAvg",
    "noise-0.001": "FedAvg + Gaussian 0.001",
    "noise-0.1": "FedAvg + Gaussian 0.1",
    "fedsplit": "FedSplit",
    "fedcg": "FedCG",
}
TABLES = ["FedCG 1"]


def _body(report: Report) -> str:
    """A report without its title, which the page has."""
    return report_files.markdown(report).partition("\n")[2]


def _attack_table(root: Path) -> str:
    return _body(attack_table.report(published.attacked(root, PHOTOS)))


def _columns(root: Path) -> str:
    return findings.five_columns(published.attacked(root, PHOTOS))


def _gain(column: str) -> Callable[[Path], str]:
    return lambda root: findings.gain(published.attacked(root, PHOTOS), column)


def _cost(column: str) -> Callable[[Path], str]:
    return lambda root: findings.accuracy_cost(published.attacked(root, PHOTOS), column, COLUMNS["fedavg"])


def _photos_models(root: Path) -> str:
    return findings.models(published.attacked(root, PHOTOS))


def _accuracy_table(root: Path) -> str:
    records = published.read(published.path_of(root, CIFAR10))
    whole = accuracy_table.report(records, [], ["accuracy"], TABLES)
    # The last table has what the first has, and the published values beside it.
    return _body(whole._replace(tables=whole.tables[-1:]))


def _cifar10_models(root: Path) -> str:
    return findings.models(published.read(published.path_of(root, CIFAR10)))


BLOCKS: Blocks = {
    "attacks": catalogue.attacks,
    "datasets": catalogue.datasets,
    "defenses": catalogue.defenses,
    "make-targets": catalogue.make_targets,
    "methods": catalogue.methods,
    "studies": catalogue.studies,
    PHOTOS: _attack_table,
    f"{PHOTOS}-columns": _columns,
    f"{PHOTOS}-models": _photos_models,
    **{f"{PHOTOS}-gain-{name}": _gain(column) for name, column in COLUMNS.items()},
    **{f"{PHOTOS}-accuracy-{name}": _cost(column) for name, column in COLUMNS.items() if name != "fedavg"},
    CIFAR10: _accuracy_table,
    f"{CIFAR10}-models": _cifar10_models,
}
