"""What `make test` leaves out: tests that were measured to be slow, by name, as long as they are there."""

import subprocess
import sys

from tests import slow

LOG = """
============================= slowest durations ==============================
2.10s call     tests/a/test_b.py::test_long[two words - 0.5]
9.75s setup    tests/a/test_b.py::test_whose_fixture_others_share
0.60s call     tests/a/test_b.py::test_with_its_end
0.50s teardown tests/a/test_b.py::test_with_its_end
0.99s call     tests/a/test_b.py::test_short
=========================== short test summary info ============================
"""


def test_calls_and_their_ends_count_and_shared_fixtures_do_not():
    assert slow.measured(LOG) == ["a/test_b.py::test_long[two words - 0.5]", "a/test_b.py::test_with_its_end"]


def test_a_name_is_lost_where_its_module_was_collected_without_it():
    names = ["a.py::there", "a.py::renamed", "b.py::of_a_module_that_was_not_collected"]
    assert slow.lost(names, ["a.py::there", "a.py::other"]) == ["a.py::renamed"]


def test_the_tests_of_the_list_are_left_out_and_a_lost_one_is_named(repository, tmp_path):
    """In a copy of what collects them, with a list of its own."""
    folder = tmp_path / "tests"
    folder.mkdir()
    for name in ("__init__.py", "conftest.py", "slow.py"):
        (folder / name).write_bytes((repository / "tests" / name).read_bytes())
    (tmp_path / "pyproject.toml").write_bytes((repository / "pyproject.toml").read_bytes())
    (folder / "test_some.py").write_text("def test_fast(): pass\ndef test_slow(): assert False\n")

    def run(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *arguments]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return ended.returncode, ended.stdout + ended.stderr

    (folder / "slow.txt").write_text("test_some.py::test_slow\n")
    status, out = run("-m", "not slow and not thorough")
    assert (status, "1 passed, 1 deselected" in out) == (0, True), out
    status, out = run("-m", "slow or thorough")
    assert (status, "1 failed, 1 deselected" in out) == (1, True), out
    (folder / "slow.txt").write_text("test_some.py::test_renamed\n")
    status, out = run()
    assert (status, "that are not there; correct or remove: test_some.py::test_renamed" in out) == (4, True), out
    assert run("tests/test_some.py::test_fast")[0] == 0
