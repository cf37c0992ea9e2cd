"""Settings out of their range, of every plug-in: one line through the command line, before anything is computed."""

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import pytest
from pydantic import Field

from privbench import registry
from privbench.errors import UserError
from privbench.hyperparameters import Count, Positive

if TYPE_CHECKING:
    from somewhere import Elsewhere

NUMBERS = (int, float)


def numeric(kind):
    """(plug-in, setting) of every setting that takes a number."""
    return [
        (name, field.name)
        for name in registry.KINDS[kind]
        for field in dataclasses.fields(registry.resolve(kind, name))
        if isinstance(field.default, NUMBERS) and not isinstance(field.default, bool)
    ]


@pytest.fixture
def run_command(command, tmp_path, monkeypatch):
    """Runs the command in an empty folder: (status, what it printed as an error after the line that says what was asked)."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        ran = command(*words)
        first_line, _, rest = ran.err.partition("\n")
        assert first_line.startswith((*(f"{word}: " for word in words[:1]), "privbench: "))
        return ran.status, ran.err if first_line.startswith("privbench: ") else rest

    return call


def refused(run_command, kind, name, setting, value):
    """Asserts that the command refuses a value in one line that names the setting, and leaves nothing behind."""
    words = {"attack": ["attack", "--attack", name, "--attack-set"], "method": ["train", "--method", name, "--set"]}[
        kind
    ]
    status, text = run_command(*words, f"{setting}={value}", "--dataset", "digits", "--preset", "smoke")
    assert status == 2, (name, setting, value)
    assert len(text.strip().splitlines()) == 1, text
    assert text.startswith("privbench: ")
    assert setting in text
    assert f"{value} was given" in text


def refused_at_once(kind, name, setting, value):
    """The same of the plug-in itself, which the command asks: tens of milliseconds less a value."""
    with pytest.raises(UserError) as caught:
        registry.create(registry.resolve(kind, name), {setting: value})
    text = str(caught.value)
    assert "\n" not in text
    assert setting in text
    assert f"{value} was given" in text


@pytest.mark.parametrize("kind", ["attack", "method"])
def test_a_negative_setting_and_one_that_is_no_number_get_one_line(kind, run_command, tmp_path):
    """Through the command line the first setting of every plug-in."""
    pairs = numeric(kind)
    assert len(pairs) >= {"attack": 60, "method": 15}[kind]
    firsts = dict(reversed(pairs))
    for name, setting in pairs:
        for value in (-1, math.nan):
            refused_at_once(kind, name, setting, value)
            if firsts[name] == setting:
                refused(run_command, kind, name, setting, value)
    assert not list(tmp_path.iterdir())  # refused before anything was computed


# 0 leaves out a prior, an anchor, a stage; tests/attacks/test_claims.py runs each of them with 0.
ALIGNED = ("aligned-surrogate", "joint", "initial-surrogate", "decoder", "collusion", "imprint")
MAY_BE_ZERO = {
    *(("staged", s) for s in ("peel_iterations", "feature_steps", "steps", "feature_weight", "weight", "anchor")),
    ("staged", "stand_in_weight"),
    *((name, "weight") for name in ("inverting-gradients", "extractor-matching", "matching", "grnn", "unsplit")),
    ("unsplit", "stand_in_weight"), ("feature-statistics", "alpha"),
    *(("update-matching", s) for s in ("weight", "feature_steps", "start_steps", "peel_iterations")),
    *((name, "shadow_rounds") for name in ("surrogate", *ALIGNED)),
    *((name, "align_weight") for name in ALIGNED), ("feature-hijacking", "shadow_rounds"), ("imprint", "rehearsal_images"),
    ("client-rows", "rehearsal_images"), ("fishing", "rehearsal_images"), ("seer", "rehearsal_images"),
    ("model-inconsistency", "rehearsal_images"), ("model-inconsistency", "target"),
    ("calibrated", "refine_steps"), ("chained", "refine_steps"), ("calibrated", "denoiser_weight"),
    ("chained", "denoiser_weight"),
    ("posterior", "denoiser_weight"), ("posterior", "samples"),
}  # fmt: skip


def test_zero_is_refused_wherever_it_leaves_out_nothing():
    pairs = numeric("attack")
    assert set(pairs) >= MAY_BE_ZERO
    for name, setting in pairs:
        if (name, setting) not in MAY_BE_ZERO:
            refused_at_once("attack", name, setting, 0)


def test_every_setting_may_be_what_it_is_by_default_and_at_the_edge_of_its_range():
    for kind in ("attack", "method"):
        for name in registry.KINDS[kind]:
            plugin = registry.resolve(kind, name)
            defaults = {field.name: field.default for field in dataclasses.fields(plugin)}
            assert registry.create(plugin, defaults) == plugin()
    for name, setting in MAY_BE_ZERO:
        assert getattr(registry.create(registry.resolve("attack", name), {setting: 0}), setting) == 0


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "few"])
def test_a_defence_out_of_its_range_gets_one_line(value, run_command):
    status, text = run_command("attack", "--defense", f"gaussian:{value}")
    assert status == 2
    assert len(text.strip().splitlines()) == 1
    assert "gaussian" in text.lower()


def test_with_several_attacks_a_setting_is_checked_for_each(run_command):
    status, text = run_command("attack", "--attack", "dlg", "--attack", "staged", "--attack-set", "feature_steps=3")
    assert (status, text) == (2, "privbench: DLG has no setting 'feature_steps'; did you mean 'steps'?\n") or (
        status == 2 and text.startswith("privbench: DLG has no setting 'feature_steps'; known: ")
    )
    status, text = run_command("attack", "--attack", "ladder", "--attack-set", "steps=0", "--dataset", "digits")
    assert status == 2
    assert text == "privbench: DLG: steps should be at least 1, but 0 was given; its default is 300\n"


@dataclass(frozen=True)
class Bounded:
    """A plug-in of a user's own."""

    plain: float = -1.0  # no range
    share: Annotated[float, Field(ge=0, le=1)] = 0.5
    rate: Positive = 1.0
    times: Count = 1
    size: tuple[int, ...] = ()
    foreign: "Elsewhere | None" = None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"share": 1.5}, "Bounded: share should be at most 1.0, but 1.5 was given; its default is 0.5"),
        ({"share": -0.5}, "Bounded: share should be at least 0.0, but -0.5 was given; its default is 0.5"),
        ({"rate": 0}, "Bounded: rate should be above 0.0, but 0 was given; its default is 1.0"),
        ({"times": True}, "Bounded: times takes a whole number, but True was given; its default is 1"),
        ({"times": 2.0}, "Bounded: times takes a whole number, but 2.0 was given; its default is 1"),
        ({"plain": "x"}, "Bounded: plain takes a finite number, but 'x' was given; its default is -1.0"),
        ({"plain": 10**400}, "Bounded: plain takes a finite number, but 1000"),
    ],
)
def test_a_users_own_range_is_kept(given, message):
    with pytest.raises(UserError) as caught:
        registry.create(Bounded, given)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_what_lies_within_passes_as_it_was_given():
    created = registry.create(Bounded, {"plain": -3, "share": 1, "rate": 1e-9, "size": (1, 2), "foreign": "anything"})
    assert created == Bounded(plain=-3, share=1, rate=1e-9, size=(1, 2), foreign="anything")
