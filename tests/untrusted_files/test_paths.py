"""Nothing is written outside the folder that was asked for, whatever a file says."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privbench import spec
from privbench.cli import attack_runs, listing
from privbench.errors import UserError
from privbench.execution import worker_pool
from privbench.records import schema
from privbench.records.store import Store
from privbench.requests.options import PlaceOptions
from privbench.system import files, locks, processes
from reports.figures import of_attack
from reports.running import ladder_cells, status
from tests.untrusted_files.conftest import FIRST, GREY, MEAN, edit, ran

UP = "../../../outside"
NAMES = [UP, "..", "/etc/x", "a/b", "a\\b\0", "x\ny", "", ".hidden/..", "digits\x1b[2J"]


def everything(folder):
    return {path.relative_to(folder) for path in folder.rglob("*")}


def test_the_data_set_of_a_record_names_no_figure_outside(root, tmp_path):
    """The command that made the record, asked again, draws its figures: beside the table, or not at all."""
    for cell in (GREY, MEAN):
        edit(Store(root).record(cell), lambda value: value["cell"]["train"].update(dataset=UP))
    before = everything(tmp_path)
    with pytest.raises(UserError) as error:
        attack_runs.run_attacks([GREY, MEAN], PlaceOptions("cpu", None, root))
    assert "dataset: should be a name such as digits" in str(error.value)
    assert everything(tmp_path) - before <= {Path(f"runs/attack-{GREY.id}")}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("field", ["dataset", "domains", "method", "defense", "backbone", "content"])
def test_no_name_of_a_training_run_leads_elsewhere(field, name):
    value = FIRST.model_dump(mode="json") | {field: [name, "b"] if field == "domains" else name}
    with pytest.raises(UserError) as error:
        spec.checked(spec.TrainSpec, value)
    assert str(error.value).startswith(field)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("field", ["attack", "round", "preset", "auxiliary"])
def test_no_name_of_a_cell_leads_elsewhere(field, name):
    with pytest.raises(UserError) as error:
        spec.checked(spec.CellSpec, GREY.model_dump(mode="json") | {field: name})
    assert str(error.value).startswith(field)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("dataset", "emnist-letters"), ("dataset", "flags:load"), ("dataset", "my-own.module_2:load"),
        ("dataset", "folder:/home dir/Fotos für [alle]/x"), ("domains", ["mnist_m", "öl auf leinwand"]),
        ("method", "lg-fedavg"), ("method", "mine:Method"), ("defense", "gaussian:1e-05"), ("defense", "gaussian:.001"),
        ("defense", "mine:Prune"), ("defense", "a.b:Prune:0.1"), ("content", "0123456789abcdef"), ("backbone", "resnet18"),
        ("method_settings", {"without": "div,cls", "mu": 0.1}),
    ],
)  # fmt: skip
def test_the_names_that_users_have_stay_allowed(field, name):
    value = FIRST.model_dump(mode="json") | {field: name}
    assert spec.checked(spec.TrainSpec, value).model_dump(mode="json")[field] == name


@pytest.mark.parametrize(
    ("field", "name"),
    [("auxiliary", "same:0.1"), ("auxiliary", "folder:/a b/c:1e-2"), ("auxiliary", "flags:load:0.5"), ("round", "15")],
)
def test_the_names_of_cells_stay_allowed(field, name):
    checked_cell = spec.checked(spec.CellSpec, GREY.model_dump(mode="json") | {field: name})
    assert getattr(checked_cell, field) == name


def elsewhere(record, **changes):
    """A record with names that no specification admits, as a fault elsewhere might let through."""
    cell = record.cell.model_copy(update={name: v for name, v in changes.items() if name == "round"})
    train = cell.train.model_copy(update={name: v for name, v in changes.items() if name != "round"})
    return record.model_copy(update={"cell": cell.model_copy(update={"train": train})})


DRAWN = {
    "attacked": lambda store, records, folder: of_attack.attacked(store, [r.cell for r in records], records, folder),
    "curves": lambda store, records, folder: ladder_cells.curves(records, folder),
    "histograms": lambda store, records, folder: of_attack.histograms(records, folder),
    "grids": lambda store, records, folder: ladder_cells.grids(
        store, [r.cell for r in records], records, folder, [r.cell.round for r in records]
    ),
}


@pytest.mark.parametrize(
    ("draw", "changes"),
    [
        *((draw, {"dataset": UP}) for draw in DRAWN),
        *((draw, {"round": "/../../x"}) for draw in ("attacked", "grids")),
        *((draw, {"domains": ("..", "/x")}) for draw in ("attacked", "curves", "grids")),
    ],
)
def test_every_figure_is_checked_to_lie_in_its_folder(draw, changes, root, tmp_path):
    """Should a specification ever let such a name through. Domains stand in names of files where a data set has several layouts."""
    plain = schema.read(Store(root).record(GREY))
    records = [elsewhere(plain, **changes), *([plain] if "domains" in changes else [])]
    before = everything(tmp_path)
    with pytest.raises(UserError, match="cannot be the name of a file in"):
        DRAWN[draw](Store(root), records, tmp_path / "figures")
    assert {path for path in everything(tmp_path) - before if not path.is_relative_to("figures")} == set()


def test_an_attack_s_name_makes_no_folder_outside_of_the_artifacts(root):
    cell = GREY.model_copy(update={"attack": "../../x", "active": True})
    with pytest.raises(UserError, match="cannot be the name of a file"):
        Store(root).artifact(cell, FIRST, 2)


@given(st.text(st.sampled_from("./\\\0\n ~aä-\x1b\u202e"), max_size=8))
def test_a_path_lies_inside_or_is_refused(name):
    folder = Path("/out/folder")
    if name in ("", ".", "..") or not name.isprintable() or "/" in name:
        with pytest.raises(UserError, match=r"^[^\n]+ cannot be the name of a file in [^\n]+$"):
            files.inside(folder, name)
        return
    path = files.inside(folder, name)
    assert os.path.normpath(path) == f"{folder}/{name}"
    assert path.parent == folder


@pytest.mark.parametrize("write", ["check", "json", "log"])
def test_no_link_that_lies_in_a_folder_is_written_through(write, tmp_path):
    """Unpacked with somebody's results; a process's number in a name can be guessed by many links."""
    private, out = tmp_path / "private", tmp_path / "runs"
    private.write_text("the only copy")
    out.mkdir()
    mark = processes.mark()
    names = {"check": f".writable{mark}", "json": f".spec.json{mark}", "log": "error.txt"}
    (out / names[write]).symlink_to(private)
    if write == "check":
        Store(out).check_writable()
    elif write == "json":
        files.write_json(out / "spec.json", {})
    else:
        worker_pool.logged(RuntimeError("x"), out / "error.txt")
        assert "RuntimeError" in (out / "error.txt").read_text()
    assert private.read_text() == "the only copy"
    assert write == "log" or not (out / names[write]).is_symlink()


def moved_out(path, elsewhere):
    """Puts a link in the place of a file or folder, to where that now lies."""
    target = elsewhere / path.name
    path.rename(target)
    path.symlink_to(target)
    return path


@pytest.mark.parametrize(
    "place",
    [
        lambda store: store.root / "train",
        lambda store: store.train(FIRST),
        lambda store: store.train(FIRST) / "finished.json",
        lambda store: store.train(FIRST) / "predictions.safetensors",
        lambda store: store.train(FIRST) / "spec.json",
        lambda store: store.cell(GREY) / "record.json",
        lambda store: store.result(GREY, FIRST.seed),
        lambda store: store.artifact(GREY, FIRST, 2) / "observation",
        lambda store: store.artifact(GREY, FIRST, 2) / "observation" / "round-0002.safetensors",
        lambda store: store.artifact(GREY, FIRST, 2) / "observation-truth.safetensors",
    ],
)
def test_a_link_that_leads_out_of_the_results_is_refused_in_one_line(place, root, tmp_path):
    """What it leads to is intact, so that nothing else could be wrong with it; files that would be written again are not missed."""
    store, elsewhere = Store(root), tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = moved_out(place(store), elsewhere)
    before = {path: path.lstat().st_mtime_ns for path in elsewhere.rglob("*")}
    if link != store.record(GREY):
        store.record(GREY).unlink(missing_ok=True)
    if "observation" in str(link):
        store.result(GREY, FIRST.seed).unlink()
    try:
        failures = ran([GREY], root) or [status.of(store, GREY, {}).why]
    except UserError as error:
        failures = [str(error)]
    assert len(failures) == 1
    assert f"{link} is a link that leads out of its folder" in failures[0]
    assert "\n" not in failures[0]
    assert link.is_symlink()
    assert {path: path.lstat().st_mtime_ns for path in elsewhere.rglob("*")} == before


def test_listings_leave_links_out_with_a_remark(root, tmp_path, caplog, capsys):
    store = Store(root)
    for path in (store.train(FIRST), store.cell(MEAN)):
        moved_out(path, tmp_path)
    store.check_writable()
    listing.list_runs(root)
    lines = [record.getMessage() for record in caplog.records]
    assert all(f"{kind}/" in line and "is a link" in line for kind, line in zip(("train", "cells"), lines, strict=True))
    shown = capsys.readouterr().out
    assert FIRST.id not in shown
    assert MEAN.id not in shown
    assert GREY.id in shown


def test_a_link_to_a_lock_is_not_written_through(tmp_path):
    private, out = tmp_path / "private", tmp_path / "out"
    private.write_text("the only copy")
    out.mkdir()
    for name in (".lock", ".lock-by"):
        (out / name).symlink_to(private)
        with pytest.raises(UserError, match=f"{name} is a link"), locks.lock(out, wait=False):
            pass
        (out / name).unlink()
    assert private.read_text() == "the only copy"


def test_a_link_that_stays_inside_and_one_to_the_folder_of_all_results_are_followed(root, tmp_path):
    (tmp_path / "linked").symlink_to(root)
    assert len(Store(tmp_path / "linked").trained()) == len(Store(root).trained())
    (root / "a").write_text("{}")
    (root / "b").symlink_to("a")
    assert files.read_json(root / "b") == {}
    (root / "c").symlink_to("c")
    with pytest.raises(UserError, match="is a link"):
        files.read_json(root / "c")
