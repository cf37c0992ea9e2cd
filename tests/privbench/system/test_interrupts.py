"""A stop is a stop wherever it comes: never a damaged file, never lost, one line and status 130."""

import os
import random
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from privbench.errors import Interrupted, UserError
from privbench.execution.worker_pool import run_jobs
from privbench.system import files, interrupts

INTERRUPTS = 300
LINE = "privbench: stopped by SIGTERM; everything finished is on disk, and the same command continues from there"


@pytest.fixture(autouse=True)
def handlers():
    """The handlers of the test runner are back after every test."""
    before = {number: signal.getsignal(number) for number in (*interrupts.STOPS, signal.SIGALRM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    interrupts._stop_signal = None


# Where Python clears up, as in a callback of the garbage collector, it drops the exception and says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_while_a_file_is_read_is_never_a_damaged_file(tmp_path):
    """Of a file of many tensors, as safetensors calls back into Python for each: there an exception becomes its own error."""
    path, draw = tmp_path / "x.safetensors", random.Random(0)
    files.save_tensors(path, "artifact", {f"t{i}": torch.zeros(8) for i in range(200)}, {})
    armed, stopped = [], 0

    def stop(*_):
        if armed:
            raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, stop)
    for _ in range(INTERRUPTS):
        try:
            armed.append(True)
            # Again and again: Python drops an exception that is raised where it clears up (a finaliser, a weak reference).
            signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-4, 3e-3), 0.1)
            while True:
                files.load_tensors(path, "artifact")
        except KeyboardInterrupt:
            armed.clear()
            stopped += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert stopped == INTERRUPTS


def test_a_held_signal_comes_when_the_block_ends_and_wins_over_its_error():
    interrupts.listen()
    steps = []

    def read():
        with interrupts.delayed():
            os.kill(os.getpid(), signal.SIGTERM)
            steps.append("read")
            raise UserError("damaged")

    with pytest.raises(KeyboardInterrupt) as stop:
        read()
    assert steps == ["read"]
    assert isinstance(stop.value.__context__, UserError)
    assert interrupts.stop_signal() == "SIGTERM"
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)


def test_an_ignored_signal_stays_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    interrupts.listen()
    with interrupts.delayed():
        os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert interrupts.stop_signal() is None


@dataclass(frozen=True)
class Swallow:
    """A job in which a stop does not get through: it is dropped, or becomes an error of another kind."""

    title: str
    folder: Path
    error: type[Exception] | None

    @property
    def log(self):
        return self.folder / "log.txt"

    def run(self, progress):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            if self.error is not None:
                raise self.error("the file is damaged") from None
        (self.folder / self.title).write_text("")


@pytest.mark.parametrize("error", [None, ValueError, UserError])
def test_a_stop_that_a_job_swallows_stops_all_the_same(error, tmp_path):
    interrupts.listen()
    with pytest.raises(Interrupted):
        run_jobs([Swallow("a", tmp_path, error), Swallow("b", tmp_path, None)], 1, lambda *_: None, lambda *_: None)
    assert not (tmp_path / "b").exists()
    assert not (tmp_path / "log.txt").exists()


@pytest.mark.parametrize("error", [None, UserError, OSError])
def test_a_stop_outside_the_jobs_is_one_line_and_status_130(error, tmp_path, monkeypatch, command):
    def stopped(_):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            if error is None:
                raise
            raise error("something else") from None

    monkeypatch.setattr("privbench.cli.listing.list_runs", stopped)
    ran = command("list", "runs", "--out", tmp_path)
    assert (ran.status, ran.err) == (130, f"list: runs and cells under {tmp_path}\n{LINE}\n")


def test_a_stop_while_the_command_is_imported_is_reported_too(tmp_path):
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n")
    root = Path(interrupts.__file__).parents[2]
    ran = subprocess.run(
        [sys.executable, "-m", "privbench", "list", "methods"], cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{root}"},
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (130, f"{LINE}\n")


def test_a_stop_within_an_extension_that_runs_python_ends_with_status_130_too(tmp_path):
    """Python remembers such a stop, and dies by SIGINT at its end whatever status it was given."""
    (tmp_path / "probe.py").write_text(
        "import ctypes\n"
        "from privbench import __main__ as program\n"
        "from privbench.cli import main as command\n"
        "def stopped():\n"
        "    ctypes.pythonapi.PyRun_SimpleString(b'raise KeyboardInterrupt')\n"
        "    raise KeyboardInterrupt\n"
        "command.main = stopped\n"
        "program.main()\n"
    )
    ran = subprocess.run([sys.executable, "-m", "probe"], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 130
    assert ran.stderr.splitlines()[-1].startswith("privbench: stopped; ")


def test_a_stop_that_python_drops_prints_no_traceback_and_another_error_does(tmp_path):
    """In a process of its own: pytest takes what a destructor raises for itself."""
    script = (
        "import signal\n"
        "from privbench.system import interrupts\n"
        "class Dropped:\n"
        "    def __init__(self, act): self.act = act\n"
        "    def __del__(self): self.act()\n"
        "interrupts.listen()\n"
        "Dropped(lambda: signal.raise_signal(signal.SIGTERM))\n"
        "Dropped(lambda: 1 / 0)\n"
        "print(interrupts.stop_signal())\n"
    )
    root = Path(interrupts.__file__).parents[2]
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(root)}
    )  # fmt: skip
    assert ran.stdout == "SIGTERM\n"
    assert "KeyboardInterrupt" not in ran.stderr
    assert "ZeroDivisionError" in ran.stderr
