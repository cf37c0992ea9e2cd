"""The command line as somebody meets it who has photographs, plug-ins and names of his own."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from markdown_it import MarkdownIt
from PIL import Image

from privbench import data, registry, written_defense
from privbench.data.dataset import Dataset
from privbench.defense import Defense
from privbench.errors import UserError
from tests.untrusted_files.conftest import edit

SMALL = ("--preset", "smoke", "--seeds", "1", "--rounds", "1")
NASTY = "[/y] 100% (x) folder:dog a[b]c :cat: $x_{$"  # closing markup, an emoji code, markup, half a formula
CLASSES = (":dog:", "[bold]", "a|b")
SWEPT_DEFENSE = """
from dataclasses import dataclass

from privbench.defense import Defense


@dataclass(frozen=True)
class Half(Defense):
    factor: float = 0.5
    offset: float = 0.0

    @property
    def places(self):
        return frozenset({"message"})

    def message(self, tensors, rng):
        def changed(params):
            return {name: t * self.factor + self.offset for name, t in params.items()}

        return {part: changed(params) for part, params in tensors.items()}

    def describe(self):
        return {"name": "half", "factor": self.factor}
"""


@dataclass(frozen=True)
class Pair(Defense):
    """A defence of two settings."""

    a: float = 0.0
    b: float = 0.0

    def describe(self):
        return {"name": "pair"}


@dataclass(frozen=True)
class Misspelt(Pair):
    places = frozenset({"messages"})

    def message(self, tensors, rng):
        return tensors


@dataclass(frozen=True)
class Unwritten(Pair):
    places = frozenset({"message"})


@dataclass(frozen=True)
class Indescribable(Defense):
    def describe(self):
        return 1 // 0


@dataclass(frozen=True)
class Number(Defense):
    def describe(self):
        return 3


def fails(root: Path | None) -> Dataset:
    return 1 // 0


def gives_nothing(root: Path | None) -> Dataset:
    return None


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        (fails, r"cannot be loaded: .*ZeroDivisionError"),
        (gives_nothing, "should return a Dataset, but it returned a NoneType"),
    ],
)
def test_a_data_set_of_one_s_own_that_fails_is_named_in_one_line(loader, said):
    name = f"{__name__}:{loader.__name__}"
    with pytest.raises(UserError, match=f"data set '{name}' {said}") as refusal:
        data.load(registry.typed("dataset", name), None)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("of", "said"),
    [
        (Misspelt, "acts at no place 'messages'; known: example, representation, step, message"),
        (Unwritten, "says that it acts at 'message', but has no method of that name"),
        (Indescribable, r"cannot describe itself: .*ZeroDivisionError"),
        (Number, r"describe\(\) should return a mapping with a 'name', but returned 3"),
    ],
)
def test_a_defence_that_would_not_act_as_its_user_means_is_refused_in_one_line(of, said):
    with pytest.raises(UserError, match=said) as refusal:
        written_defense.create(written_defense.typed(f"{__name__}:{of.__name__}"), "update")
    assert "\n" not in str(refusal.value)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A folder of photographs whose every name is one that a terminal or a figure may read as more than a name."""
    root = tmp_path_factory.mktemp("with blanks") / NASTY
    rng = np.random.default_rng(0)
    for name in CLASSES:
        (root / name).mkdir(parents=True)
        for k in range(20):
            pixels = rng.integers(0, 256, (40, 40, 3), np.uint8)
            Image.fromarray(pixels).save(root / name / f"[/{k}].jpg".replace("/", ";"))
    return root


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """One folder of results for all tests of this module, so that what one trains another reuses."""
    return tmp_path_factory.mktemp("results")


@pytest.fixture
def output_of(command, tmp_path, monkeypatch):
    """Runs a command in an empty folder: what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def call(*words, expect=0):
        ran = command(*words)
        assert ran.status == expect, ran.out + ran.err
        assert "Traceback" not in ran.err
        return ran.out + ran.err

    return call


def plain(text):
    """Text without the line breaks of a narrow column."""
    return "".join(text.split())


def test_every_command_prints_a_nasty_name_as_it_is(pictures, results, output_of, monkeypatch):
    """`table` is `study attack-table` with other defaults. One training serves all of them."""
    name, short = f"folder:{pictures}", plain(f"folder:{pictures.name}")
    options = ("--dataset", name, *SMALL, "--out", results)
    attacked = ("--victims", "1", *options)
    assert short in plain(output_of("train", *options))
    assert short in plain(output_of("search", "--method", "fedavg", "--over", "task.lr=0.003", *options))
    assert short in plain(output_of("attack", "--attack", "dlg", *attacked))
    assert short in plain(
        output_of("study", "attack-table", "--method", "fedavg", "--defense", "none", "--round", "best", *attacked)
    )
    assert short in plain(output_of("study", "accuracy", "--method", "fedavg", *options, "--status"))
    assert short in plain(output_of("partition", "--dataset", name, "--preset", "smoke", "--out", results))
    assert plain(str(pictures / CLASSES[0])) in plain(output_of("data", "check", name))
    assert "grid-best.png" in plain(output_of("grid", "--dataset", name, "--out", results))
    cell = next(path.parent.name for path in results.glob("cells/*/record.json"))
    assert all(plain(each) in plain(output_of("show", cell, "--out", results)) for each in (*CLASSES, str(pictures)))
    assert plain(f"no folder {pictures}x") in plain(output_of("train", "--dataset", f"{name}x", expect=2))
    grey = (
        "--method",
        "fedsplit",
        "--attack",
        "surrogate",
        "--dataset",
        "digits",
        "--auxiliary",
        name,
        *SMALL,
        "--out",
        results,
    )
    assert plain(f"{name} have 3 channels") in plain(output_of("attack", *grey, expect=2))
    monkeypatch.setenv("COLUMNS", "400")
    assert short in plain(output_of("list", "runs", "--out", results))


def test_every_link_of_a_report_leads_to_a_file(pictures, results, output_of):
    """Links as a reader of Markdown sees them; the names of files hold that of the data set."""
    words = ("--method", "fedavg", "--defense", "none", "--round", "best", "--victims", "1", *SMALL, "--out", results)
    output_of("study", "attack-table", "--dataset", f"folder:{pictures}", *words)
    page = results / "attack-table-smoke" / "report.md"
    inline = [token for token in MarkdownIt().parse(page.read_text()) if token.type == "inline"]
    parts = [part for token in inline for part in token.children or []]
    links = [str(part.attrs.get("href") or part.attrs["src"]) for part in parts if part.type in ("link_open", "image")]
    targets = [page.parent / unquote(link) for link in links]
    assert any("y] 100% (x) folder" in path.name for path in targets)
    assert all(path.is_file() for path in targets), targets
    assert {path.name for path in page.parent.glob("*.png")} <= {path.name for path in targets}
    shown = ["".join(child.content for child in part.children or []) for part in parts if part.type == "image"]
    assert shown == [path.name for path in targets if path.suffix == ".png"]


def test_control_characters_in_a_name_are_shown_and_not_obeyed(output_of):
    text = output_of("train", "--dataset", "folder:\x1b[31mred\n", expect=2)
    assert "\x1b" not in text
    assert "\u241b[31mred\u240a" in text


def test_what_others_wrote_is_shown_and_not_obeyed(output_of, tmp_path, results, caplog):
    """Of a folder of results: names of folders, notes, class names, a reason for a failure, a history; on every page, too."""
    clear = "\x1b[2J"
    words = (
        "attack",
        "--dataset",
        "digits",
        "--attack",
        "grey",
        *SMALL,
        "--clients",
        "2",
        "--victims",
        "1",
        "--out",
        results,
    )
    output_of(*words)
    out = shutil.copytree(results, tmp_path / f"results{clear}")
    attack = ("attack", *words[1:-1], out)
    path = next(p for p in out.glob("cells/*/record.json") if json.loads(p.read_text())["cell"]["attack"] == "grey")

    def spoil(value):
        value |= {"notes": [clear, "second\nline"], "class_names": [f"{clear}{k}" for k in range(10)]}
        value["environment"]["machine"] = value["environment"]["torch"] = clear
        value["knowledge"]["tag"] = value["guarantee"] = clear

    edit(path, spoil)
    shutil.copytree(path.parent, out / "cells" / clear)
    (out / "cells" / clear / "spec.json").write_text(f'{{"preset": "{clear}"}}')
    shown = (
        output_of("list", "runs", "--out", out) + output_of("show", path.parent.name, "--out", out) + output_of(*attack)
    )
    shown += output_of("attack", "--artifact", out / "artifacts" / clear, expect=2)
    edit(path, lambda value: value["environment"].update(device=clear))
    shown += output_of("reproduce", path.parent.name, "--out", out, expect=2)
    path.write_text(f'{{"{clear}": ')
    shown += output_of(*attack, expect=2)
    assert "\x1b" not in shown
    assert shown.count("\u241b[2J") > 20
    assert any("left out: " in line and "\u241b[2J" in line for line in caplog.messages)
    assert not any("\x1b" in line for line in caplog.messages)
    pages = [page.read_text() for ending in ("md", "tex") for page in out.glob(f"attack-*/*.{ending}")]
    assert any("\u241b" in page for page in pages)
    assert not any("\x1b" in page for page in pages)


def test_a_folder_whose_name_is_no_utf_8_is_refused_in_one_line(pictures, output_of, tmp_path):
    odd = Path(os.fsdecode(os.fsencode(tmp_path / "odd") + b"/caf\xe9"))
    shutil.copytree(pictures / CLASSES[0], odd)
    shutil.copytree(pictures / CLASSES[1], odd.parent / "other")
    text = output_of("train", "--dataset", f"folder:{odd.parent}", *SMALL, expect=2)
    assert "the name of the folder 'caf\\udce9' is no UTF-8; rename it" in text


def test_a_path_with_blanks_cannot_be_named_among_others_and_the_line_says_how(pictures, output_of):
    text = output_of("table", "--datasets", f"digits folder:{pictures}", expect=2)
    assert "named by --dataset, one at a time" in text


def test_a_sweep_is_one_table_with_a_column_each_and_one_curve(results, output_of, tmp_path, monkeypatch):
    """Own classes included; the ceiling is that of undefended FedAvg, attacked by another command in the same folder."""
    (tmp_path / "swept.py").write_text(SWEPT_DEFENSE)
    monkeypatch.syspath_prepend(str(tmp_path))
    quick = ("--dataset", "digits", "--preset", "quick", "--seeds", "1", "--rounds", "1", "--per-client", "16", "--victims", "2",
             "--attack", "dlg", "--attack-set", "steps=2", "--out", results)  # fmt: skip
    defenses = ("gaussian:0.1", "gaussian:variance=0.001", "swept:Half:factor=0.5,offset=0")
    swept = [word for each in defenses for word in ("--defense", each)]
    output_of("attack", *quick)
    text = output_of("attack", *quick, *swept)
    for column in ("+ Gaussian 0.001", "+ Gaussian 0.1", "+ swept:Half"):
        assert column in text
    page = max(results.glob("attack-*/table.md"), key=lambda path: path.stat().st_mtime)
    assert [path.name for path in page.parent.glob("*.png") if "gaussian" in path.name] == [
        "digits-fedavg-gaussian-best.png"
    ]
    (row,) = [line for line in page.read_text().splitlines() if line.startswith("| ceiling")]
    values = {cell.strip() for cell in row.split("|")[2:-1]}
    assert len(values) == 1
    assert float(values.pop()) > 0
    assert "no-control" not in page.read_text()


@pytest.mark.parametrize("words", [("table",), ("study", "accuracy")])
def test_a_study_takes_defences_in_place_of_its_own(words, output_of, monkeypatch):
    from reports.running import study_run, study_view

    ran = []
    monkeypatch.setattr(study_run, "run_study", lambda study, cells, *_: ran.extend(cells))
    monkeypatch.setattr(study_view, "show_study", lambda _: None)
    output_of(*words, "--dataset", "digits", "--defense", "gaussian:0.01", "--defense", "gaussian:0.02", *SMALL)
    columns = {(cell.train.method, cell.train.defense) for cell in ran}
    defended = {"fedavg"} if words == ("table",) else {method for method, _ in columns}
    assert {method for method, defense in columns if defense == "gaussian:0.01"} == defended
    assert {method for method, defense in columns if defense == "gaussian:0.02"} == defended
    assert {defense for _, defense in columns} == {"none", "gaussian:0.01", "gaussian:0.02"}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("none", "none"),
        ("gaussian:0.001", "gaussian:0.001"),
        ("gaussian:1e-3", "gaussian:1e-3"),  # as it stands: such cells are on disk
        ("gaussian:variance=1e-3", "gaussian:0.001"),
        (f"{__name__}:Pair:b=2,a=1", f"{__name__}:Pair:a=1,b=2"),
        (f"{__name__}:Pair:1,b=2", f"{__name__}:Pair:a=1,b=2"),
        (f"{__name__}:Pair:a=0.1", f"{__name__}:Pair:0.1"),
    ],
)
def test_one_defence_has_one_written_form(text, wanted):
    written_defense.typed(text)
    assert written_defense.canonical(text) == wanted
    assert written_defense.create(text, "update") == written_defense.create(wanted, "update")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gaussian", "needs a value"),
        ("none:1", "takes no value"),
        ("gaussian:a", "takes a number"),
        ("gaussian:0.1,0.2", "a defence is written"),
        ("gaussian:=2", "a defence is written"),
        ("gaussian:varance=2", "no setting 'varance'; did you mean 'variance'"),
        ("gaussian:0.1,variance=2", "variance is given twice"),
        ("gaussian:0.1,where=step", "said by --where"),
        ("gaussan:variance=2", "did you mean 'gaussian'"),
    ],
)
def test_a_defence_that_is_written_wrongly_is_one_line(text, message):
    with pytest.raises(UserError, match=message):
        written_defense.create(text, "update")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--victims", "100000"], "the 4 clients with 32 training images each have enough for 128"),
        (["--batch-size", "64"], "client 1 has only 32 training images"),
        (["--round", "99"], "training ends after 2 rounds"),
        (
            ["--method", "fedsplit", "--attack", "chained", "--observed-rounds", "0,99"],
            "--observed-rounds 99 was asked for, but training ends after 2 rounds",
        ),
        (
            ["--method", "fedsplit", "--attack", "chained", "--round", "0,1", "--observed-rounds", "0,2"],
            "--observed-rounds 2 is after the attacked round 1",
        ),
        (["--clients", "9999"], "the data set has only"),
        (["--attack", "feature-statistics"], "fedavg shares only [extractor, classifier]; try --attack staged"),
        (["--attack", "collusion", "--clients", "1"], "there is no second client"),
        (["--attack", "unsplit", "--batch-size", "4", "--defense", "gaussian:0.1"], "no defence changes them"),
        (["--attack", "learned-inverse", "--batch-size", "2"], "at most 1 image(s)"),
        (["--attack", "surrogate", "--method", "fedsplit", "--backbone", "resnet18"], "begins with a linear layer"),
        (["--where", "step"], "none has no such choice"),
        (
            ["--attack", "oracle", "--method", "fedgen", "--set", "observe_loss=task"],
            "those of fedgen at round best are of imitated",
        ),
        (["--method", "fedavg", "--method", "fedcg"], "--method is given 2 times"),
    ],
)
def test_what_can_be_known_is_refused_before_training(words, message, output_of, tmp_path):
    assert message in output_of("attack", "--dataset", "digits", "--preset", "smoke", *words, expect=2)
    assert not (tmp_path / "runs/train").exists()


def test_a_run_that_patience_ends_says_so_with_the_option_that_changes_it(output_of):
    text = output_of("train", "--dataset", "digits", "--preset", "smoke", "--seeds", "1", "--rounds", "60", "--lr", "1e-9",
                "--schedule", "patience=2", "--per-client", "16")  # fmt: skip
    assert "1 of 1 run(s) stopped after 3 of 60 rounds" in text
    assert "no client's validation accuracy rose for 2 rounds; --schedule patience=60" in text


def test_a_module_that_fails_while_imported_is_one_line_with_file_and_line(output_of, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "failing_attack.py").write_text("import os\n\n\ndef start():\n    return os.nothing\n\n\nstart()\n")
    text = output_of("attack", "--attack", "failing_attack:X", "--preset", "smoke", expect=2)
    place = tmp_path / "failing_attack.py"
    assert f"{place}, line 5: AttributeError: module 'os' has no attribute 'nothing'; --debug shows" in text
    (tmp_path / "unfinished_attack.py").write_text("def x(:\n")
    assert "unfinished_attack.py, line 1: SyntaxError" in output_of(
        "attack", "--attack", "unfinished_attack:X", expect=2
    )


def test_debug_shows_the_traceback(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "failing_again.py").write_text("1 / 0\n")
    ran = command("attack", "--attack", "failing_again:X", "--preset", "smoke", "--debug")
    assert ran.status == 2
    assert "ZeroDivisionError" in ran.err
    assert "Traceback" in ran.err


def test_a_module_of_the_working_directory_that_is_not_on_the_path_is_reported_with_the_way_out(
    output_of, tmp_path, monkeypatch
):
    (tmp_path / "beside.py").write_text("")
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", str(tmp_path))])
    assert "put PYTHONPATH=. before the command" in output_of("attack", "--attack", "beside:X", expect=2)
    assert "PYTHONPATH" not in output_of("attack", "--attack", "nowhere_at_all:X", expect=2)


def test_the_first_line_comes_before_torch(tmp_path):
    """What was understood is said in a process that has not imported torch yet."""
    probe = (
        "import sys\n"
        "from privbench.cli import main\n"
        "class Stop:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'privbench.requests.specifications': sys.exit(3 if 'torch' in sys.modules else 4)\n"
        "sys.meta_path.insert(0, Stop())\n"
        "sys.argv = ['privbench', 'table', '--preset', 'smoke']\n"
        "main.main()\n"
    )
    completed = subprocess.run([sys.executable, "-c", probe], cwd=tmp_path, capture_output=True, text=True)
    assert completed.stderr.startswith("table: photos, digits, digits4, smoke preset; results go to runs")
    assert completed.returncode == 4
