"""`make test-portable`: all tests under every arithmetic that this processor offers, and a table of what passed where.

Sums in another order end in other digits. Which order is taken depends on the vector instructions that PyTorch
(ATEN_CPU_CAPABILITY), MKL (MKL_CBWR) and oneDNN (ONEDNN_MAX_CPU_ISA) choose for a processor, and on the number of threads. A test
that holds for one order alone says nothing of the code; here one processor stands in for several.

The libraries and the threads are chosen independently, so three runs hold every choice once: `lowest`, `middle` and `highest`.
`--settings all` changes one choice at a time instead, which names the library that a failure comes from.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

CAPABILITIES = ("DEFAULT", "AVX2", "AVX512")  # of PyTorch on x86, each of which includes those before it
PROBE = (
    "import torch; b = torch.backends; print(b.cpu.get_cpu_capability(), b.mkl.is_available(), b.mkldnn.is_available())"
)


class Processor(NamedTuple):
    """What decides which settings there are."""

    capability: str  # the widest vector instructions that PyTorch finds
    mkl: bool
    onednn: bool


class Setting(NamedTuple):
    """One arithmetic."""

    name: str
    environment: Mapping[str, str]
    capability: str = "DEFAULT"  # what the processor must have
    library: str = ""  # "mkl" or "onednn": what PyTorch must be built with
    combined: bool = False  # whether it is one of the runs that together hold every choice
    instead: str = ""  # the setting that runs in its place where the processor lacks it

    def lacking(self, processor: Processor) -> str:
        """Why it cannot be run here; "" where it can."""
        if self.library and not getattr(processor, self.library):
            return f"PyTorch is built without {self.library} here"
        if self.capability == "DEFAULT":
            return ""
        has = CAPABILITIES.index(processor.capability) if processor.capability in CAPABILITIES else 0
        return "" if has >= CAPABILITIES.index(self.capability) else f"this processor has no {self.capability}"


def _threads(count: int) -> dict[str, str]:
    """Left to itself, MKL (and with it PyTorch) takes no more threads than there are cores.

    Threads that wait sleep: spinning, they would hold the cores that those of another worker need to get on.
    """
    return {"OMP_NUM_THREADS": str(count), "MKL_DYNAMIC": "FALSE", "OMP_WAIT_POLICY": "PASSIVE"}


SETTINGS = (
    Setting("plain", {}),
    Setting("aten-default", {"ATEN_CPU_CAPABILITY": "default"}),
    Setting("aten-avx2", {"ATEN_CPU_CAPABILITY": "avx2"}, "AVX2"),
    Setting("aten-avx512", {"ATEN_CPU_CAPABILITY": "avx512"}, "AVX512"),
    Setting("mkl-compatible", {"MKL_CBWR": "COMPATIBLE"}, library="mkl"),
    Setting("mkl-avx2", {"MKL_CBWR": "AVX2"}, "AVX2", "mkl"),
    Setting("mkl-avx512", {"MKL_CBWR": "AVX512"}, "AVX512", "mkl"),
    Setting("onednn-sse41", {"ONEDNN_MAX_CPU_ISA": "SSE41"}, library="onednn"),
    Setting("threads-2", _threads(2)),
    Setting("threads-4", _threads(4)),
    # What a processor of before 2011 takes: no vectors wider than SSE in any of the three. With two threads, so that no choice
    # is that of `make test` on a recent processor, and one run more tells most.
    Setting(
        "lowest",
        {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41", **_threads(2)},
        combined=True,
    ),
    Setting(
        "middle",
        {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2", **_threads(4)},
        "AVX2",
        combined=True,
        instead="threads-4",
    ),
    Setting(
        "highest",
        {"ATEN_CPU_CAPABILITY": "avx512", "MKL_CBWR": "AVX512"},
        "AVX512",
        combined=True,
        instead="plain",
    ),
)
BY_NAME = {setting.name: setting for setting in SETTINGS}
COMBINED = [setting.name for setting in SETTINGS if setting.combined]
# One thread unless a setting has more; nothing of the caller's that chooses an arithmetic.
PLAIN = {"OMP_NUM_THREADS": "1"}
CHOSEN_BY = {*(name for setting in SETTINGS for name in setting.environment)}


class Outcome(NamedTuple):
    """How the tests ended under one setting."""

    setting: str
    passed: int
    failed: int  # errors included; 1 where pytest itself came to no end
    skipped: int
    seconds: float


def environment(setting: Setting, inherited: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment with the setting's arithmetic alone."""
    return (
        {name: value for name, value in inherited.items() if name not in CHOSEN_BY} | PLAIN | dict(setting.environment)
    )


def processor() -> Processor:
    """What PyTorch finds here, whatever the caller's environment restricts it to."""
    completed = subprocess.run(
        [sys.executable, "-c", PROBE],
        env=environment(SETTINGS[0], os.environ),
        capture_output=True,
        text=True,
        check=True,
    )
    capability, mkl, onednn = completed.stdout.split()
    return Processor(capability, mkl == "True", onednn == "True")


def run(setting: Setting, arguments: Sequence[str]) -> Outcome:
    """pytest under one setting, in processes of its own; its output goes where this program's does."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        started = time.monotonic()
        command = [sys.executable, "-m", "pytest", *arguments, f"--junitxml={report}"]
        ended = subprocess.run(command, env=environment(setting, os.environ), check=False).returncode
        return counted(setting.name, report, ended, time.monotonic() - started)


def counted(name: str, report: Path, ended: int, seconds: float) -> Outcome:
    """The outcome by pytest's JUnit report; a pytest that failed without a word of a test is one failure."""
    passed = failed = skipped = 0
    if report.exists():
        for suite in ElementTree.parse(report).getroot().iter("testsuite"):
            tests, failures, errors, left_out = (
                int(suite.get(each, 0)) for each in ("tests", "failures", "errors", "skipped")
            )
            passed, failed, skipped = (
                passed + tests - failures - errors - left_out,
                failed + failures + errors,
                skipped + left_out,
            )
    return Outcome(name, passed, failed if failed or not ended else 1, skipped, seconds)


def table(outcomes: Sequence[Outcome]) -> str:
    """A line per setting."""
    width = max(len("setting"), *(len(each.setting) for each in outcomes))
    lines = [f"{'setting':{width}}  passed  failed  skipped  minutes"]
    lines += [
        f"{each.setting:{width}}  {each.passed:6}  {each.failed:6}  {each.skipped:7}  {each.seconds / 60:7.1f}"
        for each in outcomes
    ]
    return "\n".join(lines)


def chosen_settings(names: Sequence[str], here: Processor) -> list[Setting]:
    """Those of the names that this processor has, each once; prints a line for each of the others and for what replaces it."""
    chosen: list[Setting] = []
    for setting in SETTINGS if "all" in names else [BY_NAME[name] for name in names]:
        lacking = setting.lacking(here)
        taken = BY_NAME.get(setting.instead) if lacking else setting
        if lacking:
            replaced = f"; {taken.name} runs in its place" if taken else ""
            print(f"left out: {setting.name}, because {lacking}{replaced}", flush=True)
        if taken and taken not in chosen:
            chosen.append(taken)
    return chosen


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs, prints, and returns 1 where anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--part",
        choices=("all", "numerical"),
        default="all",
        help="numerical: without command line, files, documents, and without what is thorough",
    )
    parser.add_argument(
        "--settings",
        nargs="+",
        choices=["all", *BY_NAME],
        default=COMBINED,
        metavar="NAME",
        help=f"of {', '.join(BY_NAME)}, or all; default {', '.join(COMBINED)}",
    )
    parser.add_argument("pytest", nargs="*", help="arguments of pytest, after --")
    options = parser.parse_args(arguments)
    chosen = ["-m", "numerical and not thorough"] if options.part == "numerical" else []
    here, outcomes = processor(), list[Outcome]()
    for setting in chosen_settings(options.settings, here):
        arithmetic = " ".join(f"{name}={value}" for name, value in (PLAIN | dict(setting.environment)).items())
        print(f"{setting.name}: {arithmetic}", flush=True)
        outcomes.append(run(setting, [*chosen, *options.pytest]))
    if not outcomes:
        print("no setting could be run")
        return 1
    failed = sum(each.failed for each in outcomes)
    print(f"\n{table(outcomes)}\n\n{sum(each.passed for each in outcomes)} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
