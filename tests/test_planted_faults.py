"""From a planted fault on disk to its flag in the record: exactly that flag, and none where nothing is wrong."""

import shutil

import pytest
import torch

from attacks.features import disaggregation
from privbench import presets, registry
from privbench.errors import AttackRefused
from privbench.execution import cell_jobs, one_attack
from privbench.observation import artifact_files, knowledge
from privbench.records import checks, schema
from privbench.records.store import Store
from privbench.types import Batch

VICTIMS = 4


def quiet(*_):
    pass


def cell(attack, batch_size=1):
    train = presets.train_spec("smoke", "digits", "fedavg", clients=2, changes={"rounds": 1})
    settings = {"steps": 5} if attack == "dlg" else {}
    return presets.cell_spec(
        "smoke", train, attack, victims=VICTIMS, batch_size=batch_size, round_="0", attack_settings=settings
    )


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    """A folder with a trained run and its artifact, attacked once."""
    root = tmp_path_factory.mktemp("attacked")
    assert cell_jobs.run_cells([cell("dlg")], root, None, "cpu", quiet, quiet) == []
    return root


@pytest.fixture
def planted(attacked, tmp_path, monkeypatch):
    """A copy of that folder without its cell, in which few victims are enough; and the cell's flags once it is run again."""
    monkeypatch.setattr(checks, "LEAST_VICTIMS", VICTIMS)
    monkeypatch.setattr(checks, "LEAST_SEEDS", 1)
    shutil.copytree(attacked, tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "cells")

    def told(attack="dlg"):
        own = cell(attack)
        assert cell_jobs.run_cells([own], tmp_path / "copy", None, "cpu", quiet, quiet) == []
        return schema.read(Store(tmp_path / "copy").record(own))

    (folder,) = (tmp_path / "copy" / "artifacts").iterdir()
    return folder, told


def names(found):
    return [flag.name for flag in found.messages]


def both(folder):
    return artifact_files.load_with_truth(folder, artifact_files.origin(folder / artifact_files.OBSERVATION))


def change_gradient(folder, victim, value):
    seen, truth = both(folder)
    for part in seen.gradients.values():
        for g in part.values():
            g[victim] = value
    artifact_files.save_with_truth(seen, truth, folder, artifact_files.origin(folder / artifact_files.OBSERVATION))


@pytest.mark.parametrize("attack", ["dlg", "staged", "grey"])
def test_a_sound_cell_raises_no_flag(planted, attack):
    _, told = planted
    found = told(attack)
    assert names(found) == []
    assert found.guarantee == "no (epsilon, delta) guarantee"
    assert all(v.gradient_norm > 0 and len(v.images) == 1 for v in found.victims)


@pytest.mark.parametrize("attack", ["dlg", "staged"])
def test_a_zero_gradient_raises_its_flag(planted, attack):
    folder, told = planted
    change_gradient(folder, 2, 0.0)
    found = told(attack)
    assert names(found) == ["zero-gradient"]
    assert found.messages[0].sentence.startswith("1 of 4 victims")
    assert found.scores.n == VICTIMS


@pytest.mark.parametrize("attack", ["dlg", "staged"])
def test_nan_in_the_gradient_raises_its_flag_and_keeps_the_victim(planted, attack):
    folder, told = planted
    change_gradient(folder, 1, torch.nan)
    found = told(attack)
    assert names(found) == ["not-finite"]
    assert found.scores.n == VICTIMS


@pytest.mark.parametrize("attack", ["dlg", "staged", "class-mean", "imprint"])
@pytest.mark.parametrize(("value", "flag"), [(torch.nan, "not-finite"), (0.0, "zero-gradient")])
def test_a_batch_without_a_gradient_raises_its_flag_and_every_floor_is_scored(
    attack, value, flag, planted, monkeypatch
):
    for name in ("RESTARTS", "EXCHANGES", "SHORT_STEPS", "LONG_STEPS"):
        monkeypatch.setattr(disaggregation, name, 4)  # quick
    folder, _ = planted
    root, own = folder.parent.parent, cell(attack, batch_size=2)
    assert cell_jobs.run_cells([own], root, None, "cpu", quiet, quiet) == []
    store = Store(root)
    sound = schema.read(store.record(own))
    change_gradient(store.artifact(own, own.train, 0), 1, value)
    shutil.rmtree(root / "cells")
    assert cell_jobs.run_cells([own], root, None, "cpu", quiet, quiet) == []
    found = schema.read(store.record(own))
    assert names(sound) == []
    assert names(found) == [flag]
    assert found.messages[0].sentence.startswith("1 of 4 victims")
    assert found.scores.n == VICTIMS
    assert all(set(v.floors) == set(registry.FLOORS) for v in found.victims)
    others = [[v for i, v in enumerate(each.victims) if i != 1] for each in (sound, found)]
    assert [v.psnr_db for v in others[1]] == pytest.approx([v.psnr_db for v in others[0]], abs=1e-3)


def test_a_duplicated_victim_raises_its_flag(planted):
    folder, told = planted
    _, truth = both(folder)
    truth.images[3] = truth.images[0]
    artifact_files.save_truth(truth, folder / artifact_files.TRUTH, folder / artifact_files.OBSERVATION)
    found = told()
    assert names(found) == ["duplicate-victims"]
    assert found.messages[0].sentence.startswith("2 of 4 victims")


def test_a_victim_among_the_auxiliary_images_raises_its_flag(planted, monkeypatch):
    folder, told = planted
    truth, honest = both(folder)[1], knowledge.auxiliary

    def leaking(*arguments):
        batch, info = honest(*arguments)
        return Batch(torch.cat([batch.images, truth.images[1]]), torch.cat([batch.labels, truth.labels[1]])), info

    monkeypatch.setattr(knowledge, "auxiliary", leaking)
    found = told()
    assert names(found) == ["auxiliary-overlap"]
    assert found.messages[0].sentence.startswith("1 of 4 victims")


def test_an_attack_that_does_nothing_raises_its_flag(planted, monkeypatch):
    _, told = planted
    from attacks.dlg import DLG

    honest = DLG.reconstruct

    def idle(self, seen, known, seed, progress):
        found = honest(self, seen, known, seed, progress)
        return found._replace(trace=found.trace[:, :1].expand_as(found.trace))

    monkeypatch.setattr(DLG, "reconstruct", idle)
    found = told()
    assert names(found) == ["loss-did-not-fall"]
    assert found.messages[0].sentence.startswith("4 of 4 victims")


def test_an_attack_that_writes_into_what_it_was_given_changes_no_floor_and_hides_no_message(planted, monkeypatch):
    _, told = planted
    from attacks.dlg import DLG

    honest = DLG.reconstruct

    def writing(self, seen, known, seed, progress):
        found = honest(self, seen, known, seed, progress)
        for t in (t for net in (*seen.gradients.values(), *seen.weights.values()) for t in net.values()):
            t.zero_()
        return found

    sound = told()
    shutil.rmtree(planted[0].parent.parent / "cells")
    monkeypatch.setattr(DLG, "reconstruct", writing)
    found = told()
    assert found.victims == sound.victims
    assert (found.floors, found.messages, found.accuracy_at_round) == (
        sound.floors,
        sound.messages,
        sound.accuracy_at_round,
    )


def test_a_guarantee_is_the_defences_own_over_all_rounds_that_were_trained(planted, monkeypatch):
    _, told = planted
    from defenses.none import NoDefense

    monkeypatch.setattr(NoDefense, "guarantee", lambda self, rounds: f"a promise over {rounds} round", raising=False)
    assert told().guarantee == "a promise over 1 round"


def test_too_few_victims_and_seeds_are_told_in_the_record(attacked):
    assert names(schema.read(Store(attacked).record(cell("dlg")))) == ["few"]


def test_a_whole_update_is_attacked_from_training_to_record(attacked, tmp_path):
    shutil.copytree(attacked / "train", tmp_path / "train")
    train = cell("dlg").train
    settings = {"steps": 3, "start_steps": 3, "feature_steps": 3}
    told = presets.cell_spec(
        "smoke",
        train,
        "update-matching",
        victims=2,
        round_="0",
        observe="update",
        local_steps=1,
        attack_settings=settings,
    )
    assert cell_jobs.run_cells([told], tmp_path, None, "cpu", quiet, quiet) == []
    found = schema.read(Store(tmp_path).record(told))
    assert names(found) == ["few"]
    assert all(v.gradient_norm > 0 for v in found.victims)


def test_an_attack_that_refuses_leaves_its_reason_and_the_others_are_made(planted, monkeypatch):
    folder, _ = planted
    root = folder.parent.parent
    from attacks.dlg import DLG

    monkeypatch.setattr(DLG, "needs", frozenset({"upload:generator"}))
    failures = cell_jobs.run_cells([cell("dlg"), cell("grey")], root, None, "cpu", quiet, quiet)
    assert len(failures) == 1
    assert failures[0].startswith("dlg needs the upload:generator")
    store = Store(root)
    assert "upload:generator" in store.failure(cell("dlg")).read_text()
    assert not store.record(cell("dlg")).exists()
    assert store.record(cell("grey")).exists()
    monkeypatch.undo()
    assert cell_jobs.run_cells([cell("dlg")], root, None, "cpu", quiet, quiet) == []
    assert not store.failure(cell("dlg")).exists()


@pytest.mark.parametrize("crashing", [("dlg",), ("dlg", "idlg")])
def test_an_attack_that_crashes_leaves_its_traceback_and_the_others_are_made(crashing, planted, monkeypatch):
    folder, _ = planted
    root = folder.parent.parent

    def crash(*_):
        return 1 // 0

    for name in crashing:
        monkeypatch.setattr(registry.resolve("attack", name), "reconstruct", crash)
    monkeypatch.setattr(registry.resolve("attack", "dataset-mean"), "needs", frozenset({"upload:generator"}))
    cells = [*map(cell, crashing), cell("dataset-mean"), cell("grey")]
    failures = cell_jobs.run_cells(cells, root, None, "cpu", quiet, quiet)
    store, (log,) = Store(root), root.glob("train/*/error.txt")
    assert len(failures) == 1
    assert failures[0].startswith("internal error: ")
    assert "ZeroDivisionError" in failures[0]
    assert failures[0].endswith(f"see {log}")
    assert log.read_text().count("1 // 0") == len(crashing)
    assert all(f"cell {cell(name).id}: {name} at round 0" in log.read_text() for name in crashing)
    for name in crashing:
        failure = store.read_failure(cell(name))
        reason = f"internal error: ZeroDivisionError: integer division or modulo by zero; see {log}"
        assert failure == (reason, False)
    assert store.read_failure(cell("dataset-mean"))[1]
    assert store.record(cell("grey")).exists()
    monkeypatch.undo()
    assert cell_jobs.run_cells(cells, root, None, "cpu", quiet, quiet) == []
    assert not log.exists()
    assert not store.failure(cell("dlg")).exists()


def test_a_cell_of_a_round_that_was_not_trained_does_not_stop_the_others(planted):
    folder, _ = planted
    root = folder.parent.parent
    late = cell("grey").model_copy(update={"round": "7"})
    failures = cell_jobs.run_cells([late, cell("grey")], root, None, "cpu", quiet, quiet)
    assert failures == ["--round 7 was asked for, but the run ended after 1 rounds"]
    assert Store(root).read_failure(late) == (failures[0], False)
    assert Store(root).record(cell("grey")).exists()


def test_a_refusal_is_a_users_mistake_like_any_other(attacked):
    (folder,) = (attacked / "artifacts").iterdir()
    seen = artifact_files.load(folder / artifact_files.OBSERVATION)
    with pytest.raises(AttackRefused, match="needs the upload:generator"):
        one_attack.check_needs("feature-statistics", registry.resolve("attack", "feature-statistics"), seen)
