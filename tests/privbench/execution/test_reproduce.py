"""A result is what its record says: again from the record alone, and the same whatever the chunks it was computed in."""

import shutil

import pytest
import torch

from attacks.common import batched
from privbench import presets
from privbench.errors import UserError
from privbench.execution import cell_jobs, reproduce
from privbench.records import schema
from privbench.records.store import Store
from privbench.system import files
from tests.builders.records import changed, with_knowledge, with_victims

TOLERANCE_DB = 0.2  # stated in docs/reading_results.md: what another chunk size may change in a victim's PSNR


def quiet(*_):
    pass


def cell(attack="dlg", steps=5, **changes):
    train = presets.train_spec("smoke", "digits", "fedavg", clients=2, changes={"rounds": 1})
    return presets.cell_spec("smoke", train, attack, victims=4, attack_settings={"steps": steps}, **changes)


def finished(root, spec):
    assert cell_jobs.run_cells([spec], root, None, "cpu", quiet, quiet) == []
    return schema.read(Store(root).record(spec))


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    root = tmp_path_factory.mktemp("first")
    return root, finished(root, cell())


def test_a_record_names_its_own_cell(first):
    _, record = first
    assert reproduce.cell_of(record) == cell()
    assert reproduce.cell_of(record).id == record.id


def test_a_record_that_calls_labels_recovered_which_nobody_gave_is_reproduced_as_one_that_says_none(first):
    _, record = first
    older = with_knowledge(record, labels="recovered")
    newer = with_knowledge(record, labels="none")
    assert reproduce.unlike_records(older, newer) == []
    assert type(newer).model_validate(newer.model_dump()).knowledge.labels == "none"


@pytest.mark.parametrize("attack_only", [False, True])
def test_a_result_is_reproduced_bit_for_bit_in_a_fresh_folder(first, tmp_path, attack_only):
    root, record = first
    fresh = tmp_path / "fresh"
    second = reproduce.again(record, root, fresh, None, quiet, quiet, attack_only=attack_only)
    assert reproduce.differences(record, second, root, fresh) == []
    assert reproduce.compared(record, root, fresh) == [100]
    assert reproduce.moved(record, second) == []
    assert len(list(fresh.glob("cells/*/seed-100.safetensors"))) == 1


def test_a_reconstruction_that_is_gone_is_not_claimed_to_be_compared(first, tmp_path):
    root, record = first
    shutil.copytree(root / "cells", tmp_path / "cells")
    assert reproduce.compared(record, tmp_path, root) == [100]
    Store(tmp_path).result(cell(), 100).unlink()
    assert reproduce.compared(record, tmp_path, root) == []
    assert reproduce.differences(record, record, tmp_path, root) == []


def test_an_accuracy_cell_is_reproduced_though_it_has_no_reconstruction(tmp_path):
    spec = presets.cell_spec("smoke", cell().train, None)
    record = finished(tmp_path / "a", spec)
    second = reproduce.again(record, tmp_path / "a", tmp_path / "b", None, quiet, quiet)
    assert reproduce.differences(record, second, tmp_path / "a", tmp_path / "b") == []
    assert reproduce.compared(record, tmp_path / "a", tmp_path / "b") == []


def test_what_differs_is_named(first, tmp_path):
    root, record = first
    changed = record.victims[2].psnr_db + 1e-12
    cost = record.cost.model_copy(update={"attack_seconds": 1e9})
    victims = [v.model_copy(update={"psnr_db": changed} if i == 2 else {}) for i, v in enumerate(record.victims)]
    other = with_victims(record, victims).model_copy(update={"cost": cost})
    (line,) = reproduce.differences(record, other, root, tmp_path)
    assert line.startswith("seeds[0].victims[2].psnr_db: ")
    moved = record.model_copy(update={"environment": record.environment | {"torch": "1.0"}})
    assert reproduce.differences(record, moved, root, tmp_path) == []
    assert reproduce.moved(record, moved) == [f"torch: {record.environment['torch']} then, 1.0 now"]


def test_a_reconstruction_that_differs_in_one_bit_is_named(first, tmp_path):
    from privbench.system import files

    root, record = first
    tensors, info = files.load_tensors(Store(root).result(cell(), 100), "reconstruction")
    images = tensors["images"].clone()
    images[1, 0, 0, 3, 3] = torch.nextafter(images[1, 0, 0, 3, 3], torch.tensor(9.0))
    files.save_tensors(Store(tmp_path).result(cell(), 100), "reconstruction", tensors | {"images": images}, info)
    assert reproduce.differences(record, record, root, tmp_path) == ["seed 100: tensor 'images' differs"]


def test_an_altered_record_and_a_full_folder_are_refused(first, tmp_path):
    root, record = first
    altered = changed(record, victims=3)
    with pytest.raises(UserError, match="its specification hashes to"):
        reproduce.again(altered, root, tmp_path / "a", None, quiet, quiet)
    with pytest.raises(UserError, match="is not empty"):
        reproduce.again(record, root, root, None, quiet, quiet)
    with pytest.raises(UserError, match="no training run"):
        reproduce.again(record, tmp_path / "elsewhere", tmp_path / "b", None, quiet, quiet, attack_only=True)


@pytest.mark.parametrize("into", [None, "again"])
def test_a_stop_says_that_a_second_run_begins_anew(first, into, command, tmp_path, monkeypatch):
    """Where it is kept, the same command refuses its folder, as a part of it may have been made otherwise."""
    root, record = first

    def stopped(record, root, fresh, *rest, **options):
        files.write_json(fresh / "begun.json", {})
        raise KeyboardInterrupt

    monkeypatch.setattr(reproduce, "again", stopped)
    words = ["--into", tmp_path / into] if into else []
    ended = command("reproduce", record.id, "--out", root, *words)
    removed = f"{tmp_path / into} holds a part of the second run; remove it, and " if into else ""
    assert ended.status == 130
    assert ended.err.splitlines()[-1] == f"privbench: stopped; {removed}the same command begins anew"


@pytest.mark.parametrize("attack", ["dlg", "staged"])
def test_the_chunk_size_changes_no_score_beyond_the_stated_tolerance(first, tmp_path, attack, monkeypatch):
    root, _ = first
    spec = cell(attack, steps=60)
    whole = finished(root, spec)
    monkeypatch.setattr(batched, "CHUNK", 3)
    second = reproduce.again(whole, root, tmp_path / "chunks", None, quiet, quiet, attack_only=True)
    for a, b in zip(whole.victims, second.victims, strict=True):
        assert a.psnr_db == pytest.approx(b.psnr_db, abs=TOLERANCE_DB)
    assert whole.scores.psnr_db == pytest.approx(second.scores.psnr_db, abs=TOLERANCE_DB / 2)
