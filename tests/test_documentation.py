"""The examples of docs/extending.md run as they stand, and every command that a page shows is there."""

import importlib
import json
import math
import re
import shlex
import tomllib

import pytest
import torch
import typer

from privbench import data, presets, registry, written_defense
from privbench.cli import attack_runs, run_commands
from privbench.cli import main as cli
from privbench.data import partition
from privbench.execution import one_attack
from privbench.training import harness
from privbench.types import Knowledge, Reconstruction, Truth
from reports.documents import published
from reports.studies import definition, study_cells
from tests.builders.federations import digits_federation
from tests.builders.small_artifacts import artifact, smooth_images


@pytest.fixture
def example(repository, tmp_path, monkeypatch):
    """Writes the code block that defines a name as mine.py and resolves it."""
    text = (repository / "docs" / "extending.md").read_text()

    def resolve(kind, name):
        (block,) = [
            b
            for b in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
            if f"class {name}" in b or f"def {name}(" in b
        ]
        (tmp_path / f"mine_{name.lower()}.py").write_text(block)
        monkeypatch.syspath_prepend(str(tmp_path))
        path = f"mine_{name.lower()}:{name}"
        if kind == "score":  # not a plug-in: it becomes a function of privbench/scoring/image_scores.py
            return path, getattr(importlib.import_module(f"mine_{name.lower()}"), name)
        if kind == "backbone":
            return registry.typed_backbone(path), None
        return registry.typed(kind, path), registry.resolve(kind, path)

    return resolve


def test_the_method_trains_and_its_term_matters(example):
    name, _ = example("method", "FedProx")
    ends = []
    for mu in (0.0, 100.0):
        each = presets.train_spec("smoke", "digits", name, clients=2, method_settings={"mu": mu})
        setup = harness.prepare(each, digits_federation(), torch.device("cpu"))
        state = harness.initial(setup)
        before = state.server.params["classifier"]["fc1.weight"]
        harness.train_round([setup], [state], "alone")
        ends.append(float((state.server.params["classifier"]["fc1.weight"] - before).norm()))
    assert ends[1] < ends[0]


def test_the_network_trains_and_is_attacked_by_the_command(example, command, tmp_path):
    """Its name is part of the run's, which nobody but the user may make again."""
    name, _ = example("backbone", "SmallNet")
    words = ["--preset", "smoke", "--seeds", "1", "--clients", "2", "--dataset", "digits", "--out", tmp_path / "runs"]
    ran = command("attack", "--backbone", name, "--method", "fedsplit", "--attack", "dlg", *words)
    assert ran.status == 0, ran.err
    (path,) = (tmp_path / "runs" / "cells").glob("*/record.json")
    record = json.loads(path.read_text())
    assert record["cell"]["train"]["backbone"] == name
    (seed,) = record["seeds"]
    victims = seed["victims"]
    assert len(victims) == 2
    assert all(math.isfinite(victim["psnr_db"]) for victim in victims)


def test_the_attack_lowers_its_objective(example):
    _, attack = example("attack", "Cosine")
    shown = artifact(smooth_images(2), torch.tensor([1, 2]))
    one_attack.check_needs("mine", attack, shown)
    reconstruction = attack(steps=30).reconstruct(shown, Knowledge(), 0, lambda *_: None)
    assert (reconstruction.trace[:, -1] < reconstruction.trace[:, 0]).all()


def test_the_defence_keeps_the_largest_entries_of_each_tensor(example):
    name, _ = example("defense", "KeepLargest")
    defense = written_defense.create(f"{name}:0.1", "update")
    assert defense.places == {"message"}
    sent = defense.message({"classifier": {"w": torch.arange(100.0), "b": torch.arange(10.0)}}, torch.Generator())
    assert [int((t > 0).sum()) for t in sent["classifier"].values()] == [10, 1]


def test_the_data_set_loads_and_is_laid_out(example):
    name, _ = example("dataset", "load")
    loaded = data.load(name, None)
    how, clients, per_client = partition.defaults(name)
    federation = partition.federate(loaded, clients=clients, per_client=per_client, how=how, seed=0)
    assert [len(c.train.labels) for c in federation.clients] == [500] * 4


def test_the_score_is_the_largest_error_of_a_pixel(example):
    _, worst_pixel = example("score", "worst_pixel")
    truth = Truth(torch.full((2, 1, 1, 32, 32), 0.5), torch.tensor([[1], [2]]))
    damaged = truth.images.clone()
    damaged[0, 0, 0, 3, 4] += 0.25
    reconstruction = Reconstruction(damaged, truth.labels, *(torch.zeros(2),) * 4, 0)
    assert worst_pixel(reconstruction, truth).tolist() == pytest.approx([0.25, 0.0])


def test_the_study_is_read_and_has_a_cell_per_method_and_round(repository):
    section = (repository / "docs" / "extending.md").read_text().partition("## A study\n")[2]
    (block,) = re.findall(r"```toml\n(.*?)```", section, re.DOTALL)
    study = definition.parsed("mine", block.encode())
    made = {(cell.train.method, cell.round) for cell in study_cells.of(study, "smoke")}
    assert made == {(method, round_) for method in ("fedavg", "fedsplit") for round_ in ("0", "best")}


def test_the_layers_on_the_design_page_are_those_that_the_linter_holds(repository):
    contracts = tomllib.loads((repository / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["name"].startswith("A layer"))
    page = (repository / "docs" / "design.md").read_text()
    block = next(b for b in re.findall(r"```\n(.*?)```", page, re.DOTALL) if b.startswith("benchmarks"))
    shown = [re.split(r"\s{2,}", line)[0] for line in block.splitlines()]
    assert [re.findall(r"\w+(?=$|,| )", line) for line in shown] == [re.findall(r"\w+(?=$| )", line) for line in layers]


def documented_commands(repository):
    """(page, words) of every line of a page's code blocks that calls privbench."""
    for page in [repository / "README.md", *sorted((repository / "docs").rglob("*.md"))]:
        for block in re.findall(r"```\n(.*?)```", page.read_text(), re.DOTALL):
            for line in block.splitlines():
                if line.startswith("privbench "):
                    yield page.name, shlex.split(line, comments=True)[1:]


def unknown_words(words, whole):
    """What a line names that the command line does not have: a command, or options of a command that is there."""
    command, name = whole, "privbench"
    while hasattr(command, "commands"):
        name, *words = words
        alternatives = name.split("|")
        if not set(alternatives) <= command.commands.keys():
            return [name]
        command = command.commands[alternatives[0]]
    options = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
    return [word for word in words if word.startswith("--") and word not in options]


def test_every_documented_command_and_option_is_there(repository):
    whole = typer.main.get_command(cli.app)
    documented = list(documented_commands(repository))
    assert {page for page, _ in documented} >= {"README.md", "studies.md", "reading_results.md", "extending.md"}
    assert {words[0] for _, words in documented} >= {
        "attack",
        "train",
        "search",
        "table",
        "study",
        "list",
        "data",
        "reproduce",
    }
    assert [
        (page, words, unknown_words(words, whole)) for page, words in documented if unknown_words(words, whole)
    ] == []
    assert unknown_words(["train", "--epochs", "3"], whole) == ["--epochs"]
    assert unknown_words(["measure"], whole) == ["measure"]


def cells_of(words, monkeypatch):
    """The names of the cells that a documented command would make, of which none is run."""
    planned = []
    monkeypatch.setattr(run_commands, "_run", lambda _, cells, *__: planned.extend(cells))
    monkeypatch.setattr(attack_runs, "run_attacks", lambda cells, _: planned.extend(cells))
    monkeypatch.setattr(attack_runs, "show_attacked", lambda _: None)
    typer.main.get_command(cli.app)(words, standalone_mode=False)
    return {cell.id for cell in planned}


# Page -> (tables whose records its commands make, how many these are).
MADE_BY_COMMANDS = {
    "inference.md": (("inference", "property-inference"), 47),
    "active-servers.md": (("active-servers",), 26),
    "needed_knowledge.md": (("auxiliary-images", "calibrated-starts"), 22),
}


@pytest.mark.parametrize("page", MADE_BY_COMMANDS)
def test_the_commands_of_a_page_make_its_records_and_nothing_else(page, repository, monkeypatch, tmp_path):
    tables, count = MADE_BY_COMMANDS[page]
    documented = [words for named, words in documented_commands(repository) if named == page]
    # Planning reads no images, but the folder named must exist.
    each = [cells_of([str(tmp_path) if w == "DIR" else w for w in words], monkeypatch) for words in documented]
    records = [record for name in tables for record in published.read(published.path_of(repository, name))]
    assert len(records) == sum(map(len, each)) == count
    assert set().union(*each) == {record.cell.id for record in records}
    assert all(record.cell.attack_revision == presets.revision_of(record.cell) for record in records)


def test_the_page_of_all_results_lists_the_commands_of_the_page_on_inferences(repository):
    listed = [
        shlex.split(line, comments=True)[1:]
        for line in (repository / "docs" / "results.md").read_text().splitlines()
        if line.endswith("# inference.md")
    ]
    assert listed == [words for page, words in documented_commands(repository) if page == "inference.md"]
