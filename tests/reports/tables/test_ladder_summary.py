"""The page of the ladder study: every word and mark of it follows from the numbers of the records."""

import csv
import io

import pytest
from matplotlib.collections import PolyCollection
from rich.console import Console

from privbench import registry
from reports.documents import published
from reports.figures import psnr_by_round
from reports.figures.drawing import style
from reports.records import labels, measured
from reports.records.labels import REFUSED, Gap, fields_of
from reports.records.number_text import range_text
from reports.running import ladder_cells
from reports.tables import ladder_summary, render, report_files
from reports.tables.summary import verdicts
from tests.builders.paper_cells import in_paper
from tests.builders.records import changed, changed_cell, with_psnr, with_victims
from tests.reports.records.test_table_checks import attack_record, oracle, surrogate

GAUSSIAN = {"defense": "gaussian:0.1"}


def gaining(r, mean, spread=0.5):
    """The same record with another gain over the floor: its seeds, and its clients, lie `spread` apart.

    Of five seeds that makes an interval of about 2.1 spreads to either side, so that it lies above 0 from there on.
    """
    return with_psnr(r, lambda v: v.floors["class-mean"] + mean + spread * (v.seed - 2 + v.client - 1.5))


def gain(r):
    """As a sentence says it."""
    return range_text(measured.of(r).gain_db, sign=True)


def distinct(records):
    """Records of several data sets, rounds and defences, each with its own id as on disk."""
    keys = ("dataset", "method", "defense", "attack", "round")
    return [r.model_copy(update={"id": "-".join(map(str, fields_of(r.cell, keys).values()))}) for r in records]


def column(round_, method="fedsplit", surrogate_gain=4.0, **changes):
    """One method at one round: a floor, two attacks with the gradient, one with auxiliary images, the oracle."""
    changes |= {"round_": round_, "method": method}
    return [
        attack_record("class-mean", 14.0, "label + auxiliary mean", ("auxiliary",), "L0", **changes),
        gaining(attack_record("dlg", 9.0, rung="L1", **changes), -5.0),
        gaining(attack_record("staged", 13.9, **changes), -0.1),
        gaining(surrogate(18.0, **changes), surrogate_gain),
        gaining(oracle(24.0, **changes), 10.0),
    ]


@pytest.fixture(scope="module")
def records():
    """FedAvg with noise and FedSplit at rounds 0 and best; the noisy one never gains, the other in round 0."""
    nothing = 0.5
    several = [
        *column("0"), *column("best", surrogate_gain=nothing),
        *column("0", "fedavg", surrogate_gain=nothing, **GAUSSIAN), *column("best", "fedavg", surrogate_gain=nothing, **GAUSSIAN),
    ]  # fmt: skip
    return distinct(several)


@pytest.fixture(scope="module")
def report(records):
    return ladder_summary.report(records)


def cells_of(form):
    return {row[0]: dict(zip(form.columns[1:], row[1:], strict=True)) for row in form.rows}


def test_there_is_a_table_per_round_with_tags_in_the_order_of_rungs_and_methods_as_published(report):
    first, second = report.tables[:2]
    assert first.title.startswith("cifar10, round 0 (untrained)")
    assert second.title.startswith("cifar10, round best")
    assert first.columns == ["", "FedAvg + Gaussian 0.1", "FedSplit"]
    rungs = [row[0] for row in first.rows if row[0].startswith("L")]
    assert rungs == ["L0 floor, dB", "L1-L2 gradient", "L4 gradient + auxiliary", "L8 oracle"]
    assert [row[0] for row in second.rows if "round" in row[0]] == ["attacked round"]


def test_a_cell_is_bold_where_the_interval_of_the_gain_lies_above_0_and_nowhere_else(report):
    bold = {
        (form.title.split(",")[1], name, method)
        for form in report.tables[:2]
        for name, row in cells_of(form).items()
        for method, cell in row.items()
        if render.is_bold(cell)
    }
    assert bold == {
        (" round 0 (untrained)", "L4 gradient + auxiliary", "FedSplit"),
        *((when, "L8 oracle", name) for when in (" round 0 (untrained)", " round best") for name in report.tables[0].columns[1:]),
    }  # fmt: skip


def test_a_cell_names_the_strongest_attack_with_its_interval_in_small_print(report, records):
    cell = cells_of(report.tables[0])["L1-L2 gradient"]["FedSplit"]
    psnr = measured.of(next(r for r in records if r.id == "cifar10-fedsplit-none-staged-0")).psnr_db
    assert cell == f"{psnr.mean:.2f} [{psnr.low:.2f}, {psnr.high:.2f}] <sub>staged</sub>"


def test_failures_stand_beside_the_attack_that_failed_and_nowhere_else(records):
    def gave_up(r, clients):
        failed = ((v, "gave up" if v.client in clients else v.outcome) for v in r.victims)
        return with_victims(r, [v.model_copy(update={"outcome": outcome}) for v, outcome in failed])

    # The weaker of the two attacks on the gradient fails for all victims, at the best round the stronger one for some.
    failing = {"dlg-0": (0, 1, 2, 3), "dlg-best": (0, 1, 2, 3), "staged-best": (0, 3), "surrogate-best": (0, 1, 2, 3)}
    left = [gave_up(r, failing.get(f"{r.attack}-{r.cell.round}", ())) for r in records]
    page = ladder_summary.report(left)
    first, second = map(cells_of, page.tables[:2])
    n = len(records[0].victims)
    assert not any("failures" in name for name in (*first, *second))
    assert set(first["n"].values()) == set(second["n"].values()) == {str(n)}
    assert not any("failed" in cell for row in first.values() for cell in row.values())
    assert second["L1-L2 gradient"]["FedSplit"].endswith(f"<sub>staged, {n // 2} failed</sub>")
    assert second["L4 gradient + auxiliary"]["FedSplit"].endswith("<sub>surrogate, all failed</sub>")
    assert "for how many of the n victims it failed" in ladder_summary.how(left)
    assert "it failed" not in ladder_summary.how(records)


def test_a_published_value_below_the_floor_says_so(report):
    assert "published, dB" not in cells_of(report.tables[1])
    in_full = distinct([in_paper(r) for r in column("best")])
    cells = cells_of(ladder_summary.report(in_full).tables[0])["published, dB"]
    assert cells["FedSplit"].startswith("6.23")
    assert cells["FedSplit"].endswith("(below the floor)")


def test_where_no_attack_needs_the_whole_row_a_cell_is_the_best_below_and_one_that_failed_is_missing(records):
    finished = [r for r in records if r.id != "cifar10-fedsplit-none-surrogate-0"]
    lost = next(r for r in records if r.id == "cifar10-fedsplit-none-surrogate-0")
    tag = registry.resolve("attack", "surrogate").knowledge
    failed, refused = (
        cells_of(ladder_summary.report(finished, [Gap(lost.cell, "the disk is full", state)]).tables[0])
        for state in ("failed", REFUSED)
    )
    assert failed[f"L4 {tag}"]["FedSplit"] == "missing"
    assert refused[f"L4 {tag}"]["FedSplit"] == refused["L1-L2 gradient"]["FedSplit"]
    assert refused["L1-L2 gradient"]["FedSplit"].endswith("<sub>staged</sub>")
    alone = [r for r in records if r.cell.train.method == "fedavg" or r.attack == "class-mean"]
    assert cells_of(ladder_summary.report(alone).tables[0])["L1-L2 gradient"]["FedSplit"] == "-"
    text = report_files.markdown(ladder_summary.report(finished, [Gap(lost.cell, "the disk is full", "failed")]))
    assert "| surrogate | FedSplit | cifar10 | 0 (untrained) | the disk is full |" in text
    assert "1 cell(s) are missing" in text


def test_the_sentences_follow_from_the_numbers(records):
    noisy, split = verdicts.verdicts(records)
    assert noisy == (
        "FedAvg + Gaussian 0.1: With no set of knowledge does the strongest attack gain significantly at any attacked round, "
        "which bounds these attacks and is no proof of privacy. "
        "The oracle, a reference, gains significantly at every attacked round (+10.00 dB)."
    )
    assert split == (
        "FedSplit: gains significantly over the floor at round 0 with no more than L4 gradient + auxiliary "
        f"(surrogate, {gain(next(r for r in records if r.id == 'cifar10-fedsplit-none-surrogate-0'))} dB). "
        "With no set of knowledge does the strongest attack gain significantly at the best round, "
        "which bounds these attacks and is no proof of privacy. "
        "The oracle, a reference, gains significantly at every attacked round (+10.00 dB)."
    )


def test_the_sentence_names_the_lowest_rung_that_gains_and_an_oracle_that_fails(records):
    changed = [
        gaining(r, 1.0, 0.2) if r.id.endswith("staged-0") else gaining(r, 0.2, 1.0) if r.id.endswith("oracle-0") else r
        for r in records
    ]
    verdict = verdicts.verdicts(changed)[1]
    by_id = {r.id: gain(r) for r in changed}
    assert (
        f"at round 0 with no more than L2 gradient (staged, {by_id['cifar10-fedsplit-none-staged-0']} dB); "
        f"the most is {by_id['cifar10-fedsplit-none-surrogate-0']} dB at round 0 by surrogate (gradient + auxiliary)."
    ) in verdict
    assert (
        "The oracle does not gain significantly at round 0 (+0.20 to +10.00 dB), so that a failure there says nothing."
        in verdict
    )
    bare = [r for r in records if r.cell.attack == "class-mean"]
    assert all("No attack was run." in line for line in verdicts.verdicts(bare))


def test_rounds_that_the_same_knowledge_opens_are_reported_together(records):
    gained = [gaining(r, 5.0 + (r.cell.round == "0")) if r.cell.attack == "staged" else r for r in records]
    verdict = verdicts.verdicts(gained)[0]
    assert (
        "gains significantly over the floor at rounds 0 and best with no more than L2 gradient (staged, +5.00 to +6.00 dB)."
        in verdict
    )
    assert "With no set of knowledge" not in verdict


def test_the_cost_is_summed_over_seeds_attacks_and_rounds_and_per_victim(report):
    form = next(form for form in report.tables if form.title.endswith("cost"))
    cells = cells_of(form)
    # each record: 5 seeds of 2 s and 10 gradients, 20 victims; two rounds
    assert cells["L1-L2 gradient"]["FedSplit"] == "40 s; 5"
    assert cells["L4 gradient + auxiliary"]["FedSplit"] == "20 s; 2"
    assert cells["all attacks"]["FedSplit"] == "80 s; 10"
    assert cells["training"]["FedSplit"] == "5.0 s"


def test_a_doubt_is_one_row_with_the_number_of_its_cells(report, records):
    form = next(form for form in report.tables if form.title == "Checks")
    rows = {row[0]: dict(zip(form.columns, row, strict=True)) for row in form.rows}
    assert rows["below-floor"]["cells"] == f"4 of {len(records)}"
    assert rows["below-floor"]["attacks"] == "dlg"
    assert rows["below-floor"]["methods"] == "all"
    assert "below the floor" in rows["below-floor"]["for example"]
    assert len(rows) == len(form.rows)


def test_the_three_files_agree_with_the_records(report, records, tmp_path):
    md, numbers, tex, page = report_files.write(report, tmp_path / "summary")
    text = md.read_text()
    assert "**] <sub>" not in text
    assert "]** <sub>surrogate</sub>" in text
    rows = list(csv.DictReader(io.StringIO(numbers.read_text())))
    assert len(rows) == 2 * 2 * 3  # rounds, methods, tags
    significant = {
        (row["round"], row["method"], row["knowledge"]) for row in rows if row["significantly_above_floor"] == "True"
    }
    assert ("0", "FedSplit", "gradient + auxiliary") in significant
    assert ("best", "FedSplit", "gradient + auxiliary") not in significant
    assert "<b>" in page.read_text()
    assert "<small>surrogate</small>" in page.read_text()
    latex = tex.read_text()
    assert r"{\scriptsize surrogate}" in latex
    assert latex.count(r"\begin{tabular}") == 3
    assert latex.count("{") == latex.count("}")


def test_the_page_says_how_many_cells_stand_out_by_chance(records):
    assert "of 12 cells that gained nothing" in ladder_summary.how(records)


def test_the_long_tables_are_split_by_data_set(records, tmp_path, monkeypatch):
    other = distinct([changed(r, dataset="digits") for r in records])
    monkeypatch.setattr(ladder_cells, "grids", lambda *_, **__: [])
    gap = Gap(changed_cell(other[0].cell, attack="feature-statistics"), "needs the upload:generator", REFUSED)
    paths = ladder_cells.write(None, [], [*records, *other], [gap], tmp_path)
    assert {path.name for path in paths} == {
        *(f"{stem}.{ending}" for stem in ("summary", "ladder-cifar10", "ladder-digits") for ending in ("md", "csv", "tex", "html")),
        *(f"{name}-rounds.{ending}" for name in ("cifar10", "digits") for ending in ("png", "pdf")),
    }  # fmt: skip
    texts = {name: (tmp_path / f"ladder-{name}.md").read_text() for name in ("cifar10", "digits")}
    assert "digits, round" not in texts["cifar10"]
    assert "needs the upload:generator" in texts["digits"]
    assert "needs the upload:generator" not in texts["cifar10"]


def test_two_names_of_one_round_make_no_curve(records, tmp_path):
    best = [r for r in records if r.cell.round == "best"]
    last = [r.model_copy(update={"cell": changed_cell(r.cell, round="last")}) for r in best]
    assert best
    assert psnr_by_round.write([*best, *last], tmp_path / "x") == []


def test_the_curve_has_a_panel_per_method_on_one_scale_with_floor_and_oracle(records, tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(style, "save", lambda figure, stem: figures.append(figure) or [])
    psnr_by_round.write(records, tmp_path / "x")
    panels = [axes for axes in figures[0].axes if axes.get_visible()]
    assert [axes.get_title() for axes in panels] == ["FedAvg + Gaussian 0.1", "FedSplit"]
    assert len({axes.get_ylim() for axes in panels}) == 1
    best_floor = records[0].floor.psnr_db
    for axes in panels:
        lines = [container.lines[0] for container in axes.containers]
        assert [list(line.get_xdata()) for line in lines] == [[0, 9]] * 3  # best: rounds 7 to 11
        assert [line.get_color() == psnr_by_round.ORACLE_LINE["color"] for line in lines] == [False, False, True]
        (floor,) = [line for line in axes.lines if line.get_color() == psnr_by_round.FLOOR["color"]]
        assert list(floor.get_ydata()) == [best_floor, best_floor]
        bands = [each for each in axes.collections if isinstance(each, PolyCollection)]
        assert [
            (band.get_datalim(axes.transData).y0 < best_floor < band.get_datalim(axes.transData).y1) for band in bands
        ] == [True]
        assert [" ".join(text.get_text().split()) for text in axes.texts] == [
            "L1-L2 gradient", "L4 gradient + auxiliary", "L8 oracle", "best floor",
        ]  # fmt: skip
    assert figures[0].legends == []


def test_every_marker_lies_within_its_panel_however_many_lines_there_are(tmp_path, monkeypatch, repository):
    figures = []
    monkeypatch.setattr(style, "save", lambda figure, stem: figures.append(figure) or [])
    psnr_by_round.write(published.attacked(repository, "ladder-photos"), tmp_path / "x")
    figures[0].draw_without_rendering()
    panels = [axes for axes in figures[0].axes if axes.get_visible()]
    assert len(panels) == 2
    for axes in panels:
        lines = [container.lines[0] for container in axes.containers]
        assert len(lines) >= 10
        inside = axes.get_window_extent()
        for line in lines:
            half = line.get_markersize() / 72 * figures[0].dpi / 2
            across = line.get_transform().transform(line.get_xydata())[:, 0]
            assert inside.x0 <= min(across) - half
            assert max(across) + half <= inside.x1


def test_lines_beside_each_other_stay_nearest_to_their_own_round(tmp_path, monkeypatch, repository):
    figures = []
    monkeypatch.setattr(style, "save", lambda figure, stem: figures.append(figure) or [])
    psnr_by_round.write(published.attacked(repository, "published-ladder"), tmp_path / "x")
    figures[0].draw_without_rendering()
    panels = [axes for axes in figures[0].axes if axes.get_visible()]
    assert len(panels) == 5
    for axes in panels:
        lines = [container.lines[0] for container in axes.containers]
        rounds = sorted({float(x) for line in lines for x in line.get_xdata()})
        stand = axes.transData.transform([(r, 10) for r in rounds])[:, 0]
        for line in lines:
            for r, x in zip(line.get_xdata(), line.get_transform().transform(line.get_xydata())[:, 0], strict=True):
                assert abs(stand - x).argmin() == rounds.index(r)
        # Each panel names rounds of its own.
        assert {float(x) for x in axes.xaxis.get_majorticklocs()} <= set(rounds)
        assert {0, max(rounds)} <= set(axes.xaxis.get_majorticklocs())


def test_a_line_shows_the_best_attack_within_its_knowledge_as_the_table_does(repository):
    records = [r for r in published.attacked(repository, "published-ladder") if labels.label(r.cell) == "FedAvg"]
    (active,) = [line for tag, line in psnr_by_round.lines_of(records).items() if tag.startswith("active server")]
    # Before training the server of every seed sent the honest networks.
    assert min(when for when, _ in active) == 1
    row = next(row for when, row in active if when == 20)
    # There a passive attack, which such a server can make as well, is better than `imprint`.
    assert row.name == "staged"
    imprint = next(r for r in records if r.attack == "imprint" and r.cell.round == "20")
    assert row.psnr_db.mean > measured.of(imprint).psnr_db.mean


def test_a_server_that_keeps_rounds_has_one_line_over_the_attacked_ones(repository):
    records = [r for r in published.attacked(repository, "published-ladder") if r.attack == "chained"]
    assert len({r.cell.round for r in records}) > 1
    assert len(set(map(labels.attacker_text, records))) > 1
    (text,) = set(map(psnr_by_round.attacker_text, records))
    assert text.endswith("earlier rounds among 0, 1, 2, 5, 10, 20, 50 (12 uploads)")


def test_what_is_far_above_the_rest_is_drawn_lower_and_said_so(records, tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(style, "save", lambda figure, stem: figures.append(figure) or [])
    tall = [
        *records,
        *distinct([attack_record("staged", 60.0, method="fedavg", round_=when) for when in ("0", "best")]),
    ]
    psnr_by_round.write(records, tmp_path / "x")
    psnr_by_round.write(tall, tmp_path / "x")
    assert [figure.axes[0].get_yscale() for figure in figures] == ["linear", "function"]
    assert "above 30 dB" in figures[1].get_suptitle()
    assert "above 30 dB" not in figures[0].get_suptitle()


def test_marks_of_a_cell_survive_in_latex_and_on_the_terminal():
    cell = f"{render.bold('18.2 [1.0, -2.0]')} {render.small('staged')}"
    assert render.stacked(["", cell])[1] == ("", "**[1.0, -2.0]**")
    assert render.tex("**[1.0, -2.0]**") == r"\textbf{{[}1.0, $-$2.0{]}}"
    assert render.tex(cell) == r"\textbf{18.2 {[}1.0, $-$2.0{]}} {\scriptsize staged}"
    console = Console(width=80, record=True, file=io.StringIO())
    render.show("x", ["", "y"], [["a", cell]], console)
    text = console.export_text()
    assert "staged" in text
    assert "*" not in text
    assert "<sub>" not in text


@pytest.mark.parametrize("width", [50, 60])
def test_a_table_of_words_is_made_narrower_where_one_of_numbers_is_split(width):
    words = "one attack in two settings, another in three"
    rows = [["a cell", words, "round 0", "not run"], ["another cell", words, "best", "done"]]
    printed = []
    for is_of_words in (True, False):
        console = Console(width=width, record=True, file=io.StringIO())
        render.show("x", ["cell", "attack", "round", "state"], rows, console, words=is_of_words)
        printed.append(console.export_text())
    assert ["(continued)" in text for text in printed] == [False, True]
    assert [text.count("another cell") for text in printed] == [1, 2]
    # Nothing is lost: every word stands in the column of its own.
    assert {*words.split(), "round", "0", "not", "run", "done"} <= {*printed[0].split()}
    assert max(map(len, printed[0].splitlines())) <= width


def test_a_row_of_two_attacks_needs_what_the_one_that_needs_more_does():
    """Each half of the victims is one attack's: what it says holds for who has the knowledge of both."""
    staged, stronger = attack_record("staged", 20.0), surrogate(20.0)
    row = measured.Measured((staged, stronger), tuple(staged.victims))
    assert verdicts._known(row) == ("L4", "gradient or gradient + auxiliary")
