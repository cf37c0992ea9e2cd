"""Shards of a study, merged, are the study: the same cells with the same numbers."""

import shutil

import pytest

from privbench import presets
from privbench.cli import folder_reports
from privbench.errors import UserError
from privbench.execution import cell_jobs, reproduce
from privbench.execution.sweep import merging, shards
from privbench.execution.sweep.shards import Shard
from privbench.records import record_lines, schema
from privbench.records.store import Store
from privbench.requests.options import PlaceOptions, TrainingOptions
from privbench.system import files
from privbench.training import checkpoint
from reports.running import study_plan, study_run
from tests.conftest import shrink_shadows

PARTS = 2


def place(folder):
    return PlaceOptions("cpu", None, folder)


@pytest.fixture(scope="module")
def planned():
    """Two methods on two seeds, by two attacks: four training runs, four cells."""
    training = TrainingOptions(preset="smoke", seeds=2)
    return study_plan.plan(
        "attack-table", training, [("digits", None)], methods=["fedavg", "fedsplit"],
        attacks=["class-mean", "dlg"], rounds=["best"],
        defenses=["none"],
    )  # fmt: skip


@pytest.fixture(scope="module")
def folders(planned, tmp_path_factory):
    """(the folders of the shards, that of the whole)."""
    root = tmp_path_factory.mktemp("sweep")
    study, cells = planned
    with pytest.MonkeyPatch.context() as patch:
        shrink_shadows(patch)
        for part in range(1, PARTS + 1):
            line = study_run.run_shard(study, cells, place(root / f"shard-{part}"), Shard(part, PARTS))
            assert line.startswith(f"shard {part} of {PARTS}: 2 training run(s), 4 of 4 results")
        study_run.execute(cells, root / "whole", None, "cpu")
    return [root / f"shard-{part}" for part in range(1, PARTS + 1)], root / "whole"


def differences(first, second, cell):
    """What differs between two records of a cell and its reconstructions, but for time and place."""
    records = [schema.read(store.record(cell)) for store in (first, second)]
    return reproduce.differences(*records, first.root, second.root)


def test_every_training_run_is_in_one_shard_whatever_is_finished(planned):
    _, cells = planned
    every = {spec.id for cell in cells for spec in cell.train_specs()}
    for parts in (1, 2, 3, 7):
        dealt = [shards.runs(cells, Shard(part, parts)) for part in range(1, parts + 1)]
        assert sorted(run for runs in dealt for run in runs) == sorted(every)
        assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
    assert shards.runs(cells[::-1], Shard(1, 2)) == shards.runs(cells, Shard(1, 2))


def test_a_shard_leaves_the_others_work(planned, folders):
    _, cells = planned
    for part, folder in enumerate(folders[0], 1):
        trained = {spec.id for _, spec in Store(folder).trained()}
        assert trained == shards.runs(cells, Shard(part, PARTS))


def test_shards_merged_are_the_whole_bit_for_bit(planned, folders, tmp_path):
    _, cells = planned
    parts, whole = folders
    into = Store(tmp_path / "merged")
    made = merging.merge(into, parts)
    assert (made.copied.runs, made.copied.results, made.recorded, made.open_cells) == (4, 8, len(cells), 0)
    assert made.copied.artifacts == 4  # one a run: both attacks are on the same observation
    assert (made.copied.differing, made.failures) == ((), ())
    for cell in cells:
        assert differences(into, Store(whole), cell) == []
    again = merging.merge(into, [*parts, whole])
    assert again == merging.Merged(merging.Copied(0, 0, 0, ()), len(cells), 0, ())


def test_records_of_single_seeds_put_into_one_file_are_those_of_the_whole(
    planned, folders, tmp_path, monkeypatch, capsys
):
    _, cells = planned
    whole, places = Store(folders[1]), []
    shrink_shadows(monkeypatch)
    for seed in cells[0].seeds:
        place = tmp_path / f"seed-{seed}"
        shutil.copytree(whole.root / "train", place / "train")
        single = [
            cell.model_copy(update={"seeds": (seed,), "train": cell.train.model_copy(update={"seed": seed})})
            for cell in cells
        ]
        study_run.execute(single, place, None, "cpu")
        places.insert(0, place)
    into = tmp_path / "all.jsonl.xz"
    folder_reports.merge(into, places)
    assert f"wrote {into}: 8 record(s) as 4 cell(s)" in capsys.readouterr().out.replace("\n", "")
    together = {r.id: r for r in record_lines.read(into)}
    assert together.keys() == {cell.id for cell in cells}
    for cell in cells:
        assert not reproduce.differences(schema.read(whole.record(cell)), together[cell.id], whole.root, whole.root)
    with pytest.raises(UserError, match="nothing is overwritten"):
        folder_reports.merge(into, places)


def test_one_shard_alone_leaves_cells_open_and_the_study_finishes_them(planned, folders, tmp_path, monkeypatch):
    _, cells = planned
    into = Store(tmp_path / "merged")
    made = merging.merge(into, folders[0][:1])
    assert made.copied.results == 4
    assert made.recorded + made.open_cells == len(cells)
    assert made.open_cells
    shrink_shadows(monkeypatch)
    study_run.execute(cells, into.root, None, "cpu")
    assert not any(differences(into, Store(folders[1]), cell) for cell in cells)


def test_what_differs_stays_as_it_was_and_is_named(planned, folders, tmp_path):
    _, cells = planned
    other = tmp_path / "other"
    shutil.copytree(folders[1], other)
    store, seed = Store(other), cells[0].seeds[0]
    path, rival = store.result(cells[0], seed), store.result(cells[1], seed)
    path.write_bytes(rival.read_bytes())
    torn = store.result(cells[1], cells[1].seeds[1])
    torn.write_bytes(torn.read_bytes()[:-9])
    into = Store(tmp_path / "merged")
    merging.merge(into, [folders[1]])
    before = into.result(cells[0], seed).read_bytes()
    assert merging.merge(into, [other]).copied.differing == tuple(sorted([path, torn]))
    assert into.result(cells[0], seed).read_bytes() == before


@pytest.fixture
def mine(planned, folders, tmp_path):
    """A folder with the first seed of every cell alone, and no record."""
    _, cells = planned
    shutil.copytree(folders[1], tmp_path / "mine")
    store = Store(tmp_path / "mine")
    for cell in cells:
        store.record(cell).unlink()
        store.result(cell, cell.seeds[1]).unlink()
    return store


def test_a_record_is_of_the_results_beside_it(planned, folders, mine):
    """Where one differs, the other folder's record tells of what is not here."""
    cell = planned[1][0]
    path = mine.result(cell, cell.seeds[0])
    tensors, info = files.load_tensors(path, "reconstruction")
    info["victims"][0]["psnr_db"] = 1.5
    files.save_tensors(path, "reconstruction", tensors | {"images": tensors["images"] / 2}, info)
    made = merging.merge(mine, [folders[1]])
    assert len(made.copied.differing) == 1
    assert schema.read(mine.record(cell)).seeds[0].victims[0].psnr_db == 1.5


def test_a_record_is_of_the_training_beside_it(planned, folders, mine):
    _, cells = planned
    spec = cells[0].train_specs()[0]
    path = mine.train(spec) / checkpoint.FINISHED
    finished = files.read_digested(path)
    for entry in finished["history"]:
        entry["test_accuracy"] = [100.0 for _ in entry["test_accuracy"]]
    files.write_digested(path, finished)
    of_it = [cell for cell in cells if spec in cell.train_specs()]
    made = merging.merge(mine, [folders[1]])
    assert len(made.failures) == len(of_it)
    assert [cell for cell in cells if not mine.record(cell).exists()] == of_it


def test_what_differs_in_seconds_alone_does_not_differ(planned, tmp_path):
    cell = presets.cell_spec("smoke", planned[1][0].train, None)
    for name in "ab":
        failures = cell_jobs.run_cells([cell], tmp_path / name, None, "cpu", lambda *_: None, lambda *_: None)
        assert failures == []
    assert merging.merge(Store(tmp_path / "a"), [tmp_path / "b"]).copied.differing == ()


def test_another_cells_result_is_no_part_of_a_record(planned, folders, tmp_path):
    """A merge copies it, as a file alone says nothing; what is made of it refuses it."""
    _, cells = planned
    other = tmp_path / "other"
    shutil.copytree(folders[1], other)
    store, seed = Store(other), cells[0].seeds[0]
    store.result(cells[0], seed).write_bytes(store.result(cells[1], seed).read_bytes())
    store.record(cells[0]).unlink()
    made = merging.merge(Store(tmp_path / "merged"), [other])
    assert len(made.failures) == 1
    assert made.recorded == len(cells) - 1


def test_folders_that_cannot_be_merged_are_refused_in_a_line(folders, tmp_path):
    store, empty = Store(tmp_path / "merged"), tmp_path / "empty"
    empty.mkdir()
    for wrong, why in (
        (tmp_path / "nowhere", "there is no folder"),
        (empty, "holds no results"),
        (store.root, "is the folder to merge into"),
    ):
        with pytest.raises(UserError, match=why):
            merging.merge(store, [folders[1], wrong])
    outside = tmp_path / "stranger"
    (outside / "train").mkdir(parents=True)
    (outside / "cells").symlink_to(folders[1] / "cells")
    with pytest.raises(UserError, match="leads out of its folder"):
        merging.merge(store, [outside])
    (outside / "train/0123456789ab").symlink_to(folders[1])
    with pytest.raises(UserError, match="leads out of its folder"):
        merging.merge(store, [outside])


@pytest.mark.parametrize(
    "text", ["", "3", "0/4", "5/4", "1/0", "-1/4", "1/20000", "a/b", "1/4/2", "1 / 4", "\u0661/\u0664"]
)
def test_a_shard_that_is_none_is_refused(text):
    with pytest.raises(UserError, match="--shard takes a part and their number"):
        shards.read(text)
    assert shards.read("3/16") == Shard(3, 16)


def test_the_commands_run_a_shard_and_merge(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["study", "accuracy", "--dataset", "digits", "--method", "local", "--preset", "smoke"]
    ran = command(*words, "--seeds", "2", "--shard", "2/2", "--out", "b")
    assert ran.status == 0, ran.err
    assert "shard 2 of 2: 1 training run(s), 1 of 1 results" in ran.out
    assert not list((tmp_path / "b").glob("accuracy-smoke*"))
    assert command(*words, "--seeds", "2", "--shard", "1/2", "--out", "a").status == 0
    merged = command("merge", "all", "a", "b")
    assert merged.status == 0, merged.err
    assert "2 training run(s), 0 observation(s), 2 result(s); 1 cell(s) complete, 0 not" in merged.out
    whole = command(*words, "--seeds", "2", "--out", "all")
    assert whole.status == 0, whole.err
    assert "1 of 1 cells done" in whole.out
