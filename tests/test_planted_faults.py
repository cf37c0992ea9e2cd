"""From a planted fault on disk to its message in the record: exactly that message, and none where nothing is wrong."""

import shutil

import pytest
import torch

from attacks.features import disaggregation
from attacks.features.separation import row_spaces
from privbench import presets, registry
from privbench.defense import Guarantee
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
    """A copy of that folder without its cell, in which few victims are enough; and the cell's messages once it is run again."""
    monkeypatch.setattr(checks, "LEAST_VICTIMS", VICTIMS)
    monkeypatch.setattr(checks, "LEAST_SEEDS", 1)
    shutil.copytree(attacked, tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "cells")

    def record_of(attack="dlg"):
        spec = cell(attack)
        assert cell_jobs.run_cells([spec], tmp_path / "copy", None, "cpu", quiet, quiet) == []
        return schema.read(Store(tmp_path / "copy").record(spec))

    (folder,) = (tmp_path / "copy" / "artifacts").iterdir()
    return folder, record_of


def names(record):
    return [message.name for message in record.messages]


def both(folder):
    return artifact_files.load_with_truth(folder, artifact_files.origin(folder / artifact_files.OBSERVATION))


def change_gradient(folder, victim, value):
    seen, truth = both(folder)
    for part in seen.gradients.values():
        for g in part.values():
            g[victim] = value
    artifact_files.save_with_truth(seen, truth, folder, artifact_files.origin(folder / artifact_files.OBSERVATION))


@pytest.mark.parametrize("attack", ["dlg", "staged", "grey"])
def test_a_sound_cell_raises_no_message(planted, attack):
    _, record_of = planted
    record = record_of(attack)
    assert names(record) == []
    assert record.guarantee == "no (epsilon, delta) guarantee"
    assert all(v.gradient_norm > 0 and len(v.images) == 1 for v in record.victims)


@pytest.mark.parametrize("attack", ["dlg", "staged"])
def test_a_zero_gradient_raises_its_message(planted, attack):
    folder, record_of = planted
    change_gradient(folder, 2, 0.0)
    record = record_of(attack)
    assert names(record) == ["zero-gradient"]
    assert record.messages[0].sentence.startswith("1 of 4 victims")
    assert record.scores.n == VICTIMS


@pytest.mark.parametrize("attack", ["dlg", "staged"])
def test_nan_in_the_gradient_raises_its_message_and_keeps_the_victim(planted, attack):
    folder, record_of = planted
    change_gradient(folder, 1, torch.nan)
    record = record_of(attack)
    assert names(record) == ["not-finite"]
    assert record.scores.n == VICTIMS


@pytest.mark.parametrize("attack", ["dlg", "staged", "class-mean", "imprint"])
@pytest.mark.parametrize(("value", "message"), [(torch.nan, "not-finite"), (0.0, "zero-gradient")])
def test_a_batch_without_a_gradient_raises_its_message_and_every_floor_is_scored(
    attack, value, message, planted, monkeypatch
):
    for module, constants in ((disaggregation, ("RESTARTS", "EXCHANGES")), (row_spaces, ("SHORT_STEPS", "LONG_STEPS"))):
        for name in constants:
            monkeypatch.setattr(module, name, 4)  # quick
    folder, _ = planted
    root, spec = folder.parent.parent, cell(attack, batch_size=2)
    assert cell_jobs.run_cells([spec], root, None, "cpu", quiet, quiet) == []
    store = Store(root)
    sound = schema.read(store.record(spec))
    change_gradient(store.artifact(spec, spec.train, 0), 1, value)
    shutil.rmtree(root / "cells")
    assert cell_jobs.run_cells([spec], root, None, "cpu", quiet, quiet) == []
    record = schema.read(store.record(spec))
    assert names(sound) == []
    assert names(record) == [message]
    assert record.messages[0].sentence.startswith("1 of 4 victims")
    assert record.scores.n == VICTIMS
    assert all(set(v.floors) == set(registry.FLOORS) for v in record.victims)
    others = [[v for i, v in enumerate(each.victims) if i != 1] for each in (sound, record)]
    assert [v.psnr_db for v in others[1]] == pytest.approx([v.psnr_db for v in others[0]], abs=1e-3)


def test_a_duplicated_victim_raises_its_message(planted):
    folder, record_of = planted
    _, truth = both(folder)
    truth.images[3] = truth.images[0]
    artifact_files.save_truth(truth, folder / artifact_files.TRUTH, folder / artifact_files.OBSERVATION)
    record = record_of()
    assert names(record) == ["duplicate-victims"]
    assert record.messages[0].sentence.startswith("2 of 4 victims")


def test_a_victim_among_the_auxiliary_images_raises_its_message(planted, monkeypatch):
    folder, record_of = planted
    truth, honest = both(folder)[1], knowledge.auxiliary

    def leaking(*arguments):
        batch, info = honest(*arguments)
        return Batch(torch.cat([batch.images, truth.images[1]]), torch.cat([batch.labels, truth.labels[1]])), info

    monkeypatch.setattr(knowledge, "auxiliary", leaking)
    record = record_of()
    assert names(record) == ["auxiliary-overlap"]
    assert record.messages[0].sentence.startswith("1 of 4 victims")


def test_an_attack_that_does_nothing_raises_its_message(planted, monkeypatch):
    _, record_of = planted
    from attacks.dlg import DLG

    honest = DLG.reconstruct

    def idle(self, seen, known, seed, progress):
        reconstruction = honest(self, seen, known, seed, progress)
        return reconstruction._replace(trace=reconstruction.trace[:, :1].expand_as(reconstruction.trace))

    monkeypatch.setattr(DLG, "reconstruct", idle)
    record = record_of()
    assert names(record) == ["loss-did-not-fall"]
    assert record.messages[0].sentence.startswith("4 of 4 victims")


def test_an_attack_that_writes_into_what_it_was_given_changes_no_floor_and_hides_no_message(planted, monkeypatch):
    _, record_of = planted
    from attacks.dlg import DLG

    honest = DLG.reconstruct

    def writing(self, seen, known, seed, progress):
        reconstruction = honest(self, seen, known, seed, progress)
        for t in (t for net in (*seen.gradients.values(), *seen.weights.values()) for t in net.values()):
            t.zero_()
        return reconstruction

    sound = record_of()
    shutil.rmtree(planted[0].parent.parent / "cells")
    monkeypatch.setattr(DLG, "reconstruct", writing)
    record = record_of()
    assert record.victims == sound.victims
    assert (record.floors, record.messages, record.accuracy_at_round) == (
        sound.floors,
        sound.messages,
        sound.accuracy_at_round,
    )


def test_a_guarantee_is_the_defences_own_over_all_rounds_that_were_trained(planted, monkeypatch):
    _, record_of = planted
    from defenses.none import NoDefense

    def promised(self, facts):
        return Guarantee(float(facts.rounds), 1e-5, 2.0, "client", ("classifier",), facts.besides, "planted")

    monkeypatch.setattr(NoDefense, "guarantee", promised)
    record = record_of()
    assert record.guarantee == "(1, 1e-05)-differential privacy per client"
    assert {(each.epsilon, each.accountant) for seed in record.seeds for each in seed.privacy} == {(1.0, "planted")}


def test_too_few_victims_and_seeds_are_noted_in_the_record(attacked):
    assert names(schema.read(Store(attacked).record(cell("dlg")))) == ["few"]


def test_a_whole_update_is_attacked_from_training_to_record(attacked, tmp_path):
    shutil.copytree(attacked / "train", tmp_path / "train")
    train = cell("dlg").train
    settings = {"steps": 3, "start_steps": 3, "feature_steps": 3}
    spec = presets.cell_spec(
        "smoke",
        train,
        "update-matching",
        victims=2,
        round_="0",
        observe="update",
        local_steps=1,
        attack_settings=settings,
    )
    assert cell_jobs.run_cells([spec], tmp_path, None, "cpu", quiet, quiet) == []
    record = schema.read(Store(tmp_path).record(spec))
    assert names(record) == ["few"]
    assert all(v.gradient_norm > 0 for v in record.victims)


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
