"""What a cell has otherwise than its preset stands beside the numbers."""

import csv
import io

from privbench import presets
from reports.documents import published
from reports.records import grouping, remarks
from reports.tables import attack_table, inference_table, report_files
from tests.builders.records import record


def made(**changes):
    """A record of today's quick preset, but for some fields of its training."""
    attack_settings = changes.pop("attack_settings", {})
    train = presets.train_spec("quick", "digits", "fedavg", **changes)
    cell = presets.cell_spec("quick", train, "dlg", attack_settings=attack_settings)
    one = record("fedavg", attack="dlg", dataset="digits")
    return one.model_copy(update={"cell": cell, "id": cell.id})


def test_a_cell_of_its_preset_differs_in_nothing():
    assert remarks.attack_overrides(made().cell) == grouping.training_overrides(made().cell) == {}
    assert remarks.override_lines([made()]) == []


def test_settings_of_the_attack_and_of_training_are_told():
    other = made(attack_settings={"steps": 7}, per_client=64, changes={"rounds": 2, "task.lr": 0.001})
    assert remarks.attack_overrides(other.cell) == {"steps": 7}
    assert grouping.training_overrides(other.cell) == {"per_client": 64, "rounds": 2, "task.lr": 0.001}
    assert remarks.override_lines([made(), other]) == [
        "Not as in the preset: dlg with steps 7.",
        "Not as in the preset: FedAvg trained with per_client 64, rounds 2, task.lr 0.001.",
    ]


def test_a_data_set_or_method_of_a_users_own_has_no_preset_to_differ_from():
    cell = made().cell
    own = cell.model_copy(update={"train": cell.train.model_copy(update={"method": "my.module:Method"})})
    assert grouping.training_overrides(own) == {}


def test_the_attack_table_and_its_numbers_name_them():
    other = made(attack_settings={"steps": 7}, changes={"task.lr": 0.001})
    whole = attack_table.report([other])
    assert remarks.override_lines([other]) == [note for note in whole.notes if note.startswith("Not as in the preset")]
    (row,) = csv.DictReader(io.StringIO(report_files.csv(whole)))
    assert (row["attack_settings"], row["training_settings"], row["wire"]) == ("steps 7", "task.lr 0.001", "float32")


def test_inferences_from_updates_and_batches_have_a_table_of_their_own(repository):
    every = published.read(published.path_of(repository, "inference"))
    plain = next(r for r in every if r.cell.attack == "label-distribution")
    cell = plain.cell.model_copy(update={"observe": "update", "batch_size": 3})
    other = plain.model_copy(update={"cell": cell, "id": cell.id})
    whole = inference_table.report([plain, other])
    titles = [table.title for table in whole.tables]
    assert len(titles) == 2
    assert f"{plain.cell.batch_size} images per gradient" in titles[0]
    assert "3 images per update" in titles[1]
    assert "whole updates of" in titles[1]
    assert {(row["observe"], row["batch_size"]) for row in whole.numbers} == {
        ("gradient", plain.cell.batch_size),
        ("update", 3),
    }
