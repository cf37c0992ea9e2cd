"""Figures of single papers: accuracy against omega, the PCA of generators, and numbers derived from several records."""

import math

import numpy as np
import pytest
import torch
from matplotlib.collections import PathCollection
from PIL import Image

from privbench.data.readers.resize import pixels
from privbench.errors import UserError
from privbench.execution import cell_jobs
from privbench.methods.base import Nets
from privbench.records.schema import read
from privbench.records.store import Store
from privbench.training import checkpoint, harness
from privbench.training import federation as federations
from reports.figures import client_bars, curves, derived, omega_curve
from reports.figures.drawing import style
from reports.figures.of_networks import feature_pca
from reports.records import grouping
from reports.running import study_reports
from reports.studies import definition, study_cells
from reports.tables.training import accuracy_table
from tests.builders.paper_cells import paper_cell, paper_cells, trained_as
from tests.reports.test_training_reports import trained


@pytest.fixture
def drawn(monkeypatch):
    figures = []
    save = style.save
    monkeypatch.setattr(style, "save", lambda figure, stem: figures.append(figure) or save(figure, stem))
    return figures


def dealt(dataset="fmnist", methods=("local", "fedavg")):
    """Records of FedMD-CG's Table 7, accuracy 10 (1 + log10 omega) higher than 40, and one IID record that has no omega."""
    cells = [c for c in paper_cells("fedmd-cg-table1") if c.train.dataset == dataset and c.train.method in methods]
    made = [(c, trained(c.train.method, 50 + 10 * math.log10(c.train.omega))) for c in cells]
    return [trained_as(r, c).model_copy(update={"id": c.id}) for c, r in made] + [trained("fedavg")]


TABLE_7 = ("FedMD-CG 7",)


def test_accuracy_stands_over_omega_in_order_with_the_published_values_beneath():
    report = omega_curve.report(dealt(), ["accuracy"], TABLE_7)
    (form,) = report.tables
    assert form.columns == ["", "omega 0.1", "omega 1", "omega 10"]
    assert [row[:2] for row in form.rows] == [
        ["FedAvg", "42.25 +- 0.35"], ["  published", "59.29 +- 3.19†"],
        ["Local", "42.25 +- 0.35"], ["  published", "37.71 +- 2.99†"],
    ]  # fmt: skip
    assert [n["mean"] for n in report.numbers if n["row"] == "Local"] == [62.25, 52.25, 42.25][::-1]
    assert omega_curve.report([trained("fedavg")], ["accuracy"]).tables == []
    assert omega_curve.comparisons(dealt(methods=("local",))[:1]) == []  # one omega is no curve


def test_the_omega_figure_has_a_line_per_method_and_hollow_published_points(tmp_path, drawn):
    records = dealt()
    (key,) = omega_curve.comparisons(records)
    png, _ = omega_curve.write(records, key, ["accuracy", "consistency"], tmp_path, TABLE_7)
    assert png.name == "omega-fmnist.png"
    (axes,) = drawn[0].axes  # nobody has a consistency
    assert axes.get_xscale() == "log"
    lines = [line for line in axes.lines if line.get_linestyle() not in ("None", "")]
    assert [list(line.get_ydata()) for line in lines] == [[42.25, 52.25, 62.25]] * 2
    for line in lines:
        np.testing.assert_allclose(np.diff(np.log10(np.array(line.get_xdata(), float))), 1)
    hollow = {
        line.get_ydata()[0]
        for line in axes.lines
        if line.get_markerfacecolor() == "none" and len(line.get_xdata()) == 1
    }
    assert hollow == {59.29, 80.99, 84.28, 37.71, 74.19, 82.89}
    with Image.open(png) as picture:
        assert picture.width == 975


def test_the_study_of_table_1_draws_it(tmp_path):
    cells = [c for c in paper_cells("fedmd-cg-table1") if c.train.dataset == "fmnist" and c.train.method == "local"]
    study = definition.read("fedmd-cg-table1").model_copy(update={"reports": ("omega",)})
    paths = study_reports.write(study, None, cells, dealt(methods=("local",))[:-1], [], tmp_path)
    assert [p.name for p in paths] == [
        "omega.md",
        "omega.csv",
        "omega.tex",
        "omega.html",
        "omega-fmnist.png",
        "omega-fmnist.pdf",
    ]


def nfl_cgan(name="nfl-cgan-lenet5", dataset="fmnist", **accuracies):
    """Records of an NFL-CGAN study."""
    records = []
    for method, accuracy in accuracies.items():
        cell = paper_cell(name, dataset=dataset, method=method.replace("_", "-"))
        r = trained(cell.train.method, accuracy)
        records.append(trained_as(r, cell).model_copy(update={"id": cell.id}))
    return records


def test_relative_test_accuracy_stands_beside_the_published_one_by_hand():
    records = nfl_cgan(local=40.0, fedavg=50.0, nfl_cgan=60.0)
    lines = {(line.row, line.metric): line for line in derived.lines(records, "rta")}
    # Two seeds, clients at (a, a + 4) and (a + 1, a + 4).
    first, second = (60 / 40 + 61 / 41) / 2, 64 / 44
    assert set(lines) == {("NFL-CGAN", "rta_mean"), ("FedAvg (dropout 0.2)", "rta_mean")}
    assert lines["NFL-CGAN", "rta_mean"].measured == pytest.approx((first + second) / 2)
    assert lines["NFL-CGAN", "rta_mean"].printed.value == 1.086
    report = derived.beside(client_bars.report(records, "rta"), records, "rta")
    assert report.tables[-1].rows[-1] == [
        "fmnist, protocol nfl-cgan, NFL-CGAN",
        "mean over clients",
        "1.474",
        "1.086",
        "+0.388",
    ]
    assert report.numbers[-1]["difference"] == pytest.approx((first + second) / 2 - 1.086)
    of_resnet = nfl_cgan("nfl-cgan-resnet18", local=40.0, nfl_cgan=60.0)
    both = {line.metric: line for line in derived.lines(of_resnet, "rta")}
    assert {name: line.printed.value for name, line in both.items()} == {"rta_min": 1.01, "rta_max": 1.03}
    assert [both[name].measured for name in ("rta_min", "rta_max")] == pytest.approx([second, first])


def test_losses_stand_beside_those_after_the_fifth_and_the_last_round():
    (r,) = nfl_cgan(nfl_cgan=60.0)
    assert [(line.metric, line.printed.value) for line in derived.lines([r], "curves")] == [("loss_last", 0.28)]
    (r,) = nfl_cgan("nfl-cgan-resnet18", nfl_cgan=60.0)
    assert derived.lines([r], "curves") == []  # three rounds were trained
    longer = [
        t.model_copy(
            update={"rounds": [t.rounds[0].model_copy(update={"loss": {"task": [n, n]}}) for n in range(1, 8)]}
        )
        for t in r.training
    ]
    (line,) = derived.lines([r.model_copy(update={"training": longer})], "curves")
    assert (line.metric, line.measured, line.printed.value) == ("loss_round_5", 5.0, 0.025)
    report = curves.report([r], ("loss",), "Curves")
    assert derived.beside(report, [r], "curves") is report


def test_the_lead_in_precision_is_of_nfl_cgan_over_the_method_named_by_the_paper():
    records = nfl_cgan(local=40.0, feddf=50.0, nfl_cgan=60.0)
    precisions = {"local": 41.0, "feddf": 47.5, "nfl-cgan": 59.0}
    with_precisions = [
        r.model_copy(update={"training": [
            t.model_copy(update={"clients": [c.model_copy(update={"precision": p}) for c in t.clients]}) for t in r.training
        ]})
        for r, p in zip(records, precisions.values(), strict=True)
    ]  # fmt: skip
    report = accuracy_table.report(with_precisions, [], ["precision"])
    (line,) = derived.lines(with_precisions, "accuracy")
    assert (line.row, line.measured, line.printed.value) == ("FedDF (dropout 0.2)", 11.5, 6.4)
    assert derived.beside(report, with_precisions, "accuracy").tables[-1].rows == [
        # Marked, as FedDF's clients hold fewer images here.
        ["fmnist, protocol nfl-cgan, FedDF (dropout 0.2)", "lead over this method", "11.50", "6.40†", "+5.10"]
    ]
    assert derived.lines(with_precisions[:2], "accuracy") == []  # nobody leads without NFL-CGAN


@pytest.fixture(scope="module")
def pca_study(tmp_path_factory):
    """The study of Figure 2 on digits, trained for seconds."""
    out = tmp_path_factory.mktemp("pca")
    cells = study_cells.of(definition.read("fedmd-cg-fig2"), "smoke", [("digits", None)])
    assert cell_jobs.run_cells(cells, out, None, "cpu", lambda *_: None, lambda *_: None) == []
    return cells, Store(out)


def test_the_panels_are_the_teachers_features_and_every_generators_outputs(pca_study):
    cells, store = pca_study
    clouds = feature_pca.clouds(store, cells, None)
    assert [cloud.title for cloud in clouds.each] == [
        "features of the teacher", "without L_div", "L_div0", "L_div1", "L_div2",
    ]  # fmt: skip
    spec = cells[2].train
    federation, _ = federations.of(spec, None)
    snapshot = checkpoint.load_snapshot(store.train(spec), spec.id, spec.schedule.rounds)
    client, test = snapshot.clients[0], federation.clients[0].test
    model = harness.prepare(spec, federation, torch.device("cpu")).model
    # The teacher of any variant is that of all.
    features = Nets(model, client.params, client.buffers).extractor(pixels(test.images, 32)).flatten(1)
    np.testing.assert_array_equal(clouds.each[0].values, features.detach().double().numpy())
    np.testing.assert_array_equal(clouds.labels, test.labels.numpy())
    assert {cloud.values.shape for cloud in clouds.each} == {(len(test.labels), 400)}


def test_the_variances_and_their_share_on_the_axes_by_hand(pca_study):
    cells, store = pca_study
    key = grouping.settings([read(store.record(cells[0]))])[0]
    labels = np.array([0, 0, 1, 1])
    teacher = np.array([[3.0, 1, 0], [3, -1, 0], [-3, 1, 0], [-3, -1, 0]])
    collapsed = np.array([[1.0, 0, 2], [1, 0, 2], [-1, 0, -2], [-1, 0, -2]])
    still = np.zeros((4, 3))
    clouds = feature_pca.Clouds(
        labels, [feature_pca.Cloud(*c) for c in (("features", teacher), ("collapsed", collapsed), ("still", still))]
    )
    report = feature_pca.report(key, clouds, [read(store.record(cells[0]))])
    assert [list(row) for row in report.tables[0].rows] == [
        ["features", "1.0000", "1.0000", "1.0000"],
        ["collapsed", "0.5000", "0.0000", "0.2000"],
        ["still", "0.0000", "0.0000", "-"],
    ]


def test_the_pca_figure_has_a_panel_each_on_one_scale_with_a_point_per_image(pca_study, tmp_path, drawn):
    cells, store = pca_study
    study = definition.read("fedmd-cg-fig2").model_copy(update={"reports": ("pca",)})
    records = [read(store.record(cell)) for cell in cells]
    paths = study_reports.write(study, store, cells, records, [], tmp_path)
    assert [p.suffix for p in paths] == [".md", ".csv", ".tex", ".html", ".png", ".pdf"]
    panels = [axes for axes in drawn[0].axes if axes.collections]
    points = [c for axes in panels for c in axes.collections if isinstance(c, PathCollection)]
    assert len(points) == 5
    assert len({len(c.get_offsets()) for c in points}) == 1
    assert len({axes.get_xlim() for axes in panels}) == 1
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == [str(digit) for digit in range(10)]


def test_networks_that_are_gone_are_named(pca_study, tmp_path):
    cells, _ = pca_study
    with pytest.raises(UserError, match="round-0000"):
        feature_pca.clouds(Store(tmp_path), cells, None)
