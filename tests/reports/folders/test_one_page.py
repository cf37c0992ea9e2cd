"""The page of a folder: it says what the records say, escapes what they say, holds all that it shows, and its size is bounded."""

import json
import re
import shutil
from html.parser import HTMLParser

import pytest

import privbench
from privbench import registry
from privbench.cli import folder_reports
from privbench.errors import UserError
from privbench.records import record_lines
from privbench.records.store import Store
from reports.folders import cell_table, contents, one_page, pictures, provenance
from reports.folders.contents import Contents
from reports.records import ceiling, measured, table_checks
from reports.records.number_text import range_text
from reports.tables import inference_table, report_files
from tests.browser import Opened, chromium
from tests.builders.records import changed, record, with_knowledge, with_psnr

MARKUP = '<img src="http://x/y.png" onerror="alert(1)">'


class Reader(HTMLParser):
    """A page's attributes, and the text of its cells, items and terms."""

    def __init__(self, page):
        super().__init__()
        self.attributes, self.texts, self.tags = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_data(self, data):
        self.texts.append(" ".join(data.split()))

    def values(self, tag, name):
        return [value for t, n, value in self.attributes if (t, n) == (tag, name)]


def named(r):
    """The same record under its cell's name, as a folder has it."""
    return r.model_copy(update={"id": r.cell.id})


def six(**changes):
    cells = [("fedavg", "dlg", 22.0), ("fedavg", "staged", 30.0), ("fedcg", "staged", 12.0)]
    return [
        named(record(m, attack=a, psnr=p, round_=r, seeds=range(5), **changes))
        for m, a, p in cells
        for r in ("0", "best")
    ]


def of(records, **changes):
    return Contents("runs", list(records), [], [], None)._replace(**changes)


def page_of(records, **changes):
    """A page without pictures, which take long to draw."""
    return report_files.html(one_page.report(of(records, **changes), with_pictures=False))


@pytest.fixture(scope="module")
def drawn():
    """One page of six cells with its curves."""
    return report_files.html(one_page.report(of(six())))


@pytest.fixture(scope="module")
def small():
    """One page of six cells without reconstructions."""
    records = six()
    return records, one_page.report(of(records), with_pictures=False)


def test_a_cell_has_the_numbers_of_its_record_in_table_and_entry(small):
    records, report = small
    table = next(table for table in report.tables if table.title == "Cells")
    rows = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert set(rows) == {r.id for r in records}
    for r in records:
        assert rows[r.id]["PSNR dB"] == range_text(measured.of(r).psnr_db)
        assert rows[r.id]["attack"] == r.attack
        assert rows[r.id]["round"].startswith(r.cell.round)
    assert {"round", "method", "attack"} <= set(table.on_page.filters)
    entries = {entry.anchor: entry for t in report.tables for entry in t.on_page.entries}
    assert [entries[anchor].facts[0][1] for anchor in table.on_page.anchors] == [row[0] for row in table.rows]
    facts = dict(entries[table.on_page.anchors[0]].facts)
    assert facts["seeds"] == "0, 1, 2, 3, 4"
    assert facts["machine"] == "test"
    assert facts["date"] == "2026-01-01"
    assert json.loads(facts["specification"])["attack"] == rows[facts["record"]]["attack"]


def test_what_all_cells_share_stands_once_and_what_differs_has_a_column_and_a_filter():
    few = [named(record(psnr=20.0)), named(record(psnr=25.0, spec={"clients": 8}))]
    table = cell_table.table(few, {})
    assert "data set" not in table.columns
    assert any("data set cifar10" in text and "quick preset" in text for text in table.text)
    setting = [row[table.columns.index("setting")] for row in table.rows]
    assert setting == ["4 clients", "8 clients"]
    assert "setting" in table.on_page.filters
    other = cell_table.table([*few, named(record(dataset="digits"))], {})
    assert {"data set", "setting"} <= set(other.on_page.filters)


def test_method_and_defence_are_apart():
    cell = record("fedcg", "gaussian:0.1").cell
    assert cell_table.method_and_defence(cell) == ("FedCG", "Gaussian 0.1")
    assert cell_table.method_and_defence(record().cell) == ("FedAvg", "none")


def test_a_finding_is_one_sentence_with_both_intervals_and_the_largest_gain_first(small):
    _, report = small
    findings = report.tables[0]
    assert findings.title == "Findings"
    assert re.fullmatch(
        r"FedAvg, round (best|0 \(untrained\)): staged \(gradient\) reaches \d\d\.\d\d dB \[\S+, \S+\]; a significant gain over "
        r"the floor: \+1\d\.\d\d dB \[\S+, \S+\]\.",
        findings.notes[0],
    )
    assert any("FedAvg - FedCG: PSNR differs by" in note for note in findings.notes)


def test_markup_in_a_record_is_text_on_the_page():
    records = [changed(r, dataset="cifar10") for r in six()[:2]]
    hostile = [
        r.model_copy(update={"id": MARKUP, "notes": [MARKUP], "environment": {**r.environment, "machine": MARKUP}})
        for r in records
    ]
    parsed, usual = Reader(page_of(hostile, name=MARKUP)), Reader(page_of(records))
    # In the name, in the first line, in the table, and in the entry.
    assert sum(MARKUP in text for text in parsed.texts) >= 6
    assert not [name for _, name, _ in parsed.attributes if name.startswith("on")]
    assert set(parsed.tags) <= {*usual.tags}


def test_every_link_leads_to_an_entry_of_the_page_itself(drawn):
    parsed = Reader(drawn)
    links = parsed.values("a", "href")
    assert len(links) == 6
    assert {link.removeprefix("#") for link in links} == {*parsed.values("dl", "id")}
    assert all(alt for alt in parsed.values("img", "alt"))
    sources = parsed.values("img", "src")
    assert len(sources) >= 3
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert set(parsed.values("th", "scope")) == {"row", "col"}


def test_a_smoke_run_has_no_score_anywhere(folder, tmp_path):
    # Attacks on the same victims at 8 and 20 dB, of which the one that knows more is the weaker: a check that names both.
    more = with_knowledge(
        record("fedavg", attack="staged", psnr=8.123, seeds=range(5)), needs=["gradient:classifier", "auxiliary"]
    )
    invented = [named(changed(r, preset="smoke")) for r in (more, record(psnr=20.456, seeds=range(5)))]
    assert any(" dB" in m.sentence for each in table_checks.by_record(invented).values() for m in each)
    written = privbench.report(folder, tmp_path / "page.html").read_text()
    for read, page in ((of(invented), page_of(invented)), (contents.read(folder), written)):
        report = one_page.report(read, with_pictures=False)
        text = " ".join(Reader(re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.DOTALL)).texts)
        assert not re.search(r"\d\.\d+ dB", text)
        assert "Its networks have learned nothing" in text
        (cells,) = (table for table in report.tables if table.title == "Cells")
        rows = [dict(zip(cells.columns, row, strict=True)) for row in cells.rows]
        facts = [dict(entry.facts) for table in report.tables for entry in table.on_page.entries]
        for r, row, fact in zip(read.records, rows, facts, strict=True):
            assert row["PSNR dB"] == row["gain dB"] == fact["PSNR dB"] == fact["SSIM"] == "(smoke)"
            assert f"{r.scores.psnr_db:.2f}" not in text
            assert f"{r.gain_db:+.2f}" not in text
        assert report.tables[0].notes == []


def test_the_command_writes_a_page_whose_digests_are_those_of_the_files(folder, command, tmp_path):
    ran = command("report", folder, "--html", "--out", tmp_path / "a.html")
    assert ran.status == 0, ran.err
    assert "needs no network" in ran.out
    page = (tmp_path / "a.html").read_text()
    parsed = Reader(page)
    paths = sorted(folder.glob("cells/*/record.json"))
    assert len(paths) == 2
    for path in paths:
        value = json.loads(path.read_text())
        assert value["digest"] in parsed.texts
        assert f"privbench reproduce {value['id']} --out runs" in parsed.texts
        assert f"runs/cells/{value['id']}/record.json" in parsed.texts
    # Grid and curves.
    assert len(parsed.values("img", "src")) >= 2
    assert str(folder.parent) not in page
    assert folder_reports.page_path(folder, None) == folder / "report.html"
    assert folder_reports.page_path(tmp_path / "a.jsonl.xz", None) == tmp_path / "a.html"


def test_the_command_without_html_prints_findings_and_cells_and_writes_nothing(folder, command, tmp_path):
    before = {*folder.rglob("*")}
    ran = command("report", folder)
    assert ran.status == 0, ran.err
    assert all(path.parent.name in ran.out.replace("\n", "") for path in folder.glob("cells/*/record.json"))
    assert {*folder.rglob("*")} == before
    assert command("report", folder, "--out", tmp_path / "x.html").status == 2
    assert command("report", folder, "--html", "--out", tmp_path / "x.pdf").status == 2
    empty = command("report", tmp_path)
    assert empty.status == 2
    assert "no finished cells" in empty.err


def test_what_cannot_be_read_is_left_out_and_said(folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    cells = Store(copy).cells()
    path = Store(copy).record(cells[0])
    path.write_text(path.read_text().replace("digits", "digit5"))
    read = contents.read(copy)
    assert len(read.records) == 1
    assert len(read.left_out) == 1
    assert read.left_out[0].startswith(f"cells/{cells[0].id}/record.json was altered")
    page = report_files.html(one_page.report(read))
    assert "Not on this page" in page
    assert "the command that makes it again" in page
    assert str(copy) not in page
    Store(copy).write_failure(cells[1], "no such thing", refused=True)
    Store(copy).record(cells[1]).unlink()
    with pytest.raises(UserError, match="no finished cells"):
        contents.read(copy)


def test_a_file_of_records_gives_the_same_table_and_says_that_it_has_no_reconstructions(tmp_path, small, monkeypatch):
    monkeypatch.setattr(pictures, "lines", lambda _: pictures.Drawn([], []))
    records, report = small
    path = tmp_path / "some.jsonl.xz"
    record_lines.write(records, path)
    read = contents.read(path)
    assert read.records == records
    again = one_page.report(read)
    assert [row[1:] for row in again.tables[1].rows] == [row[1:] for row in report.tables[1].rows]
    assert any(one_page.SORRY in table.notes for table in again.tables)
    # The command that makes a cell again needs a folder.
    assert "the command that makes it again" not in report_files.html(again)
    (tmp_path / "some.txt").write_text("a")
    with pytest.raises(UserError, match="neither a folder of results nor a file of records"):
        contents.read(tmp_path / "some.txt")


def test_a_file_with_a_cell_twice_is_read_as_it_is_merged(tmp_path, small):
    (first, *others), path = small[0], tmp_path / "twice.jsonl.xz"
    record_lines.write([first, *others, first], path)
    assert contents.read(path).records == [first, *others]
    better = with_psnr(first, lambda victim: 99.0)
    record_lines.write([first, *others, better], path)
    with pytest.raises(UserError, match=r"two records of .* have seed .*, and their numbers differ"):
        contents.read(path)


def test_a_record_under_another_name_than_its_cell_s_is_of_an_earlier_revision(tmp_path, small):
    (first, *others), path = small[0], tmp_path / "old.jsonl.xz"
    old = first.model_copy(update={"id": "0123456789ab"})
    record_lines.write([old, *others], path)
    read = contents.read(path)
    assert read.records == others
    assert read.left_out == [
        "1 cell of an earlier revision of privbench, or altered since, whose numbers today's code would not give, e.g. 0123456789ab"
    ]
    assert contents.read(path, earlier=True).records == [old, *others]


def test_of_too_many_cells_the_strongest_of_each_method_stay_and_the_page_says_so(monkeypatch):
    monkeypatch.setattr(one_page, "MOST_CELLS", 2)
    records = six()[::2]
    report = one_page.report(of(records), with_pictures=False)
    (cells,) = (table for table in report.tables if table.title == "Cells")
    attacks = {(row[cells.columns.index("method")], row[cells.columns.index("attack")]) for row in cells.rows}
    assert attacks == {("FedAvg", "staged"), ("FedCG", "staged")}
    (left,) = (table for table in report.tables if table.title == "Not on this page")
    assert left.notes[0].startswith("1 of 3 cells: the page has the 2 attacks that reconstruct best")


def test_of_too_many_pictures_the_first_stay_and_the_rest_are_named():
    drawn = []

    def draw(stem):
        drawn.append(stem)
        path = stem.with_suffix(".png")
        path.write_bytes(b"x" * 10)
        return [path]

    plans = [pictures._Plan(f"plan {i}", "", draw) for i in range(5)]
    made = pictures._drawn(plans, 2, "grids")
    assert [picture.title for picture in made.pictures] == ["plan 0", "plan 1"]
    assert len(drawn) == 2
    assert "not drawn are 3 more, from 'plan 2' on" in made.left_out[0]


def test_reconstructions_that_are_gone_are_missed(folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    shutil.rmtree(copy / "artifacts")
    report = one_page.report(contents.read(copy))
    assert "Reconstructions" not in [table.title for table in report.tables]
    (left,) = (table for table in report.tables if table.title == "Not on this page")
    assert left.notes == [
        "no reconstructions of digits, 4 clients, smoke preset, round best with their true images are at hand"
    ]


def test_a_cell_of_an_inference_is_named_by_it(repository):
    records = record_lines.read(repository / "docs/results/records/inference.jsonl.xz")
    whole = cell_table.table(records, {})
    rows = [dict(zip(whole.columns, row, strict=True)) for row in whole.rows]
    inferences = {"generator-labels", "label-distribution", "loss-threshold", "membership-inference"}
    assert {row["attack"] for row in rows} == inferences
    assert all(row["knowledge"] != "-" for row in rows)
    distinguishing = ("data set", "method", "defence", "attack", "setting")
    assert len({tuple(row[name] for name in distinguishing) for row in rows}) == len(rows)
    assert ", membership-inference, round best" in " ".join(map(provenance.title, records))


def test_a_folder_of_training_alone_has_findings_about_accuracy():
    records = [named(record(attack=None, seeds=range(3)))]
    report = one_page.report(of(records), with_pictures=False)
    assert report.tables[0].notes == [
        "cifar10, 4 clients, quick preset, FedAvg: test accuracy 42.5 +- 0.5% over 3 seeds."
    ]
    assert "Cells" in [table.title for table in report.tables]


def test_names_of_code_that_is_not_at_hand_do_no_harm():
    records = [changed(r, method="mine:Method", defense="mine:Noise", attack="mine:Attack") for r in six()[:2]]
    page = page_of(map(named, records))
    assert "mine:Attack" in Reader(page).texts


def test_a_record_of_another_revision_has_no_command_that_makes_it_again():
    (r, *_) = six()
    entry = provenance.entry(r, {}, [], "my runs", is_folder=True)
    assert entry.command == f"privbench reproduce {r.id} --out 'my runs'"
    other = r.model_copy(update={"id": "0123456789ab"})
    entry = provenance.entry(other, {}, [], "runs", is_folder=True)
    assert entry.command == ""
    assert dict(entry.facts)["revision"] == provenance.OTHER_REVISION


def test_the_page_of_a_folder_works_in_a_browser(drawn, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(drawn)
    with chromium() as browser:
        window = Opened(browser, path)
        page = window.page
        page.get_by_role("combobox", name="method").select_option("FedCG")
        assert page.locator("table[data-filters] tbody tr:visible").count() == 2
        page.get_by_role("button", name="Show all").click()
        page.get_by_role("button", name="gain dB").click()
        first = page.locator("table[data-filters] tbody tr").first
        assert "FedAvg" in first.inner_text()
        first.get_by_role("link").click()
        assert page.locator("details[open]").count() == 1
        page.locator(".enlarge").first.click()
        assert page.locator("dialog img").is_visible()
        assert window.foreign_requests == []
        assert window.complaints == []


def test_cells_of_an_earlier_revision_of_their_attack_are_counted_and_not_shown(folder, monkeypatch):
    store, whole = Store(folder), contents.read(folder)
    (dlg,) = (cell for cell in store.cells() if cell.attack == "dlg")
    (grey,) = (r for r in whole.attacked if r.attack == "grey")
    assert {r.attack for r in ceiling.references(store, [with_method(grey, "fedcg")])} == {"grey", "dlg"}
    monkeypatch.setattr(registry.resolve("attack", "dlg"), "revision", 1, raising=False)
    today = contents.read(folder)
    assert [r.attack for r in today.records] == ["grey"]
    assert today.left_out == [
        "1 cell of an earlier revision of privbench, or altered since, whose numbers today's code would not give, e.g. "
        + dlg.id
    ]
    assert len(contents.read(folder, earlier=True).records) == 2
    assert [r.attack for r in ceiling.references(store, [with_method(grey, "fedcg")])] == ["grey"]


def with_method(r, method):
    train = r.cell.train.model_copy(update={"method": method})
    return r.model_copy(update={"cell": r.cell.model_copy(update={"train": train})})


def test_the_terminal_shows_what_inferences_state(repository, command):
    """Inferences alone have no PSNR: without their tables only accuracy was printed. Columns that no cell fills are left out."""
    ran = command("report", repository / "docs/results/records/property-inference.jsonl.xz")
    assert ran.status == 0, ran.err
    record = record_lines.read(repository / "docs/results/records/property-inference.jsonl.xz")[0]
    assert f"{inference_table.score(record).mean:.3f}" in ran.out
    assert "PSNR" not in ran.out
    assert "failures" not in ran.out


def test_a_folder_with_two_learning_rates_compares_methods_at_each_of_them():
    def at(rate, method, psnr):
        schedule = record(method).cell.train.schedule
        task = schedule.task.model_copy(update={"lr": rate})
        return named(
            changed(record(method, psnr=psnr, seeds=range(5)), schedule=schedule.model_copy(update={"task": task}))
        )

    records = [
        at(0.003, "fedavg", 15.0),
        at(0.003, "fedsplit", 14.0),
        at(0.1, "fedavg", 40.0),
        at(0.1, "fedsplit", 12.0),
    ]
    report = one_page.report(of(records), with_pictures=False)
    (between,) = [table for table in report.tables if table.title == "Between methods"]
    assert [row[0].partition("4 clients")[2] for row in between.rows] == [
        ": FedAvg - FedSplit",
        ", trained with task.lr 0.1: FedAvg - FedSplit",
    ]
    assert [float(row[3].split()[0]) for row in between.rows] == pytest.approx([1, 28], abs=0.5)
    findings = " ".join(report.tables[0].notes)
    assert "trained with task.lr 0.1: FedAvg - FedSplit: PSNR differs by 28" in findings
    assert "FedAvg - FedSplit: PSNR differs by 26" not in findings


def test_one_method_trained_by_several_schedules_is_several_findings_and_tables():
    """Methods of one table may have schedules of their own; one column may not have two, of which the worse would hide."""

    def trained_at(rate, method, psnr):
        changed = record(method, psnr=psnr)
        train = changed.cell.train
        task = train.schedule.task.model_copy(update={"lr": rate})
        schedule = train.schedule.model_copy(update={"task": task})
        cell = changed.cell.model_copy(update={"train": train.model_copy(update={"schedule": schedule})})
        return named(changed.model_copy(update={"cell": cell}))

    usual, other = named(record(psnr=15.0)), trained_at(0.1, "fedavg", 25.0)
    assert usual.id != other.id
    sides = []
    for records in ([usual, other], [usual, trained_at(0.1, "fedsplit", 25.0)]):
        report = one_page.report(of(records), with_pictures=False)
        assert sum("trained with task.lr 0.1" in line for line in report.tables[0].notes) == 1
        assert any("task.lr 0.1" in cell for row in report.tables[1].rows for cell in row)
        start = [table.title for table in report.tables].index("Methods side by side")
        sides.append([table for table in report.tables[start + 1 :] if table.is_part and len(table.columns) > 1])
        between = [table for table in report.tables if table.title == "Between methods"]
        assert between == []  # one method alone, or two that were not trained alike
    (plain, changed), (both,) = sides
    assert "trained with task.lr 0.1" in changed.title
    assert "trained with" not in plain.title
    assert both.columns == ["", "FedAvg", "FedSplit"]
