"""The ladder's tables and its curve: pure functions of records."""

import csv
import io
from pathlib import Path

import pytest
from PIL import Image

from privbench.system.console import Console
from reports.figures import psnr_by_round
from reports.figures.drawing import style
from reports.records.labels import Gap
from reports.records.measured import strongest
from reports.tables import ladder, ladder_summary, render, report_files, terminal
from reports.tables.summary import verdicts
from tests.builders.records import changed_cell, record, with_knowledge
from tests.reports.records.test_table_checks import attack_record, oracle, real, surrogate


def floor(round_="best", method="fedsplit"):
    return attack_record(
        "class-mean",
        14.0,
        "label + auxiliary mean",
        ("auxiliary", "gradient:classifier"),
        "L0",
        round_=round_,
        method=method,
    )


def rungs(round_="best", method="fedsplit"):
    changes = {"round_": round_, "method": method}
    return [
        surrogate(18.0, **changes),
        attack_record("dlg", 9.0, rung="L1", **changes),
        floor(round_, method),
        attack_record("staged", 16.0, **changes),
    ]


def test_a_block_has_the_best_floor_and_the_strongest_attack_of_each_tag_in_the_order_of_rungs():
    (block,) = ladder.blocks(rungs())
    assert block.floors.name == "class-mean"
    assert [row.best.name for row in block.rows] == ["staged", "surrogate"]
    assert [r.cell.attack for r in block.every] == ["class-mean", "dlg", "staged", "surrogate"]
    assert [c.name for c in block.tests] == [
        "gradient (staged) - class-mean",
        "gradient + auxiliary (surrogate) - class-mean",
    ]
    rows = ladder.best_rows(block, {r.id: [] for r in rungs()})
    assert [row["rung"] for row in rows] == ["L0", "L1-L2", "L4"]
    assert rows[1]["knowledge"] == "gradient"
    assert rows[1]["n / failures"] == "20 / 0"
    assert rows[1]["identified"] == "25% (chance 25%)"
    assert rows[1]["feature error"] == "0.250"
    assert rows[1]["gradient evaluations"] == "50"


def test_the_answer_names_the_strongest_attack_its_gain_and_whether_the_floor_is_beaten():
    (block,) = ladder.blocks(rungs())
    line = ladder.strongest_line(block)
    assert "strongest attack: surrogate (gradient + auxiliary)" in line
    assert "Floor 14.00 dB (class-mean)" in line
    assert "no (epsilon, delta) guarantee" in line
    assert "It does not beat the floor significantly" not in line
    (weak,) = ladder.blocks([attack_record("dlg", 9.0, rung="L1"), floor()])
    assert "It does not beat the floor significantly" in ladder.strongest_line(weak)
    (bare,) = ladder.blocks([floor()])
    assert "no attack was run" in ladder.strongest_line(bare)


def test_with_few_seeds_nothing_is_significant_however_large_the_gain():
    few = [with_knowledge(record("fedsplit", attack="staged", psnr=60.0, seeds=(0, 1, 2)), rung="L2")]
    (block,) = ladder.blocks(few)
    line = ladder.strongest_line(block)
    assert "3 seed(s) are too few to say whether it beats the floor significantly." in line
    assert "It does not beat the floor significantly" not in line
    (verdict,) = verdicts.verdicts(few)
    assert verdict == "FedSplit: 3 seeds are too few to say whether an attack gains significantly."
    assert not any(render.is_bold(cell) for row in ladder_summary.report(few).tables[0].rows for cell in row)


def test_rounds_of_few_seeds_are_named_beside_those_where_an_attack_gains():
    gains = with_knowledge(record("fedsplit", attack="staged", psnr=60.0, seeds=range(5)), rung="L2")
    nothing = with_knowledge(record("fedsplit", attack="staged", psnr=5.0, seeds=range(5), round_="1"), rung="L2")
    few = with_knowledge(record("fedsplit", attack="staged", psnr=60.0, seeds=(0,), round_="0"), rung="L2")
    (verdict,) = verdicts.verdicts([gains, nothing, few])
    assert "gains significantly over the floor at the best round" in verdict
    assert "1 seed is too few to say whether an attack gains significantly at round 0." in verdict
    assert "does the strongest attack gain significantly at round 1, which bounds" in verdict


def test_the_short_tables_have_eight_columns_at_most():
    assert len(ladder.SHORT) <= 8
    assert set(ladder.SHORT) <= set(ladder.COLUMNS)
    assert {"worst 5%, dB", "above 20 dB", "identified"} <= set(ladder.COLUMNS)


def test_the_same_knowledge_is_one_row_whatever_the_attacker_would_have_used_elsewhere():
    both = [real("surrogate", 18.0), real("decoder", 19.0)]
    (split,), (cg,) = ladder.blocks(both), ladder.blocks([real(r.attack, 18.0, "fedcg") for r in both])
    rows = ladder.best_rows(split, {r.id: [] for r in both})
    assert [(row["rung"], row["knowledge"]) for row in rows] == [("L4-L5", "gradient + auxiliary")]
    assert [row.knowledge for row in cg.rows] == ["gradient + auxiliary", "gradient + auxiliary + generator"]


def test_a_row_is_the_best_attack_whose_knowledge_lies_within_it():
    strong = [real("staged", 20.0), real("surrogate", 16.0), real("analytic-features", 15.0), real("imprint", 12.0)]
    (block,) = ladder.blocks([*strong, oracle(13.0)])
    best = [
        (row["knowledge"], row["strongest attack"]) for row in ladder.best_rows(block, {r.id: [] for r in block.every})
    ]
    assert best == [
        ("gradient + natural images", "staged"),
        ("gradient + initial networks + natural images", "staged"),
        ("gradient + auxiliary", "staged"),
        ("active server + auxiliary", "staged"),
        ("oracle", "oracle"),
    ]
    assert [len(row.alike) for row in block.rows] == [1] * 5
    assert len(block.tests) == 2  # each attack once, whatever rows it is the best of


def test_an_attacker_of_a_row_needs_no_more_than_the_row_has():
    strong = [real("dlg", 9.0), real("staged", 12.0), real("surrogate", 20.0), real("analytic-features", 15.0)]
    (block,) = ladder.blocks([*strong, real("grey", 11.0)])
    assert [row.best.name for row in block.rows] == ["dlg", "staged", "analytic-features", "surrogate"]


def test_images_of_another_choice_lie_within_no_row_that_lacks_them():
    few = surrogate(25.0, spec={"auxiliary": "same:0.01"}).model_copy(update={"id": "few"})
    (block,) = ladder.blocks([*rungs(), few])
    assert {row.knowledge: row.best.attacks[0].id for row in block.rows}["gradient + auxiliary"] != "few"


def test_the_amount_of_auxiliary_images_is_knowledge_and_has_a_row_of_its_own():
    few = surrogate(15.0, spec={"auxiliary": "same:0.01"}).model_copy(update={"id": "few"})
    (block,) = ladder.blocks([*rungs(), few])
    rows = ladder.best_rows(block, {r.id: [] for r in block.every})
    assert [row["knowledge"] for row in rows[2:]] == ["gradient + auxiliary", "gradient + auxiliary (same:0.01)"]


def test_the_oracle_is_a_reference_and_never_the_strongest_attack():
    (block,) = ladder.blocks([*rungs(), oracle(30.0)])
    line = ladder.strongest_line(block)
    assert "strongest attack: surrogate" in line
    assert f"Reference, with the victim's own networks: {oracle(30.0).scores.psnr_db:.2f}" in line
    assert strongest([oracle(30.0), surrogate(18.0)]).name == "surrogate"
    assert strongest([oracle(30.0)]).name == "oracle"


def test_an_attack_without_a_rung_is_the_users_own():
    users = attack_record("mine:Cosine", 15.0, rung=None)
    assert ladder.rung(users) == "own"
    assert "| own | gradient | mine:Cosine |" in report_files.markdown(ladder.report([*rungs(), users]))


def test_the_tables_hold_every_attack_the_checks_and_what_was_not_run(tmp_path):
    gap = Gap(
        changed_cell(rungs()[0].cell, attack="feature-statistics"),
        "needs the upload:generator, which fedsplit does not send",
        True,
    )
    paths = report_files.write(ladder.report(rungs(), [gap]), tmp_path / "ladder")
    assert [p.name for p in paths] == ["ladder.md", "ladder.csv", "ladder.tex", "ladder.html"]
    text = paths[0].read_text()
    assert "## Not run" in text
    assert "feature-statistics, round best: needs the upload:generator" in text
    assert "below-floor: " in text
    assert "no proof of privacy" in text
    rows = list(csv.DictReader(io.StringIO(paths[1].read_text())))
    assert [row["attack"] for row in rows] == ["class-mean", "dlg", "staged", "surrogate"]
    assert rows[1]["checks"] == "few below-floor"
    assert float(rows[3]["psnr_db"]) == rungs()[0].scores.psnr_db
    latex = paths[2].read_text()
    assert latex.count(r"\begin{tabular}") == 1
    assert latex.count("{") == latex.count("}")


def test_methods_of_one_table_are_compared():
    text = report_files.markdown(ladder.report([*rungs(), *rungs(method="fedavg")]))
    assert "## Between methods" in text
    assert "| FedAvg - FedSplit | 20 | 5 |" in text
    assert "## Between methods" not in report_files.markdown(ladder.report(rungs()))


def test_the_terminal_shows_the_ladder():
    console = Console(width=160, record=True, file=io.StringIO())
    terminal.show(ladder.report(rungs()), Path("ladder.md"), console)
    text = console.export_text()
    assert "strongest attack: surrogate" in text
    assert "L1-L2" in text


@pytest.fixture
def drawn(monkeypatch):
    figures = []
    monkeypatch.setattr(style, "save", lambda figure, stem: figures.append(figure) or [])
    return figures


def rounds():
    return [r for when in ("0", "2", "best") for r in rungs(when)]


def test_the_curve_has_a_line_per_knowledge_tag_from_round_0_on(tmp_path, drawn):
    psnr_by_round.write(rounds(), tmp_path / "x")
    (axes,) = drawn[0].axes
    lines = [container.lines[0] for container in axes.containers]
    assert len(lines) == 2
    gradient = next(r for r in rungs("0") if r.cell.attack == "staged")
    assert lines[0].get_xdata()[0] == 0
    assert lines[0].get_ydata()[0] == pytest.approx(gradient.scores.psnr_db)  # the strongest of its tag
    assert [" ".join(text.get_text().split()) for text in axes.texts] == [
        "L1-L2 gradient",
        "L4 gradient + auxiliary",
        "best floor",
    ]
    assert min(text.get_fontsize() for text in axes.texts) >= 7


def test_a_long_name_of_an_attacker_is_broken_so_that_the_legend_stays_inside(tmp_path, drawn):
    long = "gradient + auxiliary + initial networks + generator where shared"
    shown = [with_knowledge(r, tag=long, tag_in_general=long) for r in rounds()]
    psnr_by_round.write(shown, tmp_path / "x")
    (figure,) = drawn
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert [" ".join(text.split()) for text in texts] == [f"L1-L4 {long}", "best floor"]
    figure.draw_without_rendering()
    box, (width, height) = figure.legends[0].get_window_extent(), figure.get_size_inches() * figure.dpi
    assert 0 <= box.x0 < box.x1 <= width
    assert 0 <= box.y0 < box.y1 <= height


def test_two_names_of_one_round_are_one_point():
    best, seven = record(seeds=(0,), round_="best", psnr=15.0), record(seeds=(0,), round_="7", psnr=16.0)
    assert best.rounds == seven.rounds == [7]
    assert [when for when, _ in psnr_by_round.by_round([best, seven])] == [7]
    ((when, row),) = psnr_by_round.lines_of([best, seven])["gradient"]
    assert (when, row.name) == (7, best.attack)


def test_best_rounds_whose_average_was_attacked_too_are_not_that_round(tmp_path, drawn):
    best, eight = record(seeds=(0, 2), round_="best", psnr=15.0), record(seeds=(0, 2), round_="8", psnr=30.0)
    assert best.rounds == [7, 9]
    by_round = dict(psnr_by_round.by_round([best, eight]))
    assert [by_round[8], by_round[psnr_by_round.BEHIND * 8]] == [[eight], [best]]
    psnr_by_round.write([record(seeds=(0, 2), round_="0", psnr=40.0), best, eight], tmp_path / "x")
    (axes,) = drawn[0].axes
    assert list(axes.containers[0].lines[0].get_xdata()) == [0, 8, psnr_by_round.BEHIND * 8]


def test_a_method_that_was_attacked_at_one_round_has_a_floor_that_can_be_seen(tmp_path, drawn):
    once = record("fedcg", round_="best", psnr=20.0)
    psnr_by_round.write([*rounds(), once], tmp_path / "x")
    drawn[0].draw_without_rendering()
    axes = drawn[0].axes[1]
    (floor,) = (line for line in axes.lines if line.get_color() == psnr_by_round.FLOOR["color"])
    assert list(floor.get_ydata()) == [once.floor.psnr_db] * 2
    assert floor.get_window_extent().width == pytest.approx(axes.get_window_extent().width, rel=0.01)
    assert axes.patches[0].get_window_extent().height > 0


def test_there_is_no_curve_of_one_round(tmp_path):
    assert psnr_by_round.write(rungs(), tmp_path / "x") == []


def test_the_curve_is_one_column_wide_in_both_formats(tmp_path):
    png, pdf = psnr_by_round.write(rounds(), tmp_path / "x")
    with Image.open(png) as picture:
        assert picture.width == 975  # 3.25 inches at 300 dpi
    assert pdf.read_bytes().startswith(b"%PDF")
