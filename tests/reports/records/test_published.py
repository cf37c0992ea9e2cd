"""A published value stands beside its own setting, and beside no other."""

import csv
import re
from collections import Counter
from contextlib import suppress
from importlib import resources
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import TypeAdapter, ValidationError

from privbench import registry
from privbench.data.paper_setup import PROTOCOLS
from privbench.spec import Adam, CellSpec, Strict, TrainSpec
from reports.records import published
from reports.studies import definition, study_cells, study_files
from tests.builders.paper_cells import paper_cell, paper_cells

CLAIMS = {claim: study for study in map(definition.read, study_files.names()) for claim in study.tables}


def file():
    with (resources.files("reports") / "published.csv").open() as opened:
        return list(csv.DictReader(opened))


def test_every_row_of_the_file_is_read_with_its_value():
    raw, read = file(), published.rows()
    assert len(raw) == len(read) == 795
    assert [(r["source"], r["table"], float(r["value"])) for r in raw] == [(r.source, r.table, r.value) for r in read]
    assert {r.method for r in read} <= set(registry.METHODS)
    assert {r.dataset for r in read} <= set(registry.DATASETS)
    with pytest.raises(ValueError, match="a setting that nothing reads: client E"):
        published._train_fields("lenet5,4 clients,client E")


def test_every_printed_table_and_figure_with_values_is_claimed_by_one_study():
    printed = {row.claim for row in published.rows()}
    assert len(printed) == 31
    assert printed <= set(CLAIMS)
    every = [claim for study in map(definition.read, study_files.names()) for claim in study.tables]
    assert len(every) == len(set(every))


def test_a_study_that_claims_pictures_claims_known_sources_and_well_formed_places():
    for claim in CLAIMS:
        source, place = claim.rsplit(" ", 1)
        assert source in {"FedCG", "FedCG-arXiv", "NFL-CGAN", "FedMD-CG"}, claim
        assert re.fullmatch(r"(fig)?\d+", place), claim


@pytest.mark.parametrize("claim", sorted({row.claim for row in published.rows()}))
def test_every_value_stands_beside_the_cells_it_is_printed_of_and_no_other_of_its_study(claim):
    study = CLAIMS[claim]
    cells = paper_cells(study.name)
    expected = Counter()
    source, table = claim.rsplit(" ", 1)
    named = f"{source} {published.place(table)}"
    for row in (row for row in published.rows() if row.claim == claim):
        of = published.cells_of(row, study, cells)
        searched = 4 if row.method == "fedprox" else 3 if row.source == "FedMD-CG" else 1
        assert len({c.train.id for c in of}) == searched, row
        assert all(published.of(c, row.metric, (claim,)).value == row.value for c in of)
        expected |= Counter({(c.id, row.metric, row.value): 1 for c in of})
    metrics = sorted({row.metric for row in published.rows()})
    values = Counter(
        (c.id, metric, value.value)
        for c in cells
        for metric in metrics
        if (value := published.of(c, metric, (claim,))) is not None and value.source.partition(" (")[0] == named
    )
    assert values == expected


@pytest.mark.parametrize(
    ("name", "wanted", "metric", "value"),
    [
        ("fedcg-table1", {"dataset": "fmnist", "method": "fedavg"}, "accuracy", (82.97, 0.67, "FedCG Table 1")),
        ("fedcg-table1", {"dataset": "cifar10", "method": "fedcg", "clients": 8}, "accuracy", (49.15, 0.48, "FedCG Table 1")),
        ("attack-table", {"dataset": "cifar10", "defense": "gaussian:0.1"}, "psnr_db", (6.81, 0.11, "FedCG Table 2")),
        ("attack-table", {"dataset": "cifar10", "defense": "gaussian:0.1"}, "accuracy", (35.43, 0.62, "FedCG Table 2")),
        ("fedmd-cg-table1", {"dataset": "fmnist", "omega": 0.1, "method": "fedsplit"}, "accuracy",
         (38.89, 3.18, "FedMD-CG Table 7")),
        ("fedmd-cg-table1", {"dataset": "fmnist", "omega": 10.0, "method": "fedmd-cg"}, "accuracy",
         (84.32, 0.28, "FedMD-CG Table 7")),
        ("fedmd-cg-table3", {"dataset": "fmnist", "omega": 10.0, "method": "fedmd-cg", "method_settings": {}}, "accuracy",
         (84.32, 0.18, "FedMD-CG Table 10")),
        ("fedmd-cg-table3", {"dataset": "emnist", "omega": 0.1, "method_settings": {"aggregator": "ave", "without": "kl_global"}},
         "global_accuracy", (86.88, 1.53, "FedMD-CG Table 9")),
        ("fedmd-cg-table4", {"dataset": "cifar10", "method_settings": {"without": "cls_global,mse_global,kl_global"}},
         "accuracy", (50.27, 0.41, "FedMD-CG Table 4")),
        ("nfl-cgan-resnet18", {"dataset": "cifar10", "method": "nfl-cgan"}, "rta_mean", (1.04, None, "NFL-CGAN Figure 3")),
        ("nfl-cgan-lenet5", {"dataset": "fmnist", "method": "feddf"}, "precision_lead", (6.4, None, "NFL-CGAN Figure 6")),
        ("nfl-cgan-lenet5", {"dataset": "cifar10", "method": "nfl-cgan"}, "loss_last", (0.31, None, "NFL-CGAN Figure 8")),
    ],
)  # fmt: skip
def test_values_by_hand(name, wanted, metric, value):
    published_value = published.of(paper_cell(name, **wanted), metric, definition.read(name).tables)
    assert published_value[:3] == value


def changes(value, kind=Any):
    """Other values of a field that its type allows."""
    usual = [True, False, 3, 0.75, "other", ("other",), (7,), {"other": 1}]
    literal = [option for part in (kind, *get_args(kind)) if get_origin(part) is Literal for option in get_args(part)]
    if value is not None:
        usual = [other for other in usual if type(other) is type(value)]
    changed_values = []
    for other in [*literal, *usual]:
        if other != value:
            with suppress(ValidationError):
                changed_values.append(TypeAdapter(kind, config={"strict": True}).validate_python(other))
    assert changed_values, f"no other value of {value!r} is known"
    return changed_values


def mutations(spec, path=""):
    """(path of a field, the specification with another value there), over all fields of all its parts."""
    for name in type(spec).model_fields:
        value = getattr(spec, name)
        if isinstance(value, Strict):
            for where, other in mutations(value, f"{path}{name}."):
                yield where, spec.model_copy(update={name: other})
        else:
            for other in changes(value, type(spec).model_fields[name].annotation):
                yield path + name, spec.model_copy(update={name: other})


ATTACKED = [
    ("fedavg", "none", 24.14, 47.23),
    ("fedavg", "gaussian:0.1", 6.81, 35.43),
    ("fedsplit", "none", 6.23, 44.67),
    ("fedcg", "none", 8.99, 47.52),
]


@pytest.mark.parametrize(("method", "defense", "psnr", "accuracy"), ATTACKED)
def test_a_change_of_any_field_takes_the_value_away_but_of_those_that_the_papers_leave_open(
    method, defense, psnr, accuracy
):
    attack = published.papers_attack_on(method)
    cell = paper_cell("attack-table", dataset="cifar10", method=method, defense=defense, attack=attack, round="best")
    assert (published.of(cell, "psnr_db").value, published.of(cell, "accuracy").value) == (psnr, accuracy)
    of_attack = set(CellSpec.model_fields) - {"preset", "train"}
    changed = set()
    for path, other in mutations(cell):
        if path == "train.method":
            other = cell.model_copy(update={"train": cell.train.model_copy(update={"method": "fedper"})})
        elif path == "train.method_settings":
            continue
        stands = published.of(other, "psnr_db") is not None
        assert stands == (path in published.FREE), path
        assert (published.of(other, "accuracy") is not None) == (stands or path in of_attack), path
        changed.add(path)
    # Every field was changed, the new ones of tomorrow included.
    names = {f"train.{name}" for name in TrainSpec.model_fields} | set(CellSpec.model_fields) - {"train"}
    assert {".".join(path.split(".")[:2]) for path in changed} == names - {"train.method_settings"}
    assert set(published.FREE) <= changed
    assert set(published.FREE) == {
        "seeds", "victims", "attack_settings", "auxiliary", "auxiliary_content", "attack_revision", "active",
        "train.seed", "train.where", "train.min_per_client", "train.schedule.keep_every",
    }  # fmt: skip


def test_a_change_of_any_setting_of_a_method_takes_the_value_away():
    cell = paper_cell("attack-table", dataset="cifar10", method="fedcg", attack="feature-statistics", round="best")
    every = published.effective(cell.train)
    assert every == {"diversity": 0.2, "ramp_rounds": 50, "aggregator": "kd", "gan": "conv", "dropout": 0.0}
    for name, value in every.items():
        for other in ["dense"] if name == "gan" else ["kdc"] if name == "aggregator" else changes(value):
            train = cell.train.model_copy(update={"method_settings": {name: other}})
            assert published.of(cell.model_copy(update={"train": train}), "accuracy") is None, (name, other)
        # Naming a default is no change.
        train = cell.train.model_copy(update={"method_settings": {name: value}})
        assert published.of(cell.model_copy(update={"train": train}), "accuracy").value == 47.52


def test_a_searched_setting_has_the_values_that_the_paper_searched():
    cell = paper_cell("fedcg-table1", dataset="fmnist", method="fedprox")
    for mu, stands in ((0.001, True), (0.01, True), (0.1, True), (1.0, True), (0.5, False)):
        train = cell.train.model_copy(update={"method_settings": {"mu": mu}})
        assert (published.of(cell.model_copy(update={"train": train}), "accuracy") is not None) == stands, mu


def test_the_cell_that_once_had_another_cells_values_has_none():
    cell = paper_cell("attack-table", dataset="cifar10", defense="gaussian:0.1", attack="dlg", round="best")
    schedule = cell.train.schedule.model_copy(update={"task": Adam(lr=1.0), "patience": 1})
    train = cell.train.model_copy(update={"schedule": schedule, "where": "step"})
    other = cell.model_copy(update={"train": train, "round": "0", "batch_size": 16, "labels_known": True})
    assert published.of(other, "psnr_db") is None
    assert published.of(other, "accuracy") is None
    for round_, batch, known in (("0", 1, False), ("best", 16, False), ("best", 1, True)):
        changed = cell.model_copy(update={"round": round_, "batch_size": batch, "labels_known": known})
        assert published.of(changed, "psnr_db") is None
        assert published.of(changed, "accuracy").value == 35.43


def test_a_psnr_stands_beside_the_papers_attack_alone_and_is_found_for_every_other():
    staged = paper_cell("attack-table", dataset="cifar10", method="fedcg", attack="staged", round="best")
    assert published.of(staged, "psnr_db") is None
    assert published.of_papers_attack(staged).value == 8.99
    assert published.of_papers_attack(staged.model_copy(update={"round": "0"})) is None


@pytest.mark.parametrize("preset", ["smoke", "quick"])
def test_nothing_published_stands_beside_a_shorter_preset(preset):
    names = [name for name in study_files.names() if definition.read(name).tables]
    cells = [cell for name in names for cell in study_cells.of(definition.read(name), preset)]
    metrics = {row.metric for row in published.rows()}
    assert len(cells) > 300
    assert not any(published.of(cell, metric) for cell in cells for metric in metrics)


def test_the_studies_of_all_methods_have_values_of_fedcg_alone():
    for name in ("accuracy", "attack-all", "ladder"):
        values = [
            value
            for cell in paper_cells(name)
            if cell.attack in (None, "dlg", "feature-statistics")
            for metric in ("accuracy", "psnr_db", "precision", "auc")
            if (value := published.of(cell, metric)) is not None
        ]
        assert {value.source.split(" ")[0] for value in values} == {"FedCG"}, name
        assert len(values) > 4, name


# What the papers print of training: equations.md names the tables that it is of.
PRINTED = {
    "FedCG": {"rounds": 100, "local_epochs": 20, "batch": 16, "server_steps": 2000, "client_steps": None},
    "FedCG-arXiv": {"rounds": 100, "local_epochs": 20, "batch": 16, "server_steps": 2000, "client_steps": None},
    "NFL-CGAN": {"rounds": 100, "local_epochs": 10, "batch": 8, "client_steps": None},
    "FedMD-CG": {"client_steps": 20, "server_steps": 50, "batch": 64},
}


@pytest.mark.parametrize("claim", sorted({row.claim for row in published.rows()}))
def test_the_cells_of_a_claim_train_as_the_paper_prints(claim):
    source = claim.rsplit(" ", 1)[0]
    for row in (row for row in published.rows() if row.claim == claim):
        for cell in published.cells_of(row, CLAIMS[claim], paper_cells(CLAIMS[claim].name)):
            schedule = cell.train.schedule
            assert {name: getattr(schedule, name) for name in PRINTED[source]} == PRINTED[source], cell.train
            if source == "FedMD-CG":
                assert schedule.rounds == (250 if row.dataset == "cifar10" else 100)
                assert cell.train.clients == (20 if row.dataset == "emnist" else 10)
                assert schedule.task.kind == "sgd"
                assert schedule.task.lr in (0.01, 0.05, 0.08)
            else:
                assert (schedule.task.lr, schedule.task.weight_decay) == (3e-4, 1e-4)
            if source == "FedMD-CG" and row.method in ("fedcg", "fedgen"):
                assert published.effective(cell.train)["gan"] == "dense"


def test_what_is_printed_twice_is_printed_alike_but_for_the_known_contradictions():
    by_cell = {}
    for row in published.rows():
        without = tuple(sorted(str(row.settings.get("without", "")).split(",")))
        usual = {("aggregator", "kd" if row.method == "fedcg" else "kdc"), ("diversity", 2)}
        settings = frozenset((k, v) for k, v in row.settings.items() if k != "without") - usual
        train_fields = frozenset(row.train_fields.items()) - {("partition", "iid"), ("partition", "domain")}
        key = (
            row.source.removesuffix("-arXiv"),
            row.dataset,
            row.method,
            row.defense,
            settings,
            without,
            train_fields,
            row.metric,
        )
        by_cell.setdefault(key, []).append(row)
    contradictions = {
        tuple(sorted({row.table for row in rows}))
        for rows in by_cell.values()
        if len({row.value for row in rows}) > 1
        and max(row.value for row in rows) - min(row.value for row in rows) > 0.06
    }
    assert contradictions == set()
    different = [
        rows for rows in by_cell.values() if len({row.value for row in rows}) > 1 and rows[0].source == "FedMD-CG"
    ]
    assert [sorted({row.value for row in rows}) for rows in different] == [[86.92, 86.95]]


def test_values_that_are_measured_otherwise_say_so():
    cell = paper_cell("fedmd-cg-table1", dataset="fmnist", omega=1.0, method="fedavg")
    for metric in ("accuracy", "global_accuracy"):
        assert published.of(cell, metric).note == PROTOCOLS["fedmd-cg"].differs
    cell = paper_cell("nfl-cgan-resnet18", dataset="fmnist", method="nfl-cgan")
    assert published.of(cell, "rta_min").note == ""
    assert "which of its losses" in published.of(cell, "loss_round_5").note
    cell = paper_cell("nfl-cgan-lenet5", dataset="office10", method="nfl-cgan")
    assert "which domain is client A" in published.of(cell, "rta_client_2").note
    assert published.of(paper_cell("fedcg-table1", dataset="fmnist", method="fedavg"), "accuracy").note == ""
    for method, noted in (("feddf", True), ("fedavg", False)):
        cell = paper_cell("nfl-cgan-resnet18", dataset="fmnist", method=method)
        assert ("distils on" in published.of(cell, "accuracy").note) == noted


def places(text):
    """Every "SOURCE TABLE" that a text names, e.g. of "FedMD-CG Tables 1 and 6-8, Figure 3"."""
    tables = []
    for source, rest in re.findall(r"(FedCG-arXiv|FedCG|NFL-CGAN|FedMD-CG) ((?:(?!FedCG|NFL-CGAN|FedMD-CG).)*)", text):
        for kind, numbers in re.findall(r"(Table|Figure)s? ([\d, and-]+)", rest):
            for first, last in re.findall(r"(\d+)(?:-(\d+))?", numbers):
                each = range(int(first), int(last or first) + 1)
                tables += [f"{source} {'fig' if kind == 'Figure' else ''}{number}" for number in each]
    return sorted(tables)


def test_a_study_and_its_page_name_the_tables_that_it_claims(repository):
    assert places("FedMD-CG Tables 1, 6 and 8-9, Figure 3, FedCG-arXiv Table 2") == [
        "FedCG-arXiv 2", "FedMD-CG 1", "FedMD-CG 6", "FedMD-CG 8", "FedMD-CG 9", "FedMD-CG fig3",
    ]  # fmt: skip
    page = (repository / "docs" / "studies.md").read_text()
    block = page.partition("<!-- generated: studies -->")[2].partition("<!-- end -->")[0]
    listed = dict(re.findall(r"^\| `(\w[\w-]*)` \| ([^|]*) \|", block, re.MULTILINE))
    assert set(listed) == set(study_files.names())
    for study in map(definition.read, study_files.names()):
        if study.tables:
            assert places(study.source) == places(listed[study.name]) == sorted(study.tables), study.name
