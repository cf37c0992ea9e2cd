"""Calls in processes: in order, made again where a process dies, and none that outlives the one that asked."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from privbench.system import side_by_side

SCRIPT = """
import sys, time
from pathlib import Path
from privbench.system import interrupts, side_by_side

def slow(folder, i):
    import os
    Path(folder, str(os.getpid())).touch()
    time.sleep(300)

interrupts.listen()
try:
    side_by_side.call_each(slow, [(sys.argv[1], i) for i in range(2)], 2, lambda count: None, lambda: None)
except KeyboardInterrupt:
    interrupts.end()
"""


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A folder with a file for each process that began; one for all tests, so that one finds the last one's processes."""
    return tmp_path_factory.mktemp("begun")


@pytest.fixture
def called(begun):
    """Calls in two processes."""

    def call(function, arguments, ended=lambda count: None):
        return side_by_side.call_each(function, arguments, 2, ended, _note_process, begun)

    return call


def _note_process(folder):
    (folder / str(os.getpid())).touch()


def _square(x):
    return x * x, os.getpid(), torch.get_num_threads()


def _refuse(x):
    if x == 1:
        raise ValueError(f"not {x}")
    return x


def _die_elsewhere(home, x):
    if os.getpid() != home and x == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return x


def test_results_come_in_order_from_other_processes_of_one_thread(called):
    counts = []
    results = called(_square, [(x,) for x in range(5)], counts.append)
    assert [value for value, *_ in results] == [0, 1, 4, 9, 16]
    assert os.getpid() not in {pid for _, pid, _ in results}
    assert {threads for *_, threads in results} == {1}
    assert counts == [1, 2, 3, 4, 5]


def test_processes_stay_for_the_next_calls(called, begun):
    before = {path.name for path in begun.iterdir()}
    pids = set()
    for _ in range(3):
        pids |= {pid for _, pid, _ in called(_square, [(x,) for x in range(5)])}
    # One of the two may be slow to start and have no call of the first five, so the processes that began are counted.
    after = {path.name for path in begun.iterdir()}
    assert len(after - before) <= 2
    assert pids <= {int(name) for name in after}
    assert len(pids) <= 2


def test_an_error_is_raised_and_the_next_calls_work(called):
    with pytest.raises(ValueError, match="not 1"):
        called(_refuse, [(x,) for x in range(4)])
    assert [value for value, *_ in called(_square, [(3,)])] == [9]


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no such signal here")
def test_a_call_whose_process_dies_is_made_again_here(called):
    assert called(_die_elsewhere, [(os.getpid(), x) for x in range(4)]) == [0, 1, 2, 3]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="processes cannot be looked up here")
@pytest.mark.parametrize(("number", "status"), [("SIGTERM", 130), ("SIGKILL", -9)])
def test_processes_end_with_the_one_that_asked(number, status, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    asker = subprocess.Popen([sys.executable, str(script), str(tmp_path / "pids")], stderr=subprocess.PIPE)
    (tmp_path / "pids").mkdir()
    deadline = time.monotonic() + 120
    while len(pids := list((tmp_path / "pids").iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(pids) == 2
    asker.send_signal(getattr(signal, number))
    said = asker.communicate(timeout=60)[1].decode()
    assert asker.returncode == status
    assert "Traceback" not in said
    while any(_lives(pid.name) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(_lives(pid.name) for pid in pids)


def _lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
