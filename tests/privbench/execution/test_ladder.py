"""What a ladder leaves out, and where it leaves out nothing."""

from dataclasses import replace

import pytest
import torch

from privbench import presets, registry
from privbench.errors import UserError
from privbench.execution import ladder
from privbench.requests import specifications
from privbench.requests.options import AttackOptions, RunOptions, TrainingOptions
from tests.builders import small_artifacts

EVERY = list(registry.ATTACKS)


def members(
    method="fedavg", defense="none", *, round_="0", batch_size=1, observe="gradient", named=("ladder",), **chosen
):
    train = presets.train_spec("quick", "photos", method, defense=defense, **chosen)
    return ladder.members(named, ladder.left_out_of_training(train, round_, batch_size, observe))


@pytest.mark.parametrize("defense", ["none", "gaussian:0.1"])
@pytest.mark.parametrize("method", ["fedavg", "fedsplit", "fedcg"])
def test_it_leaves_out_what_was_never_the_best_where_that_was_measured(method, defense):
    left_out = {*registry.NEVER_BEST, registry.OF_EXTRACTORS}
    left_out |= registry.NEVER_ABOVE_UNTRAINED if defense == "none" else set()
    assert members(method, defense) == [name for name in EVERY if name not in left_out]


@pytest.mark.parametrize("round_", ["best", "last", "1"])
@pytest.mark.parametrize("method", ["fedavg", "fedsplit", "fedcg"])
def test_without_a_defence_it_leaves_out_more_before_training_and_after_it(method, round_):
    noised = members(method, "gaussian:0.001")
    assert noised == members(method, "gaussian:0.001", round_=round_)
    assert members(method) == [name for name in noised if name not in registry.NEVER_ABOVE_UNTRAINED]
    assert members(method, round_=round_) == [name for name in noised if name not in registry.NEVER_BEST_TRAINED]
    assert members(method, round_=round_, batch_size=4) == members(method, batch_size=4) == EVERY
    # After less training the initial extractor may still serve an attack.
    assert members(method, round_=round_, changes={"local_epochs": 4}) == noised
    assert members(method, round_=round_, changes={"client_steps": 1}) == noised


@pytest.mark.parametrize(
    "otherwise",
    [
        {"backbone": "resnet18"},
        {"batch_size": 4},
        {"observe": "update"},
        {"defense": "clip:1"},
        {"defense": "gaussian:variance=0.1,clip=1"},
        {"defense": "quantize:4"},
        {"defense": "dp-sgd:epsilon=8"},
        {"defense": "secure-aggregation:masks"},
        {"named": ["ladder:all"]},
    ],
    ids=str,
)
def test_it_leaves_out_nothing_elsewhere(otherwise):
    assert members(**otherwise) == EVERY


def test_where_the_classifier_is_private_the_attack_on_extractors_stays():
    assert registry.OF_EXTRACTORS in members("fedper")


def test_named_attacks_join_once_and_in_order():
    assert members(named=["grnn", "ladder", "staged"]) == ["grnn", *members()]
    assert ladder.every(["staged", "ladder"]) == ["staged", *(name for name in EVERY if name != "staged")]


def test_an_artifact_has_the_members_of_the_run_that_it_is_of():
    seen = small_artifacts.artifact(torch.rand(2, 1, 32, 32), torch.tensor([0, 1]))
    # From which networks training began, and how far it has gone from there, is not known.
    for round_ in (0, 7):
        at_round = replace(seen, round=round_)
        assert ladder.members(["ladder"], ladder.left_out_of_artifact(at_round)) == members(defense="gaussian:0.1")


def test_the_command_asks_for_either_and_a_setting_may_be_of_any_attack():
    def attacks(*names, **chosen):
        asked = AttackOptions(attack=list(names), **chosen)
        cells = specifications.attack_cells(RunOptions(method="fedavg", dataset="photos"), asked, TrainingOptions())
        return [cell.attack for cell in cells]

    trained = members(round_="best")
    assert attacks("ladder") == trained
    assert attacks("ladder", round_=["0", "best"]) == [*members(), *trained]
    assert attacks("ladder:all") == EVERY
    assert attacks("ladder", also=["grnn"]) == [*trained, "grnn"]
    assert attacks("ladder", attack_set=["weight=0.5"]) == trained
    with pytest.raises(UserError, match="unknown attack 'ladder:some'; did you mean 'ladder'"):
        attacks("ladder:some")
