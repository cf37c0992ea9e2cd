"""Tables and figures: pure functions of records."""

import csv
import io

import pytest
import torch
from PIL import Image
from rich.console import Console

from reports import attack_table, grid, scatter, study
from reports.published import lookup
from tests.reports.records import record

FIVE = [
    ("fedavg", "none"),
    ("fedavg", "gaussian:0.001"),
    ("fedavg", "gaussian:0.1"),
    ("fedsplit", "none"),
    ("fedcg", "none"),
]


def five():
    own = {"fedcg": "feature-statistics"}
    return [
        record(m, d, attack, psnr=p, round_=r)
        for r in ("best", "0")
        for m, d in FIVE
        for attack, p in ((own.get(m, "dlg"), 9.0), ("staged", 20.0))
    ]


@pytest.mark.parametrize("dataset", ["cifar10", "digit5", "office10"])
@pytest.mark.parametrize(("method", "defense"), FIVE)
def test_every_cell_of_the_published_table_is_shipped(dataset, method, defense):
    assert lookup(dataset, method, defense, "psnr_db").value > 5
    assert 30 < lookup(dataset, method, defense, "accuracy_percent").value < 90


def test_published_values_by_hand():
    assert lookup("cifar10", "fedcg", "none", "psnr_db") == (8.99, 0.05, "FedCG Table 2")
    assert lookup("photos", "fedcg", "none", "psnr_db") is None


def test_the_tables_are_pure_functions_of_the_records(tmp_path):
    first = attack_table.write_tables(five(), tmp_path / "a")
    second = attack_table.write_tables(five(), tmp_path / "b")
    assert [p.name for p in first] == ["table.md", "table.csv", "table.tex"]
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]


def test_the_published_form_has_one_column_per_method_and_the_values_beside():
    (title, columns, rows), untrained = attack_table.compact(five())
    assert columns == ["", "FedAvg", "FedAvg + Gaussian 0.001", "FedAvg + Gaussian 0.1", "FedSplit", "FedCG"]
    table = [dict(zip(columns, row, strict=True)) for row in rows]
    assert table[0]["FedCG"] == "42.25 +- 0.35"
    assert table[1]["FedCG"] == "47.52 +- 0.68"
    assert table[3]["FedSplit"] == "6.23 +- 0.02"
    assert [row["FedAvg"] for row in table][5] == "staged"
    assert "undefended ceiling" in title
    assert "untrained" in untrained[0]


def test_a_missing_attack_stays_a_gap():
    some = [r for r in five() if not (r.spec["method"] == "fedcg" and r.spec["attack"] == "feature-statistics")]
    _, columns, rows = attack_table.compact(some)[0]
    assert rows[2][columns.index("FedCG")] == "-"


def test_a_published_value_below_the_floor_is_called_a_failed_attack():
    told = "\n".join(attack_table.remarks(five()))
    assert "published 6.23 dB lie below the 14.00 dB that the class-mean image scores" in told
    assert "note: half of the data" in told


def test_failed_victims_are_told():
    told = attack_table.remarks([record(victims=[{"failed": True}])])
    assert any("1 of 8 victims failed" in line for line in told)


def test_the_csv_holds_every_record_at_full_precision():
    rows = list(csv.DictReader(io.StringIO(attack_table.csv(five()))))
    assert len(rows) == 20
    assert float(rows[0]["psnr_db"]) == pytest.approx(five()[0].scores.psnr_db.mean, rel=1e-12)
    assert rows[0]["published_psnr_db"] == "24.14"


def test_latex_is_escaped_and_balanced():
    text = attack_table.latex([record(dataset="a_b&c")])
    assert r"a\_b\&c" in text
    assert r"$\pm$" in text
    assert "accuracy of the trained method, \\%" in text
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len({line.count(" & ") for line in body}) == 1


def test_the_terminal_table_shows_every_number_in_a_narrow_window():
    console = Console(width=100, record=True, file=io.StringIO())
    attack_table.print_tables(five(), console)
    text = console.export_text()
    assert "…" not in text
    assert "published 6.23" in " ".join(text.split())


def test_the_header_says_that_a_quick_run_is_not_the_published_one():
    assert any("NOT the published schedule" in line for line in attack_table.header(five()))
    assert any("no proof of privacy" in line for line in attack_table.header(five()))


@pytest.mark.parametrize("channels", [1, 3])
def test_the_grid_shows_originals_and_one_row_per_method(channels, tmp_path):
    images = torch.rand(8, channels, 32, 32)
    rows = [("FedAvg\nstaged", images, torch.full((8,), 23.4)), ("FedCG\nstaged", images, torch.full((8,), 8.1))]
    png, pdf = grid.write(images, rows, tmp_path / "grid")
    with Image.open(png) as picture:
        assert picture.width > picture.height > 600
    assert pdf.read_bytes().startswith(b"%PDF")


def test_the_scatter_has_one_panel_per_round(tmp_path):
    tall, _ = scatter.write(five(), tmp_path / "two")
    short, _ = scatter.write([r for r in five() if r.spec["round"] == "best"], tmp_path / "one")
    with Image.open(tall) as a, Image.open(short) as b:
        assert a.height > 1.5 * b.height
        assert a.width == b.width
        assert a.width <= 3.5 * 300


def test_the_attack_table_study_has_the_five_published_columns():
    cells = [cell for name in ("digits", "photos") for cell in study.cells("attack-table", "quick", name, seeds=1)]
    columns = {(c.train.method, c.train.defense) for c in cells}
    assert columns == set(FIVE)
    assert len(cells) == 2 * 5 * 2 * 2
    assert len({c.id for c in cells}) == len(cells)
