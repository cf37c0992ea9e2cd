"""The short form of the kill campaign; `make chaos` is the long one."""

import json
import os
import re
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from benchmarks.chaos import child, life, page
from benchmarks.chaos.life import Fault, Folder


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the campaign finds processes under /proc")
@pytest.mark.parametrize(
    ("words", "lives"),
    [(["--life", "0"], 1), pytest.param([], 4, marks=pytest.mark.thorough)],
    ids=["one life", "short form"],
)
def test_a_few_kills_leave_what_an_undisturbed_run_leaves(words, lives, repository):
    completed = subprocess.run(
        [sys.executable, "-m", "benchmarks.chaos", "--short", "--seed", "5", *words],
        cwd=repository, capture_output=True, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(repository)},
    )  # fmt: skip
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert f"**{lives} of {lives} folders ended the same" in completed.stdout, completed.stdout
    assert int(re.search(r"was disturbed (\d+) times", completed.stdout)[1]) >= lives


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({"a": b"1"}, "missing: b"),
        ({"a": b"1", "b": b"2", "c": b""}, "left over: c"),
        ({"a": b"1", "b": b"3"}, "different: b"),
    ],
)
def test_a_file_that_is_not_as_it_was_is_a_fault(files, fault):
    expected = {"a": b"1", "b": b"2"}
    life.compare(expected, dict(expected))
    with pytest.raises(Fault, match=fault):
        life.compare(files, expected)


STOPPED = "privbench: stopped by SIGTERM; everything finished is on disk, and the same command continues from there\n"


@pytest.mark.parametrize(
    ("status", "number", "output", "verdict"),
    [
        (0, "SIGTERM", "wrote x", True),
        (130, "SIGTERM", STOPPED, False),
        (-9, "SIGKILL", "", False),
        (130, "SIGTERM", "", "status 130"),
        (2, "SIGTERM", "privbench: x is damaged", "status 2"),
        (-9, "SIGTERM", "", "status -9"),
        (130, "SIGTERM", STOPPED + STOPPED, "status 130"),
        (130, "SIGINT", "Traceback (most recent call last)\n" + STOPPED, "an error after SIGINT"),
    ],
)
def test_how_a_killed_process_may_end(status, number, output, verdict, tmp_path):
    folder = Folder(tmp_path / "life", 1)
    folder.log.write_text(output)
    number = getattr(life.signal, number)
    if isinstance(verdict, bool):
        assert folder.judge(status, number) is verdict
    else:
        with pytest.raises(Fault, match=verdict):
            folder.judge(status, number)


def test_a_tree_holds_every_file_but_locks_and_headers_in_any_order(tmp_path):
    for name in (".lock", ".lock-by", ".seed-1.lock", "record.json", ".record.json.tmp"):
        (tmp_path / name).write_text("1")
    for folder, header in (("a", {"x": 1, "y": 2}), ("b", {"y": 2, "x": 1})):
        text = json.dumps(header).encode()
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "t.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + b"data")
    files = life.tree(tmp_path)
    assert set(files) == {"record.json", ".record.json.tmp", "a/t.safetensors", "b/t.safetensors"}
    assert files["a/t.safetensors"] == files["b/t.safetensors"]


def test_the_page_counts_and_names_faults():
    lives = [
        {"number": 0, "kills": {"event SIGKILL": 1, "moment SIGINT": 2}, "fault": "", "event": 3, "what": ""},
        {"number": 1, "kills": {"disk": 1}, "fault": "left over: x", "event": 0, "what": "a disk of 5 bytes"},
    ]
    text = page.text(page.Campaign(lives, {1: 10}, 0, 60.0, False))
    assert "disturbed 4 times in 2 output folders" in text
    assert "**1 of 2 folders ended the same" in text
    assert "| signal at an event point | 1 | 0 | 0 |" in text
    assert "| signal at a random moment | 0 | 0 | 2 |" in text
    assert "left out: no tmpfs may be mounted here" in text
    assert "- life 1 (a disk of 5 bytes): left over: x" in text
    assert "10 of them on 1 core; 1 of them were met" in text


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="signals cannot be blocked here")
@pytest.mark.parametrize(
    ("number", "blocked", "left"),
    [("SIGKILL", False, 5), ("SIGTERM", False, 5), ("SIGTERM", True, 10), ("SIGINT", True, 10), ("SIGINT", False, 10)],
)
def test_a_file_is_cut_short_only_where_its_process_dies_of_the_signal(number, blocked, left, tmp_path, monkeypatch):
    """Workers block SIGINT, and a parent turns it into an exception: both go on, and a disk that works loses nothing then."""
    number, sent = getattr(signal, number), []
    monkeypatch.setattr(os, "kill", lambda pid, which: sent.append((pid, which)))
    trap = child.Trap(1, number, "process", 0.5)
    events = child.Events(tmp_path, trap, SimpleNamespace(value=0), SimpleNamespace(value=0))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number} if blocked else ())
    # Other tests in this process may have left handlers of the command.
    handlers = {each: signal.signal(each, handler) for each, handler in (
        (signal.SIGTERM, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler),
    )}  # fmt: skip
    try:
        with (tmp_path / "file").open("wb", buffering=0) as file:
            file.write(b"0123456789")
            events.happens(file.fileno())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for each, handler in handlers.items():
            signal.signal(each, handler)
    assert sent == [(os.getpid(), number)]
    assert (tmp_path / "file").stat().st_size == left
