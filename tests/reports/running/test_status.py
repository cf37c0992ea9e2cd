"""How far the cells of a study are, and what a run of it does with them."""

import errno
import json
import os
from pathlib import Path

import pytest

from privbench.errors import Interrupted, UserError
from privbench.execution import cell_jobs, foundations
from privbench.records import schema as records
from privbench.records.store import Store
from privbench.requests.options import PlaceOptions
from privbench.system import files
from privbench.training import checkpoint, federation
from reports.running import status, study_run, study_view
from reports.studies import definition, study_cells
from tests.builders.records import record

NO_ROUNDS = {"round": 0, "history": []}  # of a run of no rounds


@pytest.fixture
def cells():
    study = definition.read("accuracy")
    return study_cells.of(
        study, "smoke", [("digits", None)], methods=["local", "fedavg", "fedper", "fedsplit"], seeds=2
    )


def finished(cell):
    record_of_cell = record(
        cell.train.method,
        attack=None,
        dataset="digits",
        seeds=cell.seeds,
        spec={"preset": "smoke", "method_settings": {}, "partition": "iid"},
    )
    return record_of_cell.model_copy(update={"id": cell.id, "cell": cell})


def train_folder(store, cell, seed):
    return store.train(cell.train.model_copy(update={"seed": seed}))


def test_a_reason_in_a_folder_of_somebody_elses_is_refused_in_one_line(cells, tmp_path, monkeypatch):
    store, unlink = Store(tmp_path), Path.unlink
    store.write_failure(cells[0], "no reason", refused=False)

    def somebody_elses(path, missing_ok=False):
        if path == store.failure(cells[0]):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", somebody_elses)
    with pytest.raises(UserError, match=r"cannot write .*failed\.json: Permission denied; choose another folder"):
        study_run.execute(cells[:1], tmp_path, None, "cpu")


def test_a_recorded_cell_is_done_and_a_damaged_one_says_which_file_to_remove(cells, tmp_path):
    store = Store(tmp_path)
    records.write(finished(cells[0]), store.record(cells[0]))
    assert status.of(store, cells[0], {}).word == "done"
    store.record(cells[0]).write_text("{")
    damaged = status.of(store, cells[0], {})
    assert damaged.word == "damaged"
    assert f"{store.record(cells[0])} is damaged" in damaged.why
    assert "remove it and run the same command again" in damaged.why
    store.record(cells[0]).write_text("{}")
    foreign = status.of(store, cells[0], {})
    assert (
        foreign.why == f"{store.record(cells[0])} is not a privbench record; remove it and run the same command again"
    )
    files.write_json(train_folder(store, cells[1], 100) / checkpoint.FINISHED, {})
    untrained = status.of(store, cells[1], {})
    assert untrained.word == "damaged"
    assert f"{checkpoint.FINISHED} is damaged" in untrained.why
    assert "remove it, and the same command trains the run again" in untrained.why
    assert status.counts([damaged, foreign, untrained]) == "0 of 3 cells done, 3 damaged"


def test_a_cell_whose_training_has_begun_is_interrupted(cells, tmp_path):
    store = Store(tmp_path)
    assert status.of(store, cells[0], {}) == ("not run", "", None, False)
    files.write_json(train_folder(store, cells[0], 100) / checkpoint.FINISHED, NO_ROUNDS)
    info = {"spec": cells[0].train.model_copy(update={"seed": 101}).id, "round": 1, "clients": 2}
    files.save_tensors(train_folder(store, cells[0], 101) / checkpoint.CHECKPOINT, "checkpoint", {}, info)
    state = status.of(store, cells[0], {})
    assert state.word == "interrupted"
    assert state.why == "seed 100 trained; seed 101 stopped after round 1 of 2; the same command continues"


def test_an_attack_that_waits_for_a_finished_training_is_not_called_interrupted(tmp_path):
    store = Store(tmp_path)
    study = definition.read("attack-table")
    cell = study_cells.of(study, "smoke", [("digits", None)], seeds=1)[0]
    files.write_json(train_folder(store, cell, 100) / checkpoint.FINISHED, NO_ROUNDS)
    assert status.of(store, cell, {}) == ("not run", "its training is finished", None, False)
    files.write_json(store.cell_spec(cell), {})
    assert status.of(store, cell, {}).word == "interrupted"


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["dlg"], "dlg"),
        (["dlg", "staged"], "dlg, staged"),
        (["dlg"] * 8, "dlg in 8 settings"),
        (["dlg", "staged", "dlg"], "dlg in 2 settings, staged"),
        (["a", "b", "c", "d", "e", "e"], "5 attacks"),
        ([""], ""),
        (["", "", ""], "3 settings"),
    ],
)
def test_settings_of_one_attack_are_not_counted_as_attacks(names, text):
    made = [record(attack=name or None).cell for name in names]
    states = [status.CellStatus("not run", "")] * len(names)
    ((_, rows),) = status.listing(made, states)
    assert [row[1] for row in rows] == [text]


def test_cells_without_data_say_how_to_get_it(cells, tmp_path):
    assert status.of(Store(tmp_path), cells[0], {"digits": "put it there"}) == ("no data", "put it there", None, False)


def test_only_data_that_unrecorded_cells_need_is_looked_for(tmp_path):
    store, study = Store(tmp_path), definition.read("accuracy")
    missing = study_cells.of(study, "smoke", [("cifar10", None), ("digits", None)], methods=["local"])
    absent = study_run.absent_data(store, missing, None)
    assert set(absent) == {"cifar10"}
    assert "put the files there or point --data-dir at them" in absent["cifar10"]
    records.write(finished(missing[0]), store.record(missing[0]))
    assert study_run.absent_data(store, missing, None) == {}


def test_cells_on_a_data_set_of_unknown_code_stop_no_others(cells, tmp_path):
    unknown = cells[0].model_copy(update={"train": cells[0].train.model_copy(update={"dataset": "strange:load"})})
    states = study_run.execute([unknown, cells[0]], tmp_path, None, "cpu")
    assert [state.word for state in states] == [status.NO_DATA, status.DONE]
    assert "add --trust strange:load" in states[0].why


def test_looking_at_the_state_downloads_nothing(tmp_path, monkeypatch, capsys):
    study = definition.read("accuracy")
    cells = study_cells.of(study, "smoke", [("cifar10", None)], methods=["local"])
    monkeypatch.setattr(federation, "read", lambda *_: pytest.fail("tried to load"))
    study_view.show_status(study, cells, tmp_path / "out", None)
    assert "0 of 1 cells done, 1 no data" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def ending(monkeypatch, endings):
    """Runs no cell; a job ends with the reason given for its method, or else leaves a record."""

    def run_cells(cells, root, data_root, device, progress, outcome, *_):
        for job in cell_jobs.trials_of(cells, root, data_root, device):
            reason = endings.get(job.specs[0].method)
            if isinstance(reason, BaseException):
                raise reason
            outcome(job.title, reason)
        for cell in cells:
            if cell.train.method not in endings:
                records.write(finished(cell), Store(root).record(cell))
        return []

    monkeypatch.setattr(cell_jobs, "run_cells", run_cells)
    # Nothing was trained, and no record is asked what it was made of.
    monkeypatch.setattr(foundations, "check", lambda *_: None)


def test_why_a_cell_failed_is_kept_until_it_is_tried_again(cells, tmp_path, monkeypatch):
    store = Store(tmp_path)
    ending(monkeypatch, {"fedper": "the disk is full"})
    states = study_run.execute(cells, tmp_path, None, "cpu")
    assert [state.word for state in states] == ["done", "done", "failed", "done"]
    assert json.loads(store.failure(cells[2]).read_text())["reason"] == "the disk is full"
    assert status.of(store, cells[2], {}) == ("failed", "the disk is full", None, False)
    ending(monkeypatch, {})
    assert [state.word for state in study_run.execute(cells, tmp_path, None, "cpu")] == ["done"] * 4
    assert not store.failure(cells[2]).exists()


def test_an_internal_error_fails_its_cell_alone_and_leaves_its_traceback(cells, tmp_path, monkeypatch):
    def train(store, specs, *_, **__):
        if specs[0].method == "fedper":
            1 / 0
        raise UserError("asked the impossible")

    monkeypatch.setattr(cell_jobs, "train", train)
    states = study_run.execute(cells, tmp_path, None, "cpu")
    log = Store(tmp_path).train(cells[2].train_specs()[0]) / "error.txt"
    assert [state.word for state in states] == ["failed"] * 4
    assert [state.why == "asked the impossible" for state in states] == [True, True, False, True]
    assert states[2].why == f"internal error: ZeroDivisionError: division by zero; see {log}"
    assert "in train" in log.read_text()


def test_an_interrupted_study_says_how_far_it_is(cells, tmp_path, monkeypatch, capsys):
    ending(monkeypatch, {"fedper": Interrupted()})
    with pytest.raises(Interrupted):
        study_run.execute(cells, tmp_path, None, "cpu")
    assert "0 of 4 cells done, 4 not run" in capsys.readouterr().err


def test_the_page_names_every_open_cell_and_its_reason(cells, tmp_path, monkeypatch, capsys):
    study = definition.read("accuracy").model_copy(update={"reports": ("accuracy",)})
    absent = study_cells.of(study, "smoke", [("cifar10", None)], methods=["local"])
    ending(monkeypatch, {"fedper": "the disk is full"})
    with pytest.raises(UserError, match="1 of 5 cells are unfinished: the disk is full"):
        study_view.show_study(study_run.run_study(study, [*cells, *absent], PlaceOptions("cpu", None, tmp_path)))
    page = (tmp_path / "accuracy-smoke" / "report.md").read_text()
    shown = capsys.readouterr().out
    for text in (page, shown):
        assert "3 of 5 cells done, 1 failed, 1 no data" in text
        assert "failed (1): digits FedPer: the disk is full" in text
        assert "cifar10 needs" in text
    assert "| FedPer |  |  | failed: the disk is full |" in page
    assert "FedPer | failed |" in (tmp_path / "accuracy-smoke" / "accuracy.md").read_text()


def test_a_study_without_any_result_is_refused(cells, tmp_path, monkeypatch):
    absent = study_cells.of(definition.read("accuracy"), "smoke", [("cifar10", None)])
    with pytest.raises(UserError, match="no cell of 'accuracy' could be run: cifar10 needs"):
        study_run.run_study(definition.read("accuracy"), absent, PlaceOptions("cpu", None, tmp_path))


def test_a_data_set_is_checked_once_however_many_cells_need_it(cells, monkeypatch, tmp_path):
    checked = []
    monkeypatch.setattr(study_run.data, "check", lambda name, folder: checked.append(name) or [f"present   {name}"])
    assert study_run.absent_data(Store(tmp_path), cells, None) == {}
    assert len(cells) > 1
    assert checked == ["digits"]
