"""The blocks of docs/capture.md run as they stand; those of Flower in tests/flower/."""

import re

import torch

from privbench import capture


def test_the_page_captures_a_loop_and_updates_and_reads_them(repository, tmp_path, monkeypatch, capsys):
    text = (repository / "docs" / "capture.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    plain = [block for block in blocks if "flwr" not in block]
    assert (len(blocks), len(plain)) == (5, 3)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = {}
    for block in plain:
        exec(block, names)  # noqa: S102 (our own page)
    gradients = capture.read("run")
    assert [(r.number, r.messages[0].kind, r.messages[0].examples) for r in gradients] == [
        (0, "gradient", 8), (1, "gradient", 8), (2, "gradient", 8),
    ]  # fmt: skip
    assert capsys.readouterr().out.splitlines() == [
        f"{round_} weights ({client},) 8 5 2" for round_ in range(2) for client in range(3)
    ]
    assert torch.equal(names["images"], names["batches"][1][0])
