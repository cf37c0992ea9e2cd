"""Each planted fault raises exactly its own message; a sound result raises none."""

from dataclasses import dataclass, replace

import pytest

from privbench.records import checks


@dataclass
class Victim:
    seed: int
    images: list[str]
    in_auxiliary: bool = False
    gradient_norm: float | None = 1.0
    loss: float | None = 0.1
    loss_fell: bool | None = True
    outcome: str = "reconstructed"


def sound(victims=64, seeds=5):
    return [Victim(v % seeds, [f"picture {v}"]) for v in range(victims)]


def names(victims):
    return [message.name for message in checks.of_victims(victims)]


def test_a_sound_result_raises_no_message():
    assert names(sound()) == []


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ({"gradient_norm": 0.0}, "zero-gradient"),
        # A consequence is not reported twice.
        ({"gradient_norm": 0.0, "loss": None, "outcome": "not applicable"}, "zero-gradient"),
        ({"gradient_norm": 0.0, "loss_fell": False}, "zero-gradient"),
        ({"gradient_norm": None}, "not-finite"),
        ({"loss": None, "loss_fell": False, "outcome": "diverged"}, "not-finite"),
        ({"outcome": "diverged"}, "not-finite"),
        ({"loss_fell": False}, "loss-did-not-fall"),
        ({"in_auxiliary": True}, "auxiliary-overlap"),
    ],
)
def test_a_planted_fault_raises_exactly_its_message_and_is_counted(fault, name):
    victims = sound()
    victims[5] = replace(victims[5], **fault)
    (message,) = checks.of_victims(victims)
    assert message.name == name
    assert message.sentence.startswith("1 of 64 victims ")


def test_one_picture_twice_in_a_seed_is_a_duplicate_and_in_two_seeds_is_not():
    victims = sound()
    victims[5] = replace(victims[5], images=victims[0].images)  # both of seed 0
    assert names(victims) == ["duplicate-victims"]
    assert "2 of 64 victims" in checks.of_victims(victims)[0].sentence
    victims = sound()
    victims[1] = replace(victims[1], images=victims[0].images)  # seeds 0 and 1
    assert names(victims) == []


def test_one_picture_twice_in_a_batch_is_a_duplicate():
    victims = sound()
    victims[0] = replace(victims[0], images=["a", "a"])
    assert names(victims) == ["duplicate-victims"]


@pytest.mark.parametrize(("victims", "seeds"), [(63, 5), (64, 4), (1, 1)])
def test_too_few_victims_or_seeds_are_no_published_row(victims, seeds):
    assert names(sound(victims, seeds)) == ["few"]


def test_an_attack_that_does_not_descend_has_no_loss_to_fall():
    assert names([replace(v, loss_fell=None) for v in sound()]) == []


def test_every_message_is_one_sentence_of_one_line():
    broken = [replace(v, gradient_norm=g) for v, g in zip(sound(2, 1), (0.0, None), strict=True)]
    messages = checks.of_victims(broken)
    assert [message.name for message in messages] == ["zero-gradient", "not-finite", "few"]
    assert all("\n" not in message.sentence for message in messages)
    assert checks.names(messages) == "zero-gradient, not-finite, few"
    assert checks.names([]) == "-"


def test_an_attack_without_a_form_for_the_defence_does_not_know_it():
    assert checks.defense_unknown([]) == []
    (message,) = checks.defense_unknown(["clip", "noise"])
    assert message.name == "defence-unknown"
    assert message.sentence.startswith("this attacker does not know the defence (it has no form for: clip, noise)")
