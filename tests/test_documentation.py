"""The examples of docs/adding_your_own.md run as they stand."""

import re

import pytest
import torch

from privbench import data, harness, measure, partition, plugins, spec
from privbench.types import Knowledge
from tests.attacks.cases import artifact, smooth_images
from tests.privbench.federations import digits_federation


@pytest.fixture
def example(repository, tmp_path, monkeypatch):
    """Writes the code block that defines a name as mine.py and resolves it."""
    text = (repository / "docs" / "adding_your_own.md").read_text()

    def resolve(kind, name):
        (block,) = [
            b
            for b in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
            if f"class {name}" in b or f"def {name}(" in b
        ]
        (tmp_path / f"mine_{name.lower()}.py").write_text(block)
        monkeypatch.syspath_prepend(str(tmp_path))
        return f"mine_{name.lower()}:{name}", plugins.resolve(kind, f"mine_{name.lower()}:{name}")

    return resolve


def test_the_method_trains_and_its_term_matters(example):
    name, _ = example("method", "FedProx")
    ends = []
    for mu in (0.0, 100.0):
        each = spec.train_spec("smoke", "digits", name, clients=2, method_settings={"mu": mu})
        setup = harness.prepare(each, digits_federation(), torch.device("cpu"))
        state = harness.initial(setup)
        before = state.server.params["classifier"]["fc1.weight"]
        harness.train_round([setup], [state], "alone")
        ends.append(float((state.server.params["classifier"]["fc1.weight"] - before).norm()))
    assert ends[1] < ends[0]


def test_the_attack_lowers_its_objective(example):
    _, attack = example("attack", "Cosine")
    shown = artifact(smooth_images(2), torch.tensor([1, 2]))
    measure.check_needs("mine", attack, shown)
    found = attack(steps=30).reconstruct(shown, Knowledge(), 0, lambda *_: None)
    assert (found.trace[:, -1] < found.trace[:, 0]).all()


def test_the_defence_keeps_the_largest_entries(example):
    name, _ = example("defense", "Prune")
    defense = plugins.defense(f"{name}:0.1", "update")
    kept = defense.protect({"w": torch.arange(100.0)}, torch.Generator())["w"]
    assert (kept > 0).sum() == 10


def test_the_data_set_loads_and_is_laid_out(example):
    name, _ = example("dataset", "load")
    loaded = data.load(name, None)
    how, clients, per_client = partition.defaults(name)
    federation = partition.federate(loaded, clients=clients, per_client=per_client, how=how, seed=0)
    assert [len(c.train.labels) for c in federation.clients] == [500] * 4
