"""Auxiliary images of a folder of the user's own: other images in it are another cell, and nothing of the old one is used."""

import shutil

import pytest
from PIL import Image

from privbench import data, presets, registry, spec
from privbench.errors import UserError
from privbench.execution import cell_jobs, preconditions, reproduce
from privbench.records import schema
from privbench.records.store import Store
from reports.running import repetition


def quiet(*_):
    pass


@pytest.fixture
def pictures(tmp_path):
    """A folder of two classes of five grey images, by its name."""
    for label, name in enumerate(("dark", "light")):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for k in range(5):
            Image.new("L", (32, 32), 100 * label + k).save(tmp_path / "pictures" / name / f"{k}.png")
    return registry.typed("dataset", f"folder:{tmp_path / 'pictures'}")


def add_image(pictures, value=250):
    folder = pictures.removeprefix("folder:")
    Image.new("L", (32, 32), value).save(f"{folder}/light/{value}.png")


def cell(auxiliary, attack="dataset-mean", **chosen):
    train = presets.train_spec("smoke", "digits", "fedavg", clients=2, changes={"rounds": 0})
    return presets.cell_spec("smoke", train, attack, victims=1, round_="0", auxiliary=auxiliary, **chosen)


def test_a_folder_with_other_images_is_another_cell_and_no_other_choice_is(pictures):
    one, share = cell(pictures), cell(f"{pictures}:0.5")
    assert one.auxiliary_content == share.auxiliary_content == data.content(pictures)
    assert one == cell(pictures) == spec.checked(spec.CellSpec, one.model_dump(mode="json"))
    add_image(pictures)
    two = cell(pictures)
    assert two.model_copy(update={"auxiliary_content": one.auxiliary_content}) == one
    assert two.id != one.id
    assert cell(f"{pictures}:0.5").id != share.id
    assert two.with_seeds([7]).auxiliary_content == two.auxiliary_content
    for name, frozen in ((None, "02cac8461f31"), ("digits:0.5", "850e38351e84")):
        plain = cell(name)
        assert "auxiliary_content" not in plain.model_dump()
        assert plain.id == frozen
    with pytest.raises(UserError, match="a cell without an attack has no settings of one"):
        spec.checked(
            spec.CellSpec, presets.cell_spec("smoke", one.train, None).model_dump() | {"auxiliary_content": "a"}
        )


def test_what_an_active_server_crafted_from_other_images_is_another_artifact(pictures, tmp_path):
    def artifact(one):
        return Store(tmp_path).artifact(one, one.train, 0).name

    active, passive = cell(pictures, "imprint"), cell(pictures)
    add_image(pictures)
    assert artifact(active) != artifact(cell(pictures, "imprint"))
    assert artifact(passive) == artifact(cell(pictures))  # what honest clients sent


def test_after_a_change_the_same_command_attacks_anew_and_the_old_cell_is_refused(pictures, tmp_path):
    def run(one, root=tmp_path / "runs"):
        return cell_jobs.run_cells([one], root, None, "cpu", quiet, quiet)

    store, old = Store(tmp_path / "runs"), cell(pictures)
    assert run(old) == []
    add_image(pictures)
    new = cell(pictures)
    assert run(new) == []
    before, after = (schema.read(store.record(one)) for one in (old, new))
    assert before.victims[0].psnr_db != after.victims[0].psnr_db
    # Whatever is made of the old cell would be of other images.
    changed_files = f"the files of {pictures} have changed since this cell was specified; specify the cell anew"
    with pytest.raises(UserError, match="could not be run again") as refused:
        reproduce.again(before, store.root, tmp_path / "fresh", None, quiet, quiet)
    assert changed_files in str(refused.value)
    assert reproduce.again(after, store.root, tmp_path / "again", None, quiet, quiet).id == after.id
    (more,) = repetition.cells([before], None, None)
    assert preconditions.impossible(store, [more], None, workers=1) == {more.id: changed_files}
    shutil.rmtree(store.cell(old))
    assert run(old) == [changed_files]


def test_an_active_server_crafts_from_no_other_images_than_were_specified(pictures, tmp_path):
    old = cell(pictures, "imprint", batch_size=2)
    add_image(pictures)
    (failure,) = cell_jobs.run_cells([old], tmp_path, None, "cpu", quiet, quiet)
    assert f"the files of {pictures} have changed" in failure
