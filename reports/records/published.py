"""The numbers that the papers print, one row a value (published.csv), and the cells that they stand beside.

FedCG (Wu et al., IJCAI 2022, and its preprint arXiv 2111.08211), NFL-CGAN (Huang et al., Electronics 2024), FedMD-CG (Luo et al.).

A published value stands beside its own setting alone. That setting is a whole specification: the cell, in the preset `paper`, of
the study that claims the printed table (`tables` in reports/studies/*.toml). A cell has the value where every field of its
specification equals that cell's, but those of FREE. A number of training (accuracy, loss) is compared by the specification of
training; a PSNR by how the upload was taken and attacked as well. What the papers leave open there, the suite reads as READING.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from privbench import registry
from privbench.data.paper_setup import PROTOCOLS
from privbench.spec import CellSpec, TrainSpec
from reports.studies import definition, study_cells, study_files

# Fields that may have any value beside a published one, and why; all others must be equal.
FREE = {
    "seeds": "the papers name no seeds",
    "train.seed": "as seeds",
    "victims": "no paper says how many victims its PSNR is the mean of",
    "attack_settings": "no paper gives the optimiser, the steps, the start or the weight alpha of its attack",
    "auxiliary": "the papers' attackers have no auxiliary images",
    "auxiliary_content": "as auxiliary",
    "attack_revision": "of the suite's own attack",
    "active": "follows from the attack",
    "train.where": "no paper says whether noise acts on the uploaded update or on every local step",
    "train.min_per_client": "FedMD-CG does not say whether a client has a least number of images",
    "train.schedule.keep_every": "how many networks stay on disk; no number depends on it",
}
# How a published PSNR was taken: no paper says it of the round, the images per gradient or the labels.
READING = {
    "round": "best",
    "batch_size": 1,
    "labels_known": False,
    "observe": "gradient",
    "local_steps": None,
    "local_lr": None,
}
# The papers' own attack on methods that share a generator, Eq. 8; of every other method it is Eq. 7. SecureGAN's paper has none.
PLAIN = dict.fromkeys(("fedcg", "nfl-cgan", "fedmd-cg"), "feature-statistics") | {"secure-gan": ""}
PLAIN_OTHERWISE = "dlg"
PSNR = "psnr_db"
PRESET = "paper"
# The file's name of a quantity -> the suite's. FedMD-CG's L.acc is the mean accuracy of the local models.
METRICS = {
    "accuracy_percent": "accuracy",
    "local_accuracy_percent": "accuracy",
    "global_accuracy_percent": "global_accuracy",
    "precision_percent": "precision",
    "precision_lead_of_nfl-cgan_percent": "precision_lead",
    "auc": "auc",
    "psnr_db": PSNR,
    "relative_test_accuracy": "rta",
    "relative_test_accuracy_min": "rta_min",
    "relative_test_accuracy_mean": "rta_mean",
    "relative_test_accuracy_max": "rta_max",
    "training_loss": "loss",
}
# What passes from G to the local models in FedMD-CG's two rows with the plain average: privbench/methods/fedmd_cg.py.
LEVELS: dict[str, dict[str, str]] = {"": {}, "feature": {"without": "kl_global"}, "feature_logit": {}}
ORDER_ALONE = "names not given"  # of a figure whose bars are named by their order


class Published(NamedTuple):
    """One published value with its standard deviation, where there is one."""

    value: float
    std: float | None
    source: str  # e.g. "FedCG Table 2"
    note: str  # how the paper measures it otherwise than the suite; empty where it does not


class PublishedRow(NamedTuple):
    """One row of the file, read."""

    source: str
    table: str
    dataset: str
    method: str
    defense: str
    settings: Mapping[str, Any]  # of the method, as far as the row names them
    train_fields: Mapping[str, Any]  # fields of a training specification that the row names
    metric: str  # METRICS, and of one client or round "rta_client_2", "loss_round_5", "loss_last"
    value: float
    std: float | None
    by_order: bool

    @property
    def claim(self) -> str:
        """How a study names the table, e.g. "FedMD-CG 4" or "NFL-CGAN fig7"."""
        return f"{self.source} {self.table}"


@cache
def rows() -> tuple[PublishedRow, ...]:
    """The whole file, in its order."""
    with (resources.files("reports") / "published.csv").open() as file:
        return tuple(_read(row) for row in csv.DictReader(file))


def _read(row: Mapping[str, str]) -> PublishedRow:
    train_fields, part = _train_fields(re.sub(r" \(.*\)", "", row["setting"]))
    method, defense, settings = _method(row["method"])
    return PublishedRow(
        row["source"],
        row["table"],
        row["dataset"],
        method,
        defense,
        settings,
        train_fields,
        METRICS[row["metric"]] + part,
        float(row["value"]),
        float(row["std"]) if row["std"] else None,
        ORDER_ALONE in row["setting"],
    )


def _train_fields(setting: str) -> tuple[dict[str, Any], str]:
    """(fields of a training specification, which client or round), e.g. of "lenet5,4 clients,client B"; ValueError if unknown."""
    train_fields: dict[str, Any] = {}
    part = ""
    for word in setting.split(","):
        if word in ("iid", "domains"):
            train_fields["partition"] = {"iid": "iid", "domains": "domain"}[word]
        elif matched := re.fullmatch(r"(\d+) clients", word):
            train_fields["clients"] = int(matched[1])
        elif matched := re.fullmatch(r"dirichlet ([\d.]+)", word):
            train_fields |= {"partition": "dirichlet", "omega": float(matched[1])}
        elif word in ("lenet5", "resnet18"):
            train_fields["backbone"] = word
        elif matched := re.fullmatch(r"client ([A-D])", word):
            part = f"_client_{ord(matched[1]) - ord('A') + 1}"
        elif word in ("after the fifth round", "final"):
            part = {"after the fifth round": "_round_5", "final": "_last"}[word]
        else:
            raise ValueError(f"published.csv has a setting that nothing reads: {word}")
    return train_fields, part


def _method(name: str) -> tuple[str, str, dict[str, Any]]:
    """(method, defence, settings) of a method as the file names it, e.g. "fedavg+gaussian:0.1" or "fedmd-cg:without=a,b"."""
    base, plus, variant = name.partition("+")
    if plus and variant.startswith("gaussian:"):
        return base, variant, {}
    if plus:
        aggregator, _, level = variant.partition(":")
        return base, "none", {"aggregator": aggregator} | LEVELS[level]
    base, _, variant = name.partition(":")
    key, _, value = variant.partition("=")
    if not key:
        return base, "none", {}
    return base, "none", {key: value if key == "without" else int(value)}


def printed(source: str, table: str, dataset: str, method: str, defense: str, metric: str) -> float | None:
    """A table's value of a data set, a method with its defaults and a defence, whatever a cell's own setting; or None.

    For the search for the setting that a source does not print (reports/tables/nearest.py): no table may put it beside a cell.
    """
    key: tuple[object, ...] = (source, table, dataset, method, defense, {}, metric)
    return next(
        (
            row.value
            for row in rows()
            if (row.source, row.table, row.dataset, row.method, row.defense, row.settings, row.metric) == key
        ),
        None,
    )


def papers_attack_on(method: str) -> str:
    """The attack by which the papers measured a method."""
    return PLAIN.get(method, PLAIN_OTHERWISE)


def of(cell: CellSpec, metric: str, first: Sequence[str] = ()) -> Published | None:
    """The published value of exactly this cell, or None.

    `metric` is one of PublishedRow.metric. Of several tables that print it, those in `first` ("FedMD-CG 9") go before others,
    which come in the order of the file.
    """
    # The index takes a second to make; no other preset has anything in it.
    claims = (
        {}
        if cell is None or cell.preset != PRESET
        else _printed().get((metric, _key(cell, attacked=metric == PSNR)), {})
    )
    claim = next((claim for claim in (*first, *claims) if claim in claims), None)
    return None if claim is None else claims[claim]


def of_papers_attack(cell: CellSpec) -> Published | None:
    """The published PSNR of a cell's upload, whatever attacks it: of the same cell attacked as in the papers."""
    if cell.attack is None:
        return None
    return of(cell.model_copy(update={"attack": papers_attack_on(cell.train.method)}), PSNR)


def _key(cell: CellSpec, *, attacked: bool) -> str:
    """What two cells have in common that one published value stands beside: all fields but FREE."""
    train = cell.train.model_dump(mode="json")
    whole: dict[str, Any] = {"preset": cell.preset, "train": train}
    if attacked:
        whole = {name: value for name, value in cell.model_dump(mode="json").items() if name != "train"} | whole
        whole |= {name: getattr(cell, name) for name in READING}
    train["method"] = registry.target("method", cell.train.method)
    train["method_settings"] = effective(cell.train)
    for path in FREE:
        place, names = whole, path.split(".")
        for name in names[:-1]:
            place = place[name]
        place.pop(names[-1], None)
    return json.dumps(whole, sort_keys=True)


def effective(train: TrainSpec) -> dict[str, Any]:
    """All settings of a method with the values they have; terms that are left out stand in their order."""
    plugin = registry.resolve("method", train.method)
    settings = {field.name: field.default for field in fields(plugin)} | train.method_settings
    # A setting of the networks may have a default that depends on the backbone.
    networks = registry.create(plugin, train.method_settings).networks(train.backbone)
    settings |= {name: value for name, value in networks.items() if name in settings}
    return {name: _plain(name, value) for name, value in settings.items()}


def _plain(name: str, value: Any) -> Any:
    return sorted(term.strip() for term in value.split(",")) if name == "without" and value else value


@cache
def _printed() -> dict[tuple[str, str], dict[str, Published]]:
    """(metric, key of a cell) -> the values that are printed of it, by claim, in the order of the file."""
    claims: dict[str, list[tuple[definition.Study, list[CellSpec]]]] = {}
    for study in map(definition.read, study_files.names()):
        cells = study_cells.of(study, PRESET) if study.tables else []
        for claim in study.tables:
            claims.setdefault(claim, []).append((study, cells))
    printed: dict[tuple[str, str], dict[str, Published]] = {}
    for row in rows():
        for study, cells in claims.get(row.claim, []):
            notes = [
                m.how
                for m in study.measured
                if row.metric.startswith(m.metrics) and (not m.methods or row.method in m.methods)
            ]
            note = "; ".join([*notes, *filter(None, [PROTOCOLS[study.protocol].differs])])
            value = Published(row.value, row.std, _origin(row), note)
            for cell in cells_of(row, study, cells):
                printed.setdefault((row.metric, _key(cell, attacked=row.metric == PSNR)), {})[row.claim] = value
    return printed


def cells_of(row: PublishedRow, study: definition.Study, cells: Sequence[CellSpec]) -> list[CellSpec]:
    """The cells of a study that a row is printed of: one, or one per value that the paper searched.

    Settings that the row does not name have their default where the study varies them.
    """
    alike = [cell for cell in cells if _fits(row, cell)]
    every = [effective(cell.train) for cell in alike]
    searched = {name for column in study.column for name in column.search}
    varied = {name for one in every for name in one if one[name] != every[0][name]} - searched
    chosen = []
    for cell, one in zip(alike, every, strict=True):
        usual = {field.name: field.default for field in fields(registry.resolve("method", cell.train.method))}
        expected = {name: usual[name] for name in varied} | dict(row.settings)
        if all(one.get(name) == _plain(name, value) for name, value in expected.items()):
            chosen.append(cell)
    return chosen


def _fits(row: PublishedRow, cell: CellSpec) -> bool:
    """Whether data set, layout, method and defence are those of the row; of a PSNR, how it was taken as well."""
    train = cell.train
    if (train.dataset, train.defense) != (row.dataset, row.defense):
        return False
    if registry.target("method", train.method) != registry.target("method", row.method):
        return False
    if any(getattr(train, name) != value for name, value in row.train_fields.items()):
        return False
    if row.metric != PSNR:
        return True
    agrees = all(getattr(cell, name) == value for name, value in READING.items())
    return agrees and cell.attack == papers_attack_on(train.method)


def _origin(row: PublishedRow) -> str:
    """Where a row stands, e.g. "FedCG Table 1" or "NFL-CGAN Figure 5"."""
    return f"{row.source} {place(row.table)}" + (" (methods read from their order)" if row.by_order else "")


def place(table: str) -> str:
    """A table or figure in words, e.g. "Table 4" or "Figure 7"."""
    return f"Figure {table.removeprefix('fig')}" if table.startswith("fig") else f"Table {table}"
