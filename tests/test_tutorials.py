"""The tutorials run as they stand, block after block in an empty folder, and what they say of records and files is true."""

import re
import runpy
import shlex
import shutil

import pytest

import privbench

BLOCK = re.compile(r"```(python)?\n(.*?)```", re.DOTALL)
MODULE = re.compile(r"^## .*`(\w+\.py)`")


@pytest.fixture
def follow(repository, tmp_path, monkeypatch, command):
    """Follows a page: (language, text) of its blocks, and the names that its code defined, the last block's."""

    def call(page):
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        text = (repository / "docs" / page).read_text(encoding="utf-8")
        blocks, names = [], {}
        for section in re.split(r"^(?=## )", text, flags=re.MULTILINE):
            module = MODULE.match(section)
            for language, block in BLOCK.findall(section):
                blocks.append((language, block))
                if language == "" and not module:
                    for line in block.splitlines():
                        words = shlex.split(line.removeprefix("PYTHONPATH=. "))
                        assert words[0] == "privbench"
                        ran = command(*words[1:])
                        assert ran.status == 0, (line, ran.err)
                else:
                    path = tmp_path / (module[1] if module else "block.py")
                    path.write_text(block, encoding="utf-8")
                    if not module:
                        names = runpy.run_path(str(path))
        return blocks, names

    return call


def test_the_first_table_is_made_listed_drawn_and_sent(follow, tmp_path):
    blocks, names = follow("tutorial_first_table.md")
    assert [language for language, _ in blocks] == ["", "", "", "python"]
    assert sorted(zip(names["frame"]["method"], names["frame"]["attack"], strict=True)) == [
        (method, attack) for method in ("fedavg", "fedsplit") for attack in ("class-mean", "dlg")
    ]
    tables = [path.suffix for path in tmp_path.glob("runs/attack-*/table.*")]
    assert sorted(tables) == sorted([".md", ".csv", ".tex", ".html"] * 2)
    assert len(list(tmp_path.glob("runs/train/*/"))) == 2
    assert len(list(tmp_path.glob("runs/cells/*/record.json"))) == 4
    assert any((tmp_path / "runs" / "artifacts").iterdir())
    assert (tmp_path / "grid.png").is_file()
    assert "<script" in (tmp_path / "runs" / "report.html").read_text(encoding="utf-8")


def test_the_defence_of_the_tutorial_is_a_column_beside_the_undefended_one(follow, tmp_path):
    blocks, _ = follow("tutorial_defense.md")
    assert [language for language, _ in blocks] == ["python", "python", ""]
    records = privbench.load("runs")
    assert sorted(r.cell.train.defense for r in records) == ["mine:RandomShare:0.5", "none"]
    norms = {r.cell.train.defense: [v.gradient_norm for v in r.victims] for r in records}
    assert norms["none"] != norms["mine:RandomShare:0.5"]


def test_what_the_page_says_of_the_ladder_of_records_is_true(follow, repository, tmp_path):
    shutil.copy(repository / "docs/results/records/quick-photos.jsonl.xz", tmp_path)
    blocks, names = follow("tutorial_ladder.md")
    assert [language for language, _ in blocks] == ["", "python", ""]
    assert (tmp_path / "quick-photos.html").is_file()
    assert {r.scores.n for r in names["records"]} == {80}
    assert {len(r.cell.seeds) for r in names["records"]} == {5}
    untrained, best = (
        {row[0]: dict(zip(table.columns[1:], row[1:], strict=True)) for row in table.rows}
        for table in names["summary"].tables
        if "round" in table.title and "cost" not in table.title
    )
    strong = "L2 gradient + natural images"
    assert [row for row in best if re.match(r"L\d", row)] == [
        "L0 floor, dB", "L1 gradient", "L1 gradient + generator", strong,
    ]  # fmt: skip
    weak, floor = (float(best[row]["FedAvg"].split()[0]) for row in ("L1 gradient", "L0 floor, dB"))
    assert weak < floor
    bold = {name for name, cell in best[strong].items() if cell.startswith("**")}
    assert bold == {"FedAvg", "FedAvg + Gaussian 0.001"}
    assert {name for name, cell in untrained[strong].items() if cell.startswith("**")} == {"FedAvg"}
    assert untrained["n"]["FedAvg + Gaussian 0.1"] == "80"
    assert untrained[strong]["FedAvg + Gaussian 0.1"].endswith("<sub>staged, all failed</sub>")
    checks = {message.name for r in names["records"] for message in r.messages}
    assert "loss-did-not-fall" in checks
    page = (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert all(f"| {name} |" in page for name in ("below-floor", "defence-unknown"))
    # The ladder of one's own, in smoke form.
    assert [r.knowledge.rung for r in privbench.load("runs")].count("L8") == 1
    assert len(privbench.load("runs")) == 4
