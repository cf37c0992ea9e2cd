"""One attack in several settings, side by side."""

from privbench import presets
from reports.studies import definition, study_cells
from reports.tables import variants
from tests.builders.records import record

BESIDE = ("over the floor, dB", "failed")


def made(psnr, defense="none", settings=None, **changes):
    usual = presets.settings_of_attack("quick", "imprint")
    changes |= {"attack_settings": usual | (settings or {})}
    return record("fedavg", defense, "imprint", psnr=psnr, round_="0", seeds=(100, 101), spec=changes)


def test_a_row_is_a_setting_and_a_column_a_defence_and_missing_cells_stay_gaps():
    records = [
        made(30.0),
        made(20.0, wire="fp16"),
        made(25.0, "gaussian:0.001", wire="fp16"),
        made(15.0, observe="update", local_steps=1, local_lr=0.1),
        made(10.0, settings={"rehearsal_images": 0}),
    ]
    (form,) = variants.report(records).tables
    assert form.columns == ["", *("FedAvg, dB", *BESIDE), *("FedAvg + Gaussian 0.001, dB", *BESIDE)]
    assert [row[0] for row in form.rows] == [
        "round 0 (untrained), as set by default",
        "round 0 (untrained), sent in fp16",
        "round 0 (untrained), whole updates of 1 SGD step at 0.1",
        "round 0 (untrained), rehearsal_images 0",
    ]
    assert form.rows[1][3] == "0 of 8"
    assert form.rows[0][4:] == ["-", "-", "-"]
    assert float(form.rows[1][1].split(" ")[0]) < float(form.rows[1][4].split(" ")[0])


def test_the_study_of_imprint_covers_every_format_and_whole_updates_by_sgd_and_adam():
    cells = study_cells.of(definition.read("imprint-on-the-wire"), "quick")
    assert {c.wire for c in cells} == {"float32", "bf16", "fp16"}
    assert {(c.observe, c.local_steps, c.local_lr) for c in cells} == {
        ("gradient", None, None), ("update", 1, 0.1), ("update", 1, None), ("update", 5, None),
    }  # fmt: skip
    assert all(c.attack_settings == {} for c in cells)
    assert {c.train.defense for c in cells} == {"none", "gaussian:0.1", "gaussian:variance=0.001,clip=1"}
    assert all(c.wire == "float32" for c in cells if c.observe == "update")


def test_beside_the_psnr_stand_the_paired_gain_and_the_victims_to_which_the_attack_does_not_apply():
    one = made(30.0)
    first = one.seeds[0].victims[0].model_copy(update={"outcome": "not applicable"})
    seeds = [one.seeds[0].model_copy(update={"victims": [first, *one.seeds[0].victims[1:]]}), *one.seeds[1:]]
    none_left, some_left = (
        variants.report([r]).tables[0].rows[0] for r in (one, one.model_copy(update={"seeds": seeds}))
    )
    assert none_left[2].startswith("+")
    assert "**" not in none_left[2], "two seeds are too few to be significant"
    assert none_left[3] == "0 of 8"
    assert some_left[3].endswith("; does not apply to 1")
