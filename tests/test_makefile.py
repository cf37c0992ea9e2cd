"""Every make target runs, in a short form; and what `.ci/run` ends with."""

import os
import shutil
import subprocess
import sys

import pytest

# What stands in for the environment's programs: the same ones with the least to do.
PYTHON = """#!/bin/sh
echo "python $*" >> {log}
case "$*" in
  "-m mypy") set -- -m mypy --version ;;  # minutes without a cache, and `make check` runs it for all
esac
exec {executable} "$@"
"""
PRIVBENCH = """#!/bin/sh
echo "privbench $*" >> {log}
case "$1" in
  study) set -- "$@" --status ;;  # plans every cell and runs none: a ladder takes minutes at its shortest
esac
exec {executable} -m privbench "$@"
"""
QUICK_TESTS = "PYTEST_ARGS=-p no:cacheprovider tests/privbench/test_settings.py"


@pytest.fixture
def make(repository, tmp_path):
    """Runs a target with an environment that is set up already: (what it printed, the programs it ran)."""
    venv, log = tmp_path / "venv", tmp_path / "log"
    (venv / "bin").mkdir(parents=True)
    for name, text in (("python", PYTHON), ("privbench", PRIVBENCH)):
        program = venv / "bin" / name
        program.write_text(text.format(log=log, executable=sys.executable))
        program.chmod(0o755)
    for mark in (".installed", ".bench-installed"):
        (venv / mark).touch()
    log.touch()

    def run(*words, folder=repository, status=0):
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "PYTEST"))}
        done = subprocess.run(
            ["make", *words, f"VENV={venv}"], cwd=folder, env=environment | {"PYTHONPATH": str(repository)},
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout, log.read_text().splitlines()

    return run


def targets(repository):
    (line,) = [line for line in (repository / "Makefile").read_text().splitlines() if line.startswith(".PHONY: ")]
    return set(line.split()[1:])


def test_every_target_has_a_test_here_and_a_line_of_help(make, repository):
    tested = {name.split("_runs_")[0].removeprefix("test_").replace("_", "-") for name in globals() if "_runs_" in name}
    assert tested == targets(repository) - {"help"}
    out, _ = make("help")
    assert all(f"  make {name} " in out for name in targets(repository))
    assert make() == (out, [])


def test_setup_runs_nothing_where_all_is_installed(make):
    assert make("setup")[1] == []


def test_attack_table_runs_and_asks_for_a_first_look_unless_it_is_to_be_full(make, tmp_path):
    out, ran = make("attack-table", "PRESET=smoke", "DATASETS=digits", f"OUT={tmp_path / 'runs'}", "DEVICE=cpu")
    assert "A first look: 2 victims a seed, 1 seed. " in out
    assert "make attack-table FULL=1" in out
    assert (tmp_path / "runs" / "attack-table-smoke" / "table.md").exists()
    assert ran == [f"privbench table --datasets digits --preset smoke --device cpu --out {tmp_path / 'runs'}"]
    out, _ = make("-n", "attack-table", "FULL=1")
    assert out.split()[1:] == ["table", "--full", "--preset", "quick", "--device", "auto"]
    out, _ = make("-n", "attack-table")
    assert out.split()[1:] == ["table", "--preset", "quick", "--device", "auto"]


def test_ladder_runs_the_study(make, tmp_path):
    out, ran = make("ladder", "PRESET=smoke", "DATASETS=digits", f"OUT={tmp_path / 'runs'}")
    assert ran == [f"privbench study ladder --datasets digits --preset smoke --device auto --out {tmp_path / 'runs'}"]
    assert "not run" in out


def test_test_runs_pytest(make):
    out, ran = make("test", "WORKERS=0", QUICK_TESTS)
    assert " passed" in out.splitlines()[-1]
    assert ran[0].startswith("python -m pytest -n 0 ")


def test_test_portable_runs_the_settings_that_are_asked_for(make):
    out, ran = make("test-portable", "WORKERS=0", "PART=numerical", "SETTINGS=plain", QUICK_TESTS, status=2)
    # No test of that module is numerical, which pytest calls a failure.
    assert out.splitlines()[-1] == "0 passed, 1 failed"
    out, ran = make("test-portable", "WORKERS=0", "SETTINGS=plain", QUICK_TESTS)
    assert out.splitlines()[-1].endswith(" passed, 0 failed")
    assert ran[-1].startswith("python -m tests.portable --part all --settings plain -- -n 0 ")


def test_check_runs_the_formatter_the_linter_the_type_checker_and_pytest(make):
    _, ran = make("check", "WORKERS=0", QUICK_TESTS)
    asked = ["-m ruff format --check .", "-m ruff check .", "-m mypy", "-m pytest"]
    assert all(line.startswith(f"python {words}") for line, words in zip(ran, asked, strict=True))


def test_bench_runs_the_benchmarks(make):
    """Its rows: tests/test_benchmarks.py."""
    out, ran = make("bench", "BENCH_ARGS=--help")
    assert "--short" in out
    assert ran == ["python -m benchmarks --help"]


def test_clean_runs_and_leaves_results(make, repository, tmp_path):
    folder = tmp_path / "copy"
    for name in (".mypy_cache", "tests/__pycache__", "runs"):
        (folder / name).mkdir(parents=True)
    shutil.copy(repository / "Makefile", folder)
    make("clean", folder=folder)
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*")} == {"Makefile", "runs", "tests"}
    assert not (tmp_path / "venv").exists()


MAKE = """#!/bin/sh
case "$1" in
  test) echo "{first}"; exit {first_status} ;;
  test-portable) printf '%s\\n' "setting passed failed" "{second}"; exit {second_status} ;;
esac
exit 9
"""


@pytest.mark.parametrize(
    ("first", "second", "status", "ends"),
    [
        (("===== 1807 passed, 2 skipped in 519.11s (0:08:39) =====", 0), ("900 passed, 0 failed", 0), 0, "2707 passed, 0 failed"),
        (("== 3 failed, 1804 passed, 1 error in 519.11s ==", 2), ("900 passed, 0 failed", 0), 2, "2704 passed, 4 failed"),
        (("== 1807 passed in 519.11s ==", 0), ("899 passed, 1 failed", 2), 2, "2706 passed, 1 failed"),
        (("no environment", 2), ("900 passed, 0 failed", 0), 2, "the tests did not run to their end"),
        (("== 1807 passed in 519.11s ==", 0), ("Killed", 2), 2, "the tests did not run to their end"),
    ],
)  # fmt: skip
def test_the_closing_line_counts_both_runs(first, second, status, ends, repository, tmp_path):
    (tmp_path / "bin").mkdir()
    stand_in = tmp_path / "bin" / "make"
    stand_in.write_text(MAKE.format(first=first[0], first_status=first[1], second=second[0], second_status=second[1]))
    stand_in.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run([str(repository / ".ci/run")], env=environment, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    assert done.stdout.splitlines()[-1] == ends
