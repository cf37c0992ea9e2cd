"""The command line as a user meets it: once in processes of its own, then in this one, where torch is imported already."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest

from privbench import registry
from privbench.observation.format import files as observation_files
from tests.conftest import narrow_layers

SMALL = ["--preset", "smoke", "--seeds", "1"]
FINISHED = ["attack", "--method", "fedcg", "--dataset", "digits", "--clients", "2", *SMALL]


def privbench(*words, cwd, expect=0):
    """What the command prints in a process of its own."""
    completed = subprocess.run(
        [sys.executable, "-m", "privbench", *map(str, words)], cwd=cwd, capture_output=True, text=True,
        env={**os.environ, "COLUMNS": "140"},
    )  # fmt: skip
    assert completed.returncode == expect, completed.stdout + completed.stderr
    if expect == 2:
        assert "Traceback" not in completed.stderr
        assert len(completed.stderr.strip().splitlines()) == 2 or "[1/1]" in completed.stderr, (
            completed.stderr
        )  # what began, and why it ended
    return completed.stdout + completed.stderr


@pytest.fixture
def output_of(command, tmp_path, monkeypatch):
    """Runs a command in this process and an empty folder: what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")

    def call(*words, expect=0):
        ran = command(*words)
        assert ran.status == expect, ran.out + ran.err
        return ran.out + ran.err

    return call


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with one finished attack."""
    folder = tmp_path_factory.mktemp("runs")
    text = privbench(*FINISHED, "--out", folder, cwd=folder)
    return folder, text


def test_attack_prints_a_row_and_writes_tables_and_a_grid(finished):
    folder, text = finished
    assert "FedCG" in text
    assert "tests that every part runs" in " ".join(text.split())
    written = {path.name for path in folder.glob("attack-*/*")}
    assert written == {
        "table.md", "table.csv", "table.tex", "table.html", "digits-grid-best.png",
        "digits-grid-best.pdf",
    }  # fmt: skip


def test_a_record_says_how_it_came_about(finished):
    folder, _ = finished
    paths = sorted(folder.glob("cells/*/record.json"))
    assert len(paths) == 2
    for path in paths:
        value = json.loads(path.read_text())
        assert value["cell"]["seeds"] == [100]
        assert value["knowledge"]["labels"] == "recovered"
        assert all(set(v["floors"]) == set(registry.FLOORS) for v in value["seeds"][0]["victims"])
        assert value["cost"]["gradient_evaluations"] > 0
        assert value["environment"]["torch"]
        assert value["class_names"] == list("0123456789")
        assert value["client_domains"] == ["all"] * value["cell"]["train"]["clients"]
        clients = value["seeds"][0]["label_counts"]
        assert [sum(counts) for counts in clients] == [32] * 2
    (run,) = folder.glob("train/*")
    written = json.loads((run / "clients.json").read_text())
    assert [client["train"] for client in written["clients"]] == clients


def test_the_same_command_again_reuses_everything(finished, output_of):
    folder, _ = finished
    before = {p: p.stat().st_mtime_ns for p in folder.glob("cells/*/*.safetensors")}
    output_of(*FINISHED, "--out", folder)
    assert {p: p.stat().st_mtime_ns for p in folder.glob("cells/*/*.safetensors")} == before


def test_list_show_grid_and_truth_free_attack_of_an_artifact_file(finished, output_of, tmp_path):
    folder, _ = finished
    text = output_of("list", "runs", "--out", folder)
    assert "finished after 2 rounds" in text
    assert text.count("recorded") == 2
    run = next(folder.glob("cells/*")).name
    shown = output_of("show", run[:8], "--out", folder)
    assert "tests that every part runs" in " ".join(shown.split())
    assert "_db" not in shown
    assert "G.acc" in shown
    trained = next(folder.glob("train/*")).name
    shown = output_of("show", trained[:8], "--out", folder)
    assert "Metrics per client, seed 100" in shown
    assert "Confusion matrix (rows: true class)" in shown
    output_of("grid", "--dataset", "digits", "--out", folder, "--target", tmp_path / "x.png")
    assert [p.name for p in tmp_path.glob("x.*")] == ["x.png"]
    artifact = next(folder.glob("artifacts/*"))
    words = [
        "attack",
        "--artifact",
        artifact / "observation",
        "--attack",
        "staged",
        "--attack-set",
        "feature_steps=3",
    ]
    assert "PSNR" not in output_of(*words, "--out", tmp_path)
    scored = output_of(*words, "--truth", artifact / "observation-truth.safetensors", "--out", tmp_path)
    assert "tests that every part runs" in " ".join(scored.split())
    assert " dB" not in scored
    table = pd.read_csv(next(folder.glob("attack-*/table.csv")))
    assert table[["psnr_db", "gain_low", "floor_grey_db", "ssim"]].isna().all().all()
    assert table["accuracy_percent"].notna().all()


def test_an_artifact_is_attacked_with_the_images_of_its_own_run_or_of_a_data_set_of_its_kind(
    finished, output_of, tmp_path
):
    """The photographs that `attack` trains on by default have three channels, the artifact's digits one."""
    folder, _ = finished
    seen, exported = next(folder.glob("artifacts/*")) / "observation", tmp_path / "exported"
    words = ("attack", "--attack", "class-mean", "--out", tmp_path)
    assert "class-mean: 2 victims" in output_of(*words, "--artifact", seen)
    within = next(tmp_path.glob("*class-mean.safetensors")).read_bytes()
    output_of("export", seen, "--into", exported)
    assert "class-mean: 2 victims" in output_of(*words, "--artifact", exported)
    # The default layout's seed deals out other validation images than the run's.
    assert next(tmp_path.glob("exported*class-mean.safetensors")).read_bytes() != within
    text = output_of(*words, "--artifact", exported, "--dataset", "photos", expect=2)
    assert "is of images with 1 channel(s) and 10 classes, but photos has 3 and 10; name a data set" in text
    index = json.loads((exported / "index.json").read_text())
    assert index["preset"] == "smoke"
    index["setup"]["dataset"] = "folder:secret"
    observation_files.write_index(exported, observation_files.Index.model_validate(
        {name: value for name, value in index.items() if name not in observation_files.OUTSIDE_INDEX}
    ))  # fmt: skip
    text = output_of(*words, "--artifact", exported, expect=2)
    assert "of the data set 'folder:secret', which is not built in; name its images with --dataset" in text


def test_a_study_runs_resumes_and_tells_its_state(output_of, tmp_path):
    words = ["study", "accuracy", "--datasets", "digits", "--methods", "local,fedavg", *SMALL, "--out", tmp_path]
    assert "0 of 2 cells done, 2 not run" in output_of(*words, "--status")
    text = output_of(*words[:5], "fedavg", *SMALL, "--out", tmp_path)
    assert "1 of 1 cells done" in text
    before = {p: p.stat().st_mtime_ns for p in tmp_path.glob("cells/*/*.json")}
    assert len(before) == 3  # specification, one seed, record
    text = output_of(*words)
    assert "[1/1] digits local seed 100: done" in text
    assert {p: p.stat().st_mtime_ns for p in before} == before
    written = {path.name for path in (tmp_path / "accuracy-smoke").iterdir()}
    assert {
        "report.md",
        "report.html",
        "accuracy.md",
        "accuracy.html",
        "accuracy.csv",
        "accuracy.tex",
        "gain-digits-4clients.png",
        "roc-digits-4clients.pdf",
    } <= written
    page = (tmp_path / "accuracy-smoke" / "report.md").read_text()
    assert all(f"]({name})" in page for name in written if name.endswith(".png"))
    assert "2 of 2 cells done" in output_of(*words, "--status")


def test_a_state_says_where_there_is_no_folder_to_read(output_of, tmp_path):
    words = ["study", "accuracy", "--datasets", "digits", "--methods", "local", *SMALL, "--status", "--out"]
    missing, file = tmp_path / "mistyped", tmp_path / "file"
    file.touch()
    assert f"there is no folder {missing} yet" in " ".join(output_of(*words, missing).split())
    assert f"{file} is a file; name a folder of results with --out" in output_of(*words, file, expect=2)
    assert not missing.exists()


def test_a_learning_rate_is_searched_from_the_command_line(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    words = [
        "search",
        "--method",
        "local",
        "--dataset",
        "digits",
        "--over",
        "task.lr=0.001,0.01",
        "--per-client",
        "16",
        *SMALL,
    ]
    ran = command(*words, "--first-seed", "3", "--local-epochs", "2", "--schedule", "task.kind=sgd")
    assert not ran.status
    specs = [json.loads(path.read_text()) for path in tmp_path.glob("runs/train/*/spec.json")]
    assert {s["seed"] for s in specs} == {3}
    assert {s["schedule"]["local_epochs"] for s in specs} == {2}
    tasks = sorted((s["schedule"]["task"] for s in specs), key=lambda task: task["lr"])
    assert tasks == [{"kind": "sgd", "lr": lr, "weight_decay": 1e-4} for lr in (0.001, 0.01)]
    assert ran.out.count("best") == 1


def test_every_study_is_listed(output_of):
    text = output_of("list", "studies")
    assert all(
        name in text for name in ("accuracy", "attack-table", "fedcg-table1", "fedmd-cg-sensitivity", "nfl-cgan-table5")
    )


@pytest.mark.parametrize(("kind", "count"), [("methods", 14), ("attacks", 40), ("defenses", 12), ("datasets", 15)])
def test_list_names_every_plug_in(kind, count, output_of):
    lines = [line for line in output_of("list", kind).splitlines() if re.match(r"[a-z0-9-]+ ", line)]
    assert len([line for line in lines if not line.startswith("name")]) == count


HELP = ("", "attack", "train", "table", "study", "grid", "list", "show", "partition", "data", "data check")


@pytest.mark.parametrize("name", HELP)
def test_help_has_an_example(name, output_of):
    text = output_of(*name.split(), "--help")
    assert "Usage" in text
    assert name == "data" or "xample" in text


LISTINGS = ("methods", "attacks", "defenses", "datasets", "studies")


@pytest.mark.parametrize("words", [(), ("data",)])
def test_a_group_of_commands_by_itself_prints_its_help(words, command):
    ran = command(*words)
    assert ran.status == 0
    assert ran.out.startswith("Usage: privbench")
    assert ran.out.count("\n") > 5
    assert not ran.err


def test_help_and_listings_do_not_import_torch(tmp_path):
    """In a process of its own, where nothing else has imported it."""
    probe = (
        "import contextlib, sys\n"
        "from privbench.cli.main import main\n"
        "for name in sys.argv[1:]:\n"
        "    sys.argv = ['privbench', *name.split()]\n"
        "    with contextlib.suppress(SystemExit):\n"
        "        main()\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    words = [*(f"{name} --help" for name in HELP), *(f"list {kind}" for kind in LISTINGS), "list attacks --long"]
    completed = subprocess.run([sys.executable, "-c", probe, *words], cwd=tmp_path, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.count("Usage") >= len(HELP)
    assert all(
        name in completed.stdout for name in ("fedmd-cg", "oracle-decoder", "gaussian", "domainnet", "attack-table")
    )
    assert completed.stderr == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["attack", "--method", "fedgc"], "unknown method 'fedgc'; did you mean 'fedcg'?"),
        (["attack", "--dataset", "cifar"], "unknown dataset 'cifar'; did you mean 'cifar10'?"),
        (["attack", "--attack", "stagd"], "unknown attack 'stagd'; did you mean 'staged'?"),
        (["attack", "--defense", "gaussian:-1"], "variance of at least 0"),
        (["attack", "--defense", "gaussan:1"], "did you mean 'gaussian'?"),
        (["attack", "--preset", "fast"], "unknown preset 'fast'"),
        (["attack", "--method", "local"], "nothing to attack"),
        (["attack", "--backbone", "resnet81"], "unknown backbone 'resnet81'; did you mean 'resnet18'?"),
        (["train", "--image-size", "224"], "lenet5 takes images of 32x32, but 224x224 was asked for"),
        (["attack", "--device", "tpu", "--preset", "smoke"], "unknown device 'tpu'"),
        (["attack", "--set", "divrsity=0", "--method", "fedcg"], "no setting 'divrsity'; did you mean 'diversity'?"),
        (
            ["attack", "--attack-set", "stps=3", "--attack", "dlg", "--preset", "smoke"],
            "no setting 'stps'; did you mean 'steps'?",
        ),
        (["attack", "--set", "nonsense", "--method", "fedcg"], "a setting is written name=value"),
        (["train", "--method", "fedcg", "--set", "ramp_rounds=0"], "ramp_rounds should be at least 1, but 0 was given"),
        (
            ["train", "--method", "fedcg", "--set", "diversity=abc"],
            "diversity takes a finite number, but 'abc' was given",
        ),
        (["train", "--method", "fedprox", "--set", "mu=nan"], "mu takes a finite number, but nan was given"),
        (["train", "--method", "fedmd-cg", "--set", "without=1"], "without takes a word, but 1 was given"),
        (
            ["train", "--method", "fedmd-cg", "--set", "lambda1=abc"],
            "lambda1 takes a finite number, but 'abc' was given",
        ),
        (
            ["train", "--method", "fedmd-cg", "--set", "ramp_power=-1"],
            "ramp_power should be at least 0, but -1 was given",
        ),
        (["attack", "--truth", "x"], "--truth goes with --artifact"),
        (["attack", "--artifact", "x", "--method", "fedcg"], "--method says nothing beside --artifact; leave it out"),
        (["attack", "--artifact", "x", "--seeds", "3"], "--seeds says nothing beside --artifact"),
        (["attack", "--artifact", "x", "--defense", "none"], "--defense says nothing beside --artifact"),
        (["attack", "--artifact", "x", "--labels-known"], "--labels-known says nothing beside --artifact"),
        (
            ["attack", "--attack", "dlg", "--attack-set", "steps=1", "--attack-set", "steps=2"],
            "setting steps is given twice",
        ),
        (["attack", "--artifact", ""], "--artifact is empty; name something or leave it out"),
        (["attack", "--out", ""], "--out is empty"),
        (["partition", "--run", "0123456789ab", "--clients", "3"], "--clients says nothing beside --run; leave it out"),
        (["partition", "--run", "0123456789ab", "--dataset", "digits"], "--dataset says nothing beside --run"),
        (["partition", "--run", ""], "--run is empty; name something or leave it out"),
        (["report", ""], "RUNS is empty"),
        (["show", ""], "RUN is empty"),
        (["attack", "--victims", "0"], "--victims"),
        (["attack", "--clients", "99999", "--dataset", "digits", "--preset", "smoke"], "99999 clients were asked for"),
        (
            ["attack", "--victims", "4000", "--dataset", "digits", "--preset", "smoke"],
            "lower --victims or --batch-size",
        ),
        (["attack", "--dataset", "cifar10", "--preset", "smoke"], "cifar10 needs"),
        (["attack", "--data-dir", "nowhere", "--preset", "smoke"], "'nowhere' does not exist"),
        (["attack", "--domains", "a", "--dataset", "digits", "--preset", "smoke"], "has one domain only"),
        (
            ["attack", "--round", "soon", "--dataset", "digits", "--preset", "smoke", "--seeds", "1"],
            "--round takes 0, a number",
        ),
        (["attack", "--artifact", "nothing.safetensors"], "there is no observation at nothing.safetensors"),
        (["table", "--datasets", "digits,phots"], "did you mean 'photos'?"),
        (["study", "none"], "unknown study 'none'; known: accuracy"),
        (["study", "acuracy"], "unknown study 'acuracy'; did you mean 'accuracy'?"),
        (["study", "accuracy", "--methods", "fedavgg"], "unknown method 'fedavgg'; did you mean 'fedavg'?"),
        (["study", "nfl-cgan-table5", "--methods", "local"], "has no cells of local; it compares fedgen, nfl-cgan"),
        (
            ["study", "accuracy", "--methods", "feddf", "--datasets", "digits"],
            "has no cell of these methods on these data sets",
        ),
        (["study", "accuracy", "--datasets", ","], "--datasets names no data set"),
        (["study", "accuracy", "--preset", "fast"], "unknown preset 'fast'"),
        (
            ["study", "accuracy", "--datasets", "cifar10", "--preset", "smoke"],
            "no cell of 'accuracy' could be run: cifar10 needs",
        ),
        (["list", "things"], "cannot list 'things'"),
        (["list", "runs"], "there are no runs"),
        (["show", "abc"], "no run or cell"),
        (["grid", "--dataset", "digits"], "no finished cell"),
        (["grid", "--dataset", "digits", "--round", "foo"], "--round should be a round: best, last, or a number"),
        (["study", "meta", "--preset", "smoke", "--status", "--shard", "3/2"], "--status shows the whole study"),
        (["train", "--dataset", "digits", "--omega", "0"], "--omega must be a positive number"),
        (["train", "--dataset", "digits", "--omega", "-0.1"], "but -0.1 was given"),
        (["train", "--dataset", "digits", "--omega", "few"], "'--omega': Input should be a valid number"),
        (
            ["train", "--dataset", "digits", "--omega", "1", "--partition", "iid"],
            "go with --partition dirichlet, but it is iid",
        ),
        (["train", "--dataset", "digits4", "--min-per-client", "5", "--partition", "domain"], "but it is domain"),
        (
            ["train", "--dataset", "digits", "--partition", "random"],
            "'iid', 'domain', 'dirichlet' or 'classes', but 'random' was given",
        ),
        (["partition", "--dataset", "digits", "--partition", "domain"], "has one domain only"),
        (["partition", "--dataset", "digits", "--omega", "1", "--min-per-client", "301"], "300 is the most"),
        (["partition", "--dataset", "folder:"], "needs a path"),
        (["partition", "--dataset", "folder:nowhere"], "there is no folder"),
        (["table", "--datasets", "folder:nowhere"], "there is no folder"),
        (["data", "fetch", "folder:nowhere"], "nothing to fetch"),
        (["partition", "--run", "abc"], "'abc' is no training run under runs"),
        (["train", "--rounds", "-1"], "--rounds"),
        (["train", "--schedule", "rouds=3"], "a schedule has no 'rouds'; did you mean 'rounds'?"),
        (["study", "accuracy", "--schedule", "patience"], "a setting is written name=value, but 'patience' was given"),
        (["attack", "--lr", "-1"], "schedule.task.lr: Input should be greater than 0, but -1.0 was given"),
        (["table", "--batch", "0"], "--batch"),
        (["train", "--batch", "8", "--schedule", "batch=4"], "batch is given twice"),
        (["train", "--protocol", "fedgc"], "unknown protocol 'fedgc'; did you mean 'fedcg'?"),
        (["train", "--measured", "broadcst"], "'personal', 'uploaded' or 'broadcast', but 'broadcst' was given"),
        (
            ["search", "--over", "task.rl=1,2"],
            "neither FedProx nor a schedule has a 'task.rl'; did you mean 'task.lr'?",
        ),
        (["search", "--over", "mu"], "--over takes a setting and its values"),
        (["attack", "--attack", "lader"], "unknown attack 'lader'; did you mean 'ladder'?"),
        (["nonsense"], "nonsense"),
        (["attack", "--colour"], "colour"),
    ],
)
def test_bad_input_gets_one_clear_line_and_status_2(words, message, tmp_path, monkeypatch, command):
    """In this process, where torch is imported already; the next tests show the same in a process of its own."""
    monkeypatch.chdir(tmp_path)
    ran = command(*words)
    assert ran.status == 2
    assert message in ran.err
    assert ran.err.count("privbench: ") == 1
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("words", [("list", "runs", "--out"), ("data", "check"), ("export", "--into", "there")])
def test_a_path_that_is_none_is_named_in_one_line(words, tmp_path, monkeypatch, command):
    """A name of more characters than a file system takes."""
    monkeypatch.chdir(tmp_path)
    name = "x" * 300
    ended = command(*words, f"folder:{name}" if words[0] == "data" else name)
    assert ended.status == 2
    assert ended.err.count("privbench: ") == 1
    assert name in ended.err
    assert ended.err.endswith(": File name too long\n")


def test_an_attack_whose_needs_are_not_met_names_the_way_out(tmp_path):
    """In a process of its own, where nothing but that line is printed as an error."""
    words = ["attack", "--method", "fedavg", "--attack", "feature-statistics", "--dataset", "digits", *SMALL]
    text = privbench(*words, cwd=tmp_path, expect=2)
    assert (
        "feature-statistics needs the upload:generator, but fedavg shares only [extractor, classifier]; try --attack staged"
        in text
    )


def test_an_attack_on_whole_updates_names_the_option_that_observes_them(output_of):
    words = ["attack", "--method", "fedsplit", "--attack", "update-matching", "--dataset", "digits", *SMALL]
    text = output_of(*words, expect=2)
    assert "update-matching needs whole local updates, and single gradients were observed; add --observe update" in text


def test_an_unwritable_output_folder_is_named(output_of, tmp_path):
    (tmp_path / "file").write_text("")
    text = output_of("attack", "--dataset", "digits", *SMALL, "--out", tmp_path / "file" / "x", expect=2)
    assert "cannot write" in text


def test_a_damaged_and_a_foreign_artifact_are_named(finished, output_of, tmp_path):
    folder, _ = finished
    whole = next(folder.glob("artifacts/*/observation"))
    shutil.copytree(whole, tmp_path / "cut")
    (rounds,) = (tmp_path / "cut").glob("round-*")
    rounds.write_bytes(rounds.read_bytes()[:5000])
    assert f"{rounds.name} is damaged" in output_of("attack", "--artifact", "cut", expect=2)
    (tmp_path / "cut" / "index.json").write_text("hello, I am a poem about gradients")
    assert "index.json is damaged" in output_of("attack", "--artifact", "cut", expect=2)
    truth = next(folder.glob("artifacts/*/observation-truth.safetensors"))
    assert "is no folder" in output_of("attack", "--artifact", truth, expect=2)
    assert f"did you mean {whole}?" in output_of("attack", "--artifact", whole.parent, expect=2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_leaves_a_state_that_the_same_command_continues(number, output_of, tmp_path):
    # A shell starts what it puts into the background with interruptions ignored; the child must not inherit that. So many
    # rounds take a minute at least, so that the interruption cannot come after the last.
    start = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from privbench.cli.main import main; main()"
    words = ["train", "--dataset", "digits", "--clients", "2", "--per-client", "20", "--rounds", "2000", *SMALL]
    words += ["--schedule", "patience=2000"]
    process = subprocess.Popen(
        [sys.executable, "-c", start, *words, "--out", str(tmp_path)],
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    awaited, written = {"checkpoint.safetensors", "checkpoint-previous.safetensors"}, set()
    while process.poll() is None and not awaited <= written:
        time.sleep(0.1)
        written = {path.name for path in tmp_path.glob("train/*/*")}
    process.send_signal(number)
    _, errors = process.communicate()
    assert process.returncode == 130
    assert "the same command continues from there" in errors
    assert "Traceback" not in errors
    state = output_of("list", "runs", "--out", tmp_path)
    assert int(re.search(r"stopped after round (\d+)", state)[1]) >= 1


def test_a_user_plug_in_is_one_file_named_by_module_and_class(output_of, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from typing import ClassVar\n"
        "import torch\n"
        "from attacks.floors import Grey\n\n\n"
        "@dataclass(frozen=True)\n"
        "class White(Grey):\n"
        "    '''All pixels one.'''\n"
        "    knowledge: ClassVar[str] = 'nothing'\n\n"
        "    def reconstruct(self, artifact, knowledge, seed, report=None):\n"
        "        found = super().reconstruct(artifact, knowledge, seed)\n"
        "        return found._replace(images=torch.ones_like(found.images))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    text = output_of("attack", "--attack", "mine:White", "--dataset", "digits", *SMALL)
    assert "mine:White" in text


@pytest.mark.parametrize("name", ["digits", "cifar10"])
def test_data_check_says_what_is_there(name, output_of, tmp_path):
    if name == "digits":
        assert "nothing to check" in output_of("data", "check", name)
    else:
        assert output_of("data", "check", name, "--data-dir", tmp_path, expect=2).count("missing") >= 6


@pytest.mark.parametrize("width", ["narrow", pytest.param("whole", marks=pytest.mark.thorough)])
def test_resnet18_trains_and_is_attacked_end_to_end(width, tmp_path, command, monkeypatch):
    if width == "narrow":
        narrow_layers(monkeypatch)
    ran = command(
        "attack", "--method", "fedcg", "--backbone", "resnet18", "--dataset", "digits", *SMALL, "--rounds", "1",
        "--clients", "2", "--per-client", "16", "--victims", "1", "--attack-set", "steps=1", "--attack", "dlg",
        "--attack", "feature-statistics", "--attack", "staged", "--out", tmp_path,
    )  # fmt: skip
    assert not ran.status
    assert "resnet18 at 32x32" in ran.out
    records = [json.loads(path.read_text()) for path in tmp_path.glob("cells/*/record.json")]
    assert {r["cell"]["attack"] for r in records} == {"dlg", "feature-statistics", "staged"}
    assert all((r["cell"]["train"]["backbone"], r["cell"]["train"]["image_size"]) == ("resnet18", 32) for r in records)
    assert all(v["outcome"] == "reconstructed" for r in records for s in r["seeds"] for v in s["victims"])


def test_clients_are_shown_from_data_and_again_from_a_run_on_disk(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)

    def output_of(*words):
        ran = command(*words)
        assert not ran.status
        return ran.out

    layout = ["--dataset", "digits", "--omega", "0.1", "--preset", "smoke"]
    before = output_of("partition", *layout)
    assert "Dirichlet(0.1), 4 clients" in before
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {
        "digits-clients-dirichlet-0.1-seed100.png", "digits-clients-dirichlet-0.1-seed100.pdf",
    }  # fmt: skip
    output_of("train", *layout, "--rounds", "0", "--seeds", "1")
    (run,) = (tmp_path / "runs/train").iterdir()
    after = output_of("partition", "--run", run.name[:5])
    assert before.splitlines()[:7] == after.splitlines()[:7]
    assert (tmp_path / f"runs/clients-{run.name}.png").is_file()


def test_a_table_takes_folders_with_domains(tmp_path):
    from privbench.requests.words import _with_domains

    assert _with_domains("digits") == ("digits", None)
    assert _with_domains("digit5:svhn+usps") == ("digit5", ("svhn", "usps"))
    assert _with_domains(f"folder:{tmp_path}") == (f"folder:{tmp_path}", None)
    assert _with_domains(f"folder:{tmp_path}:ink+oil") == (f"folder:{tmp_path}", ("ink", "oil"))
