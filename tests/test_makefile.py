"""Every make target runs, in a short form, and what it asks of a program can be asked of it; and what `.ci/run` ends with."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from typer import Typer
from typer.testing import CliRunner

from benchmarks import __main__ as bench
from reports.running import study_plan
from reports.studies import definition
from tests import portable

# What stands in for the environment's programs. Those that import torch only note what they were asked, and the tests ask the
# same of them in this process; the others are the same ones with the least to do.
PYTHON = """#!/bin/sh
echo "python $*" >> {log}
case "$*" in
  "-m mypy") set -- -m mypy --version ;;  # minutes without a cache, and `make check` runs it for all
  "-m pytest "*"-m slow or thorough"*|"-m tests.portable "*|"-m tests.fuzz "*|"-m benchmarks"*) exit {status} ;;
esac
exec {executable} "$@"
"""
PRIVBENCH = """#!/bin/sh
echo "privbench $*" >> {log}
exit {status}
"""
QUICK_TESTS = "PYTEST_ARGS=-p no:cacheprovider tests/privbench/records/test_checks.py"


@pytest.fixture
def make(repository, tmp_path):
    """Runs a target with an environment that is set up already: (what it printed, the programs it ran)."""
    venv, log = tmp_path / "venv", tmp_path / "log"
    (venv / "bin").mkdir(parents=True)
    for mark in (".installed", ".bench-installed", ".browser-installed", ".ray-installed"):
        (venv / mark).touch()

    def run(*words, folder=repository, status=0, ends=0):
        for name, text in (("python", PYTHON), ("privbench", PRIVBENCH)):
            program = venv / "bin" / name
            program.write_text(text.format(log=log, executable=sys.executable, status=ends))
            program.chmod(0o755)
        log.write_text("")
        # What `make` was given for these tests themselves, e.g. SETTINGS, stands in their environment.
        given = {*re.findall(r"\$\(([A-Z_]+)\)", (repository / "Makefile").read_text(encoding="utf-8"))}
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in given and not name.startswith(("MAKE", "PYTEST"))
        }
        completed = subprocess.run(
            ["make", *words, f"VENV={venv}"], cwd=folder, env=environment | {"PYTHONPATH": str(repository)},
            capture_output=True, text=True,
        )  # fmt: skip
        assert completed.returncode == status, completed.stdout + completed.stderr
        return completed.stdout, log.read_text().splitlines()

    return run


@pytest.fixture
def output_of(command):
    """What a line `privbench ...` prints, run in this process."""

    def call(line):
        program, *words = line.split()
        ran = command(*words)
        assert (program, ran.status) == ("privbench", 0), ran.err
        return ran.out

    return call


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


def test_browser_runs_nothing_where_all_is_installed(make):
    assert make("browser")[1] == []


def test_ray_runs_nothing_where_all_is_installed(make):
    assert make("ray")[1] == []


# In a small form with the table's first column alone, trained for one round.
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["a column", "whole"])
def test_attack_table_runs_and_asks_for_a_first_look_unless_it_is_to_be_full(
    whole, make, output_of, tmp_path, monkeypatch
):
    runs = tmp_path / "runs"
    if not whole:
        study = definition.read("attack-table")
        monkeypatch.setattr(
            study_plan.definition, "read", lambda _: study.model_copy(update={"column": study.column[:1]})
        )
    _, (ran,) = make("attack-table", "PRESET=smoke", "DATASETS=digits", f"OUT={runs}", "DEVICE=cpu")
    assert ran == f"privbench table --datasets digits --preset smoke --device cpu --out {runs}"
    out = output_of(ran if whole else f"{ran} --rounds 1")
    assert "A first look: 2 victims a seed, 1 seed. " in out
    assert "make attack-table FULL=1" in out
    assert (runs / "attack-table-smoke" / "table.md").exists()
    assert make("attack-table", "FULL=1")[1] == ["privbench table --full --preset quick --device auto"]
    assert make("attack-table")[1] == ["privbench table --preset quick --device auto"]


def test_a_program_that_fails_fails_its_target(make):
    for target in ("attack-table", "ladder", "test-thorough", "test-portable", "fuzz", "bench"):
        _, ran = make(target, status=2, ends=1)
        assert len(ran) == 1


def test_ladder_runs_the_study(make, output_of, tmp_path):
    _, (ran,) = make("ladder", "PRESET=smoke", "DATASETS=digits", f"OUT={tmp_path / 'runs'}")
    assert ran == f"privbench study ladder --datasets digits --preset smoke --device auto --out {tmp_path / 'runs'}"
    assert "not run" in output_of(f"{ran} --status")


def test_test_runs_pytest(make):
    out, ran = make("test", "WORKERS=0", QUICK_TESTS)
    assert " passed" in out.splitlines()[-1]
    assert ran[0].startswith("python -m pytest -n 0 --dist worksteal -m not slow and not thorough ")


def test_test_thorough_runs_the_tests_that_test_leaves_out(make, repository):
    _, (ran,) = make("test-thorough", "PYTEST_ARGS=-q tests/a.py")
    assert ran == "python -m pytest -n 2 --dist worksteal -m slow or thorough -q tests/a.py"


def test_test_portable_runs_the_settings_that_are_asked_for(make, monkeypatch, capsys):
    _, (ran,) = make(
        "test-portable", "WORKERS=1", "PART=numerical", "SETTINGS=lowest plain", "PYTEST_ARGS=-q tests/a.py"
    )
    program, flag, module, *words = ran.split()
    assert (program, flag, module) == ("python", "-m", "tests.portable")
    calls = []
    monkeypatch.setattr(portable, "processor", lambda: portable.Processor("AVX512", mkl=True, onednn=True))
    monkeypatch.setattr(
        portable,
        "run",
        lambda setting, words: calls.append((setting.name, words)) or portable.Outcome(setting.name, 3, 0, 0, 1.0),
    )
    assert portable.main(words) == 0
    expected = ["-m", "numerical and not thorough", "-n", "1", "--dist", "worksteal", "-q", "tests/a.py"]
    assert calls == [("lowest", expected), ("plain", expected)]
    assert capsys.readouterr().out.splitlines()[-1] == "6 passed, 0 failed"
    _, (ran,) = make("test-portable")
    assert ran == "python -m tests.portable --part all -- -n 2 --dist worksteal"


def test_test_flower_runs_the_simulations_in_the_environment_of_their_own(make, repository, tmp_path):
    """What they show: tests/flower/. That environment's program is another one here, which only notes what it is asked."""
    flower = tmp_path / "flower"
    (flower / "bin").mkdir(parents=True)
    (flower / ".installed").touch()
    (flower / "bin" / "python").write_text(f'#!/bin/sh\necho "flower $*" >> {tmp_path / "log"}\n')
    (flower / "bin" / "python").chmod(0o755)
    _, (ran,) = make("test-flower", "PYTEST_ARGS=-q", f"FLOWER_VENV={flower}")
    assert ran == "flower -m pytest tests/flower -q"
    assert (repository / "tests" / "flower" / "pytest.ini").is_file()


def test_fuzz_runs_the_campaign_for_a_time_and_from_a_seed(make):
    """What it is asked: tests/test_fuzz.py."""
    assert make("fuzz", "TIME=60", "SEED=3")[1] == ["python -m tests.fuzz --time 60 --seed 3"]
    assert make("fuzz")[1] == ["python -m tests.fuzz --time 3600 --seed 0"]


def test_check_runs_the_formatter_the_linter_the_type_checker_and_pytest(make):
    _, ran = make("check", "WORKERS=0", "PYTEST_ARGS=--version")
    expected = ["-m ruff format --check .", "-m ruff check .", "-m mypy", "-m pytest"]
    assert all(line.startswith(f"python {words}") for line, words in zip(ran, expected, strict=True))


def test_docs_runs_the_renderer_and_makes_the_site(make, repository, tmp_path):
    """What they write: tests/reports/documents/test_documents.py, tests/test_site.py."""
    folder = tmp_path / "copy"
    (folder / "docs").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy2(repository / name, folder)
    (folder / "README.md").write_text("<!-- generated: methods -->\n<!-- end -->\n")
    (folder / "mkdocs.yml").write_text("site_name: copy\nsite_dir: build/site\n")
    (folder / "docs/index.md").write_text("# Copy\n")
    out, ran = make("docs", folder=folder)
    assert ran == ["python -m reports.documents", "python -m mkdocs build --quiet"]
    assert "changed: README.md" in out.splitlines()
    assert (folder / "build/site/index.html").is_file()
    assert "| `fedcg` |" in (folder / "README.md").read_text()


def test_bench_runs_the_benchmarks(make, repository):
    """Its rows: tests/benchmarks/test_benchmarks.py."""
    assert make("bench", "BENCH_ARGS=--short --repeats 1")[1] == ["python -m benchmarks --short --repeats 1"]
    program = Typer()
    program.command()(bench.main)
    help_text = CliRunner().invoke(program, ["--help"], env={"TERM": "dumb"}).output
    assert "--short" in help_text
    assert "--repeats" in help_text


def test_chaos_runs_the_kill_campaign(make):
    """What it does: tests/benchmarks/test_chaos.py."""
    _, (ran,) = make("chaos", "SEED=3")
    assert ran == "python -m benchmarks.chaos --kills 1000 --seconds 3600 --seed 3 --report docs/reliability.md"
    # A shorter campaign is no page.
    _, (ran,) = make("chaos", "KILLS=5", "SEED=3")
    assert ran == "python -m benchmarks.chaos --kills 5 --seconds 3600 --seed 3"


def test_clean_runs_and_leaves_results(make, repository, tmp_path):
    folder = tmp_path / "copy"
    for name in (".mypy_cache", ".venv-flower", "tests/__pycache__", "runs"):
        (folder / name).mkdir(parents=True)
    shutil.copy(repository / "Makefile", folder)
    make("clean", folder=folder)
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*")} == {"Makefile", "runs", "tests"}
    assert not (tmp_path / "venv").exists()


MAKE = """#!/bin/sh
case "$1" in
  test) echo "{first}"; exit {first_status} ;;
  test-portable) printf '%s\\n' "setting passed failed" "{second}"; exit {second_status} ;;
  test-thorough) echo "{third}"; exit {third_status} ;;
esac
exit 9
"""
# What each of the three says last, and its exit status, where nothing failed.
TESTS, PORTABLE, THOROUGH = (
    ("== 1807 passed in 519.11s ==", 0),
    ("900 passed, 0 failed", 0),
    ("== 6 passed in 60.00s ==", 0),
)


@pytest.mark.parametrize(
    ("first", "second", "third", "status", "ends"),
    [
        (
            ("===== 1807 passed, 2 skipped in 519.11s (0:08:39) =====", 0),
            PORTABLE,
            THOROUGH,
            0,
            "2713 passed, 0 failed",
        ),
        (("== 3 failed, 1804 passed, 1 error in 519.11s ==", 2), PORTABLE, THOROUGH, 2, "2710 passed, 4 failed"),
        (TESTS, ("899 passed, 1 failed", 2), THOROUGH, 2, "2712 passed, 1 failed"),
        (TESTS, PORTABLE, ("== 1 failed, 5 passed in 60.00s ==", 2), 2, "2712 passed, 1 failed"),
        (("no environment", 2), PORTABLE, THOROUGH, 2, "the tests did not run to their end"),
        (TESTS, ("Killed", 2), THOROUGH, 2, "the tests did not run to their end"),
        (TESTS, PORTABLE, ("Killed", 2), 2, "the tests did not run to their end"),
    ],
)
def test_the_closing_line_counts_all_three_runs(first, second, third, status, ends, repository, tmp_path):
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "make"
    outputs = {"first": first, "second": second, "third": third}
    words = {name: text for name, (text, _) in outputs.items()}
    script.write_text(MAKE.format(**words, **{f"{name}_status": number for name, (_, number) in outputs.items()}))
    script.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    completed = subprocess.run([str(repository / ".ci/run")], env=environment, capture_output=True, text=True)
    assert completed.returncode == status, completed.stderr
    assert completed.stdout.splitlines()[-1] == ends
