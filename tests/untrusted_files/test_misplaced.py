"""An intact file in the wrong place, and an edited one, is refused in one line; older files, which say less, are read."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from privbench.errors import UserError
from privbench.observation import active_server
from privbench.records import clients, schema, summary
from privbench.records.store import Store
from privbench.system import files
from privbench.training import checkpoint
from privbench.training.state import State
from tests.untrusted_files.conftest import (
    CELLS,
    FIRST,
    GREY,
    MEAN,
    OTHER,
    SECOND,
    TRAINED,
    edit,
    edit_tensors,
    ran,
)

CPU = torch.device("cpu")
SCHEMA_2 = Path(__file__).parents[1] / "privbench" / "records" / "schema2"


def forget(root, *cells):
    """Removes the records of some cells, so that their seeds are gathered again."""
    for cell in cells:
        Store(root).record(cell).unlink()


def look_again(root):
    """Removes what the first seed of a cell gave, with its artifact, so that it is observed and attacked again."""
    forget(root, GREY)
    Store(root).result(GREY, FIRST.seed).unlink()
    shutil.rmtree(Store(root).artifact(GREY, FIRST, 2))


def refused(command, root, *words, expected):
    """A command that ends with one line, which holds some words, below the line that says what was asked for."""
    ended = command(*words, "--out", root)
    assert ended.status == 2, ended.out
    *request_lines, line = ended.err.splitlines()
    assert len(request_lines) <= 1
    assert line.startswith("privbench: ")
    for word in expected:
        assert word in line


# The files of a training run ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "round_", "message"),
    [(SECOND, 2, f"belongs to run '{SECOND.id}', not to run '{FIRST.id}'"), (FIRST, 1, "belongs to round 1, not to round 2")],
)  # fmt: skip
def test_a_snapshot_of_another_run_or_round_is_not_attacked(run, round_, message, root):
    folder = Store(root).train(FIRST)
    shutil.copyfile(checkpoint.snapshot_path(Store(root).train(run), round_), checkpoint.snapshot_path(folder, 2))
    look_again(root)
    (failure,) = ran([GREY], root)
    assert message in failure
    assert "\n" not in failure
    assert not Store(root).record(GREY).exists()


def test_a_snapshot_of_an_active_server_and_one_of_the_run_do_not_pass_for_each_other(root):
    folder, sent = Store(root).train(FIRST), root / "artifacts" / "crafted"
    shot = checkpoint.load_snapshot(folder, FIRST.id, 2)
    checkpoint.save_snapshot(sent, FIRST, State(shot.round, shot.server, shot.clients, shot.uploads), sent.name)
    assert checkpoint.load_snapshot(sent, FIRST.id, 2, sent.name).round == 2
    honest, crafted = (checkpoint.snapshot_path(each, 2) for each in (folder, sent))
    shutil.copyfile(honest, root / "kept")
    shutil.copyfile(crafted, honest)
    with pytest.raises(UserError, match="belongs to artifact 'crafted', not to artifact None"):
        checkpoint.load_snapshot(folder, FIRST.id, 2)
    shutil.copyfile(root / "kept", crafted)
    with pytest.raises(UserError, match="belongs to artifact None, not to artifact 'crafted'"):
        checkpoint.load_snapshot(sent, FIRST.id, 2, sent.name)


def test_what_an_active_server_did_is_said_of_its_own_artifact_alone(tmp_path):
    for name, count in (("a", 1), ("b", 2)):
        files.write_digested(tmp_path / name / active_server.HISTORY, {"artifact": name, "active_rounds": count})
    assert active_server.crafted_rounds(tmp_path / "a") == {"active_rounds": 1}
    shutil.copyfile(tmp_path / "b" / active_server.HISTORY, tmp_path / "a" / active_server.HISTORY)
    with pytest.raises(UserError, match="belongs to artifact 'b', not to artifact 'a'"):
        active_server.crafted_rounds(tmp_path / "a")


@pytest.fixture
def checkpoints(root, monkeypatch):
    """The folder of a run that kept whole checkpoints of both rounds."""
    monkeypatch.setattr(checkpoint, "LONG", 1)
    shutil.rmtree(Store(root).train(FIRST))
    forget(root, TRAINED)
    assert ran([TRAINED], root) == []
    return Store(root).train(FIRST)


def test_a_checkpoint_of_another_round_or_run_is_not_continued(checkpoints):
    one, two = (checkpoint.full_path(checkpoints, number) for number in (1, 2))
    assert checkpoint.full(checkpoints, FIRST, 2, CPU).round == 2
    shutil.copyfile(one, two)
    with pytest.raises(UserError, match="belongs to round 1, not to round 2"):
        checkpoint.full(checkpoints, FIRST, 2, CPU)
    shutil.copyfile(one, checkpoints / checkpoint.CHECKPOINT)
    with pytest.raises(UserError, match="belongs to run"):
        checkpoint.load(checkpoints, SECOND, CPU)
    with pytest.raises(UserError, match="belongs to run"):
        checkpoint.progress(checkpoints, SECOND.id)
    edit_tensors(one, lambda info: info.update(history=[]))
    # A damaged one is removed, so that the run goes on from an earlier one.
    assert checkpoint.full(checkpoints, FIRST, 1, CPU) is None
    assert not one.exists()


def best_accuracy(value):
    """Makes every accuracy of the last round 100 percent."""
    last = value["history"][-1]
    for name in ("validation_accuracy", "test_accuracy"):
        last[name] = [100.0] * len(last[name])


def without(*names):
    """Removes fields of a file, as it was before they were there."""
    return lambda value: [value.pop(name, None) for name in names]


@pytest.mark.parametrize(
    ("change", "forge", "message"),
    [
        (best_accuracy, False, "its digest does not fit its content"),
        (lambda v: (without("digest")(v), best_accuracy(v)), False, "is not that of"),
        (lambda v: v["history"].pop(0), True, "rounds are missing"),
        (lambda v: v["history"].pop(), True, "rounds are missing"),
        (lambda v: v["history"].insert(0, v["history"][0]), True, "rounds are missing"),
        (lambda v: v["history"][0]["test_accuracy"].append(99.0), True, "not one accuracy per client"),
        (lambda v: v.update(spec=SECOND.id), True, f"belongs to run '{SECOND.id}'"),
        (lambda v: v.update(history={}), True, "no history in it"),
    ],
)
def test_an_edited_history_is_refused(change, forge, message, root, command):
    edit(Store(root).train(FIRST) / checkpoint.FINISHED, change, forge=forge)
    refused(command, root, "show", FIRST.id, expected=[message])
    forget(root, GREY)
    with pytest.raises(UserError, match=message):
        summary.finish_cell(Store(root), GREY)


@pytest.mark.parametrize("name", [checkpoint.FINISHED, checkpoint.PREDICTIONS, checkpoint.SPEC])
def test_a_file_of_another_run_is_refused(name, root):
    folder, other = Store(root).train(FIRST), Store(root).train(SECOND)
    shutil.copyfile(other / name, folder / name)
    forget(root, GREY)
    with pytest.raises(UserError, match=f"belongs to run '{SECOND.id}', not to run '{FIRST.id}'"):
        summary.finish_cell(Store(root), GREY)


def test_predictions_that_are_not_those_of_the_history_are_refused_though_they_say_nothing(root):
    """Older files have no name of their run in them; what they hold must fit all the same."""
    path = Store(root).train(FIRST) / checkpoint.PREDICTIONS
    tensors, info = files.load_tensors(path, "predictions")
    tensors["prediction0/logits"] = -tensors["prediction0/logits"]
    info.pop("spec")
    files.save_tensors(path, "predictions", tensors, info)
    with pytest.raises(UserError, match="so one of them was altered or is another run's"):
        summary.training(path.parent, FIRST.id)


def test_the_clients_of_another_run_are_not_drawn(root, command):
    shutil.copyfile(Store(root).clients(SECOND), Store(root).clients(FIRST))
    refused(command, root, "partition", "--run", FIRST.id, expected=[f"belongs to run '{SECOND.id}'"])
    refused(command, root, "show", FIRST.id, expected=[f"belongs to run '{SECOND.id}'"])
    edit(Store(root).clients(SECOND), lambda v: v["clients"][0]["train"].reverse(), forge=False)
    with pytest.raises(UserError, match="its digest does not fit its content"):
        clients.read_clients(Store(root), SECOND)


# The files of a cell --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "other", "seed", "message"),
    [
        (GREY, GREY, SECOND.seed, f"belongs to run '{SECOND.id}', not to run '{FIRST.id}'"),
        (GREY, MEAN, FIRST.seed, f"belongs to cell '{MEAN.id}', not to cell '{GREY.id}'"),
        (TRAINED, TRAINED, SECOND.seed, f"belongs to run '{SECOND.id}', not to run '{FIRST.id}'"),
        (TRAINED, OTHER, FIRST.seed, f"belongs to cell '{OTHER.id}', not to cell '{TRAINED.id}'"),
    ],
)
def test_the_result_of_another_cell_or_seed_is_refused(cell, other, seed, message, root, command):
    shutil.copyfile(Store(root).result(other, seed), Store(root).result(cell, FIRST.seed))
    if cell is GREY:
        refused(command, root, "reproduce", cell.id, expected=[message])
        refused(command, root, "grid", "--dataset", "digits", "--round", "last", expected=[message])
    forget(root, cell)
    with pytest.raises(UserError, match=message):
        summary.finish_cell(Store(root), cell)


OF_A_RESULT = ("cell", "spec", "digest")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.update(seed=SECOND.seed), "belongs to seed 101, not to seed 100"),
        (lambda v: v.update(round=1), "belongs to round 1, not to round 2"),
        (lambda v: v["victims"][1].update(seed=SECOND.seed), "victims of another seed"),
        (lambda v: v.update(accuracy=[1.0, 2.0]), "was made of another training"),
    ],
)
def test_an_older_result_is_refused_where_what_it_says_does_not_fit(change, message, root):
    edit_tensors(Store(root).result(GREY, FIRST.seed), lambda info: (without(*OF_A_RESULT)(info), change(info)))
    forget(root, GREY)
    with pytest.raises(UserError, match=message):
        summary.finish_cell(Store(root), GREY)


def test_an_edited_result_of_an_accuracy_cell_is_refused(root):
    path = Store(root).result(TRAINED, FIRST.seed)
    forget(root, TRAINED)
    edit(path, lambda v: v.update(accuracy=[99.0, 99.0]), forge=False)
    with pytest.raises(UserError, match="its digest does not fit its content"):
        summary.finish_cell(Store(root), TRAINED)
    edit(path, lambda v: v.pop("digest"))
    with pytest.raises(UserError, match="was made of another training"):
        summary.finish_cell(Store(root), TRAINED)


@pytest.mark.parametrize("words", [("show",), ("reproduce",)])
def test_the_record_of_another_cell_is_refused(words, root, command):
    shutil.copyfile(Store(root).record(MEAN), Store(root).record(GREY))
    refused(command, root, *words, GREY.id, expected=[f"is the record of cell {MEAN.id}, not of {GREY.id}"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.update(id=GREY.id), f"is the record of cell {MEAN.id}, not of {GREY.id}"),
        (lambda v: v["cell"].update(v["cell"] | {"attack": "grey"}), f"is the record of cell {MEAN.id}"),
        (lambda v: v.update(id=GREY.id, cell=v["cell"] | {"attack": "grey"}, seeds=v["seeds"][:1]), "its seeds"),
    ],
)
def test_a_record_that_says_what_it_is_not_is_refused(change, message, root):
    path = Store(root).record(GREY)
    shutil.copyfile(Store(root).record(MEAN), path)
    edit(path, change)
    with pytest.raises(UserError, match=message):
        schema.read_of(GREY, path)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda v: v["accuracy"].update(mean=99.0), "accuracy"),
        (lambda v: v["scores"]["psnr_db"].update(mean=9.0), "PSNR"),
        (lambda v: v["victims"][0].update(psnr_db=40.0), "PSNR"),
    ],
)
def test_an_older_record_with_an_edited_mean_is_refused(change, name, tmp_path):
    path = tmp_path / "record.json"
    shutil.copyfile(SCHEMA_2 / "update-matching.json", path)
    edit(path, change)
    with pytest.raises(UserError, match=f"was altered or damaged .*the mean {name} is said to be"):
        schema.read(path)


def test_the_failure_of_another_cell_is_not_reported_as_this_one_s(root):
    store = Store(root)
    store.write_failure(GREY, "the disk was full", refused=False)
    assert store.read_failure(GREY) == ("the disk was full", False)
    shutil.copyfile(store.failure(GREY), store.failure(MEAN))
    with pytest.raises(UserError, match=f"belongs to cell '{GREY.id}', not to cell '{MEAN.id}'"):
        store.read_failure(MEAN)
    files.write_json(store.failure(MEAN), {"reason": 1})
    with pytest.raises(UserError, match="no reason in it"):
        store.read_failure(MEAN)


def test_files_from_before_they_said_where_they_belong_are_read_with_the_same_numbers(root, command):
    store = Store(root)
    before = [schema.read_of(cell, store.record(cell)) for cell in CELLS]
    forget(root, *CELLS)
    for path in [*root.glob("train/*/*.json"), *root.glob("cells/*/seed-*.json")]:
        if path.name != checkpoint.SPEC:
            edit(path, without("cell", "digest", *(() if path.name == checkpoint.FINISHED else ("spec",))))
    for path in root.glob("cells/*/seed-*.safetensors"):
        edit_tensors(path, without("cell", "spec"))
    for path in root.glob("train/*/round-*.safetensors"):
        edit_tensors(path, without("artifact"))
    assert "digest" not in json.loads((store.train(FIRST) / checkpoint.FINISHED).read_text())
    assert ran(CELLS, root) == []
    assert [schema.read_of(cell, store.record(cell)) for cell in CELLS] == before
    assert checkpoint.load_snapshot(store.train(FIRST), FIRST.id, 2).round == 2
    assert command("show", FIRST.id, "--out", root).status == 0
    assert command("partition", "--run", FIRST.id, "--out", root).status == 0
