"""docs/audit.md runs as it stands: its code in one folder, block after block, and its commands."""

import re
import runpy
import shlex
import sys

import pandas as pd
from typer.testing import CliRunner

from privbench.cli import main as cli


def test_the_code_and_the_command_of_the_page_run(repository, tmp_path, monkeypatch):
    text = (repository / "docs" / "audit.md").read_text()
    module, *blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (command,) = re.findall(r"```\nPYTHONPATH=\. (privbench .*?)\n```", text, re.DOTALL)
    (tmp_path / "task.py").write_text(module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "sent.py").write_text(blocks[0])
    (tmp_path / "audited.py").write_text(blocks[1])
    names = runpy.run_path("sent.py")
    done = CliRunner().invoke(cli.app, shlex.split(command)[1:])
    assert done.exception is None, done.exception
    by_command = pd.read_csv("audit/audit.csv")
    runpy.run_path("audited.py", {name: names[name] for name in ("model", "images", "labels")})
    sys.modules.pop("task")
    by_call = pd.read_csv("audit/audit.csv")
    pd.testing.assert_frame_equal(by_command, by_call)
    assert by_call["attack"].tolist() == ["dlg", "matching"]
    assert by_call["is_scored"].all()
