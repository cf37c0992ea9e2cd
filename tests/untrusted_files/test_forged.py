"""Content that no run writes, under a digest that fits, is refused in one line; what is no file at all is not waited for."""

import os

import pytest
import torch

from privbench.errors import Damaged, UserError
from privbench.execution import audit, generator_scores
from privbench.observation import active_server
from privbench.records import record_lines
from privbench.records.store import Store
from privbench.system import files, locks
from tests.untrusted_files.conftest import FIRST, GREY, MEAN, edit, edit_tensors

WRONG_CLIENTS = [
    {"classes": 5}, {"classes": []}, {"classes": [["a"]]}, {"clients": [3]}, {"clients": []}, {"public": "many"}, {"public": -1},
    {"clients": [{"domain": ["a"], "train": [1], "validation": [1], "test": [1]}]},
    {"clients": [{"domain": "a", "train": [1.5], "validation": [], "test": None}]},
    {"clients": [{"domain": "a", "train": [1], "validation": [1], "test": [1]}]},
]  # fmt: skip


@pytest.mark.parametrize("change", WRONG_CLIENTS, ids=repr)
def test_clients_that_no_run_has_are_neither_drawn_nor_shown(change, root, command):
    path = Store(root).clients(FIRST)
    edit(path, lambda value: value.update(change))
    for words in (("partition", "--run", FIRST.id), ("show", FIRST.id)):
        ran = command(*words, "--out", root)
        assert ran.status == 2
        *_, line = ran.err.splitlines()
        assert line.startswith(f"privbench: {path} is damaged (")
        assert line.endswith("remove it and run the same command again")


def images_of(shape):
    """Puts images of another shape into a result."""
    return lambda path: rewritten(path, images=torch.full(shape, 0.5))


def rewritten(path, **tensors):
    """The same result with some tensors in place of its own."""
    before, info = files.load_tensors(path, "reconstruction")
    files.save_tensors(path, "reconstruction", before | tensors, info)


FORGED_RESULTS = {
    "flat images": images_of((2,)),
    "images of another size": images_of((2, 1, 1, 8, 8)),
    "more images": images_of((5, 1, 1, 32, 32)),
    "whole numbers": lambda path: rewritten(path, images=torch.zeros(2, 1, 1, 32, 32, dtype=torch.int64)),
    "flat labels": lambda path: rewritten(path, labels=torch.zeros(2, dtype=torch.int64)),
    "no victims": lambda path: edit_tensors(path, lambda info: info.pop("victims")),
    "victims that are numbers": lambda path: edit_tensors(path, lambda info: info.update(victims=[1, 2])),
    "no knowledge": lambda path: edit_tensors(path, lambda info: info.update(knowledge=[])),
    "knowledge of numbers": lambda path: edit_tensors(path, lambda info: info["knowledge"].update(rung=[1])),
}


@pytest.mark.parametrize("forge", FORGED_RESULTS.values(), ids=FORGED_RESULTS)
def test_a_result_that_no_attack_gives_is_left_out_of_grids(forge, root, command, tmp_path, caplog):
    path = Store(root).result(GREY, FIRST.seed)
    forge(path)
    words = ("grid", "--dataset", "digits", "--round", "last", "--out", root, "--target", tmp_path / "grid.png")
    assert command(*words).status == 0
    assert any(f"{path} is damaged (" in message for message in caplog.messages)


def test_a_page_and_a_grid_without_any_result_say_so(root, command, tmp_path):
    path = Store(root).result(GREY, FIRST.seed)
    FORGED_RESULTS["flat images"](path)
    Store(root).result(MEAN, FIRST.seed).unlink()
    page = tmp_path / "page.html"
    assert command("report", root, "--html", "--out", page).status == 0
    assert "with their true images are at hand" in page.read_text()
    alone = command("grid", "--dataset", "digits", "--round", "last", "--out", root)
    assert (alone.status, "no grid was drawn" in alone.err) == (2, True)


@pytest.mark.parametrize(
    "content", [{}, {"audit": 3}, {"audit": {"claimed": "x"}}, {"generators": {"each": 1}}], ids=repr
)
def test_scores_that_nothing_measures_are_refused_in_one_line(content, root, monkeypatch):
    """`federation` is None: nothing is computed where a file of the scores is there."""
    store = Store(root)
    monkeypatch.setattr(generator_scores, "check", lambda *_: None)
    common = {"spec": FIRST.id, "rounds": 2, "round": 2}
    for path, read in (
        (store.audit(FIRST, 50), lambda: audit.of_run(store, FIRST, None, 2, 50)),
        (store.generators(FIRST, 50), lambda: generator_scores.of_run(store, FIRST, None, 50)),
    ):
        monkeypatch.setattr(generator_scores, "scored_round", lambda _: 2)
        files.write_digested(path, common | content)
        with pytest.raises(Damaged, match=r"is damaged .*remove it and run the same command again") as refused:
            read()
        assert "\n" not in str(refused.value)


def test_rounds_under_attack_that_nobody_counted_are_refused_in_one_line(tmp_path):
    files.write_digested(tmp_path / active_server.HISTORY, {"artifact": tmp_path.name})
    with pytest.raises(Damaged, match="active_rounds"):
        active_server.crafted_rounds(tmp_path)


def piped(path):
    """A pipe in place of a file: whoever opens it waits until somebody writes into it."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(root, tmp_path, command):
    store = Store(root)
    piped(store.cell_spec(MEAN))
    piped(store.train(FIRST) / "spec.json")
    assert command("list", "runs", "--out", root).status == 0
    piped(store.result(GREY, FIRST.seed))
    piped(store.record(GREY))
    assert command("merge", tmp_path / "into", root).status == 0
    assert not Store(tmp_path / "into").result(GREY, FIRST.seed).exists()
    with pytest.raises(UserError, match="it is no regular file"):
        files.read_json(store.record(GREY))
    with pytest.raises(UserError, match="there are no records"):
        record_lines.read(piped(tmp_path / "records.jsonl.xz"))
    piped(root / ".lock-by")
    with locks.lock(root, wait=False):
        assert "process" in (root / ".lock-by").read_text()


def test_a_merge_passes_folders_in_place_of_files_over(root, tmp_path, command):
    store = Store(root)
    for path in (store.record(GREY), store.result(GREY, FIRST.seed)):
        path.unlink()
        path.mkdir()
    assert command("merge", tmp_path / "into", root).status == 0


def test_networks_are_reproduced_without_the_scores_and_pipes_beside_them(root, command, monkeypatch):
    """Scores that are taken over would be compared with themselves."""
    store = Store(root)
    for path in (store.audit(FIRST, 50), store.generators(FIRST, 50)):
        path.write_text("{}")
    piped(store.train(FIRST) / "pipe")
    into = root / "again"
    ran = command("reproduce", GREY.id, "--attack-only", "--out", root, "--into", into)
    assert (ran.status, "reproduced bit for bit" in ran.out) == (0, True)
    assert {path.name for path in store.train(FIRST).iterdir()} - {path.name for path in Store(into).train(FIRST).iterdir()} == {
        "audit-50.json", "generators-50.json", "pipe"
    }  # fmt: skip
