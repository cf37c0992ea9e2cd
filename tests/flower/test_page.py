"""Flower's blocks of docs/capture.md run as they stand, in a simulation."""

import re
import sys
from pathlib import Path
from types import ModuleType

import torch
from federation import ROUNDS, FloatNet, initial, noted, simulate, started, with_training

from privbench import capture


def test_the_app_and_the_strategy_of_the_page_capture_the_same(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "capture.md").read_text(encoding="utf-8")
    blocks = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "flwr" in block]
    assert len(blocks) == 2
    task = ModuleType("task")
    task.Net = FloatNet
    monkeypatch.setitem(sys.modules, "task", task)
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in blocks:
        exec(block, names)  # noqa: S102 (our own page)
    simulate(started(names["strategy"], initial(FloatNet)), with_training(names["app"], FloatNet, tmp_path / "noted"))
    server = {(r.number, *m.clients): m for r in capture.read("run/server") for m in r.messages}
    clients = {
        (r.number, *m.clients): m
        for folder in Path("run").glob("client-*")
        for r in capture.read(folder)
        for m in r.messages
    }
    assert {number for number, _ in server} == {*range(1, ROUNDS + 1)}
    assert server.keys() == clients.keys()
    before = noted(tmp_path / "noted")
    for at, message in server.items():
        for name, t in message.parameters.items():
            assert torch.equal(t, clients[at].parameters[name])
            assert not torch.equal(t, before[at][name])
