"""How many cores a process may use, asked in processes of their own: in the tests' it is fixed."""

import os
import subprocess
import sys

import pytest


def cores(first="", **environment):
    """What a new process answers, after the statements `first`."""
    script = f"{first}\nfrom privbench.system import cpu\nprint(cpu.cores())"
    command = [sys.executable, "-c", script]
    return int(subprocess.run(command, env=os.environ | environment, stdout=subprocess.PIPE, check=True).stdout)


def test_a_limit_of_the_user_is_kept():
    """A container's quota is read by the same library, and cannot be set here."""
    assert cores(LOKY_MAX_CPU_COUNT="1") == 1
    assert 1 <= cores(LOKY_MAX_CPU_COUNT="100000") <= os.cpu_count()


def test_a_limit_that_is_no_number_is_named_in_one_line():
    script = "from privbench.errors import UserError\nfrom privbench.system import cpu\n"
    script += "try: cpu.cores()\nexcept UserError as error: print(error)"
    environment = os.environ | {"LOKY_MAX_CPU_COUNT": "two"}
    told = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert told == "LOKY_MAX_CPU_COUNT must be a whole number of cores, got 'two'; set it again, or unset it\n"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity of processes")
def test_a_process_bound_to_one_core_has_one():
    assert cores("import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})") == 1
