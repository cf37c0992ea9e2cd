"""The worker pool: results are written by the jobs, failures are told, the rest goes on."""

import importlib.util
import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import pytest

from privbench import registry, trust
from privbench.errors import Busy, Interrupted, UserError
from privbench.execution import worker_pool
from privbench.execution.worker_pool import run_jobs
from privbench.system.cpu import threads

HANGS = 600  # seconds after which what is waited for hangs: far more than the busiest machine takes


@dataclass(frozen=True)
class Write:
    title: str
    folder: Path
    fault: str = ""

    @property
    def log(self):
        return self.folder / "log" / f"{self.title}.txt"

    def run(self, progress):
        progress(1, 2, "half")
        if self.fault == "user":
            raise UserError(f"{self.title} was asked the impossible")
        if self.fault == "interrupt":
            raise KeyboardInterrupt
        if self.fault == "bug":
            1 / 0
        if self.fault.startswith("attack "):
            registry.resolve("attack", self.fault.removeprefix("attack "))
        if self.fault == "unpicklable":
            error = RuntimeError("one\ntwo")
            error.cause = lambda: None
            raise error
        if self.fault == "death":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "slow":
            time.sleep(1)
        if self.fault == "endless":
            (self.folder / self.title).write_text(str(os.getpid()))
            time.sleep(HANGS)
        import torch

        (self.folder / self.title).write_text(str(torch.get_num_threads()))


class Ran(NamedTuple):
    """How a pool ended."""

    workers: int
    folder: Path
    seen: list
    ended: dict
    failures: list
    log_lines: list  # what was logged


def watch():
    seen, ended = [], {}
    return seen, ended, lambda *message: seen.append(message), lambda title, reason: ended.update({title: reason})


@pytest.fixture(scope="module", params=[1, 2], ids=["one worker", "two workers"])
def ran(request, tmp_path_factory):
    """One pool for all jobs that fail or end without ending others: a worker takes seconds to begin."""
    folder, log_lines = tmp_path_factory.mktemp("ran"), []
    listener = logging.Handler()
    listener.emit = lambda entry: log_lines.append(entry.getMessage())
    jobs = [
        Write("a", folder), Write("b", folder, "user"), Write("c", folder, "attack attacks.floors:Grey"),
        Write("d", folder, "attack attacks.dlg:DLG"), Write("e", folder, "bug"), Write("f", folder, "unpicklable"),
        Elsewhere("g", folder), Tell("h", folder),
    ]  # fmt: skip
    seen, ended, progress, outcome = watch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trust, "_names", {*trust.added()})
        trust.add("attacks.floors:Grey")
        logging.getLogger("privbench").addHandler(listener)
        try:
            failures = run_jobs(jobs, request.param, progress, outcome)
        finally:
            logging.getLogger("privbench").removeHandler(listener)
    return Ran(request.param, folder, seen, ended, failures, log_lines)


def test_one_job_that_fails_does_not_stop_the_others(ran):
    """Nor do others use a name that the user has not named (privbench/trust.py), whichever process they run in."""
    assert len(ran.failures) == 4
    assert sorted(p.name for p in ran.folder.iterdir() if p.is_file()) == ["a", "c", "g"]
    assert [title for title in "abcdefgh" if ran.ended[title] is None] == ["a", "c", "g", "h"]
    assert ran.ended["b"] == "b was asked the impossible"
    assert "attack 'attacks.dlg:DLG' is code of its own" in ran.ended["d"]
    assert ("a", 1, 2, "half") in ran.seen
    if ran.workers == 2:
        assert (ran.folder / "a").read_text() == "1"  # one thread per process


@pytest.mark.parametrize(
    ("named", "origin"), [("broken:Attack", "error in broken, line 7"), ("folder:broken", "internal error")]
)
def test_an_error_of_a_users_own_module_names_its_line(named, origin, tmp_path, monkeypatch):
    """The last of its lines that the error passed, where that module is one that the user named."""
    monkeypatch.setattr(trust, "_names", {named})
    file = tmp_path / "broken.py"
    file.write_text("from math import factorial\n\ndef run():\n    below()\n\ndef below():\n    factorial(-1)\n")
    spec = importlib.util.spec_from_file_location("broken", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(ValueError, match="factorial") as caught:
        module.run()
    assert worker_pool.in_words(caught.value) == f"{origin}: ValueError: {caught.value}"


def test_a_bug_in_a_job_is_one_line_with_its_traceback_on_disk(ran):
    lines = {
        "e": f"internal error: ZeroDivisionError: division by zero; see {ran.folder / 'log' / 'e.txt'}",
        "f": f"internal error: RuntimeError: one; see {ran.folder / 'log' / 'f.txt'}",
    }
    assert {title: ran.ended[title] for title in lines} == lines
    assert {*lines.values()} < {*ran.failures}
    log = (ran.folder / "log" / "e.txt").read_text()
    assert log.startswith("Traceback")
    assert "1 / 0" in log


def test_the_traceback_goes_once_the_job_ends_well(tmp_path):
    _, _, progress, outcome = watch()
    assert len(run_jobs([Write("a", tmp_path, "bug")], 1, progress, outcome)) == 1
    assert (tmp_path / "log" / "a.txt").exists()
    assert run_jobs([Write("a", tmp_path)], 1, progress, outcome) == []
    assert not (tmp_path / "log" / "a.txt").exists()


def test_what_others_are_at_is_put_off_and_messages_go_through_the_parent(ran):
    assert sorted(ran.log_lines) == ["g: process 7 on elsewhere is at work on it; other work first", "h is made again"]


@dataclass(frozen=True)
class Wait(Write):
    """Waits for `other` to end, then for a share of `cores` cores, and writes the share that it has."""

    other: str = ""
    cores: int = 1

    def run(self, progress):
        import torch

        deadline = time.monotonic() + HANGS
        while time.monotonic() < deadline and not (
            (not self.other or (self.folder / self.other).exists()) and threads(9) == self.cores
        ):
            time.sleep(0.01)
        (self.folder / self.title).write_text(f"{threads(9)} {torch.get_num_threads()}")


def test_the_last_job_may_train_on_all_cores(tmp_path):
    """The pool lends the cores that found no other job; torch's own threads, on which attacks depend, stay one."""
    jobs = [Wait("a", tmp_path), Wait("b", tmp_path, other="a", cores=2)]
    _, ended, progress, outcome = watch()
    assert run_jobs(jobs, 2, progress, outcome) == []
    assert (tmp_path / "a").read_text() == "1 1"
    assert (tmp_path / "b").read_text() == "2 1"
    assert ended == {"a": None, "b": None}


def test_a_bug_is_reported_even_where_its_traceback_cannot_be_written(tmp_path):
    (tmp_path / "log").write_text("a file in the folder's place")
    _, ended, progress, outcome = watch()
    run_jobs([Write("a", tmp_path, "bug")], 1, progress, outcome)
    assert ended == {"a": "internal error: ZeroDivisionError: division by zero"}


def test_a_process_that_dies_fails_its_own_job_alone(tmp_path):
    """The job beside it dies with it, because the pool is gone, and is run again; one behind them is run in a new pool."""
    jobs = [Write("a", tmp_path, "death"), Write("b", tmp_path, "slow"), Write("c", tmp_path)]
    _, ended, progress, outcome = watch()
    failures = run_jobs(jobs, 2, progress, outcome)
    assert failures == ["a: its process died, as it does when the machine runs out of memory"]
    assert ended == {"a": failures[0], **dict.fromkeys("bc")}
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == ["b", "c"]


@dataclass(frozen=True)
class Elsewhere(Write):
    """Work that another process is at, unless one waits for it."""

    waits: bool = False

    def patient(self):
        return replace(self, waits=True)

    def run(self, progress):
        if not self.waits:
            raise Busy("process 7 on elsewhere is at work on it")
        others = sorted(path.name for path in self.folder.iterdir() if path.is_file())
        (self.folder / self.title).write_text(" ".join(others))


def test_work_that_another_process_is_at_comes_last_and_waits(tmp_path, caplog):
    jobs = [Elsewhere("a", tmp_path), Write("b", tmp_path), Write("c", tmp_path)]
    _, ended, progress, outcome = watch()
    assert run_jobs(jobs, 1, progress, outcome) == []
    assert ended == dict.fromkeys("abc")
    assert (tmp_path / "a").read_text() == "b c"
    assert caplog.messages == ["a: process 7 on elsewhere is at work on it; other work first"]


@dataclass(frozen=True)
class Tell(Write):
    """Tells its user something, as work that makes a damaged file again does."""

    def run(self, progress):
        logging.getLogger("privbench").warning("%s is made again", self.title)


class LastWords:
    """Words that leave a process only after its job has ended, and are more than a pipe holds."""

    def __reduce__(self):
        time.sleep(1)
        return str, ("x" * 2**20,)


@dataclass(frozen=True)
class Talk(Write):
    def run(self, progress):
        progress(1, 1, LastWords())


def test_words_that_come_after_the_last_job_end_no_pool_and_are_heard(tmp_path):
    seen, ended, progress, outcome = watch()
    assert run_jobs([Talk("a", tmp_path), Talk("b", tmp_path)], 2, progress, outcome) == []
    assert ended == dict.fromkeys("ab")
    assert sorted((title, len(what)) for title, _, _, what in seen) == [("a", 2**20), ("b", 2**20)]


def test_an_interruption_is_distinguished_from_a_failure(tmp_path):
    _, _, progress, outcome = watch()
    with pytest.raises(Interrupted):
        run_jobs([Write("a", tmp_path), Write("b", tmp_path, "interrupt")], 1, progress, outcome)
    assert (tmp_path / "a").exists()


def test_workers_end_when_their_parent_is_killed_outright(tmp_path):
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from privbench.execution.worker_pool import run_jobs\n"
        "from tests.privbench.execution.test_worker_pool import Write\n"
        "if __name__ == '__main__':\n"
        "    jobs = [Write(name, Path(sys.argv[1]), 'endless') for name in 'ab']\n"
        "    run_jobs(jobs, 2, lambda *_: None, lambda *_: None)\n"
    )
    (tmp_path / "go.py").write_text(script)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    parent = subprocess.Popen([sys.executable, tmp_path / "go.py", tmp_path], env=environment)
    workers = [_written(tmp_path / name) for name in "ab"]
    assert all(_lives(pid) for pid in workers)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + HANGS / 2  # their job takes longer
    while any(_lives(pid) for pid in workers):
        assert time.monotonic() < deadline, "workers outlive their parent"
        time.sleep(0.1)


def test_a_script_of_the_users_needs_no_guard(tmp_path):
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from privbench.execution.worker_pool import run_jobs\n"
        "from tests.privbench.execution.test_worker_pool import Write\n"
        "print(run_jobs([Write(name, Path(sys.argv[1])) for name in 'ab'], 2, lambda *_: None, lambda *_: None))\n"
    )
    (tmp_path / "go.py").write_text(script)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, tmp_path / "go.py", tmp_path]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "[]\n", "")
    assert (tmp_path / "a").exists()
    assert (tmp_path / "b").exists()


def test_a_script_that_defines_plug_ins_is_there_in_every_process(monkeypatch):
    monkeypatch.setattr(trust, "_names", {"__main__:Mine"})
    script = sys.modules["__main__"]
    with worker_pool._without_script():
        assert sys.modules["__main__"] is script


def _written(path):
    deadline = time.monotonic() + HANGS
    while not path.exists() or not (text := path.read_text()):
        assert time.monotonic() < deadline, f"{path} was not written"
        time.sleep(0.1)
    return int(text)


def _lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")  # one that has ended and that nobody has waited for is no more
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
