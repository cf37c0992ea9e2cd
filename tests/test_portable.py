"""The tests under several arithmetics: every setting takes effect, every failure is counted, what is not there is left out."""

import ast
import os
import subprocess
import sys

import pytest
import torch

from tests import conftest, portable
from tests.portable import Outcome, Processor, Setting

HERE = Processor("AVX512", mkl=True, onednn=True)


def test_this_run_computes_as_its_environment_says():
    """Under `make test-portable` a proof that the setting took effect; here and in a process begun from here."""
    threads, requested = int(os.environ["OMP_NUM_THREADS"]), os.environ.get("ATEN_CPU_CAPABILITY")
    assert torch.get_num_threads() == threads
    code = "import torch; print(torch.get_num_threads(), torch.backends.cpu.get_cpu_capability())"
    fresh = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    if os.environ.get("MKL_DYNAMIC") == "FALSE":
        assert int(fresh[0]) == threads
    if requested is not None:
        assert fresh[1].lower() == torch.backends.cpu.get_cpu_capability().lower() == requested


def test_a_test_that_changes_the_number_of_threads_changes_none_but_its_own():
    torch.set_num_threads(conftest.THREADS + 2)
    mended = conftest.same_threads.__wrapped__
    mended()
    assert torch.get_num_threads() == conftest.THREADS


def test_the_settings_are_those_that_processors_differ_by():
    assert [setting.name for setting in portable.SETTINGS] == [
        "plain", "aten-default", "aten-avx2", "aten-avx512", "mkl-compatible", "mkl-avx2", "mkl-avx512", "onednn-sse41",
        "threads-2", "threads-4", "lowest", "middle", "highest",
    ]  # fmt: skip
    made = [tuple(sorted(portable.environment(setting, {}).items())) for setting in portable.SETTINGS]
    assert len(set(made)) == len(made)


def test_a_setting_starts_from_none_of_the_callers():
    inherited = {"MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "avx2", "OMP_NUM_THREADS": "9", "PATH": "/bin"}
    assert portable.environment(portable.SETTINGS[0], inherited) == {"OMP_NUM_THREADS": "1", "PATH": "/bin"}
    assert portable.environment(portable.BY_NAME["threads-4"], inherited) == {
        "OMP_NUM_THREADS": "4", "MKL_DYNAMIC": "FALSE", "OMP_WAIT_POLICY": "PASSIVE", "PATH": "/bin",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("processor", "lacking"),
    [
        (HERE, []),
        (HERE._replace(capability="AVX2"), ["aten-avx512", "mkl-avx512", "highest"]),
        (
            HERE._replace(capability="SVE256"),
            ["aten-avx2", "aten-avx512", "mkl-avx2", "mkl-avx512", "middle", "highest"],
        ),
        (HERE._replace(mkl=False), ["mkl-compatible", "mkl-avx2", "mkl-avx512"]),
        (HERE._replace(onednn=False), ["onednn-sse41"]),
    ],
)
def test_what_the_processor_lacks_is_left_out(processor, lacking):
    assert [setting.name for setting in portable.SETTINGS if setting.lacking(processor)] == lacking


@pytest.mark.parametrize("capability", portable.CAPABILITIES)
def test_the_combined_settings_hold_every_choice_that_the_processor_has(capability):
    here = HERE._replace(capability=capability)

    def choices(settings):
        return {choice for setting in settings for choice in portable.environment(setting, {}).items()}

    single = [each for each in portable.SETTINGS if not each.combined and not each.lacking(here)]
    assert choices(single) <= choices(portable.chosen_settings(portable.COMBINED, here))


def test_what_replaces_a_setting_runs_once_and_is_named(capsys):
    here = HERE._replace(capability="SVE256")
    assert [each.name for each in portable.chosen_settings(["middle", "threads-4"], here)] == ["threads-4"]
    line = "left out: middle, because this processor has no AVX2; threads-4 runs in its place"
    assert capsys.readouterr().out.splitlines() == [line]


@pytest.fixture
def tests_of_an_arithmetic(tmp_path):
    """Arguments of pytest for two tests, of which one fails under MKL_CBWR=COMPATIBLE alone, and a third that is skipped."""
    (tmp_path / "test_two.py").write_text(
        "import os, pytest\n"
        "def test_always(): pass\n"
        "def test_in_one_order(): assert os.environ.get('MKL_CBWR') != 'COMPATIBLE'\n"
        "@pytest.mark.skip\ndef test_never(): pass\n"
    )
    return ["-q", "-c", os.devnull, "--rootdir", str(tmp_path), str(tmp_path)]


def test_every_setting_has_a_line_and_a_failure_under_one_of_them_fails_the_whole(
    monkeypatch, capfd, tests_of_an_arithmetic
):
    monkeypatch.setattr(portable, "processor", lambda: HERE._replace(capability="AVX2"))
    chosen = ["--settings", "plain", "mkl-compatible", "mkl-avx512", "--", *tests_of_an_arithmetic]
    assert portable.main(chosen) == 1
    out = capfd.readouterr().out
    assert "left out: mkl-avx512, because this processor has no AVX512" in out.splitlines()
    rows = [line.split()[:4] for line in out.splitlines()[-5:-2]]
    assert rows[0] == ["setting", "passed", "failed", "skipped"]
    assert rows[1:] == [["plain", "2", "0", "1"], ["mkl-compatible", "1", "1", "1"]]
    assert out.splitlines()[-1] == "3 passed, 1 failed"
    assert portable.main(["--settings", "plain", "--", *tests_of_an_arithmetic]) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "2 passed, 0 failed"


def test_a_run_that_comes_to_no_end_is_a_failure(tmp_path, capfd):
    missing = str(tmp_path / "nowhere.py")
    assert portable.run(Setting("plain", {}), ["-q", "-c", os.devnull, missing]).failed == 1
    assert portable.counted("plain", tmp_path / "never.xml", 139, 2.0) == Outcome("plain", 0, 1, 0, 2.0)


def test_the_parts_that_are_not_numerical_are_there_and_do_no_numerical_work(repository):
    """Every other module is numerical, a new one too; none of those left out takes a gradient or a step."""
    for name in conftest.NOT_NUMERICAL:
        tree = ast.parse((repository / "tests" / name).read_text())
        called = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert not called & {"backward", "grad", "reconstruct"}, name


def test_the_tests_of_numerical_modules_that_are_left_out_are_there(repository):
    for name in conftest.ANY_ARITHMETIC:
        module, _, test = name.partition("::")
        assert module not in conftest.NOT_NUMERICAL
        tree = ast.parse((repository / "tests" / module).read_text())
        assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, name
