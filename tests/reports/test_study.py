"""Study files hold the cells of the published tables."""

import csv
from importlib import resources

import pytest

from privbench import plugins
from privbench.errors import UserError
from reports import published, study, study_reports
from reports.accuracy_table import METRICS


def published_rows(source, tables):
    with (resources.files("reports") / "published.csv").open() as file:
        return [row for row in csv.DictReader(file) if row["source"] == source and row["table"] in tables]


def paper(name):
    """(specification as in a record, cell) of a study on the published data sets and settings."""
    return [(c.train.model_dump() | {"preset": "paper"}, c) for c in study.cells(study.read(name), "paper")]


@pytest.mark.parametrize("name", study.names())
@pytest.mark.parametrize("preset", ["smoke", "quick", "paper"])
def test_every_study_has_cells_in_every_preset(name, preset):
    own = study.read(name)
    assert set(own.reports) <= set(study_reports.NAMES)
    assert set(own.metrics) <= set(METRICS)
    cells = study.cells(own, preset)
    assert len(cells) == len({cell.id for cell in cells}) > 1
    assert {cell.preset for cell in cells} == {preset}
    names = {cell.train.dataset for cell in cells}
    assert set(own.embedded) <= names or preset == "paper"
    assert {data.name for data in own.data} <= names
    if "attack" not in own.reports:
        assert all(cell.attack is None for cell in cells)


@pytest.mark.parametrize(
    ("name", "source", "tables", "metrics"),
    [
        ("fedcg-table1", "FedCG", ("1",), ("accuracy",)),
        ("attack-table", "FedCG", ("2",), ("accuracy", "psnr_db")),
        ("nfl-cgan-table4", "NFL-CGAN", ("4",), ("psnr_db",)),
        ("nfl-cgan-table5", "NFL-CGAN", ("5",), ("psnr_db",)),
        ("nfl-cgan-resnet18", "NFL-CGAN", ("fig2", "fig5"), ("accuracy", "auc")),
        ("nfl-cgan-lenet5", "NFL-CGAN", ("fig6", "fig9"), ("precision", "auc")),
        ("fedmd-cg-table1", "FedMD-CG", ("6", "7", "8"), ("accuracy", "global_accuracy")),
        ("fedmd-cg-table2", "FedMD-CG", ("2",), ("psnr_db",)),
        ("fedmd-cg-table3", "FedMD-CG", ("9", "10", "11"), ("accuracy", "global_accuracy")),
    ],
)
def test_every_published_value_stands_beside_a_cell_of_its_study(name, source, tables, metrics):
    # FedProx has a cell per mu, all of which compare with its one value; the attacks on one method do, too.
    specs = {str(spec | {"method_settings": sorted(published_settings(spec).items())}): spec for spec, _ in paper(name)}
    found = [published.of(spec, metric) for spec in specs.values() for metric in metrics]
    values = sorted(f.value for f in found if f is not None and f.source.split(" ")[0] == source)
    wanted = sorted(float(row["value"]) for row in published_rows(source, tables))
    assert values == wanted


def published_settings(spec):
    return {k: v for k, v in spec["method_settings"].items() if k not in published.UNCOMPARED}


def test_nothing_published_stands_beside_another_cell():
    by_key = {(s["dataset"], s["method"], s["clients"]): s for s, _ in paper("fedcg-table1")}
    spec = by_key["cifar10", "fedcg", 8]
    assert published.of(spec, "accuracy") == (49.15, 0.48, "FedCG Table 1", 8)
    assert published.of(by_key["cifar10", "fedcg", 4], "accuracy").value == 47.52
    for change in (
        {"clients": 5}, {"dataset": "photos"}, {"method_settings": {"diversity": 0.0}}, {"defense": "gaussian:0.5"},
        {"backbone": "resnet18"}, {"partition": "dirichlet", "omega": 1.0}, {"domains": ["a"]},
    ):  # fmt: skip
        assert published.of(spec | change, "accuracy") is None, change
    assert published.of(spec, "recall") is None
    dealt = {(s["dataset"], s["method"], s["omega"]): s for s, _ in paper("fedmd-cg-table1")}
    assert published.of(dealt["fmnist", "fedsplit", 0.1], "accuracy") == (38.89, 3.18, "FedMD-CG Table 7", 10)
    assert published.of(dealt["fmnist", "fedcg", 0.1], "global_accuracy").value == 54.61
    conv = dealt["fmnist", "fedcg", 0.1] | {"method_settings": {}}
    assert published.of(conv, "accuracy") is None


def test_the_accuracy_study_trains_every_method_of_the_suite_once():
    cells = study.cells(study.read("accuracy"), "quick", [("photos", None)])
    targets = [plugins.target("method", cell.train.method) for cell in cells]
    assert len(plugins.METHODS) == 11
    assert sorted(targets) == sorted(set(plugins.METHODS.values()))


def test_the_extended_attack_table_attacks_every_method_that_sends_something():
    cells = study.cells(study.read("attack-all"), "quick", [("photos", None)])
    sending = {t for name, t in plugins.METHODS.items() if plugins.resolve("method", name).shares}
    assert {plugins.target("method", cell.train.method) for cell in cells} == sending


def test_the_ablation_switches_off_every_term_in_turn():
    from privbench.methods.fedmd_cg import STAGES

    cells = study.cells(study.read("fedmd-cg-table4"), "smoke", [("photos", None)])
    off = [cell.train.method_settings.get("without", "") for cell in cells]
    assert off[0] == ""
    assert sorted(off[1:]) == sorted(term for stage in STAGES for term in stage)


def test_the_sensitivity_study_has_each_value_of_each_lambda_and_the_default_once():
    cells = study.cells(study.read("fedmd-cg-sensitivity"), "smoke", [("photos", None)])
    settings = [cell.train.method_settings for cell in cells]
    assert settings[0] == {}
    assert sorted((k, v) for s in settings[1:] for k, v in s.items()) == sorted(
        (f"lambda{i}", v) for i in range(1, 7) for v in (0.25, 0.5, 0.75, 1.25, 1.5)
    )


def test_the_paper_preset_trains_a_comparison_alike_and_searches_mu():
    for _, cell in paper("fedmd-cg-table1"):
        schedule = cell.train.schedule
        assert (schedule.client_steps, schedule.server_steps, schedule.batch) == (20, 50, 64)
        assert schedule.rounds == (250 if cell.train.dataset == "cifar10" else 100)
    mus = [c.train.method_settings["mu"] for _, c in paper("accuracy") if c.train.method == "fedprox"]
    assert mus[:4] == [0.001, 0.01, 0.1, 1.0]


def test_methods_and_data_sets_can_be_chosen():
    own = study.read("accuracy")
    chosen = study.cells(own, "smoke", [("digits", None), ("digit5", ("svhn", "usps"))], methods=["lg-fedavg", "local"])
    assert [(c.train.dataset, c.train.method) for c in chosen] == [
        ("digits", "local"), ("digits", "fedsplit"), ("digit5", "local"), ("digit5", "fedsplit"),
    ]  # fmt: skip
    assert chosen[2].train.domains == ("svhn", "usps")
    with pytest.raises(UserError, match="'nfl-cgan-table5' has no cells of local; it compares fedgen, nfl-cgan"):
        study.cells(study.read("nfl-cgan-table5"), "smoke", methods=["local"])
    with pytest.raises(UserError, match="did you mean 'accuracy'"):
        study.read("acuracy")


def test_a_misspelt_key_of_a_study_is_refused(tmp_path, monkeypatch):
    (tmp_path / "studies").mkdir()
    text = (resources.files("reports") / "studies" / "accuracy.toml").read_text()
    (tmp_path / "studies" / "mine.toml").write_text(text.replace("embedded =", "embeded ="))
    monkeypatch.setattr(study.resources, "files", lambda _: tmp_path)
    with pytest.raises(UserError, match="embed"):
        study.read("mine")
