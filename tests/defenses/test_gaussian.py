"""The Gaussian defence."""

import pytest
import torch

from defenses.gaussian import Gaussian
from defenses.none import NoDefense
from privbench import written_defense
from privbench.errors import UserError
from privbench.seeds import stream


def test_the_noise_has_the_variance_asked_for_and_is_independent_per_coordinate():
    out = Gaussian(0.25).protect({"a": torch.zeros(300, 300), "b": torch.ones(90_000)}, stream(0, "x"))
    assert out["a"].var().item() == pytest.approx(0.25, rel=0.02)
    assert out["b"].mean().item() == pytest.approx(1.0, abs=0.01)
    assert abs(torch.corrcoef(torch.stack([out["a"].flatten(), out["b"]]))[0, 1].item()) < 0.02


def test_no_variance_changes_nothing():
    x = {"a": torch.randn(5)}
    assert torch.equal(Gaussian(0.0).protect(x, stream(0))["a"], x["a"])
    assert NoDefense().protect(x, stream(0)) is x


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
