"""Every kind of figure with names and numbers of records that are hard on its layout: nothing clipped, hidden, empty or alike."""

import re
from itertools import combinations

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.text import Text
from PIL import Image

from privbench import registry
from privbench.records.schema import AttackRecord
from reports.figures import (
    box_plots,
    client_bars,
    curves,
    epsilon_curve,
    grid,
    label_histogram,
    omega_curve,
    psnr_by_round,
    roc,
    scatter,
    sweep_curve,
)
from reports.figures.drawing import line_styles, style
from reports.figures.label_histogram import Panel
from reports.figures.of_networks import feature_pca
from reports.records import grouping
from reports.records.labels import NAMES, cell_place, label
from reports.tables import attack_table, report_files
from tests.builders.records import record, with_training
from tests.reports.records.test_guarantees import private
from tests.reports.test_training_reports import trained

USUAL = "cifar10"
NASTY = "folder:/data/100% of $x_{i}$ [a] #1 & co_op, holiday photographs of 2024 (second half)"
LONG_NAME = "mypackage.subpackage.methods:MyMethodOfAVeryLongName"
METHODS = [name for name in NAMES if name != "lg-fedavg"]
SIZES = {"one": (USUAL, METHODS[1:2]), "three": (NASTY, ["local", LONG_NAME, "fedcg"]), "all": (USUAL, METHODS)}
CLASSES = ["$cat_{1}$", "100%", "a class of a very long name indeed"]


def trainings(dataset, methods, **spec):
    return [trained(m, 40.0 + i, dataset=dataset, partition="iid", **spec) for i, m in enumerate(methods)]


def attacked(dataset, methods, rounds=("best",), defenses=("none",)):
    changed = [
        record(m, d, attack, dataset, 12.0 + i, round_)
        for round_ in rounds
        for i, m in enumerate(methods)
        for d in defenses
        for attack in ("dlg", "staged")
    ]
    return [r.model_copy(update={"id": f"{r.id}{r.cell.train.defense}{n}"} | _at(r)) for n, r in enumerate(changed)]


def _at(r: AttackRecord):
    """The attacked round of every seed, where it has a number."""
    if not r.cell.round.isdigit():
        return {}
    return {"seeds": [s.model_copy(update={"round": int(r.cell.round)}) for s in r.seeds]}


def clouds(count):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, len(CLASSES), 60)
    return feature_pca.Clouds(labels, [feature_pca.Cloud(f"L_div{n}", rng.normal(size=(60, 4))) for n in range(count)])


def images(seed, count=9, channels=3):
    return torch.rand(count, channels, 8, 8, generator=torch.Generator().manual_seed(seed))


def row(method, attack, seed, psnr=10.0, count=9):
    return grid.Row(method, attack, images(seed, count), torch.full((count,), psnr), "L1")


def draw(kind, size, folder):  # noqa: C901 (one case after the other)
    dataset, methods = SIZES.get(size, SIZES["one"])
    stem = folder / "x"
    records = trainings(dataset, ["local", *methods] if kind in client_bars.KINDS else methods)
    key = grouping.setting(records[0].cell)
    if kind in client_bars.KINDS:
        return client_bars.write(records, key, kind, stem)
    if kind == "curves":
        return curves.write(records, key, ("loss", "accuracy"), stem)
    if kind == "roc":
        return roc.write(records, key, stem)
    if kind == "box-plots":
        settings = [{}, {"diversity": 0.1}, {"diversity": 2.0}]
        return box_plots.write(
            [
                trained("fedcg", 40.0 + i, dataset=dataset, partition="iid", method_settings=s)
                for i, s in enumerate(settings)
            ],
            key,
            stem,
        )
    if kind == "omega":
        dealt = [r for o in (0.1, 1.0) for r in trainings(dataset, methods, omega=o)]
        dealt = [
            r.model_copy(
                update={
                    "cell": r.cell.model_copy(
                        update={"train": r.cell.train.model_copy(update={"partition": "dirichlet"})}
                    )
                }
            )
            for r in dealt
        ]
        return omega_curve.write(dealt, omega_curve.comparisons(dealt)[0], ["accuracy"], folder)
    if kind == "pca":
        return feature_pca.write(key, clouds({"one": 1, "three": 3, "all": 5}[size]), CLASSES, stem)
    if kind == "clients":
        panels = [
            Panel(f"{registry.short(dataset)}, IID", [f"{k + 1}" for k in range(n)], [[3, 50, 7]] * n)
            for n in {"one": (1,), "three": (2, 3, 4), "all": (40,)}[size]
        ]
        return label_histogram.write(panels, CLASSES, stem)
    if kind == "grid":
        return grid.write(
            images(0), [row(m, a, i) for i, m in enumerate(methods) for a in ("dlg", LONG_NAME)], stem, grid.Size(8, 2)
        )
    if kind == "epsilon":
        epsilons = {
            "near": (7.992, 7.994, 7.998),
            "apart": (2.0, 8.0),
            "decade": (0.8, 8.0),
            "wide": (0.05, 2.0, 270.0),
        }
        return epsilon_curve.curves(
            [record(), *(private(e, psnr=12.0 + i) for i, e in enumerate(epsilons[size]))], folder
        )
    if kind == "rounds":
        return psnr_by_round.write(attacked(dataset, methods, ("0", "2", "best")), stem)
    if kind == "sweep":
        return sweep_curve.curves(
            attacked(dataset, methods[:1], defenses=("gaussian:0.001", "gaussian:0.1", "none")), folder
        )
    return scatter.write(attacked(dataset, methods, ("0", "best")), stem)


KINDS = (
    "curves",
    "gain",
    "rta",
    "roc",
    "omega",
    "pca",
    "clients",
    "grid",
    "rounds",
    "sweep",
    "scatter",
)  # boxes: below
DRAWN = [(kind, size) for kind in KINDS for size in ("three", "all")] + [
    ("box-plots", "three"),
    ("pca", "one"),
    ("roc", "one"),
    *(("epsilon", size) for size in ("near", "apart", "decade", "wide")),
]


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were laid out, instead of files."""
    figures = []

    def save(figure, stem, endings=style.ENDINGS, about=""):
        style._as_written(figure)
        figure.draw_without_rendering()
        figures.append(figure)
        return [stem]

    monkeypatch.setattr(style, "save", save)
    return figures


def texts_of(figure):
    """Every text that is drawn: of an axis only the numbers within its limits."""
    texts = [*figure.texts, *(t for legend in figure.legends for t in [*legend.get_texts(), legend.get_title()])]
    for axes in figure.axes:
        texts += [axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts]
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = [
                tick for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()] if low <= tick.get_loc() <= high
            ]
            texts += [label for tick in ticks for label in (tick.label1, tick.label2)]
    return [t for t in texts if t.get_visible() and t.get_text().strip()]


@pytest.mark.parametrize(("kind", "size"), DRAWN)
def test_a_figure_fits_the_page_no_text_is_clipped_or_hides_anything_and_no_panel_is_empty(kind, size, tmp_path, drawn):
    assert draw(kind, size, tmp_path)
    (figure,) = drawn
    assert figure.get_figwidth() <= style.PAGE_INCHES + 0.01
    assert figure.get_figheight() <= style.PAGE_HEIGHT_INCHES
    width, height = figure.bbox.size
    for axes in figure.axes:
        assert axes.get_visible()
        assert axes.has_data()
    texts = texts_of(figure)
    # Of an annotation its text, without the line that leads to its point.
    boxes_ = [t.get_window_extent() and Text.get_window_extent(t) for t in texts]
    for text, box in zip(texts, boxes_, strict=True):
        assert text.get_fontsize() >= style.SMALL_POINTS, text.get_text()
        assert -1 <= box.x0 < box.x1 <= width + 1, text.get_text()
        assert -1 <= box.y0 < box.y1 <= height + 1, text.get_text()
    data = [axes.get_window_extent() for axes in figure.axes]
    for outside in (*figure.legends, *(t for t in figure.texts if t.get_text())):
        box = outside.get_window_extent()
        assert not any(box.overlaps(area) for area in data), outside
    for (a, one), (b, other) in combinations(zip(texts, boxes_, strict=True), 2):
        assert not one.padded(-3).overlaps(other.padded(-3)), (a.get_text(), b.get_text())


@pytest.mark.parametrize("kind", ["curves", "scatter", "clients", "grid"])
def test_a_name_is_drawn_as_it_is(kind, tmp_path, drawn):
    draw(kind, "three", tmp_path)
    texts = texts_of(drawn[0])
    assert not any(t.get_parse_math() for t in texts if "$" in t.get_text())
    together = re.sub(r"\s", "", "".join(t.get_text() for t in texts))
    assert (r"$x_{i}$" in together) or kind == "grid"
    if kind != "clients":
        assert "MyMethodOfAVeryLongName" in together


def test_files_are_the_same_every_time(tmp_path):
    for kind in ("sweep", "grid"):
        once, again = ([p.read_bytes() for p in draw(kind, "three", tmp_path)] for _ in range(2))
        assert once == again


def test_files_have_the_width_of_a_column_or_a_page(tmp_path):
    for kind, inches in (("roc", 3.25), ("pca", 6.75)):
        png, pdf = draw(kind, "three", tmp_path)
        with Image.open(png) as picture:
            assert picture.width == int(300 * inches)
        assert pdf.read_bytes().startswith(b"%PDF")


def test_every_method_has_a_look_and_any_two_differ_without_colour_too():
    assert set(line_styles.METHODS) == set(NAMES) == set(registry.METHODS)
    assert len(line_styles.TABLE) == 25
    assert len({(series_style.marker, series_style.dashes) for series_style in line_styles.TABLE}) == len(
        line_styles.TABLE
    )
    assert len({series_style.marker for series_style in line_styles.METHODS.values()}) == len(line_styles.METHODS)
    assert len({series_style.colour for series_style in line_styles.METHODS.values()}) == len(line_styles.METHODS)
    assert len({line_styles.point_style(i) for i in range(132)}) == 132


def test_methods_and_defences_of_one_figure_look_unlike_each_other_and_a_method_the_same_in_all():
    labels = [*NAMES.values(), *(f"FedAvg + Gaussian {v}" for v in range(11))]
    each = line_styles.series_styles_of(labels)
    assert len({str(sorted(map(str, series_style.items()))) for series_style in each.values()}) == len(labels)
    for name in NAMES.values():
        assert line_styles.series_styles_of([f"{name} + Gaussian 1", name])[name] == each[name]
    assert line_styles.series_styles_of(["FedSplit (LG-FedAvg)"])["FedSplit (LG-FedAvg)"] == each["FedSplit"]


def _changed(r, rounds):
    """The same record with other rounds of training."""
    each = [t.model_copy(update={"rounds": rounds(t.rounds)}) for t in r.training]
    return with_training(r, each)


def test_epsilons_that_hardly_differ_stand_on_an_axis_from_zero_and_others_on_one_that_shows_them_apart(
    tmp_path, drawn
):
    for size in ("near", "apart", "decade", "wide"):
        draw("epsilon", size, tmp_path)
    scales = [{(axes.get_xscale(), axes.get_xlim()[0] == 0) for axes in figure.axes} for figure in drawn]
    assert scales == [{("linear", True)}, {("linear", False)}, {("log", False)}, {("log", False)}]
    for figure in drawn:
        for axes in figure.axes:
            low, high = axes.get_xlim()
            assert len([tick for tick in axes.get_xticks() if low <= tick <= high]) >= 2


def test_ticks_of_rounds_are_integers_and_a_single_round_is_no_curve(tmp_path, drawn):
    records = trainings(USUAL, ["local", "fedavg"])
    key = grouping.setting(records[0].cell)
    curves.write(records, key, ("loss", "accuracy"), tmp_path / "x")
    for axes in drawn[0].axes:
        low, high = axes.get_xlim()
        ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
        assert ticks
        assert all(float(tick).is_integer() for tick in ticks)
    first = [_changed(r, lambda rounds: rounds[:1]) for r in records]
    assert curves.write(first, key, ("loss", "accuracy"), tmp_path / "x") == []


@pytest.mark.parametrize(
    ("kind", "size", "named"),
    [("curves", "three", False), ("omega", "three", True), ("omega", "all", False), ("sweep", "one", True),
     ("rounds", "one", True), ("rounds", "three", False), ("roc", "three", False)],
)  # fmt: skip
def test_lines_have_their_names_at_their_ends_or_in_a_legend_outside_the_data(kind, size, named, tmp_path, drawn):
    draw(kind, size, tmp_path)
    (figure,) = drawn
    assert all(bool(axes.texts) == named for axes in figure.axes)
    assert bool(figure.legends) != named


def test_the_names_of_methods_are_not_broken_at_their_hyphens():
    for text in ("FedSplit (LG-FedAvg)", "with NFL-CGAN", "or FedMD-CG"):
        for tenths in range(7, 13):
            assert " ".join(style.wrapped(text, tenths / 10, style.SMALL_POINTS)) == text
    assert style.wrapped("holiday-photographs", 0.5, style.SMALL_POINTS)[0] == "holiday-"


def test_a_round_whose_name_has_no_room_has_no_tick(tmp_path, drawn):
    records = attacked(USUAL, ["fedavg"], [str(n) for n in range(100, 130)])
    psnr_by_round.write(records, tmp_path / "x")
    (axes,) = drawn[0].axes
    names = [tick.get_text() for tick in axes.get_xticklabels()]
    assert 1 < len(names) < 30
    assert all(names)


def test_a_curve_that_stops_being_finite_is_marked_where_it_does(tmp_path, drawn):
    records = trainings(USUAL, ["local", "fedavg"])
    records[1] = _changed(
        records[1],
        lambda rounds: [e if e.round < 3 else e.model_copy(update={"loss": {"task": [None, 1.0]}}) for e in rounds],
    )
    curves.write(records, grouping.setting(records[0].cell), ("loss", "accuracy"), tmp_path / "x")
    loss, accuracy = drawn[0].axes
    assert [list(line.get_xdata()) for line in loss.lines if line.get_marker() == "x"] == [[2]]
    assert [line for line in accuracy.lines if line.get_marker() == "x"] == []
    assert "not finite from here on" in [t.get_text() for t in drawn[0].legends[0].get_texts()]


def test_one_method_is_no_scatter_and_neither_are_smoke_runs(tmp_path, drawn):
    assert scatter.write(attacked(USUAL, ["fedavg"], ("0", "best")), tmp_path / "x") == []
    smoke = [record(m, spec={"preset": "smoke"}) for m in ("fedavg", "fedcg")]
    assert scatter.write(smoke, tmp_path / "x") == []
    assert drawn == []


def labels_of(figure):
    return [axes.get_ylabel() for axes in figure.axes if axes.get_ylabel()]


def test_a_grid_keeps_the_strongest_of_every_method_in_order_and_says_what_is_left_out(tmp_path, drawn):
    every = [row(f"M{m}", f"a{a}", 10 * m + a + 1, 10.0 + a, 3) for m in range(3) for a in range(4)]
    every.insert(0, row("M0", "grey", 99, 9.0, 3)._replace(rung="L0"))
    grid.write(images(0, 3), every, tmp_path / "x", grid.Size(columns=2))
    assert labels_of(drawn[0]) == [
        "original", "M0\nL0 grey", "M0\nL1 a2", "M0\nL1 a3", "M1\nL1 a2", "M1\nL1 a3", "M2\nL1 a2", "M2\nL1 a3",
    ]  # fmt: skip
    assert len(drawn[0].axes) == 8 * 2
    (remark,) = [t.get_text().replace("\n", " ") for t in drawn[0].texts if t.get_text()]
    assert remark == "Not shown: 6 weaker rows (M0, a0; M0, a1; M1, a0, ...), 1 of 3 images."
    grid.write(images(0, 3), every, tmp_path / "x", grid.Size(rows=20, columns=3))
    assert len(labels_of(drawn[1])) == 14
    assert not [t for t in drawn[1].texts if t.get_text()]


def test_a_short_grid_of_rows_of_one_name_counts_those_that_it_leaves_out(tmp_path, drawn):
    """As of one attack with several numbers of kept uploads."""
    every = [row("M0", "a0", number, 10.0 + number, 3) for number in range(3)]
    grid.write(images(0, 3), every, tmp_path / "x", grid.Size(rows=3, columns=3))
    assert labels_of(drawn[0]) == ["original", "M0\nL1 a0", "M0\nL1 a0"]
    (remark,) = [t.get_text() for t in drawn[0].texts if t.get_text()]
    assert remark == "Not shown: 1 weaker row (M0, a0)."


def test_a_grid_says_in_its_files_what_it_shows(tmp_path):
    twin = row("FedCG", "dlg", 1)
    rows = [
        twin,
        twin._replace(method="FedAvg"),
        row("FedCG", "mine", 2)._replace(psnr_db=torch.tensor([1.0, torch.nan, 2.0])),
    ]
    rows.append(row("FedCG", "unscored", 3)._replace(psnr_db=None))
    png, pdf = grid.write(images(0), rows, tmp_path / "x", grid.Size(columns=2))
    with Image.open(png) as picture:
        assert picture.info["Description"].splitlines() == [
            "FedCG, dlg: 10.0, 10.0 dB", "FedAvg, dlg: 10.0, 10.0 dB", "FedCG, mine: 1.0, - dB", "FedCG, unscored: no score",
        ]  # fmt: skip
    assert b"/Subject (FedCG, dlg: 10.0, 10.0 dB" in pdf.read_bytes()


def test_rows_of_the_same_images_are_drawn_once_under_both_names(tmp_path, drawn):
    first = row("FedAvg", "dlg", 1)
    lost = torch.full((9,), torch.nan)
    rest = [
        first._replace(method="FedCG"),
        first._replace(attack="staged", psnr_db=lost),
        row("FedSplit", "dlg", 1)._replace(images=first.images + 1e-6),
    ]
    grid.write(images(0), [first, *rest], tmp_path / "x")
    assert labels_of(drawn[0]) == ["original", "FedAvg = FedCG\nL1 dlg", "FedAvg\nL1 staged", "FedSplit\nL1 dlg"]


def test_a_short_grid_keeps_the_strongest_of_each_knowledge_first():
    given = {"dlg": (9.0, ""), "idlg": (21.0, ""), "matching": (20.0, ""), "surrogate": (12.0, " + auxiliary")}
    rows = [
        row("FedCG", attack, i, psnr)._replace(knowledge=f"gradient{more}")
        for i, (attack, (psnr, more)) in enumerate(given.items())
    ]
    lines = grid.lines_of(rows)
    assert [line.first.attack for line in grid.select_lines(lines, 1)] == ["idlg"]
    assert [line.first.attack for line in grid.select_lines(lines, 2)] == ["idlg", "surrogate"]
    assert [line.first.attack for line in grid.select_lines(lines, 3)] == ["idlg", "matching", "surrogate"]


def test_a_grid_has_at_most_eight_rows_and_marks_the_papers_attack(tmp_path, drawn):
    rows = [row(f"method{i}", "staged", i) for i in range(9)]
    rows[0] = rows[0]._replace(is_papers=True)
    grid.write(images(99), rows, tmp_path / "x")
    names = labels_of(drawn[0])
    assert len(names) == 8
    assert names[1] == "method0\nL1 staged\n(the paper's)"
    assert not any("paper" in name for name in names[2:])


@pytest.mark.parametrize("victims", [1, 2, 8])
def test_the_names_of_a_grid_s_rows_lie_within_it(victims, tmp_path, drawn):
    """As those of an audit of a single message, which have no method."""
    rows = [row("", name, i, count=victims) for i, name in enumerate(("matching", "dlg"))]
    grid.write(images(99, victims), rows, tmp_path / "x")
    (figure,) = drawn
    for axes in figure.axes:
        if axes.get_ylabel():
            assert axes.yaxis.label.get_window_extent().x0 >= 0, axes.get_ylabel()


def test_a_grid_and_the_table_of_the_same_records_have_one_order():
    records = list(reversed(attacked(USUAL, ["fedavg", LONG_NAME, "fedcg"], defenses=("gaussian:0.1", "none"))))
    listed = [(line["method"], line["attack"]) for line in attack_table.long_rows(attack_table.in_order(records))]
    of_grid = [(label(cell), cell.attack) for cell in sorted((r.cell for r in records), key=cell_place)]
    assert listed == of_grid
    assert listed[:4] == [
        ("FedAvg", "dlg"),
        ("FedAvg", "staged"),
        ("FedAvg + Gaussian 0.1", "dlg"),
        ("FedAvg + Gaussian 0.1", "staged"),
    ]
    text = report_files.markdown(attack_table.report(records)).split("## Every record", 1)[1]
    lines = [line.split("|") for line in text.splitlines() if line.startswith("| cifar10")]
    assert [(cells[3].strip(), cells[4].strip()) for cells in lines] == of_grid


@pytest.mark.parametrize("text", ["FedAvg + Gaussian 0.001", LONG_NAME, "a b " * 30, "M" * 200, ""])
def test_wrapped_lines_fit_and_lose_nothing(text):
    lines = style.wrapped(text, 1.0, 7.5)
    assert all(style.width_inches(line, 7.5) <= 1.0 for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


@pytest.mark.parametrize(
    ("count", "shape"), [(1, (1, 1)), (2, (1, 2)), (3, (1, 3)), (5, (1, 5)), (7, (2, 4)), (13, (3, 5))]
)
def test_panels_fill_the_width(count, shape):
    figure, drawn_ = style.panels(count, 1.0)
    assert len(drawn_) == len(figure.axes) == count
    assert isinstance(drawn_[0], Axes)
    spec = drawn_[0].get_gridspec()
    assert (spec.nrows, spec.ncols) == shape


@pytest.mark.parametrize("name", [r"$\write18{id}$", r"$\frac{a}{b}$", "$x_{$"])
def test_a_legend_whose_names_begin_like_formulas_is_drawn_as_it_is_written(name, tmp_path):
    figure = style.new_figure(3.0, 2.0)
    drawn = style.legend(figure, [style.handle(name)], title=name)
    assert [text.get_parse_math() for text in (*drawn.get_texts(), drawn.get_title())] == [False, False]
    (png, _) = style.save(figure, tmp_path / "legend")
    assert png.exists()
