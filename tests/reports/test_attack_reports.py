"""Tables and figures: pure functions of records."""

import csv
import io
import math
import re
from itertools import combinations, pairwise
from pathlib import Path

import pytest
import torch
from matplotlib.collections import LineCollection
from matplotlib.text import Text
from PIL import Image

from privbench.execution import cell_jobs
from privbench.presets import cell_spec, train_spec
from privbench.records.schema import read
from privbench.records.store import Store
from privbench.system.console import Console
from reports.figures import grid, psnr_by_round, scatter
from reports.figures.drawing import style
from reports.records import grouping
from reports.records.labels import Gap, label, published, update_text
from reports.records.remarks import remarks
from reports.studies import definition, study_cells
from reports.tables import attack_table, ladder, ladder_summary, render, report, report_files, terminal
from tests.builders.paper_cells import in_paper
from tests.builders.records import record

FIVE = [
    ("fedavg", "none"),
    ("fedavg", "gaussian:0.001"),
    ("fedavg", "gaussian:0.1"),
    ("fedsplit", "none"),
    ("fedcg", "none"),
]


def five():
    papers_attack = {"fedcg": "feature-statistics"}
    return [
        record(m, d, attack, psnr=p, round_=r)
        for r in ("best", "0")
        for m, d in FIVE
        for attack, p in ((papers_attack.get(m, "dlg"), 9.0), ("staged", 20.0))
    ]


@pytest.mark.parametrize("dataset", ["cifar10", "digit5", "office10"])
@pytest.mark.parametrize(("method", "defense"), FIVE)
def test_every_cell_of_the_published_table_is_shipped(dataset, method, defense):
    attack = {"fedcg": "feature-statistics"}.get(method, "dlg")
    accuracy, psnr = published(in_paper(record(method, defense, attack, dataset=dataset)).cell)
    assert psnr.value > 5
    assert 30 < accuracy.value < 90


def test_published_values_by_hand():
    assert published(in_paper(record("fedcg", attack="feature-statistics")).cell) == (
        (47.52, 0.68, "FedCG Table 2", ""), (8.99, 0.05, "FedCG Table 2", ""),
    )  # fmt: skip
    assert published(in_paper(record("fedcg", attack="staged")).cell)[1] is None
    for quick in (record("fedcg", attack="feature-statistics"), record(dataset="photos")):
        assert published(quick.cell) == (None, None)


def test_table_1_stands_in_where_table_2_is_silent():
    for change, value in (({"dataset": "fmnist"}, 83.81), ({"spec": {"clients": 8}}, 49.15)):
        r = record("fedcg", attack="feature-statistics", **change)
        clients = r.cell.train.clients
        accuracy, psnr = published(in_paper(r, "fedcg-table1", clients=clients).cell)
        assert (accuracy.value, accuracy.source, psnr) == (value, "FedCG Table 1", None)


def test_a_table_without_any_published_value_has_no_row_of_them():
    form = attack_table.compact([record(dataset="digit5", spec={"clients": 3})])[0]
    assert not [row for row in form.rows if "published" in row[0]]


def test_the_tables_are_pure_functions_of_the_records(tmp_path):
    first = report_files.write(attack_table.report(five()), tmp_path / "a" / "table")
    second = report_files.write(attack_table.report(five()), tmp_path / "b" / "table")
    assert [p.name for p in first] == ["table.md", "table.csv", "table.tex", "table.html"]
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]


def columns_of(form):
    """row name -> column -> cell; a row without a name of its own bears the one above."""
    named, above = {}, ""
    for name, *cells in form.rows:
        above = name if not name.startswith("  ") else above
        named[name if name == above else f"{above}:{name.strip()}"] = dict(zip(form.columns[1:], cells, strict=True))
    return named


def test_the_published_form_has_one_column_per_method_and_the_values_beside():
    trained, untrained = attack_table.compact(list(map(in_paper, five())))
    assert trained.columns == ["", "FedAvg", "FedAvg + Gaussian 0.001", "FedAvg + Gaussian 0.1", "FedSplit", "FedCG"]
    table = columns_of(trained)
    accuracy, plain, best = (
        "accuracy of the trained method, %", "PSNR, the paper's attack, dB", "PSNR, strongest attack here, dB",
    )  # fmt: skip
    assert table[accuracy]["FedCG"] == "42.25 +- 0.35"
    assert table[f"{accuracy}:published, %"]["FedCG"] == "47.52 +- 0.68"
    assert table[f"{plain}:published, dB"]["FedSplit"] == "6.23 +- 0.02"
    assert table[f"{best}:which"]["FedAvg"] == "staged (gradient)"
    assert table["floor, dB"]["FedCG"] == "14.00 (class-mean)"
    strongest = table[best]["FedAvg"].split(" ")[0]
    assert 19 < float(strongest) < 21
    assert set(table["ceiling (undefended FedAvg), dB"].values()) == {strongest}
    assert "untrained" in untrained.title


def test_columns_stand_in_the_published_order_whatever_order_the_records_come_in():
    assert attack_table.compact(five()[::-1])[1].columns == attack_table.compact(five())[0].columns


def test_fedcg_is_compared_by_equation_8_and_the_others_by_equation_7():
    records = [record("fedcg", attack=a, psnr=p) for a, p in (("dlg", 30.0), ("feature-statistics", 9.0))]
    cell = columns_of(attack_table.compact(records)[0])["PSNR, the paper's attack, dB"]["FedCG"]
    assert float(cell.split(" ")[0]) < 11


def test_records_of_different_settings_never_share_a_table():
    settings = [
        {}, {"batch_size": 4}, {"labels_known": True}, {"clients": 8}, {"preset": "paper"}, {"domains": ["a"]},
        {"backbone": "resnet18"}, {"partition": "dirichlet", "omega": 1.0}, {"observe": "update"},
        {"observe": "update", "local_steps": 2}, {"protocol": "nfl-cgan", "flip": False}, {"flip": False},
        {"measured": "broadcast"},
        {"observe": "update", "local_steps": 3, "local_lr": 0.1},
        {"observe": "update", "local_steps": 3, "local_lr": 0.2},
        {"observe": "update", "local_steps": 3, "batch_size": 4},
    ]  # fmt: skip
    forms = attack_table.compact([record(spec=s) for s in settings])
    assert len(forms) == len({form.title for form in forms}) == len(settings)
    assert len({grouping.setting(record(spec=s).cell) for s in ({}, *settings[10:13])}) == 4  # of training alone
    assert forms[-1].title.endswith("whole updates of 3 steps, 4 images per update")
    both = [record(defense="gaussian:0.1", spec={"where": w}) for w in ("step", "update")]
    assert attack_table.compact(both)[0].columns == ["", "FedAvg + Gaussian 0.1 (every step)", "FedAvg + Gaussian 0.1"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"observe": "gradient"}, ""),
        ({"observe": "update"}, "whole updates of 1 step"),  # the smoke preset's local epochs
        ({"observe": "update", "local_steps": 3}, "whole updates of 3 steps"),
        ({"observe": "update", "local_steps": 3, "local_lr": 0.1}, "whole updates of 3 SGD steps at 0.1"),
    ],
)
def test_a_record_and_the_cell_it_is_of_tell_the_same_of_whole_updates(options, text, tmp_path):
    """A finished cell and a missing one (a Gap) belong to one table."""
    train = train_spec("smoke", "digits", "fedavg", clients=2, changes={"rounds": 0})
    cell = cell_spec("smoke", train, "grey", seeds=1, victims=1, **options)
    assert cell_jobs.run_cells([cell], tmp_path, None, "cpu", lambda *_: None, lambda *_: None) == []
    recorded = read(Store(tmp_path).record(cell)).cell
    assert recorded == cell
    assert update_text(recorded) == text


def without(attacks, method="fedcg"):
    lost = [r for r in five() if r.cell.train.method == method and r.cell.attack in attacks]
    finished = [r for r in five() if not (r.cell.train.method == method and r.cell.attack in attacks)]
    return finished, [Gap(r.cell, "the disk is full") for r in lost]


def test_a_missing_attack_stays_a_gap_with_its_reason():
    finished, gaps = without({"feature-statistics"})
    table = columns_of(attack_table.compact(finished, gaps)[0])
    assert table["PSNR, the paper's attack, dB"]["FedCG"] == "missing"
    assert table["PSNR, strongest attack here, dB:which"]["FedCG"].endswith("; feature-statistics missing")
    text = report_files.markdown(attack_table.report(finished, gaps))
    assert "- cifar10, FedCG, feature-statistics, round best, 0 (untrained): the disk is full" in text
    assert "the disk is full" in report_files.latex(attack_table.report(finished, gaps))


def test_a_method_whose_cells_are_all_missing_keeps_its_column_and_its_published_value():
    finished, gaps = without({"feature-statistics", "staged"})
    form = attack_table.compact(finished, gaps)[0]
    assert form.columns == attack_table.compact(five())[0].columns
    fedcg = {name: cells["FedCG"] for name, cells in columns_of(form).items()}
    assert fedcg["PSNR, strongest attack here, dB"] == fedcg["floor, dB"] == "missing"
    finished, gaps = (
        list(map(in_paper, finished)),
        [gap._replace(cell=in_paper(record(**cell_of(gap))).cell) for gap in gaps],
    )
    fedcg = {name: cells["FedCG"] for name, cells in columns_of(attack_table.compact(finished, gaps)[0]).items()}
    assert fedcg["PSNR, the paper's attack, dB:published, dB"] == "8.99 +- 0.05"


def cell_of(gap):
    return {"method": gap.cell.train.method, "attack": gap.attack, "round_": gap.cell.round}


def test_a_published_value_below_the_floor_is_called_a_failed_attack():
    text = "\n".join(attack_table.remarks(list(map(in_paper, five()))))
    assert "published 6.23 dB lies below the 14.00 dB that the class-mean image scores" in text
    assert "note: half of the data" in text
    assert "the published 24.14" not in text


def test_a_disagreement_with_the_published_value_is_reported_once_per_column_and_never_of_floors():
    cells = [in_paper(record("fedcg", attack=a, psnr=p)) for a, p in
             (("grey", 30.0), ("feature-statistics", 5.0), ("surrogate", 16.0), ("decoder", 14.0))]  # fmt: skip
    (remark,) = (line for line in attack_table.remarks(cells) if "published 8.99 dB;" in line)
    one, other = (cells[k].scores.psnr_db for k in (2, 1))
    assert remark == (
        f"cifar10, FedCG, round best (7-8): published 8.99 dB; the strongest attack here, surrogate, {one:.2f} "
        f"({one - 8.99:+.1f}); the paper's attack, feature-statistics, {other:.2f} ({other - 8.99:+.1f})."
    )
    assert not any("published 8.99 dB;" in line for line in attack_table.remarks(cells[:1]))
    near = [in_paper(record("fedcg", attack="feature-statistics", psnr=10.0))]
    assert not any("published 8.99 dB;" in line for line in attack_table.remarks(near))


def test_accuracy_is_held_against_the_published_one_in_the_paper_preset_alone():
    remark = "FedCG: accuracy 42.25%, published 47.52% (-5.3)"
    assert not any(remark in line for line in attack_table.remarks([record("fedcg")]))
    assert any(remark in line for line in attack_table.remarks([in_paper(record("fedcg"))]))


def test_failed_victims_are_reported():
    lines = attack_table.remarks([record(victims=[{"outcome": "diverged"}])])
    assert any("1 of 8 victims have a gradient, objective or image that is not finite" in line for line in lines)


def test_the_csv_holds_every_record_at_full_precision():
    rows = list(csv.DictReader(io.StringIO(report_files.csv(attack_table.report(list(map(in_paper, five())))))))
    assert len(rows) == 20
    assert float(rows[0]["psnr_db"]) == pytest.approx(five()[0].scores.psnr_db, rel=1e-12)
    assert rows[0]["published_psnr_db"] == "24.14"
    assert rows[1]["published_psnr_db"] == ""  # `staged` is not the papers' attack


def test_latex_is_escaped_and_balanced():
    text = report_files.latex(attack_table.report([record(dataset="folder:/pictures/a_b&c")]))
    assert r"a\_b\&c" in text
    assert r"$\pm$" in text
    assert "accuracy of the trained method, \\%" in text
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 2
    assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")
    for tabular in text.split(r"\begin{tabular}")[1:]:
        columns = tabular.split("}\n")[0].split("l", 1)[1].count("r") + 1
        body = [line for line in tabular.splitlines() if line.endswith(r"\\")]
        assert {len(re.findall(r"(?<!\\)&", line)) for line in body} == {columns - 1}


def test_latex_leaves_a_gap_behind_a_row_of_several_lines_alone():
    lines = render.latex(["a", "b"], [["x", "1\n[0, 2]"], ["y", "2"]], "").splitlines()
    body = lines[lines.index(r"\midrule") + 1 : lines.index(r"\bottomrule")]
    assert body == [r"x & 1 \\", r" & {[}0, 2{]} \\", r"\addlinespace[2pt]", r"y & 2 \\"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5% of a_b & c#d", r"5\% of a\_b \& c\#d"),
        ("{x}^~$\\", r"\{x\}\textasciicircum{}\textasciitilde{}\$\textbackslash{}"),
        ("-1.50 [-2.0, -1.0]", "$-$1.50 {[}$-$2.0, $-$1.0{]}"),
        ("4.0 +- 0.1", r"4.0 $\pm$ 0.1"),
        ("4.0 +- 0.1†", r"4.0 $\pm$ 0.1\textdagger{}"),
        ("  published, dB", r"\quad published, dB"),
        ("-", "--"),
        ("feature-statistics", "feature-statistics"),
        ("a < b > c | d", r"a \textless{} b \textgreater{} c \textbar{} d"),
    ],
)
def test_latex_escapes(text, expected):
    assert render.tex(text) == expected


def printed(cells, width, **more):
    """What the terminal shows of some records."""
    console = Console(width=width, record=True, file=io.StringIO())
    terminal.show(attack_table.report(cells), Path("runs/x/table.md"), console, **more)
    return console.export_text()


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_the_terminal_table_shows_every_number_in_a_narrow_window(width):
    text = printed(list(map(in_paper, five())), width)
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= width
    for form in attack_table.compact(five()):
        for part in {part for row in form.rows for cell in row[1:] for part in re.split(r" (?=[\[(])", cell)}:
            assert part in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_at_most_five_lines_stand_under_the_table_and_the_last_names_the_file_with_the_rest(width):
    cells = list(map(in_paper, five()))
    under = printed(cells, width).rstrip().splitlines()
    under = under[max(i for i, line in enumerate(under) if not line.strip()) + 1 :]
    assert under[0].startswith("- ")
    assert len(under) == 5
    assert under[-1].endswith("how to read this: runs/x/table.md")
    hidden = int(under[-1].removeprefix("- ").split()[0])
    whole = len(remarks(cells)) + 1
    assert (
        sum(line.startswith("- ") for line in under[:-1]) - any(line.endswith(" ...") for line in under)
        == whole - hidden
    )
    assert "first look" in printed(cells, width, first=["a first look"]).rstrip().splitlines()[-5]


def test_a_terminal_of_120_characters_holds_all_five_columns_in_one_table():
    assert "(continued)" not in printed(five(), 120)


def test_a_smoke_table_shows_no_score_and_says_what_smoke_is_for():
    cells = [record(spec={"preset": "smoke"})]
    scores = {f"{value:.2f}" for r in cells for value in (r.scores.psnr_db, r.floor.psnr_db)}
    for text in (
        report_files.markdown(attack_table.report(cells)),
        report_files.latex(attack_table.report(cells)),
        printed(cells, 100),
    ):
        assert "tests that every part runs" in " ".join(text.split())
        assert not any(score in text for score in scores)
    assert all(
        any(score in report_files.markdown(attack_table.report([record()])) for score in [one]) for one in scores
    )


def test_the_files_of_numbers_of_smoke_runs_hold_no_score_and_no_curve_is_drawn(tmp_path):
    for preset, shown in (("smoke", False), ("quick", True)):
        cells = [record(round_=each, spec={"preset": preset}) for each in ("0", "2")]
        exact = {str(value)[:6] for r in cells for value in (r.scores.psnr_db, r.scores.ssim, r.floor.psnr_db)}
        texts = [report_files.csv(each.report(cells)) for each in (attack_table, ladder)]
        texts += [report_files.write(ladder_summary.report(cells), tmp_path / preset)[1].read_text()]
        for text in texts:
            assert any(each in text for each in exact) == shown, text
            assert "psnr_db" in text
        assert bool(psnr_by_round.write(cells, tmp_path / "curve")) == shown
        unlabelled = report.Report("x", [], [], [{"id": "a", "n": 3, "clipped": 12.345}])
        assert report.without_scores(unlabelled).numbers[0]["n"] == 3
        assert math.isnan(report.without_scores(unlabelled).numbers[0]["clipped"])


def test_the_header_says_that_a_quick_run_is_not_the_published_one():
    assert any("NOT the published schedule" in line for line in attack_table.header(five()))
    assert any("no proof of privacy" in line for line in attack_table.header(five()))
    assert not any("NOT the published" in line for line in attack_table.header([record(spec={"preset": "paper"})]))


def test_the_header_names_every_machine_and_date():
    other = record(environments=[{"machine": "another", "date": "2026-02-02"}] * 2)
    first = attack_table.header([record(), other])[0]
    assert "cpu: test" in first
    assert "cpu: another" in first
    assert "2026-01-01 to 2026-02-02" in first
    assert "seeds 0, 1; n = 8 victims" in first


@pytest.mark.parametrize("channels", [1, 3])
def test_the_grid_shows_originals_and_one_row_per_method(channels, tmp_path):
    images = torch.rand(8, channels, 32, 32)
    rows = [grid.Row(m, "staged", images, torch.full((8,), p)) for m, p in (("FedAvg", 23.4), ("FedCG", 8.1))]
    png, pdf = grid.write(images, rows, tmp_path / "grid")
    with Image.open(png) as picture:
        assert picture.width > picture.height > 600
    assert pdf.read_bytes().startswith(b"%PDF")


def test_the_grid_writes_the_psnr_under_each_image_and_names_failures(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(style, "save", lambda figure, *_: drawn.append(figure) or [])
    images = torch.rand(2, 3, 32, 32)
    grid.write(images, [grid.Row("FedCG", "staged", images, torch.tensor([float("nan"), 8.04]))], tmp_path / "grid")
    labels = [axes.get_xlabel() for axes in drawn[0].axes]
    assert labels == ["", "", "failed", "8.0 dB"]
    assert [axes.get_ylabel() for axes in drawn[0].axes] == ["original", "", "FedCG\nstaged", ""]


def test_the_scatter_draws_published_points_hollow_and_where_they_belong(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(style, "save", lambda figure, stem: drawn.append(figure) or [])
    scatter.write([in_paper(r) for r in five() if r.cell.round == "best"], tmp_path / "scatter")
    hollow = [line for line in drawn[0].axes[0].lines if line.get_markerfacecolor() == "none"]
    assert (47.52, 8.99) in {(line.get_xdata()[0], line.get_ydata()[0]) for line in hollow}
    assert len(hollow) == 5
    sizes = [text.get_fontsize() for text in drawn[0].legends[0].get_texts()]
    assert min(sizes) >= 7


def test_figures_are_pure_functions_of_their_input(tmp_path):
    once, again = (scatter.write(five(), tmp_path / name) for name in ("a", "b"))
    assert [p.read_bytes() for p in once] == [p.read_bytes() for p in again]


def test_the_scatter_has_one_panel_per_round_side_by_side(tmp_path):
    two, _ = scatter.write(five(), tmp_path / "two")
    one, _ = scatter.write([r for r in five() if r.cell.round == "best"], tmp_path / "one")
    with Image.open(two) as a, Image.open(one) as b:
        # 6.75 and 3.25 inches at 300 dpi.
        assert (a.width, b.width) == (2025, 975)
        assert a.height < 1.2 * b.height


def test_the_panels_of_the_scatter_stand_in_the_order_of_rounds(figure, tmp_path):
    drawn = figure([r for when in ("last", "best", "10", "0", "2") for r in _of_round(when)], tmp_path)
    titles = [axes.get_title() for axes in drawn.axes]
    assert titles == ["round 0 (untrained)", "round 2", "round 10", "last round", "best round"]


def _of_round(when):
    return [record("fedavg", round_=when), record("fedsplit", round_=when)]


@pytest.fixture
def figure(monkeypatch):
    """The last figure that was drawn, laid out."""
    figures = []
    monkeypatch.setattr(style, "save", lambda figure, stem: figures.append(figure) or [])

    def of(records, tmp_path):
        scatter.write(records, tmp_path / "scatter")
        figures[-1].draw_without_rendering()
        return figures[-1]

    return of


def test_names_stand_beside_their_points_and_cover_nothing(figure, tmp_path):
    drawn = figure(five(), tmp_path)
    assert drawn.legends == []
    for axes in drawn.axes:
        names = {" ".join(text.get_text().split()): text for text in axes.texts}
        assert set(names) == {*(label(r.cell) for r in five()), "best floor"}
        boxes = [Text.get_window_extent(text) for text in names.values()]
        assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
        marks = [axes.transData.transform(line.get_xydata()[0]) for line in axes.lines if line.get_marker() in "os^Dv"]
        assert len(marks) >= 5
        assert not any(box.contains(*mark) for box in boxes for mark in marks)


def test_names_without_room_are_a_legend(figure, tmp_path):
    crowd = [
        record("fedavg", f"gaussian:{0.001 * n}", psnr=15.0 + 0.01 * n, spec={"method_settings": {}})
        for n in range(1, 40)
    ]
    drawn = figure(crowd, tmp_path)
    assert len(drawn.legends[0].get_texts()) == 40
    assert not any(axes.texts for axes in drawn.axes)


def test_bars_that_would_lie_on_each_other_are_drawn_apart(figure, tmp_path):
    alike = [record(m, d, "staged", psnr=12.0) for m, d in FIVE]
    (axes,) = figure(alike, tmp_path).axes
    bars = [collection for collection in axes.collections if isinstance(collection, LineCollection)]
    ends = [bar.get_transform().transform(bar.get_segments()[0]) for bar in bars]
    rows = sorted(end[0][1] for end in ends if abs(end[0][1] - end[1][1]) < 1)
    assert len(rows) == 5
    step = scatter.STEP_POINTS / 72 * axes.figure.dpi
    assert min(b - a for a, b in pairwise(rows)) >= 0.9 * step


def floored_at(made, drop_db):
    """The record with every floor lower."""
    lower = [v.model_copy(update={"floors": {n: f - drop_db for n, f in v.floors.items()}}) for v in made.victims]
    return made.model_copy(update={"victims": lower})


def own_floors(axes):
    return [line for line in axes.lines if line.get_markersize() == scatter.OWN_FLOOR_POINTS]


def test_a_method_with_another_floor_has_a_line_of_its_own(figure, tmp_path):
    noised = ("fedavg", "gaussian:0.1")
    made = [record(m, d, "staged", psnr=12.0) for m, d in FIVE]
    records = [floored_at(r, 1.5) if (r.cell.train.method, r.cell.train.defense) == noised else r for r in made]
    drawn = figure(records, tmp_path)
    (axes,) = drawn.axes
    (shared,) = [line for line in axes.lines if line.get_color() == scatter.FLOOR["color"]]
    assert shared.get_ydata()[0] == pytest.approx(14.0)
    (own,) = own_floors(axes)
    assert own.get_ydata()[0] == pytest.approx(12.5)
    # Points of equal accuracy leave names no room.
    (legend,) = drawn.legends
    texts = [text.get_text() for text in legend.get_texts()]
    colours = {name: line.get_color() for name, line in zip(texts, legend.legend_handles, strict=True)}
    assert own.get_color() == colours["FedAvg + Gaussian 0.1"]
    assert scatter.OWN_FLOOR in drawn.get_suptitle()
    (alike,) = figure(made, tmp_path).axes
    assert own_floors(alike) == []


def test_the_attack_table_study_has_the_five_published_columns():
    cells = study_cells.of(definition.read("attack-table"), "quick", [("digits", None), ("photos", None)], seeds=1)
    columns = {(c.train.method, c.train.defense) for c in cells}
    assert columns == set(FIVE)
    assert len(cells) == 2 * 5 * 2 * 2
    assert len({c.id for c in cells}) == len(cells)
