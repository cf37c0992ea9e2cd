"""Reports of training: pure functions of records, with numbers that follow by hand."""

import csv
import io

import numpy as np
import pytest
from PIL import Image

from privbench import registry
from privbench import spec as specs
from privbench.presets import SCHEDULES, changed
from privbench.records.entries import Curve
from privbench.scoring import metrics
from privbench.system.console import Console
from reports.figures import box_plots, client_bars, curves, of_attack, roc
from reports.figures.drawing import style
from reports.records import grouping, measured, remarks
from reports.records.labels import Gap, label
from reports.running import study_reports
from reports.studies import definition
from reports.tables import attack_table, baselines, render, report_files
from reports.tables.training import ablation, accuracy_table
from tests.builders.paper_cells import in_paper, paper_cell, trained_as
from tests.builders.records import record, training, with_training, with_victims


def trained(method="fedavg", accuracy=40.0, seeds=(0, 1), **spec):
    """An accuracy record on CIFAR-10 of two clients at `accuracy` and `accuracy` + 4 plus the seed."""
    changes = {"partition": "iid", "method_settings": {}, "backbone": "lenet5", "image_size": 32, **spec}
    r = record(method, attack=None, seeds=seeds, spec=changes)
    per_client = [[accuracy + seed, accuracy + 4] for seed in seeds]
    trainings = [
        training(seed, both, generator=method == "fedcg") for seed, both in zip(seeds, per_client, strict=True)
    ]
    name = f"{method}-{accuracy}-{sorted(changes['method_settings'].items())}"
    return with_training(r, trainings, per_client).model_copy(update={"id": name})


def three():
    return [trained("local", 38.0), trained("fedavg", 41.0), trained("fedcg", 47.0)]


def form_of(report, number=0):
    form = report.tables[number]
    return {row[0]: dict(zip(form.columns[1:], row[1:], strict=True)) for row in form.rows}


def test_the_best_mean_is_bold_and_published_values_stand_beside_with_the_difference():
    report = accuracy_table.report([in_paper(r, "fedcg-table1") for r in three()], [], ["accuracy"])
    assert form_of(report) == {
        "Local": {"cifar10": "40.25 +- 0.35"},
        "FedAvg": {"cifar10": "43.25 +- 0.35"},
        "FedCG": {"cifar10": "**49.25 +- 0.35**"},
    }
    beside = form_of(report, 1)
    assert beside["FedCG"] == {"cifar10": "**49.25 +- 0.35**", "published": "47.52 +- 0.68", "difference": "+1.73"}
    assert beside["Local"]["published"] == "40.90 +- 0.92"
    assert any("Published values: FedCG Table 1." in note for note in report.notes)
    report = accuracy_table.report(three(), [], ["accuracy"])
    assert len(report.tables) == 1
    assert any("NOT the published schedule" in note and "No published value" in note for note in report.notes)


def test_the_accuracy_table_says_which_methods_did_not_train():
    trained, lost = three()[0], record("fedsplit", attack=None, per_seed={"accuracy": [12.0, 11.0]})
    notes = accuracy_table.report([trained, lost], [], ["accuracy"]).notes
    (line,) = (note for note in notes if "near chance" in note)
    assert line == "cifar10: accuracy near chance, so these methods did not train: FedSplit (11.5%)."
    assert not any("near chance" in note for note in accuracy_table.report([trained], [], ["accuracy"]).notes)


@pytest.mark.parametrize(("options", "whose"), [({}, "personal"), ({"measured": "broadcast"}, "broadcast")])
def test_the_tables_say_whose_accuracy_counts(options, whose):
    whose_model = f"Every client's {whose} model at its best validation round"
    records = [trained("fedavg", **options)]
    assert any(note.startswith(whose_model) for note in accuracy_table.report(records, [], ["accuracy"]).notes)
    assert any(note.startswith(whose_model) for note in ablation.report(records, [], ["accuracy"]).notes)
    attacked = record("fedavg", spec=options)
    assert any(f"over clients of the {whose} model at its" in line for line in remarks.header([attacked]))


def test_a_value_that_the_paper_measures_otherwise_is_marked_and_explained():
    r = trained("fedavg", dataset="fmnist")
    cell = paper_cell("fedmd-cg-table1", dataset="fmnist", omega=1.0, method="fedavg")
    r = trained_as(r, cell)
    report = accuracy_table.report([r], [], ["accuracy", "global_accuracy"], ("FedMD-CG 1",))
    assert form_of(report, 1)["FedAvg"]["published"].endswith("†")
    notes = [note for note in report.notes if note.startswith("† FedMD-CG Table 1: ")]
    assert len(notes) == 1
    assert report.numbers[0]["measured_otherwise"] in notes[0]


def test_the_lowest_is_best_where_lower_is_better_and_equal_ones_are_not_distinguished():
    report = accuracy_table.report(three(), [], ["false_positive_rate"])
    assert [name for name, cells in form_of(report).items() if render.is_bold(cells["cifar10"])] == ["FedCG"]
    same = [trained("local", 40.0), trained("fedavg", 40.0)]
    assert not any(
        render.is_bold(c["cifar10"]) for c in form_of(accuracy_table.report(same, [], ["accuracy"])).values()
    )


def test_nothing_published_stands_beside_other_clients_or_data():
    for change in ({"clients": 5}, {"dataset": "photos"}, {"method_settings": {"diversity": 0.0}}):
        report = accuracy_table.report([trained("fedcg", **change)], [], ["accuracy"])
        assert len(report.tables) == 1, change
        assert "Nothing was published for these cells." in report.notes


def test_a_missing_cell_is_named_by_its_state():
    lost = trained("fedgen")
    finished = [in_paper(r, "fedcg-table1") for r in three()]
    lost = in_paper(lost, "fedcg-table1")
    report = accuracy_table.report(finished, [Gap(lost.cell, "the disk is full", "failed")], ["accuracy"])
    assert form_of(report)["FedGen"] == {"cifar10": "failed"}
    assert form_of(report, 1)["FedGen"] == {"cifar10": "failed", "published": "44.98 +- 0.49", "difference": "-"}


def test_a_searched_setting_is_chosen_by_validation_not_by_test():
    better_test, better_validation = (trained("fedprox", 40.0, method_settings={"mu": mu}) for mu in (0.1, 0.001))
    worse = [training(seed, [1.0, 1.0]) for seed in (0, 1)]
    better_test = with_training(better_test, worse, trained("fedprox", 60.0).accuracy.per_client)
    report = accuracy_table.report([better_test, better_validation], [], ["accuracy"])
    assert form_of(report) == {"FedProx": {"cifar10": "42.25 +- 0.35"}}
    assert any("mu 0.001, the best of 0.1, 0.001 by validation accuracy" in note for note in report.notes)


def test_a_searched_learning_rate_is_chosen_by_validation_not_by_test():
    schedule = SCHEDULES["quick"].model_dump()
    rates = {0.01: 20.0, 0.05: 50.0, 0.08: 40.0}
    records = []
    for lr, validation in rates.items():
        own_schedule = specs.Schedule(**changed(schedule, {"task.kind": "sgd", "task.lr": lr}))
        untrained = trained("fedavg", 90.0 - validation, schedule=own_schedule)
        records.append(with_training(untrained, [training(s, [validation, validation]) for s in (0, 1)]))
    assert grouping.best_searched(records) == [records[1]]
    (key,) = grouping.settings(records)
    (line,) = grouping.searched(records, key)
    assert line.endswith("FedAvg: task.lr 0.05, the best of 0.01, 0.05, 0.08 by validation accuracy.")


def prox(mu, attack, psnr, validation):
    """An attacked record of FedProx whose best validation accuracy is `validation` at both clients."""
    changes = {"partition": "iid", "method_settings": {"mu": mu}}
    r = record("fedprox", attack=attack, psnr=psnr, spec=changes)
    trainings = [training(seed, [validation, validation]) for seed in (0, 1)]
    searched = with_training(r, trainings, [[validation - 1] * 2] * 2)
    return searched.model_copy(update={"id": f"{mu} {attack}"})


def test_of_attacked_fedprox_the_mu_best_by_validation_stands_everywhere(tmp_path, monkeypatch):
    # The weak attack and low accuracy of mu 1 come first, and its reconstructions are the best: neither may be chosen.
    records = [prox(1.0, "dlg", 30.0, 20.0), prox(1.0, "staged", 40.0, 20.0), prox(0.01, "dlg", 10.0, 50.0),
               prox(0.01, "staged", 18.0, 50.0), record("fedavg", spec={"partition": "iid"})]  # fmt: skip
    assert [r.id for r in grouping.best_searched(records)] == ["0.01 dlg", "0.01 staged", records[4].id]
    seen = []
    monkeypatch.setattr(
        of_attack, "attacked", lambda store, cells, selected, folder: seen.append((cells, selected)) or []
    )
    cells = [f"cell of {r.id}" for r in records]
    study = definition.read("attack-all")
    study_reports.write(study, None, cells, records, [], tmp_path)
    assert [r.id for r in seen[0][1]] == ["0.01 dlg", "0.01 staged", records[4].id]
    assert seen[0][0] == cells[2:]
    text = (tmp_path / "table.md").read_text()
    assert "cifar10, FedProx: mu 0.01." in text
    assert "mu 1." not in text
    form = attack_table.compact(seen[0][1])[0]
    column = {row[0]: row[form.columns.index("FedProx")] for row in form.rows}
    assert column["accuracy of the trained method, %"].startswith("49.00")
    strong = next(r for r in records if r.id == "0.01 staged").scores.psnr_db
    assert column["PSNR, strongest attack here, dB"].startswith(f"{strong:.2f}")
    show = Console(record=True, width=200)
    study_reports.show(study, records, [], show, tmp_path)
    assert "mu 1." not in show.export_text()


def test_stability_is_both_networks_losses_and_the_accuracy_under_dp_adam_beside_dp_sgd(tmp_path):
    records = []
    for defense, scale in (("dp-adam:noise=0.5", 1.0), ("dp-sgd:noise=0.5", 2.0)):
        r = record("dp-gan", defense, attack=None, dataset="digits")
        losses = [{"discriminator": [scale * n, scale * n + 1], "generator": [scale, scale]} for n in (1, 2, 3)]
        trainings = [
            t.model_copy(
                update={
                    "rounds": [e.model_copy(update={"loss": loss}) for e, loss in zip(t.rounds, losses, strict=True)]
                }
            )
            for t in r.training
        ]
        records.append(with_training(r, trainings, [[40.0, 44.0]] * 2))
    names = study_reports.CURVES["stability"]
    report = curves.report(records, names, study_reports.CURVE_TITLES["stability"])
    assert [table.title.rpartition(": ")[2] for table in report.tables] == [curves.QUANTITIES[n].title for n in names]
    ends = {name: [*row.values()] for name, row in form_of(report).items()}
    assert ends == {
        "DP-GAN + DP-Adam (noise 0.5)": ["1.500", "1.500", "3.500", "3.500", "3"],
        "DP-GAN + DP-SGD (noise 0.5)": ["2.500", "2.500", "6.500", "6.500", "3"],
    }
    (key,) = grouping.settings(records)
    assert {path.suffix for path in curves.write(records, key, names, tmp_path / "stability")} == {".png", ".pdf"}


def test_reports_of_training_tell_the_chosen_mu():
    each = [trained("local", 30.0)] + [trained("fedprox", 40.0 + mu, method_settings={"mu": mu}) for mu in (0.1, 1.0)]
    for report in (client_bars.report(each, "gain"), roc.report(each), curves.report(each, ("accuracy",), "curves")):
        assert "cifar10, FedProx: mu 1, the best of 0.1, 1 by validation accuracy." in report.notes


def test_cells_that_differ_in_the_attack_alone_count_once():
    dealt = {"partition": "iid", "method_settings": {}}
    attacked = [record(attack=a, spec=dealt) for a in ("dlg", "staged")]
    assert len(accuracy_table.report(attacked, [], ["accuracy"]).tables[0].rows) == 1


def test_the_files_are_pure_functions_of_the_records(tmp_path):
    report = accuracy_table.report(three(), [], ["accuracy", "auc", "bytes_up"])
    paths = [report_files.write(report, tmp_path / name) for name in ("a", "b")]
    assert [p.suffix for p in paths[0]] == [".md", ".csv", ".tex", ".html"]
    assert [p.read_bytes() for p in paths[0]] == [p.read_bytes() for p in paths[1]]
    tex = paths[0][2].read_text()
    assert r"\toprule" in tex
    assert "(NOT the published schedule).}" in tex
    assert r"\textbf{49.25 $\pm$ 0.35}" in tex
    published = accuracy_table.report([in_paper(r, "fedcg-table1") for r in three()], [], ["accuracy"])
    paths = report_files.write(published, tmp_path / "paper")
    assert "NOT the published" not in paths[2].read_text()
    read = list(csv.DictReader(io.StringIO(paths[1].read_text())))
    (fedcg,) = [row for row in read if (row["row"], row["metric"]) == ("FedCG", "accuracy")]
    assert float(fedcg["difference"]) == pytest.approx(49.25 - 47.52)
    assert fedcg["source"] == "FedCG Table 1"


def test_gain_and_rta_by_hand():
    local, fedavg = trained("local", 40.0), trained("fedavg", 44.0)
    assert client_bars.values(fedavg, local, client_bars.KINDS["gain"]) == [(4.0, 0.0), (4.0, 0.0)]
    (first, std), second = client_bars.values(fedavg, local, client_bars.KINDS["rta"])
    assert first == pytest.approx((44 / 40 + 45 / 41) / 2)
    assert std == pytest.approx(abs(44 / 40 - 45 / 41) / 2**0.5)
    assert second == (48 / 44, 0.0)
    assert form_of(client_bars.report([local, fedavg], "gain"))["FedAvg"]["mean"] == "+4.00"


def test_where_local_is_right_nowhere_there_is_no_rta_and_no_nan(tmp_path):
    local, fedavg = trained("local", 0.0), trained("fedavg", 44.0)  # 0 at the first client under seed 0
    assert client_bars.values(fedavg, local, client_bars.KINDS["rta"])[0] == (None, None)
    report = client_bars.report([local, fedavg], "rta")
    assert list(form_of(report)["FedAvg"].values()) == ["-", "12.000 +- 0.000", "-"]
    assert report.numbers[0]["mean"] is None
    for path in report_files.write(report, tmp_path / "rta")[:2]:
        assert "nan" not in path.read_text()
    assert client_bars.write([local, fedavg], grouping.setting(local.cell), "rta", tmp_path / "bars")


def test_the_arithmetic_of_the_reports_is_that_of_the_metrics(monkeypatch):
    assert {name: kind.of for name, kind in client_bars.KINDS.items()} == {
        "gain": metrics.gain_over_local, "rta": metrics.relative_test_accuracy,
    }  # fmt: skip
    monkeypatch.setattr(metrics, "mean_roc", lambda curves, grid: (len(curves), grid is roc.GRID))
    assert roc.average(trained("fedavg")) == (2 * 2 * 2, True)  # seeds, clients, classes


def test_clients_by_domain_carry_its_name(tmp_path, drawn):
    dealt = {"partition": "domain", "domains": None, "client_domains": ["svhn", "usps"]}
    both = [trained(m, a, dataset="digits4", **dealt) for m, a in (("local", 38.0), ("fedavg", 41.0))]
    report = client_bars.report(both, "gain")
    assert report.tables[0].columns == ["", "svhn", "usps", "mean"]
    assert [n["client"] for n in report.numbers] == ["svhn", "usps"]
    client_bars.write(both, grouping.setting(both[0].cell), "gain", tmp_path / "gain")
    assert [t.get_text() for t in drawn[0].axes[-1].get_xticklabels()] == ["svhn", "usps"]
    pooled = [trained("local", 38.0, client_domains=["cifar10", "cifar10"])]
    assert client_bars.client_names(pooled[0]) == ["1", "2"]


def test_without_local_there_is_no_gain():
    assert client_bars.report([trained("fedavg")], "gain").tables == []


def test_curves_are_means_over_clients_then_seeds():
    r = trained("fedavg", 40.0)
    # Test accuracy of round 1 is one point below that of the best round; seeds 0 and 1 differ by one point at one of two clients.
    (first, std), *_ = curves.series(r, curves.QUANTITIES["accuracy"])
    assert first == pytest.approx((41.0 + 41.5) / 2)
    assert std == pytest.approx(0.5 / 2**0.5)
    assert [mean for mean, _ in curves.series(r, curves.QUANTITIES["loss"])] == pytest.approx([2.0, 1.0, 2 / 3])
    assert curves.series(r, curves.QUANTITIES["consistency"]) == []
    assert len(curves.series(trained("fedcg"), curves.QUANTITIES["consistency"])) == 3


def test_a_curve_ends_where_a_seed_stopped():
    r = trained("fedavg")
    short = with_training(r, [training(0, [40.0, 44.0], rounds=2), training(1, [41.0, 44.0])])
    assert len(curves.series(short, curves.QUANTITIES["accuracy"])) == 2


def test_the_average_roc_is_the_mean_true_positive_rate_at_each_false_positive_rate():
    r = trained("fedavg", seeds=(0,))
    steps = Curve(false_positive_rate=[0.0, 0.0, 0.5, 1.0], true_positive_rate=[0.0, 0.4, 1.0, 1.0])
    line = Curve(false_positive_rate=[0.0, 1.0], true_positive_rate=[0.0, 1.0])
    clients = [c.model_copy(update={"roc": [steps, line, None]}) for c in r.training[0].clients]
    r = with_training(r, [r.training[0].model_copy(update={"clients": clients})])
    average = dict(zip(roc.GRID.round(6).tolist(), roc.average(r), strict=True))
    assert average[0.0] == pytest.approx((0.4 + 0.0) / 2)  # the upper end of a vertical step
    assert average[0.25] == pytest.approx((0.7 + 0.25) / 2)
    assert average[0.8] == pytest.approx((1.0 + 0.8) / 2)
    area = np.trapezoid(roc.average(r), roc.GRID)
    assert area == pytest.approx((0.85 + 0.5) / 2, abs=1e-3)


def lambdas():
    return [trained("fedmd-cg", 40.0)] + [
        trained("fedmd-cg", 40.0 + v, method_settings={name: v}) for name in ("lambda1", "lambda2") for v in (0.5, 1.5)
    ]


def test_box_plots_stand_in_order_with_the_default_among_them():
    records = lambdas()
    panels = box_plots.panels(records, grouping.setting(records[0].cell))
    assert {name: list(values) for name, values in panels.items()} == {
        "lambda1": [0.5, 1.0, 1.5], "lambda2": [0.5, 1.0, 1.5],
    }  # fmt: skip
    assert box_plots.accuracies(panels["lambda1"][1.5]) == [41.5, 45.5, 42.5, 45.5]


def test_the_ablation_compares_with_the_method_as_published():
    records = [trained("fedmd-cg", 45.0), trained("fedmd-cg", 42.0, method_settings={"without": "kl1"})]
    form = ablation.report(records, [], ["accuracy"]).tables[0]
    assert [list(row) for row in form.rows] == [
        ["FedMD-CG", "**47.25 +- 0.35**", "-"],
        ["FedMD-CG (without kl1)", "44.25 +- 0.35", "-3.00"],
    ]


def test_the_ablation_of_the_diversity_loss_says_by_which_norms_each_row_descended():
    scales = {"": "means over dimensions", "literal": "norms as printed"}
    records = []
    for scale, words in scales.items():
        settings = {"diversity_scale": scale} if scale else {}
        note = f"FedMD-CG: L_div2 of {words}"
        records.append(trained("fedmd-cg", 45.0, method_settings=settings).model_copy(update={"notes": [note]}))
    report = ablation.report(records, [], ["accuracy"])
    assert [row[0] for row in report.tables[0].rows] == ["FedMD-CG", "FedMD-CG (literal norms)"]
    assert [note for note in report.notes if "L_div" in note] == [
        "Note: FedMD-CG: L_div2 of means over dimensions.",
        "Note: FedMD-CG: L_div2 of norms as printed.",
    ]


def test_variants_of_one_method_are_rows_of_their_own():
    variant = trained("fedcg", method_settings={"gan": "dense", "aggregator": "ave"})
    assert label(variant.cell) == "FedCG (dense GAN, ave)"
    assert label(trained("fedprox", method_settings={"mu": 0.1}).cell) == "FedProx"
    assert grouping.row(trained("fedsplit").cell) == "FedSplit (LG-FedAvg)"
    assert grouping.legend_names(["FedMD-CG", "FedMD-CG (without kl1)"]) == ["FedMD-CG", "without kl1"]
    defended = ["Reptile (shots 5)", "Reptile (shots 5) + DP-SGD (epsilon 8)"]
    assert grouping.legend_names(defended) == defended


def test_reconstructions_are_compared_on_the_same_victims():
    fedavg, fedper = record("fedavg", psnr=20.0), record("fedper", psnr=12.0)
    gap = baselines.difference(measured.of(fedper), measured.of(fedavg))
    mean = np.mean([a.psnr_db - b.psnr_db for a, b in zip(fedper.victims, fedavg.victims, strict=True)])
    assert gap.low <= gap.mean <= gap.high
    assert gap.mean == pytest.approx(mean)
    strangers = [v.model_copy(update={"images": ["a stranger"]}) for v in fedavg.victims[:1]]
    others = with_victims(fedavg, [*strangers, *fedavg.victims[1:]])
    assert baselines.difference(measured.of(fedper), measured.of(others)) is None
    form = baselines.report([fedavg, fedper, record("nfl-cgan", attack="feature-statistics")]).tables[0]
    assert {row[0] for row in form.rows} == {"FedPer"}  # NFL-CGAN's rival, FedGen, is not there
    assert set(baselines.AGAINST) <= set(registry.METHODS)


@pytest.fixture
def drawn(monkeypatch):
    figures = []
    save = style.save
    monkeypatch.setattr(style, "save", lambda figure, stem: figures.append(figure) or save(figure, stem))
    return figures


def draw(name, records, folder):
    key = grouping.setting(records[0].cell)
    if name == "curves":
        return curves.write(records, key, ("loss", "accuracy"), folder / name)
    if name == "consistency":
        return curves.write(records, key, ("consistency",), folder / name)
    if name in client_bars.KINDS:
        return client_bars.write(records, key, name, folder / name)
    return (box_plots if name == "box-plots" else roc).write(records, key, folder / name)


@pytest.mark.parametrize("name", ["curves", "consistency", "gain", "rta", "roc", "box-plots"])
def test_figures_fit_one_printed_column_and_their_text_lies_inside_it(name, tmp_path, drawn):
    methods = [m for m in registry.METHODS if m != "lg-fedavg"]
    records = lambdas() if name == "box-plots" else [trained(m, 40.0 + i) for i, m in enumerate(methods)]
    png, pdf = draw(name, records, tmp_path)
    with Image.open(png) as picture:
        assert picture.width == 975  # 3.25 inches at 300 dpi
        assert picture.height < 6 * 300
    assert pdf.read_bytes().startswith(b"%PDF")
    (figure,) = drawn
    texts = [t for t in figure.findobj(lambda a: hasattr(a, "get_fontsize")) if t.get_visible() and t.get_text()]
    assert texts
    assert min(t.get_fontsize() for t in texts) >= 6.5
    width, height = figure.get_size_inches() * figure.dpi
    for legend in figure.legends:
        box = legend.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= width
        assert 0 <= box.y0 < box.y1 <= height
