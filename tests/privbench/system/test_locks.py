"""Who holds what: locks between processes, and files half-written by processes that are gone."""

import os
import re
import subprocess
import sys
import time

import pytest

from privbench.errors import Busy
from privbench.records.store import Store
from privbench.system import files, locks, processes

HOLD = (
    "import fcntl, sys\nfile = open(sys.argv[1], 'a')\nfcntl.flock(file, fcntl.LOCK_EX)\n"
    "print('held', flush=True)\nsys.stdin.read()\n"
)


@pytest.fixture
def other(tmp_path):
    """A process that holds the lock of a folder until its input ends."""
    (tmp_path / ".lock-by").write_text("process 7 on elsewhere")
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path / ".lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"held\n"
    yield process
    process.communicate()


def test_work_that_another_process_is_at_is_busy_and_says_who_is(other, tmp_path):
    who = f"process 7 on elsewhere is at work on {re.escape(str(tmp_path))}"
    with pytest.raises(Busy, match=who), locks.lock(tmp_path, wait=False):
        pytest.fail("had a lock that another process holds")


def test_a_process_that_waits_says_on_whom_and_goes_on_when_the_other_is_gone(other, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(locks, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(locks.LOG, "warning", lambda *words: (warnings.append(words), other.kill()))
    warnings = []
    with locks.lock(tmp_path, wait=True):
        assert (tmp_path / ".lock-by").read_text() == processes.named()
        assert f"process {os.getpid()} on " in processes.named()
    assert warnings[0][1].startswith("process 7 on elsewhere is at work on")
    assert not (tmp_path / ".lock-by").exists()
    with locks.lock(tmp_path, wait=False):
        pass


def gone():
    """The number of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_a_temporary_file_is_left_behind_when_its_process_is_gone():
    own_file = f".record.json{processes.mark()}"
    machine, pid, started = processes.MARK.search(own_file).groups()
    assert not processes.left_behind(own_file, 1e9)
    assert processes.left_behind(f".record.json.{machine}-{gone()}-{started}.tmp", 0.0)
    # The number is in use again: another process began at another time.
    assert processes.left_behind(f".record.json.{machine}-{pid}-{int(started) + 1}.tmp", 0.0)


@pytest.mark.parametrize(
    "name", [".record.json.00000000-1-1.tmp", f".record.json.{2**22 + 1}", ".seed-100.safetensors.12"]
)
def test_of_another_machine_or_an_earlier_version_only_age_tells(name):
    assert not processes.left_behind(name, processes.DAY - 1)
    assert processes.left_behind(name, processes.DAY + 1)


@pytest.mark.parametrize("name", [".lock", ".lock-by", ".seed-100.lock", "record.json", ".gitignore", ".notes.2024"])
def test_nothing_else_is_ever_left_behind(name):
    assert not processes.left_behind(name, 1e9)


def test_a_start_clears_up_after_processes_that_were_killed(tmp_path):
    mark = processes.MARK.search(processes.mark())
    dead = f"{mark['machine']}-{gone()}-1.tmp"
    swept = ("", "train/a", "cells/b", "artifacts/c", "artifacts/c/observation", "cache", "cache/e/f", "attack-d")
    # Somebody else's: deep in what is no folder of results, and where links lead.
    others = ("project/deep", "../elsewhere")
    out = tmp_path / "out"
    for folder in (*swept, *others):
        (out / folder).mkdir(parents=True, exist_ok=True)
        (out / folder / f".x.json.{dead}").write_text("{")
        (out / folder / f".x.json{processes.mark()}").write_text("{")
    (out / "linked").symlink_to(tmp_path / "elsewhere")
    (out / "train/linked").symlink_to(tmp_path / "elsewhere")
    Store(out).check_writable()
    assert [folder for folder in (*swept, *others) if (out / folder / f".x.json.{dead}").exists()] == list(others)
    assert all((out / folder / f".x.json{processes.mark()}").exists() for folder in (*swept, *others))


def test_a_file_that_is_written_has_the_mark_of_its_process_until_it_is_whole(tmp_path, monkeypatch):
    seen = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (seen.extend(tmp_path.iterdir()), sync(file)))
    files.write_json(tmp_path / "x.json", {})
    assert seen == [tmp_path / f".x.json{processes.mark()}"]
    assert [*tmp_path.iterdir()] == [tmp_path / "x.json"]


def test_a_process_that_nobody_waited_for_is_gone():
    process = subprocess.Popen(["true"])
    deadline = time.monotonic() + 60
    while (status := processes._status(process.pid)) and status[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not processes._lives(process.pid)
    process.wait()
