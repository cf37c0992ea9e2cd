"""Lists over any field become cells, a table and curves."""

import itertools

import pytest

from privbench import presets
from privbench.errors import UserError
from privbench.requests import specifications
from privbench.requests.options import AttackOptions, RunOptions, TrainingOptions
from reports.figures import sweep_curve
from reports.records import quotable
from reports.studies import definition, study_cells, sweeps
from reports.tables import sweep as sweep_table
from tests.builders import records

HEAD = """
title = "a sweep"
source = "ours"
about = "what a field does"
reports = []
attacks = ["dlg"]
embedded = ["digits"]
"""


def study(sweep, columns='[[column]]\nmethod = "fedavg"\n'):
    return definition.parsed("mine", (HEAD + f"\n[sweep]\n{sweep}\n{columns}").encode())


def cells(sweep, columns='[[column]]\nmethod = "fedavg"\n', **asked):
    return study_cells.of(study(sweep, columns), "quick", [("digits", None)], **asked)


@pytest.mark.parametrize(
    ("line", "name", "values"),
    [
        ("clients = [2, 4]", "clients", [2, 4]),
        ("omega = [0.1, 1.0]", "omega", [0.1, 1.0]),
        ('backbone = ["lenet5", "resnet18"]', "backbone", ["lenet5", "resnet18"]),
        ("batch_size = [1, 4]", "batch_size", [1, 4]),
        ('wire = ["float32", "bf16"]', "wire", ["float32", "bf16"]),
        ('"schedule.batch" = [8, 16]', "schedule.batch", [8, 16]),
        ('"schedule.task.lr" = [0.01, 0.1]', "schedule.task.lr", [0.01, 0.1]),
        ('"attack.steps" = [10, 300]', "attack.steps", [10, 300]),
    ],
)
def test_every_value_of_a_field_is_a_cell_and_is_read_from_it(line, name, values):
    made = cells(line)
    assert [sweeps.value(cell, name) for cell in made] == values
    assert len({cell.id for cell in made}) == len(values)


@pytest.mark.parametrize(
    ("defense", "line", "name", "values"),
    [
        ("gaussian", '"defense.variance" = [0.001, 0.1]', "defense.variance", [0.001, 0.1]),
        ("gaussian:clip=1", '"defense.variance" = [0.001, 0.1]', "defense.variance", [0.001, 0.1]),
        ("dp-sgd", '"defense.epsilon" = [1, 8.0]', "defense.epsilon", [1, 8]),
    ],
)
def test_a_setting_of_a_defence_is_swept_where_there_is_one(defense, line, name, values):
    columns = f'[[column]]\nmethod = "fedavg"\n[[column]]\nmethod = "fedavg"\ndefense = "{defense}"\n'
    made = cells(line, columns)
    assert [sweeps.value(cell, name) for cell in made] == [None, *values]
    assert made[0].train.defense == "none"


def test_a_swept_cell_is_that_of_the_command():
    (_, cell) = cells('"defense.variance" = [0.001, 0.1]', '[[column]]\nmethod = "fedavg"\ndefense = "gaussian"\n')
    asked = RunOptions(method="fedavg", dataset="digits", defense=["gaussian:0.1"])
    (same,) = specifications.attack_cells(asked, AttackOptions(attack=["dlg"]), TrainingOptions())
    assert cell.id == same.id


def test_several_fields_are_combined_and_a_method_without_a_setting_stands_once():
    columns = '[[column]]\nmethod = "fedavg"\n[[column]]\nmethod = "fedprox"\n'
    made = cells('"settings.mu" = [0.1, 1.0]\nclients = [2, 4]', columns)
    pairs = [(c.train.method, sweeps.value(c, "settings.mu"), c.train.clients) for c in made]
    assert pairs == [
        ("fedavg", None, 2), ("fedavg", None, 4),
        ("fedprox", 0.1, 2), ("fedprox", 0.1, 4), ("fedprox", 1.0, 2), ("fedprox", 1.0, 4),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("client = [2]", "a study cannot sweep 'client'; did you mean 'clients'"),
        ("seed = [2]", "a study cannot sweep 'seed'"),
        ("clients = []", "the sweep of 'clients' names no value"),
        ("clients = 4", "sweep.clients"),
    ],
)
def test_a_sweep_that_is_none_is_refused_in_a_line(line, says):
    with pytest.raises(UserError, match=says):
        study(line)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("clients = [0]", "clients"),
        ('"schedule.bath" = [2]', "a schedule has no 'bath'; did you mean 'batch'"),
        ('backbone = ["lenet"]', "unknown backbone 'lenet'"),
        ('wire = ["fp8"]', "wire"),
    ],
)
def test_a_value_that_is_none_is_refused_before_anything_is_trained(line, says):
    with pytest.raises(UserError, match=says):
        cells(line)


def test_a_file_of_a_users_own_is_a_study(tmp_path):
    path = tmp_path / "batches.toml"
    path.write_text(HEAD + '[sweep]\nbatch_size = [1, 2]\n[[column]]\nmethod = "fedavg"\n')
    read = definition.read(str(path))
    assert read.name == "batches"
    assert [cell.batch_size for cell in study_cells.of(read, "smoke")] == [1, 2]
    with pytest.raises(UserError, match="cannot read the study"):
        definition.read(str(tmp_path / "none.toml"))
    path.write_bytes(b"#" * (2**20 + 1))
    with pytest.raises(UserError, match="no study is as large"):
        definition.read(str(path))


def swept(values, psnr, method="fedavg", defense="gaussian"):
    made = []
    for value, db in zip(values, psnr, strict=True):
        record = records.record(method, f"{defense}:{value}" if defense else "none", "dlg")
        made.append(records.with_psnr(record, lambda _, db=db: db))
    return made


def test_the_table_has_a_row_for_every_value_with_its_score():
    made = swept((0.1, 0.001), (9.0, 21.0)) + swept((0,), (30.0,), defense="")
    report = sweep_table.report({"defense.variance": [0.001, 0.1]}, made)
    (table,) = report.tables
    assert list(table.columns)[:3] == ["defense.variance", "column", "accuracy, %"]
    assert [(row[0], row[1], row[5].split(" ")[0]) for row in table.rows] == [
        ("-", "FedAvg", "30.00"), ("0.001", "FedAvg + Gaussian", "21.00"), ("0.1", "FedAvg + Gaussian", "9.00"),
    ]  # fmt: skip


def test_curves_are_drawn_of_numbers_and_of_words_and_none_of_smoke(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(sweep_curve, "write", lambda *given, accuracy: drawn.append((*given, accuracy)) or [])
    made = swept((0.1, 0.001), (9.0, 21.0)) + swept((0,), (30.0,), defense="")
    sweep_curve.of_study({"defense.variance": [0.001, 0.1]}, made, tmp_path)
    ((lines, across, label, _, stem, has_accuracy),) = drawn
    (points,) = lines.values()
    assert [value for value, _ in points] == [0.001, 0.1]
    assert list(across) == ["FedAvg"]
    assert label == "defense.variance"
    assert has_accuracy
    assert stem.name.startswith("sweep-defense.variance-")
    monkeypatch.setattr(quotable, "SMOKE", presets.PRESETS[1])
    assert sweep_curve.of_study({"defense.variance": [0.001, 0.1]}, made, tmp_path) == []
    assert len(drawn) == 1


def of_known_images(counts, attack, psnr, method="fedsplit"):
    made = records.record(method, "none", attack)
    known = {"known_images": counts, "known_quality_db": 30.0} if attack == "calibrated" else {}
    cell = made.cell.model_copy(update=known)
    return records.with_psnr(made.model_copy(update={"cell": cell}), lambda _: psnr)


def test_what_an_attacker_knows_is_swept_beside_an_attack_that_knows_more(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(sweep_curve, "write", lambda *given, accuracy: drawn.append((*given, accuracy)) or [])
    made = [of_known_images(k, "calibrated", 10.0 + k) for k in (0, 4)] + [of_known_images(None, "oracle", 30.0)]
    sweep_curve.of_study({"known_quality_db": [30.0], "known_images": [0, 4]}, made, tmp_path)
    ((lines, across, label, _, _, has_accuracy),) = drawn
    assert [value for value, _ in lines["FedSplit, known quality 30 dB"]] == [0, 4]
    assert list(across) == ["FedSplit, oracle"]
    assert label == "known images"
    assert not has_accuracy  # every point has the same networks


def test_lines_stand_in_the_order_of_the_sweep_and_no_two_look_alike(tmp_path, monkeypatch):
    handles, original = [], sweep_curve.style.handle
    monkeypatch.setattr(
        sweep_curve.style, "handle", lambda name, **line: handles.append((name, line)) or original(name, **line)
    )
    made = []
    for method in ("fedcg", "fedsplit"):
        for quality, count in ((24.0, 4), (24.0, 0), (100.0, 0), (100.0, 4)):
            one = of_known_images(count, "calibrated", quality / 4 + count, method)
            made.append(one.model_copy(update={"cell": one.cell.model_copy(update={"known_quality_db": quality})}))
        made.append(of_known_images(None, "oracle", 40.0, method))
    sweep_curve.of_study({"known_quality_db": [100.0, 24.0], "known_images": [0, 4]}, made, tmp_path)
    names = [f"{method}, known quality {quality} dB" for method in ("FedSplit", "FedCG") for quality in (100, 24)]
    # The last figure's, which has all of them.
    assert [name for name, _ in handles[-7:]] == [*names, "FedSplit, oracle", "FedCG, oracle", "best floor"]
    assert len({repr(sorted(line.items(), key=str)) for _, line in handles[-7:]}) == 7


def test_lists_are_swept_and_read_from_cells():
    line = "observed_rounds = [[0], [0, 1, 2, 5]]"
    made = [
        cell
        for cell in study_cells.of(study(line, '[[column]]\nmethod = "fedsplit"\nattacks = ["chained"]\n'), "quick")
        if cell.train.dataset == "digits"
    ]
    assert [sweeps.value(cell, "observed_rounds") for cell in made] == study(line).sweep["observed_rounds"]
    assert [sweeps.value_text(value) for value in ((0,), (0, 1, 2, 5), (0, 1, 2), 8.0, "lenet5")] == [
        "0", "0, 1, 2, 5", "0 to 2", "8", "lenet5",
    ]  # fmt: skip


def test_a_field_is_named_with_its_unit_behind_its_value():
    assert [sweeps.words(name) for name in ("known_quality_db", "known_images")] == [
        "known quality, dB",
        "known images",
    ]
    assert sweeps.with_value("known_quality_db", 30.0) == "known quality 30 dB"
    assert sweeps.with_value("known_images", 4) == "known images 4"


@pytest.mark.parametrize("shown", [True, False])
def test_accuracy_has_a_panel_of_its_own_or_none(tmp_path, monkeypatch, shown):
    saved = []
    monkeypatch.setattr(sweep_curve.style, "save", lambda figure, stem: saved.append(figure) or [stem])
    points = [(count, [record]) for count, record in zip((1, 2), swept((0.1, 0.001), (9.0, 21.0)), strict=True)]
    sweep_curve.write({"FedAvg": points}, {}, "known images", "digits", tmp_path / "curve", accuracy=shown)
    (figure,) = saved
    assert [axes.get_ylabel().startswith("test accuracy") for axes in figure.axes] == (
        [True, False] if shown else [False]
    )


def test_intervals_of_lines_at_one_value_stand_beside_each_other_and_within_the_axis(tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr(sweep_curve.style, "save", lambda figure, stem: saved.append(figure) or [stem])
    made = swept((0.1, 0.001), (9.0, 21.0))
    lines = {name: list(zip((1, 2), [[r] for r in made], strict=True)) for name in ("FedAvg", "FedSplit", "FedCG")}
    sweep_curve.write(lines, {}, "known images", "digits", tmp_path / "curve")
    (figure,) = saved
    figure.draw_without_rendering()
    for axes in figure.axes:
        bars = [bar for bar in axes.collections if bar.get_segments()]
        ends = [bar.get_transform().transform(bar.get_segments()[0]) for bar in bars]
        assert len(ends) == 3
        across, up = zip(*[(each[:, 0].mean(), (each[:, 1].min(), each[:, 1].max())) for each in ends], strict=True)
        apart = sweep_curve.APART / 72 * figure.dpi
        assert [b - a for a, b in itertools.pairwise(across)] == pytest.approx([apart, apart])
        box = axes.get_window_extent()
        assert all(box.y0 < low <= high < box.y1 for low, high in up)


def test_a_curve_of_words_is_a_picture(tmp_path):
    made = swept((0.1, 0.001), (9.0, 21.0))
    points = [(word, [record]) for word, record in zip(("lenet5", "resnet18"), made, strict=True)]
    paths = sweep_curve.write({"FedAvg": points}, {}, "backbone", "digits", tmp_path / "curve")
    assert {path.suffix for path in paths} == {".png", ".pdf"}
    assert all(path.stat().st_size > 1000 for path in paths)


def test_the_command_runs_a_file_and_writes_table_and_page(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(
        HEAD.replace('["dlg"]', '["class-mean"]') + '[sweep]\nclients = [1, 2]\n[[column]]\nmethod = "fedavg"\n'
    )
    ran = command("study", "mine.toml", "--preset", "smoke", "--seeds", "1")
    assert ran.status == 0, ran.err
    table = (tmp_path / "runs/mine-smoke/sweep.md").read_text()
    assert "| clients | column |" in table
    assert "| 1 | FedAvg |" in table
    assert "(smoke)" in table
    assert "sweep" in (tmp_path / "runs/mine-smoke/report.md").read_text()
