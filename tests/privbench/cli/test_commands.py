"""What a table does with cells that have no readable record."""

import re

import pytest

from privbench import presets, registry
from privbench.cli import attack_runs, catalogue, plugin_facts, training_runs
from privbench.errors import UserError
from privbench.execution import cell_jobs
from privbench.execution.progress import JobBars
from privbench.records import schema as records
from privbench.records.store import Store
from privbench.requests.options import PlaceOptions
from privbench.system import files
from privbench.training import checkpoint
from reports.studies import definition, study_cells
from tests.builders.records import record


@pytest.fixture
def cells():
    # FedAvg: dlg, staged; best round, untrained.
    planned = study_cells.of(definition.read("attack-table"), "smoke", [("digits", None)], seeds=1)[:4]
    # As many victims as a record of the builder has.
    return [cell.model_copy(update={"victims": 4}) for cell in planned]


def finished(cell):
    record_of_cell = record(
        cell.train.method, cell.train.defense, cell.attack, "digits", round_=cell.round, seeds=cell.seeds
    )
    return record_of_cell.model_copy(update={"id": cell.id, "cell": cell})


def show(cells, out, monkeypatch, failing=()):
    def run_cells(cells, root, data_root, device, progress, outcome, *_):
        for cell in failing:
            outcome(cell_jobs.title([cell.train]), "the disk is full")
        return ["the disk is full"] * len(failing)

    monkeypatch.setattr(cell_jobs, "run_cells", run_cells)
    monkeypatch.setattr(attack_runs.of_attack, "attacked", lambda *_: [])
    attack_runs.show_attacked(attack_runs.run_attacks(cells, PlaceOptions("cpu", None, out)))


def test_a_damaged_record_is_a_gap_and_hides_no_other(cells, tmp_path, monkeypatch, capsys):
    store = Store(tmp_path)
    for cell in cells:
        records.write(finished(cell), store.record(cell))
    store.record(cells[1]).write_text("{")
    with pytest.raises(UserError, match=r"1 of 4 cells are unfinished: .*is damaged"):
        show(cells, tmp_path, monkeypatch)
    text = next(tmp_path.glob("attack-*/table.md")).read_text()
    assert "## Gaps" in text
    assert "digits, FedAvg, staged, round best:" in text
    assert "missing: digits, FedAvg, staged" in capsys.readouterr().out


def test_an_unfinished_cell_is_a_gap_with_the_reason_of_its_job(cells, tmp_path, monkeypatch):
    store = Store(tmp_path)
    for cell in cells[:3]:
        records.write(finished(cell), store.record(cell))
    with pytest.raises(UserError, match="1 of 4 cells are unfinished: the disk is full"):
        show(cells, tmp_path, monkeypatch, failing=cells[3:])
    assert "round 0 (untrained): the disk is full" in next(tmp_path.glob("attack-*/table.md")).read_text()


def test_a_table_without_any_record_is_refused(cells, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="was deleted while the command ran; the same command makes it again"):
        show(cells, tmp_path, monkeypatch)


def test_records_of_other_tables_stay_out(cells, tmp_path, monkeypatch):
    store = Store(tmp_path)
    for cell in cells:
        records.write(finished(cell), store.record(cell))
    show(cells[:2], tmp_path, monkeypatch)
    assert len(next(tmp_path.glob("attack-*/table.csv")).read_text().splitlines()) == 1 + 2


def test_a_search_chooses_by_validation_accuracy_and_never_by_test_for_each_defence(tmp_path, capsys, monkeypatch):
    trials, noise = {}, "gaussian:0.1"
    ends = {
        ("none", 0.001): ([70.0, 80.0], [99.0, 99.0]), ("none", 0.1): ([81.0, 72.0], [10.0, 20.0]),
        (noise, 0.001): ([40.0, 40.0], [1.0, 2.0]), (noise, 0.1): ([30.0, 40.0], [50.0, 50.0]),
    }  # fmt: skip
    for (defense, mu), (validation, test) in ends.items():
        for s in (0, 1):
            each = presets.train_spec("smoke", "digits", "fedprox", defense=defense, method_settings={"mu": mu}, seed=s)
            rounds = [
                {
                    "round": 1, "loss": {}, "validation_accuracy": validation, "test_accuracy": test, "global_accuracy": 50.0,
                    "consistency": [], "seconds": 0.0, "bytes_up": [0, 0], "bytes_down": [0, 0],
                }
            ]  # fmt: skip
            files.write_json(Store(tmp_path).train(each) / checkpoint.FINISHED, {"history": rounds})
            trials.setdefault(f"mu={mu}", []).append(each)
    # Histories alone, as if all that was trained were there.
    monkeypatch.setattr(training_runs.restoration, "missing", lambda *_: [])
    plain = {name: [each for each in specs if each.defense == "none"] for name, specs in trials.items()}
    assert training_runs.search_and_show(plain, tmp_path, None, "cpu") == {"none": "mu=0.1"}
    shown = capsys.readouterr().out
    assert "76.50" in shown
    assert "defence" not in shown
    assert training_runs.search_and_show(trials, tmp_path, None, "cpu") == {"none": "mu=0.1", noise: "mu=0.001"}
    shown = capsys.readouterr().out
    assert [line.replace("│", " ").split() for line in shown.splitlines() if "best" in line] == [
        ["none", "mu=0.1", "76.50", "15.00", "best"], [noise, "mu=0.001", "40.00", "1.50", "best"],
    ]  # fmt: skip
    nothing = {"mu=1": [presets.train_spec("smoke", "digits", "fedprox", changes={"rounds": 0})]}
    with pytest.raises(UserError, match="at least one round"):
        training_runs.search_and_show(nothing, tmp_path, None, "cpu")


def test_the_shipped_facts_of_plug_ins_are_those_of_their_classes():
    """`python -m privbench.cli.plugin_facts` writes the file again."""
    assert catalogue.facts() == plugin_facts.every()


def test_plug_ins_of_one_file_are_distinguished_in_a_listing(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    catalogue.list_plugins("attack", long=True)
    entries = {part.split("\n")[0]: part for part in re.split(r"\n(?=\S)", capsys.readouterr().out)}
    assert "Every pixel 0.5." in entries["grey"]
    assert "the victim's class" in entries["class-mean"]
    assert "Zhu et al., NeurIPS 2019" in entries["dlg"]


@pytest.mark.parametrize("kind", list(registry.KINDS))
def test_a_listing_fits_in_80_columns_with_every_name_on_a_line_of_its_own(kind, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    catalogue.list_plugins(kind)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert set(registry.KINDS[kind]) <= {line.split()[0] for line in lines if line.strip()}


def test_a_job_s_words_that_come_after_its_end_bring_no_bar_back():
    with JobBars(2) as bars:
        bars.progress("a", 1, 2, "half")
        assert list(bars.rows) == ["a"]
        bars.outcome("a", None)
        bars.progress("a", 2, 2, "late")
        bars.progress("b", 1, 2, "half")
        assert list(bars.rows) == ["b"]
