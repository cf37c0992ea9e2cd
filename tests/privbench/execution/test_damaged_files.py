"""One damaged file costs one cell; what can be made again is, with a line, and gives the same record."""

import json
import re
import shutil

import pytest

from benchmarks.chaos.life import content, tree
from privbench import presets
from privbench.cli import drawing, listing, training_runs
from privbench.errors import UserError
from privbench.execution import cell_jobs, reproduce, worker_pool
from privbench.records import schema
from privbench.records.store import Store
from privbench.system import files
from privbench.training import checkpoint
from reports.figures import of_attack
from reports.running import status, study_run

TRAIN = presets.train_spec("smoke", "digits", "fedavg", seed=100, clients=2, per_client=16, changes={"rounds": 2})
CELLS = [
    *(presets.cell_spec("smoke", TRAIN, name, seeds=1, victims=2, round_="1") for name in ("grey", "dataset-mean")),
    presets.cell_spec("smoke", TRAIN, None, seeds=1),
]


def go(root, cells=CELLS):
    ended = {}
    failures = cell_jobs.run_cells(cells, root, None, "cpu", lambda *_: None, lambda *one: ended.update([one]))
    return failures, ended


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    root = tmp_path_factory.mktemp("finished")
    assert go(root) == ([], {cell_jobs.title([TRAIN]): None})
    return root


@pytest.fixture
def store(finished, tmp_path):
    """A copy of the finished cells that one may damage."""
    shutil.copytree(finished, tmp_path / "runs")
    return Store(tmp_path / "runs")


def cut(path):
    """As a disk leaves a file that lost its end."""
    path.write_bytes(path.read_bytes()[:-40])
    return path


def open_again(store, cell):
    """Has a cell attacked again on what is there."""
    store.record(cell).unlink()
    store.result(cell, 100).unlink()


def test_a_recorded_cell_keeps_no_traceback_of_an_earlier_attempt(store, monkeypatch):
    """As a disk that is gone for a moment leaves one."""
    cell = CELLS[0]
    store.record(cell).unlink()
    with monkeypatch.context() as patch:
        patch.setattr("privbench.records.summary.summarise", lambda **_: 1 / 0)
        assert len(go(store.root)[0]) == 1
    assert "ZeroDivisionError" in store.log(cell).read_text()
    assert go(store.root)[0] == []
    assert store.record(cell).exists()
    assert not store.log(cell).exists()


@pytest.mark.parametrize(
    "name",
    [
        "train/*/predictions.safetensors", "train/*/spec.json", "train/*/clients.json", "train/*/round-0001.safetensors",
        "artifacts/*/observation/index.json", "artifacts/*/observation/round-*.safetensors",
        "artifacts/*/observation-truth.safetensors",
    ],
)  # fmt: skip
def test_what_can_be_made_again_is_and_the_record_is_the_same(name, store, finished, caplog):
    (path,) = store.root.glob(name)
    before = path.read_bytes()
    cut(path)
    for cell in CELLS[:2]:
        open_again(store, cell)
    assert go(store.root) == ([], {cell_jobs.title([TRAIN]): None})
    (line,) = [message for message in caplog.messages if str(path) in message]
    assert "again" in line
    assert "\n" not in line
    if path.suffix == ".json":
        assert path.read_bytes() == before
    for cell in CELLS:
        old, new = (schema.read(Store(root).record(cell)) for root in (finished, store.root))
        assert reproduce.differences(old, new, finished, store.root) == []


@pytest.mark.parametrize(
    "names",
    [
        ["train/*/round-0000.safetensors", "train/*/round-0002.safetensors"], ["train/*/predictions.safetensors"],
        ["train/*/spec.json", "train/*/clients.json", "cells/*/spec.json"], ["artifacts"],
        ["artifacts/*/observation/index.json"], ["artifacts/*/observation/round-*.safetensors"],
        ["artifacts/*/observation-truth.safetensors"],
    ],
)  # fmt: skip
def test_what_was_deleted_is_made_again_before_its_cells_are_recorded(names, store, finished, caplog):
    """As after a folder was deleted while a command ran: the results are there, and something they were made of is not."""
    for path in (path for name in names for path in store.root.glob(name)):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for cell in CELLS:
        store.record(cell).unlink()
    assert go(store.root) == ([], {cell_jobs.title([TRAIN]): None})
    assert tree(store.root) == tree(finished)
    lines = [message for message in caplog.messages if " again" in message]
    assert len(lines) == (not names[0].endswith(".json") or "index" in names[0])
    assert not any("\n" in line for line in lines)


def test_what_is_lost_is_not_made_of_other_numbers(store, caplog):
    """A run that was trained elsewhere: what is trained here would not belong to its history."""
    path = store.train(TRAIN) / checkpoint.FINISHED
    finished_run = files.read_digested(path)
    finished_run["history"][0]["validation_accuracy"][0] += 1
    files.write_digested(path, finished_run)
    lost = checkpoint.snapshot_path(store.train(TRAIN), 2)
    lost.unlink()
    open_again(store, CELLS[0])
    (failure,) = go(store.root)[0]
    assert failure.startswith(f"what {store.train(TRAIN)} has lost cannot be made again here")
    assert not lost.exists()


def test_files_that_are_deleted_while_a_run_is_trained_are_there_at_its_end(tmp_path, finished, caplog):
    folder = Store(tmp_path).train(TRAIN)

    def delete(round_, *_):
        if round_ == 1:
            checkpoint.snapshot_path(folder, 0).unlink(missing_ok=True)

    cell_jobs.train(Store(tmp_path), [TRAIN], None, "cpu", delete)
    assert f"{folder} has lost round-0000.safetensors; what is lost is made again by training" in caplog.text
    same = [checkpoint.snapshot_path(each, 0) for each in (folder, Store(finished).train(TRAIN))]
    assert content(same[0]) == content(same[1])


def test_training_asked_for_again_makes_again_what_a_run_has_lost(store, finished):
    for name in ("round-0001.safetensors", "predictions.safetensors", "clients.json"):
        (store.train(TRAIN) / name).unlink()
    training_runs.train_all([TRAIN], store.root, None, "cpu")
    assert tree(store.train(TRAIN)) == tree(Store(finished).train(TRAIN))


def test_no_cell_is_recorded_without_what_it_was_made_of(store):
    for cell in CELLS:
        store.record(cell).unlink()
    shutil.rmtree(store.root / "artifacts")
    failures = cell_jobs.record_finished(store, CELLS)
    assert len(failures) == 2
    assert all("artifacts" in line and line.endswith("the same command makes it again") for line in failures)
    assert [store.record(cell).exists() for cell in CELLS] == [False, False, True]


def test_a_damaged_result_is_attacked_again(store, finished, caplog):
    path = cut(store.result(CELLS[0], 100))
    store.record(CELLS[0]).unlink()
    assert go(store.root)[0] == []
    assert "it is removed, and the attack is run again" in caplog.text
    assert files.load_tensors(path, "reconstruction")


def test_a_result_that_cannot_be_summarised_costs_its_cell_alone(store):
    for cell in CELLS[:2]:
        store.record(cell).unlink()
    cut(store.result(CELLS[0], 100))
    failures = cell_jobs.record_finished(store, CELLS)
    assert len(failures) == 1
    assert str(store.result(CELLS[0], 100)) in failures[0]
    assert json.loads(store.failure(CELLS[0]).read_text())["reason"] == failures[0]
    assert [store.record(cell).exists() for cell in CELLS] == [False, True, True]


def test_a_damaged_history_names_itself_and_what_is_made_again(store, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    path = cut(store.train(TRAIN) / checkpoint.FINISHED)
    store.record(CELLS[0]).unlink()
    (failure,) = go(store.root)[0]
    assert failure.startswith(f"{path} is damaged (not valid JSON: ")
    assert failure.endswith("); remove it, and the same command trains the run again from the beginning")
    assert status.of(store, CELLS[1], {}).word == status.DONE
    listing.list_runs(store.root)
    assert "is damaged" in capsys.readouterr().out


def test_a_damaged_reason_is_no_obstacle(store):
    store.record(CELLS[0]).unlink()
    files.write_bytes(store.failure(CELLS[0]), b"")
    assert status.of(store, CELLS[0], {}).word == status.DAMAGED
    assert go(store.root)[0] == []


def test_a_grid_leaves_out_the_row_whose_file_is_damaged(store, tmp_path, caplog):
    cut(store.result(CELLS[0], 100))
    assert len(of_attack.write_grid(store, CELLS[:2], 100, tmp_path / "grid")) == 2
    assert "left out of the grid" in caplog.text
    cut(store.result(CELLS[1], 100))
    assert of_attack.write_grid(store, CELLS[:2], 100, tmp_path / "empty") == []


def test_a_grid_says_how_many_of_its_cells_are_unfinished(store, tmp_path, caplog):
    first, path = CELLS[0], tmp_path / "grid.png"
    drawing.draw_grid(first.train.dataset, first.round, 100, store.root, path, 20, 8)
    assert "unfinished" not in caplog.text
    store.record(first).unlink()
    drawing.draw_grid(first.train.dataset, first.round, 100, store.root, path, 20, 8)
    assert re.search(r"1 of \d+ cells in the grid are unfinished: they have seed 100", caplog.text)


def test_a_start_tidies_a_run_that_was_killed_at_its_very_end(store):
    left = store.train(TRAIN) / checkpoint.CHECKPOINT
    left.write_bytes(b"whatever")
    store.check_writable()
    assert not left.exists()
    left.write_bytes(b"whatever")
    cut(store.train(TRAIN) / checkpoint.FINISHED)
    store.check_writable()
    assert left.exists(), "of a run whose history is damaged, the checkpoint is all there is"


def test_a_run_whose_folder_is_deleted_says_so(tmp_path):
    gone = Store(tmp_path).train(TRAIN)

    def delete(round_, *_):
        if round_ == 1:
            shutil.rmtree(gone)

    with pytest.raises(UserError, match=f"{gone} was deleted or emptied while its run was trained"):
        cell_jobs.train(Store(tmp_path), [TRAIN], None, "cpu", delete)


def test_a_command_never_ends_well_with_a_run_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(worker_pool, "run_jobs", lambda *_: [])
    with pytest.raises(UserError, match="is gone, though its run was trained"):
        training_runs.train_all([TRAIN], tmp_path, None, "cpu")


def test_a_command_whose_results_were_deleted_behind_it_says_so(store, tmp_path):
    paths = [tmp_path / "table.md"]
    paths[0].write_text("")
    states = [status.of(store, cell, {}) for cell in CELLS]
    study_run.check_present(store, CELLS, states, paths)
    store.record(CELLS[1]).unlink()
    with pytest.raises(UserError, match=f"{store.record(CELLS[1])} was deleted while the command ran"):
        study_run.check_present(store, CELLS, states, paths)


@pytest.mark.parametrize("is_new", [True, False])
def test_a_new_record_does_not_outlive_what_it_was_made_of(is_new, store):
    """What was deleted of earlier cells may have been deleted on purpose: their records stay, and nothing is made again."""
    states = [status.of(store, cell, {})._replace(is_new=is_new) for cell in CELLS]
    study_run.check_present(store, CELLS, states, [])
    (gone,) = store.root.glob("artifacts/*")
    shutil.rmtree(gone)
    if is_new:
        with pytest.raises(UserError, match=f"{gone} was deleted or emptied while the command ran"):
            study_run.check_present(store, CELLS, states, [])
    else:
        study_run.check_present(store, CELLS, states, [])
        assert go(store.root)[0] == []
        assert not gone.exists()
    assert store.record(CELLS[0]).exists() is not is_new


def test_only_cells_that_a_command_records_are_its_own(store):
    store.record(CELLS[1]).unlink()
    assert [state.is_new for state in study_run.execute(CELLS, store.root, None, "cpu")] == [False, True, False]


def test_a_cell_whose_results_are_deleted_before_its_record_is_written_says_so(store, monkeypatch):
    store.record(CELLS[0]).unlink()
    monkeypatch.setattr(cell_jobs, "record_finished", lambda *_: shutil.rmtree(store.cell(CELLS[0])) or [])
    states = study_run.execute(CELLS, store.root, None, "cpu")
    assert [state.word for state in states] == [status.FAILED, status.DONE, status.DONE]
    assert states[0].why.startswith(f"{store.cell(CELLS[0])} was deleted while the command ran")


@pytest.mark.parametrize("number", ["EROFS", "ENOSPC"])
def test_a_folder_that_can_no_longer_be_written_is_named_and_not_the_note_about_it(number, store, monkeypatch):
    import errno

    def refuse(*_):
        raise OSError(getattr(errno, number), "no")

    for cell in CELLS[:2]:
        open_again(store, cell)
    monkeypatch.setattr("pathlib.Path.replace", refuse)
    (failure, *_) = go(store.root)[0]
    assert "failed.json" not in failure
    assert str(store.result(CELLS[0], 100)) in failure


def test_work_that_another_process_did_meanwhile_is_not_done_again(store, monkeypatch):
    """The lock is had after the other process wrote its result: nothing is computed."""
    store.record(CELLS[0]).unlink()
    monkeypatch.setattr("privbench.execution.at_round.observed", lambda *_: pytest.fail("attacked again"))
    monkeypatch.setattr("privbench.training.harness.train", lambda *_: pytest.fail("trained again"))
    assert go(store.root)[0] == []
