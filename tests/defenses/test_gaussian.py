"""The Gaussian defence."""

import pytest
import torch

from defenses.gaussian import Gaussian
from defenses.none import NoDefense
from privbench import written_defense
from privbench.errors import UserError
from privbench.seeds import stream


def test_the_noise_has_the_variance_asked_for_and_is_independent_per_coordinate():
    out = Gaussian(0.25).message({"c": {"a": torch.zeros(300, 300), "b": torch.ones(90_000)}}, stream(0, "x"))["c"]
    assert out["a"].var().item() == pytest.approx(0.25, rel=0.02)
    assert out["b"].mean().item() == pytest.approx(1.0, abs=0.01)
    assert abs(torch.corrcoef(torch.stack([out["a"].flatten(), out["b"]]))[0, 1].item()) < 0.02


def test_no_variance_changes_nothing():
    x = {"c": {"a": torch.randn(5)}}
    assert torch.equal(Gaussian(0.0).message(x, stream(0))["c"]["a"], x["c"]["a"])
    assert not NoDefense().places


def test_noise_is_drawn_part_after_part_as_it_always_was():
    x = {"extractor": {"a": torch.zeros(3)}, "classifier": {"b": torch.zeros(2), "c": torch.zeros(4)}}
    made, rng = Gaussian(4.0).message(x, stream(1)), stream(1)
    for params in made.values():
        for t in params.values():
            assert torch.equal(t, 2 * torch.randn(t.shape, generator=rng))


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("gaussian:-1", "step", "a variance of at least 0"),
        ("gaussian:nan", "step", "variance takes a finite number, but nan was given"),
        ("gaussian:much", "step", "takes a number"),
        ("gaussian", "step", "needs a value"),
        ("gaussian:1", "nowhere", "--where nowhere"),
        ("gausian:1", "step", "did you mean 'gaussian'"),
        ("none:3", "step", "takes no value"),
    ],
)
def test_a_wrong_defence_gets_one_clear_line(text, where, message):
    with pytest.raises(UserError, match=message) as caught:
        written_defense.create(text, where)
    assert "\n" not in str(caught.value)


def test_a_defence_of_ones_own_is_named_by_module_and_class():
    made = written_defense.create(written_defense.typed("defenses.gaussian:Gaussian:0.5"), "update")
    assert made == Gaussian(0.5, "update") == Gaussian(0.5)


def test_a_class_that_is_no_defence_is_refused_in_one_line():
    with pytest.raises(UserError, match=r"is no subclass of privbench\.defense\.Defense") as caught:
        written_defense.create(written_defense.typed("privbench.methods.fedavg:FedAvg"), "update")
    assert "\n" not in str(caught.value)
