"""No file makes anything be imported, called or read: its names are built-in ones, unless the user names the others."""

import json
import sys

import pytest
import typer

from privbench import data, registry, spec, trust
from privbench.cli import main
from privbench.errors import UserError
from privbench.observation import artifact_files
from privbench.records.store import Store
from reports.records import labels
from tests.untrusted_files.conftest import FIRST, GREY, edit, forged

CALLS = ["shutil:rmtree", "site:addsitedir", "runpy:run_path", "os:listdir"]
STRANGERS_CODE = """
from dataclasses import dataclass
from typing import ClassVar
from pathlib import Path
from attacks.floors import Grey

Path(__file__).with_name("was_imported").touch()


@dataclass(frozen=True)
class Mine(Grey):
    knowledge: ClassVar[str] = "nothing"


def load(root):
    raise AssertionError("a file's function was called")
"""


@pytest.fixture
def was_imported(tmp_path, monkeypatch):
    """A module on the Python path that leaves a file when it is imported; whether it was."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "strangers_code.py").write_text(STRANGERS_CODE)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "strangers_code", raising=False)
    yield (folder / "was_imported").exists
    sys.modules.pop("strangers_code", None)


@pytest.fixture
def folder(tmp_path):
    """A user's data folder, which a stranger would like to delete or to run."""
    path = tmp_path / "data"
    path.mkdir()
    (path / "photographs").write_text("the only copy")
    (path / "__main__.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    (path / "x.pth").write_text(f"import pathlib; pathlib.Path({str(tmp_path / 'ran')!r}).touch()\n")
    return path


def artifact_of(root, dataset, target):
    """An artifact of the run whose index names another data set, with its truth: the words that attack it."""
    folder = Store(root).artifact(GREY, FIRST, 2)
    seen = folder / artifact_files.OBSERVATION
    artifact_files.save(
        artifact_files.load(seen), target, artifact_files.origin(seen).model_copy(update={"dataset": dataset})
    )
    return "attack", "--artifact", target, "--truth", folder / artifact_files.TRUTH, "--attack", "grey"


@pytest.mark.parametrize("name", CALLS)
def test_an_artifact_calls_nothing(name, root, folder, tmp_path, command):
    words = artifact_of(root, name, tmp_path / "artifact")
    ran = command(*words, "--data-dir", folder, "--out", tmp_path / "out")
    assert (folder / "photographs").exists()
    assert not (tmp_path / "ran").exists()
    assert f"--trust {name}" in ran.out
    assert "floor" in ran.out  # the grey one is there all the same


@pytest.mark.parametrize("name", CALLS)
def test_a_record_calls_nothing(name, root, folder, tmp_path, command):
    run = forged(root, GREY, dataset=name)
    ran = command("reproduce", run, "--out", root, "--data-dir", folder)
    assert (folder / "photographs").exists()
    assert not (tmp_path / "ran").exists()
    assert ran.status == 2
    assert ran.err.strip().splitlines()[1:] == [
        f"privbench: record {run} names {name}: not built in, and no file alone makes this be imported or read; if you know it, "
        f"add --trust {name}"
    ]


@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_data_set_is_refused_even_where_the_user_names_it(name, folder, command):
    ran = command("partition", "--dataset", name, "--data-dir", folder)
    assert (folder / "photographs").exists()
    assert (ran.status, ran.out) == (2, "")
    assert "should be a function that says it returns a Dataset" in ran.err


FOREIGN = [
    {"attack": "strangers_code:Mine"},
    {"method": "strangers_code:Mine"},
    {"defense": "strangers_code:Mine"},
    {"defense": "strangers_code:Mine:0.1"},
    {"dataset": "strangers_code:load"},
    {"auxiliary": "strangers_code:load:0.5"},
    {"backbone": "strangers_code:Mine"},
]


def test_no_command_imports_what_records_name(root, was_imported, command, tmp_path):
    names = {forged(root, GREY, **changes): str(*changes.values()) for changes in FOREIGN}
    listed = command("list", "runs", "--out", root)
    grid = command("grid", "--dataset", "digits", "--round", "last", "--out", root, "--target", tmp_path / "grid.png")
    assert (grid.status, (tmp_path / "grid.png").exists()) == (0, True), grid.err
    page = command("report", root, "--html", "--out", tmp_path / "page.html")
    compared = command("compare", root, root, "--out", tmp_path)
    assert (page.status, compared.status) == (0, 0), page.err + compared.err
    for run, name in names.items():
        assert run in listed.out
        assert run in (tmp_path / "page.html").read_text()
        assert command("show", run, "--out", root).status == 0
        refused = command("reproduce", run, "--out", root)
        assert (refused.status, refused.err.count("\n")) == (2, 2)
        assert f"--trust {name.removesuffix(':0.1').removesuffix(':0.5')}" in refused.err
    assert not was_imported()


def test_what_is_typed_or_trusted_is_used_and_no_other_command_uses_it(tmp_path, was_imported, command, monkeypatch):
    words = ["attack", "--preset", "smoke", "--seeds", "1", "--dataset", "digits", "--clients", "2", "--rounds", "0"]
    assert command(*words, "--attack", "strangers_code:Mine", "--out", tmp_path).status == 0
    (path,) = tmp_path.glob("cells/*")
    monkeypatch.setattr(trust, "_names", set())  # as a process has it that begins
    assert "--trust strangers_code:Mine" in command("reproduce", path.name, "--out", tmp_path).err
    ran = command("reproduce", path.name, "--attack-only", "--out", tmp_path, "--trust", "strangers_code:Mine")
    assert (ran.status, "reproduced bit for bit" in ran.out) == (0, True)
    assert was_imported()


def test_a_folder_of_this_machine_is_read_where_the_user_names_it_alone(root, tmp_path, command, monkeypatch):
    seen = []
    monkeypatch.setattr("privbench.data.image_folder.survey", lambda path: seen.append(path) or 1 / 0)
    (tmp_path / "private").mkdir()
    name = f"folder:{tmp_path / 'private'}"
    run = forged(root, GREY, dataset=name, content="0123456789abcdef")
    assert command("list", "runs", "--out", root).status == 0
    assert command("show", run, "--out", root).status == 0
    refused = command("reproduce", run, "--out", root)
    assert (refused.status, f"--trust {name}" in refused.err) == (2, True)
    words = artifact_of(root, name, tmp_path / "artifact")
    scored = command(*words, "--out", tmp_path / "out")
    assert f"--trust {name}" in scored.out
    assert seen == []
    with pytest.raises(ZeroDivisionError):
        command(*words, "--out", tmp_path / "out", "--trust", f"folder:{tmp_path / 'x' / '..' / 'private'}")
    assert seen == [tmp_path / "private"]


def test_every_command_that_reads_results_can_be_told_what_to_trust():
    group = typer.main.get_command(main.app)
    reading = {
        name: [parameter.name for parameter in one.params]
        for name, one in group.commands.items()
        if {"out", "into"} & {parameter.name for parameter in one.params}
    }
    assert {"attack", "merge", "report", "compare", "audit", "show", "grid", "list"} < reading.keys()
    # An export is written into a folder, and no file of a capture names code (tests/privbench/auditing/test_captures.py).
    assert {name for name, options in reading.items() if "trust" not in options} == {"audit", "export"}


@pytest.mark.parametrize("name", ["dlg", "a b:c", "mine:", ":Mine", "mine:a.b", "../x:y"])
def test_a_name_of_another_form_is_refused_by_trust(name, command):
    ran = command("list", "runs", "--trust", name)
    assert (ran.status, "--trust takes package.module:Class or folder:PATH" in ran.err) == (2, True)


def test_a_defence_may_be_trusted_with_its_value(command, tmp_path):
    command("list", "runs", "--trust", "mine:Prune:0.1", "--trust", "mine:Cosine", "--out", tmp_path)
    assert {"mine:Prune", "mine:Cosine"} <= set(trust.added())


@pytest.mark.parametrize("kind", ["method", "attack", "defense", "dataset"])
def test_python_code_names_what_it_uses(kind, was_imported):
    name = "strangers_code:load" if kind == "dataset" else "strangers_code:Mine"
    with pytest.raises(UserError, match=f"{kind} '{name}' is code .* --trust {name}"):
        registry.resolve(kind, name)
    with pytest.raises(UserError, match="--trust"):
        registry.module(kind, name)
    assert not was_imported()
    trust.add(name)
    lacks = {"dataset": "should be a function that says it returns a Dataset", "method": "is no subclass of privbench"}
    if kind in lacks:
        with pytest.raises(UserError, match=lacks[kind]):
            registry.resolve(kind, name)
    else:
        assert registry.resolve(kind, name).__name__ == "Mine"
    assert was_imported()


@pytest.mark.parametrize("ask", [data.load, data.check, lambda name, _: data.fetch(name)])
def test_no_way_to_a_data_set_imports_a_name_that_nobody_named(ask, was_imported):
    with pytest.raises(UserError, match="--trust strangers_code:load"):
        ask("strangers_code:load", None)
    assert not was_imported()


def test_the_name_of_a_setting_is_no_format_string(root):
    path = Store(root).cell_spec(GREY)
    edit(path, lambda value: value["train"].update(method_settings={"{0.__class__}": 1.0}))
    with pytest.raises(UserError, match="should be a setting's name"):
        spec.checked(spec.CellSpec, json.loads(path.read_text()))
    train = GREY.train.model_copy(update={"method_settings": {"{0.__class__}": 1.0}})
    assert "float" not in labels.label(GREY.model_copy(update={"train": train}))


@pytest.mark.parametrize("threads", [0, -1, 10**9, "2", None, True])
def test_a_record_with_threads_that_no_machine_has_is_refused(threads, root, command):
    edit(Store(root).record(GREY), lambda value: value["environment"].update(threads=threads))
    ran = command("reproduce", GREY.id, "--out", root)
    assert (ran.status, ran.err.count("\n")) == (2, 2)


@pytest.mark.parametrize("name", ["device", "machine", "torch", "date", "cores", "threads"])
def test_a_record_that_does_not_say_where_it_was_made_is_refused_by_every_command(name, root, command):
    path = Store(root).record(GREY)
    edit(path, lambda value: value["environment"].pop(name))
    ran = command("reproduce", GREY.id, "--out", root)
    assert (ran.status, ran.err.count("\n")) == (2, 2)
    assert f"environment.{name}" in ran.err
    if name == "threads":
        assert "run its command again" in ran.err
        return
    assert str(path) in ran.err
    shown = command("show", GREY.id, "--out", root)
    assert shown.status == 2
    assert "remove it and run the same command again" in shown.err
