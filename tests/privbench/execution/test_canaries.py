"""Audits with canaries: sound mechanisms are not reported, planted faults are.

Claimed is an epsilon of at most 1, with full batches and 1,000 canaries. The bound of one run exceeds the epsilon of a sound
mechanism with a probability of at most 5%, single releases report one with at most 0.1%; seeds are fixed.
"""

import math
from dataclasses import dataclass, replace

import pytest
import torch

from defenses.common import clipping
from defenses.dp_fedavg import DPFedAvg
from defenses.dp_sgd import DPSGD
from privbench import presets
from privbench.errors import UserError
from privbench.execution import audit, canaries
from privbench.records.entries import FALSE_ALARM_RATE
from privbench.seeds import stream
from privbench.training import defended, harness
from tests.builders.federations import digits_federation

IMAGES, CANARIES, SINGLES = 20, 1000, 2000


@dataclass(frozen=True)
class HalfTheNoise(DPSGD):
    """Claims sigma, draws sigma / 2."""

    def example(self, gradients, included, expected, rng):
        return DPSGD(noise=self.sigma / 2, clip=self.clip).example(gradients, included, expected, rng)


@dataclass(frozen=True)
class OneLayerUnclipped(DPSGD):
    """Clips every layer but one, and leaves that one as it is."""

    def example(self, gradients, included, expected, rng):
        part = next(iter(gradients))
        first = next(iter(gradients[part]))
        rest = gradients | {part: {n: t for n, t in gradients[part].items() if n != first}}
        weight = clipping.factors(rest, self.clip) * included
        total = {
            p: {
                n: torch.tensordot(included.to(t) if (p, n) == (part, first) else weight.to(t), t, 1)
                for n, t in net.items()
            }
            for p, net in gradients.items()
        }
        noised = clipping.noised(total, self.sigma * self.clip, rng)
        return {p: {n: t / expected for n, t in net.items()} for p, net in noised.items()}


@dataclass(frozen=True)
class WrongRate(DPSGD):
    """Tells the accountant of ten times as many images as a client has, so of a tenth of the sampling rate."""

    def planned(self, every):
        return super().planned([facts._replace(examples=10 * facts.examples) for facts in every])

    def guarantee(self, facts):
        return super().guarantee(facts._replace(examples=10 * facts.examples))


@dataclass(frozen=True)
class HalfTheNoiseOfClients(DPFedAvg):
    """The same fault in messages."""

    def message(self, tensors, rng):
        return clipping.noised(clipping.clipped(tensors, self.clip), self.sigma * self.clip / 2, rng)


def audited(kind, epsilon=1.0, noise=None, epochs=1, singles=SINGLES):
    """One round of FedSplit on two clients of 20 images, mini-batches of all of them, under a defence of that class.

    Its noise is solved for, or given.
    """
    spec = presets.train_spec(
        "smoke", "digits", "fedsplit", clients=2, seed=0, defense=f"{kind.name}:noise=1",
        changes={"batch": IMAGES, "rounds": 1, "local_epochs": epochs},
    )  # fmt: skip
    setup = harness.prepare(spec, digits_federation((IMAGES, IMAGES)), torch.device("cpu"))
    facts = defended.facts(setup.method, spec.schedule, IMAGES, 1, sent_buffers=())
    setup = replace(setup, defense=kind(**{"noise": noise} if noise else {"epsilon": epsilon}).planned([facts]))
    made = audit.audited(setup, 1, CANARIES, singles)
    assert made.claimed <= epsilon
    assert made.canaries == CANARIES
    return made


@pytest.mark.parametrize("kind", [DPSGD, DPFedAvg])
def test_a_sound_mechanism_is_not_reported(kind):
    made = audited(kind)
    assert not made.contradicted()
    assert made.claimed == pytest.approx(1.0, abs=0.01)
    assert made.lower_bound < made.claimed < made.provable
    # As many right guesses as a Gaussian mechanism gives, no fewer: four standard errors.
    assert made.single_right / SINGLES == pytest.approx(made.single_allowed, abs=4 * math.sqrt(0.25 / SINGLES))


@pytest.mark.parametrize("kind", [HalfTheNoise, HalfTheNoiseOfClients])
def test_noise_half_as_large_is_caught_by_single_releases_and_not_by_one_run(kind):
    made = audited(kind)
    assert made.single_p_value < FALSE_ALARM_RATE
    assert made.contradicted()
    assert made.lower_bound < made.claimed


def test_clipping_forgotten_on_a_small_layer_is_caught_by_single_releases_and_not_by_one_run():
    made = audited(OneLayerUnclipped)
    assert made.single_p_value < FALSE_ALARM_RATE
    assert made.contradicted()
    assert made.lower_bound < made.claimed


def test_a_wrong_sampling_rate_is_caught_by_one_run():
    # Every step draws all canaries, the claim assumes a tenth of them: over several steps the scores lie far apart.
    # Noise that is claimed to give an epsilon a little below 1; to solve for it would take ten such accounts.
    made = audited(WrongRate, noise=1.42, epochs=3, singles=100)
    assert made.lower_bound > made.claimed
    assert made.contradicted()


def test_a_step_shows_a_canary_in_what_its_stage_trains_alone():
    """Of noise that hides all, though the stages of FedCG train one of the two networks that are sent each."""
    spec = presets.train_spec(
        "smoke", "digits", "fedcg", clients=2, seed=0, defense="gaussian:1000000.0,clip=1", where="step",
        changes={"batch": 20, "rounds": 1, "local_epochs": 1, "generator_epochs": 1},
    )  # fmt: skip
    setup = harness.prepare(spec, digits_federation((20, 20)), torch.device("cpu"))
    made = audit.audited(setup, 1, 100, 200)
    # A true claim of 0.003 or less: 100 guesses are right as often as coins, 80 or more with a probability below 1e-9.
    assert made.claimed < 0.01
    assert made.right < 80
    assert not made.contradicted()


def test_layers_take_turns_and_no_coordinate_is_taken_twice():
    layers = canaries.CanaryPlaces({"extractor": {"weight": torch.zeros(3, 4), "bias": torch.zeros(2)}})
    places = layers.coordinates(6, stream(0, "places"))
    assert len(set(places.tolist())) == 6
    # Two of two in the small layer, and the rest in the large one.
    assert int((places >= 12).sum()) == 2
    rows = layers.rows(places)
    assert torch.equal(
        layers.at({p: {n: t.sum(0) for n, t in net.items()} for p, net in rows.items()}, places), torch.full((6,), 1e6)
    )
    turns = layers.in_turn(1000, stream(1, "places"))
    assert int((turns >= 12).sum()) == 500
    assert 0 <= int(turns.min()) <= int(turns.max()) < 14


def test_more_canaries_than_parameters_are_refused_in_one_line():
    layers = canaries.CanaryPlaces({"classifier": {"bias": torch.zeros(3)}})
    with pytest.raises(UserError, match="4 canaries need as many parameters, but 3 are trained; take fewer canaries"):
        layers.coordinates(4, stream(0, "places"))


def test_a_canary_in_steps_is_released_as_often_as_the_smallest_client_steps(monkeypatch):
    spec = presets.train_spec(
        "smoke", "digits", "fedsplit", clients=2, seed=0, defense="gaussian:1.0,clip=1", where="step",
        changes={"batch": 10, "rounds": 1, "local_epochs": 2},
    )  # fmt: skip
    # The first client, of 40 images, takes eight steps a round, the second four: of the second is the claim.
    setup = harness.prepare(spec, digits_federation((40, 20)), torch.device("cpu"))
    steps, step = [], type(setup.defense).step

    def counted(self, *given):
        steps.append(given)
        return step(self, *given)

    monkeypatch.setattr(type(setup.defense), "step", counted)
    canaries.one_run(setup, 3, 2)
    assert len(steps) == 3 * 2 * 4
