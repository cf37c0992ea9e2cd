"""docs/flower_tutorial.md from its first block to its report: Flower in this environment, the audit in privbench's own."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from privbench import capture

ROOT = Path(__file__).parents[2]
MINUTES = 600


def test_every_block_of_the_tutorial_runs(tmp_path):
    python = os.environ.get("PRIVBENCH_PYTHON")
    if not python:
        pytest.skip(
            "PRIVBENCH_PYTHON does not name the interpreter of privbench's own environment; make test-flower does"
        )
    page = (ROOT / "docs" / "flower_tutorial.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    for name, block in zip(re.findall(r"in `(\w+\.py)`", page), blocks, strict=True):
        (tmp_path / name).write_text(block, encoding="utf-8")
    subprocess.run([sys.executable, "federation.py"], cwd=tmp_path, check=True, timeout=MINUTES)
    (round_,) = [each for each in capture.read(tmp_path / "run/server") if each.messages]
    assert len(round_.messages) == 3
    (command,) = re.findall(r"```\n(PYTHONPATH=.*?)\n```", page, re.DOTALL)
    _, program, *words = shlex.split(command)
    assert program == "privbench"
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([".", str(ROOT)]))
    ran = subprocess.run(
        [python, "-m", "privbench", *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        timeout=MINUTES,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "update-matching" in ran.stdout
    report = (tmp_path / "audit/audit.html").read_text(encoding="utf-8")
    assert "update-matching" in report
    assert "PSNR" not in re.sub(r"(?s)<script.*?</script>|<style.*?</style>", "", report).partition("</table>")[0]
    assert (tmp_path / "audit/audit-grid.png").stat().st_size > 1000
