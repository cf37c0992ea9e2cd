"""The list of published runs: its order, and that it goes on after a kill in the middle of a run."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from benchmarks import published
from benchmarks.published import Item
from privbench import presets, registry, spec
from privbench.records.schema import read
from privbench.records.store import Store
from privbench.training import checkpoint

ROOT = Path(__file__).resolve().parents[2]
# (data set, method, defence) -> id of the run of seed 100, at revision 4.
NAMES = {
    ("cifar10", "fedavg", "none"): "b11a3e15a061",
    ("cifar10", "fedavg", "gaussian:0.001"): "fa2d84b64642",
    ("cifar10", "fedavg", "gaussian:0.1"): "6208c53c800c",
    ("cifar10", "fedsplit", "none"): "202cd4ed8ca9",
    ("cifar10", "fedcg", "none"): "3285ceecc683",
    ("cifar10", "local", "none"): "2d0dfab4af5c",
    ("cifar10", "fedprox", "none"): "4d085797cd26",
    ("cifar10", "feddf", "none"): "58bdced565d5",
    ("cifar10", "fedgen", "none"): "40b8b4e33aa0",
    ("cifar10", "fedper", "none"): "4facf1f6d10c",
    ("cifar10", "nfl-cgan", "none"): "d54e4023c816",
    ("cifar10", "fedmd-cg", "none"): "ceb13f5d1907",
    ("office10", "fedavg", "none"): "2df58682569c",
    ("office10", "fedavg", "gaussian:0.001"): "3f2c9cadb76c",
    ("office10", "fedavg", "gaussian:0.1"): "a613a1011397",
    ("office10", "fedsplit", "none"): "094f42fb267a",
    ("office10", "fedcg", "none"): "2bf48a6c0268",
    ("office10", "local", "none"): "88defbaf7a00",
    ("fmnist", "fedavg", "none"): "7a14dd3bbecb",
    ("fmnist", "fedavg", "gaussian:0.001"): "9269f53febe4",
    ("fmnist", "fedavg", "gaussian:0.1"): "09cc343d1bde",
    ("fmnist", "fedsplit", "none"): "e233220d377b",
    ("fmnist", "fedcg", "none"): "073e10f21350",
    ("fmnist", "local", "none"): "102b8eccca31",
    ("digit5", "fedavg", "none"): "ee2993fd955c",
    ("digit5", "fedavg", "gaussian:0.001"): "b3d9ad6c9f73",
    ("digit5", "fedavg", "gaussian:0.1"): "7a499f8f4d5d",
    ("digit5", "fedsplit", "none"): "f331fda6e2e6",
    ("digit5", "fedcg", "none"): "19a05bf598cb",
    ("digit5", "local", "none"): "a0f084af6e38",
}
SMALL = (Item(1, "digits", (("fedavg", "none"), ("fedcg", "none")), clients=2), Item(2, "photos", (("local", "none"),)))


def small(seeds=(100, 101)):
    return published.runs(SMALL, "smoke", seeds, "update")


def order(trials):
    return [(t.specs[0].dataset, t.specs[0].method, tuple(s.seed for s in t.specs), len(t.cells)) for t in trials]


def test_every_column_comes_with_the_first_seed_before_any_comes_with_another(tmp_path):
    ordered = order(published.jobs(small(), tmp_path, None, "cpu", stacked=False))
    columns = [("digits", "fedavg"), ("digits", "fedcg"), ("photos", "local")]
    assert ordered == [(*column, (seed,), 1) for seed in (100, 101) for column in columns]


def test_on_a_gpu_the_seeds_of_a_column_train_together_and_are_measured_apart(tmp_path):
    ordered = order(published.jobs(small()[:1], tmp_path, None, "cpu", stacked=True))
    assert ordered == [
        ("digits", "fedavg", (100, 101), 0),
        ("digits", "fedavg", (100,), 1),
        ("digits", "fedavg", (101,), 1),
    ]


def test_the_list_is_of_published_settings_and_every_run_is_in_it_once():
    cells = [cell for column in published.runs(published.ITEMS, "paper", published.SEEDS, "update") for cell in column]
    assert len({cell.id for cell in cells}) == len(cells) == 5 * sum(len(item.columns) for item in published.ITEMS)
    first = cells[0].train
    assert (first.dataset, first.method, first.clients, first.per_client) == ("cifar10", "fedavg", 4, 2000)
    assert {cell.train.method for cell in cells} <= set(registry.METHODS)
    assert first.schedule == presets.SCHEDULES["paper"]
    assert first.schedule.rounds >= checkpoint.LONG


def test_every_run_keeps_its_name():
    """A new field of a specification is not written where it has the value that these runs had without it."""
    assert spec.REVISION == 4
    cells = [cell for column in published.runs(published.ITEMS, "paper", (100,), "update") for cell in column]
    runs = [run for cell in cells for run in cell.train_specs()]
    assert {(run.dataset, run.method, run.defense): run.id for run in runs} == NAMES


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--items", "6"), "--items takes numbers from 1 to 5, but 6 was given"),
        (("--items", ""), "--items takes numbers with commas between, e.g. 1,2, not ''"),
        (("--seeds", "a"), "--seeds takes numbers with commas between, e.g. 1,2, not 'a'"),
        (("--seeds", "-1"), "--seeds takes numbers with commas between, e.g. 1,2, not '-1'"),
        (("--preset", "smok"), "unknown preset 'smok'"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line_with_status_2(options, message, tmp_path, monkeypatch, capsys):
    status, out, err = started(tmp_path, options, monkeypatch, capsys)
    assert (status, out) == (2, "")
    assert err.startswith(f"error: {message}")
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_items_and_seeds_may_have_blanks_and_repeats(tmp_path, monkeypatch, capsys):
    status, out, err = started(tmp_path, ("--items", "1, 2,1", "--seeds", "3, 4,3"), monkeypatch, capsys)
    lines = out.splitlines()
    assert status == 0, err
    assert len(set(lines)) == len(lines) == 2 * sum(len(item.columns) for item in published.ITEMS[:2])


def started(place, options, monkeypatch, capsys):
    """(status, output, errors) of `--status` in this process, whose signals stay as they are."""
    monkeypatch.setattr(published.interrupts, "listen", lambda: None)
    monkeypatch.setattr(sys, "argv", ["published", "--out", str(place), "--status", *options])
    with pytest.raises(SystemExit) as end:
        typer.run(published.main)
    return end.value.code, *capsys.readouterr()


def test_a_killed_start_is_continued_by_the_next_and_gives_the_same_numbers(tmp_path):
    """Killed outright, by a worker of its own that has a complete round; the next start ends with the numbers of one left alone."""
    # Python imports this module where a process begins. A worker does not run the script of its start again.
    (tmp_path / "sitecustomize.py").write_text(
        "import multiprocessing, os, signal, time\n"
        "from privbench.training import checkpoint\n"
        "keep = checkpoint.keep\n"
        "def kept(folder, spec, state):\n"
        "    keep(folder, spec, state)\n"
        "    if state.round:\n"
        "        os.kill(multiprocessing.parent_process().pid, signal.SIGKILL)\n"
        "        time.sleep(600)\n"
        "checkpoint.keep = kept\n"
    )
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from benchmarks import published\n"
        "from tests.benchmarks.test_published import small\n"
        "published.train(small((100,))[:2], Path(sys.argv[1]), None, 'cpu', 2)\n"
    )
    columns = small((100,))[:2]
    store, cells = Store(tmp_path / "killed"), [cell for column in columns for cell in column]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}
    # The workers write to the same pipe, so that its end comes when they have followed their parent.
    start = [sys.executable, "-c", script, str(store.root)]
    ended = subprocess.run(start, env=environment, stdout=subprocess.PIPE).returncode
    assert ended == -signal.SIGKILL
    states = [published.state(store, cell) for cell in cells]
    assert "stopped after round 1" in " ".join(states)
    assert not any("finished" in state for state in states)
    assert published.train(columns, store.root, None, "cpu", 1) == []
    assert [published.state(store, cell) for cell in cells] == ["finished after 2 rounds, recorded"] * 2
    alone = Store(tmp_path / "alone")
    assert published.train(columns, alone.root, None, "cpu", 1) == []
    for cell in cells:
        again, once = (read(each.record(cell)) for each in (store, alone))
        assert again.training[0].seed == 100
        assert again.accuracy == once.accuracy
        assert [r.loss for r in again.training[0].rounds] == [r.loss for r in once.training[0].rounds]
    assert published.jobs(columns, store.root, None, "cpu", stacked=False) == []


def test_a_run_says_when_it_was_trained_on_several_kinds_of_machine(tmp_path, monkeypatch):
    store, cell = Store(tmp_path), small((100,))[0][0]
    assert published.state(store, cell) == "not started"
    entries = [{"machine": {"processor": name}} for name in ("a", "b", "a")]
    monkeypatch.setattr(checkpoint, "history", lambda folder, run: entries)
    assert published.state(store, cell) == "finished after 3 rounds, trained on 2 kinds of machine"
