"""Dry runs: what the clients that a server plays send, and what the server decides by it."""

import math
from dataclasses import replace

import pytest
import torch

from attacks.common import labels, no_information
from attacks.crafted import classifiers, dry_run
from attacks.imprint import Imprint
from defenses.gaussian import Gaussian
from defenses.none import NoDefense
from privbench import presets, written_defense
from privbench.errors import UserError
from privbench.methods.base import DropoutMask, MiniBatch, RoundClock, SamplingContext
from privbench.observation import client_message, local_update
from privbench.seeds import stream
from privbench.training import harness
from privbench.training.state import Snapshot
from privbench.types import Batch, ExpectedUpload, Knowledge, LocalSteps, Networks
from tests.builders.federations import digits_federation
from tests.builders.small_artifacts import MODEL, networks, smooth_images

ADAM = {"lr": 3e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0}
SGD = {"kind": "sgd", "lr": 0.1, "weight_decay": 0.0}
FOUR = Batch(smooth_images(4), torch.tensor([3, 2, 9, 5]))


@pytest.mark.parametrize(
    ("defense", "where", "local"),
    [
        ("none", "step", LocalSteps(3, SGD, 2)),
        ("clip:0.5", "step", LocalSteps(2, ADAM, 2)),
        ("dp-sgd:noise=1e-9,clip=0.5", "step", LocalSteps(2, SGD, 2)),
        ("soteria:0.5", "step", LocalSteps(2, SGD)),
        ("clip:0.01", "update", LocalSteps(2, SGD, 3)),
    ],
)
def test_a_whole_update_of_a_dry_run_is_the_client_s_own(defense, where, local):
    """Steps on mini-batches drawn from one stream, each step's gradient defended, or the message.

    Of noise there is none to speak of: its order follows from how tensors are laid out.
    """
    spec = presets.train_spec("smoke", "digits", "fedavg", clients=2, defense=defense, where=where)
    setup = harness.prepare(spec, digits_federation((20, 20)), torch.device("cpu"))
    state = harness.initial(setup)
    shot = Snapshot(state.round, state.server, state.clients, state.uploads)
    (params, buffers), act = shot.networks(0), setup.defense
    drawn = [torch.Generator().manual_seed(1) for _ in range(2)]
    played = dry_run.local_change(setup.model, Networks(params, buffers), FOUR, local, act, drawn[0])
    played = act.message(played, drawn[0]) if "message" in act.places else played
    real, _ = local_update.client_update(
        setup.model, shot, 0, MiniBatch(*FOUR, {}), setup.method, act, local, RoundClock(1, 1), drawn[1]
    )
    for part, net in real.items():
        for name, t in net.items():
            # A change is the difference of two weights of single precision, of size 1 at most; Adam divides small gradients.
            rounding = 16 * torch.finfo(t.dtype).eps
            torch.testing.assert_close(
                played[part][name], t, rtol=1e-2 if local.optimiser is ADAM else 1e-4, atol=rounding
            )


@pytest.mark.parametrize(("defense", "images"), [("none", 1), ("none", 4), ("soteria:0.5", 4), ("clip:0.01", 4)])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_gradient_of_a_dry_run_is_the_client_s_own(defense, images, dropout):
    """The features that dropout takes away are drawn before the defence draws."""
    settings = {"dropout": dropout}
    spec = presets.train_spec("smoke", "digits", "fedavg", clients=2, defense=defense, method_settings=settings)
    setup = harness.prepare(spec, digits_federation((20, 20)), torch.device("cpu"))
    state = harness.initial(setup)
    shot = Snapshot(state.round, state.server, state.clients, state.uploads)
    (params, buffers), batch = shot.networks(0), Batch(*(t[:images] for t in FOUR))
    expected = ExpectedUpload(images, setup.defense)
    played = dry_run.observed(
        setup.model, Networks(params, buffers), Batch(*(t[None] for t in batch)), expected, seed=0
    )
    rng, kept = stream(0, "attacker", dry_run.STREAM, "defence", 0), torch.empty(images, 0, dtype=torch.bool)
    if dropout:
        kept = DropoutMask().sample((images,), SamplingContext(setup.model, None), rng)
        assert 0.3 < float(kept.double().mean()) < 0.7
    mini = MiniBatch(*batch, {"kept": kept})
    real = client_message.client_gradient(
        setup.model, shot, 0, mini, setup.method, ("extractor", "classifier"), RoundClock(1, 1), train=True
    )
    if defense.startswith("soteria"):
        real = setup.defense.representation(real, setup.model, (params, buffers), batch.images)
    real = setup.defense.message(real, rng) if "message" in setup.defense.places else real
    for part, net in real.items():
        for name, t in net.items():
            torch.testing.assert_close(played.gradients[part][name][0], t)


@pytest.mark.parametrize("told", [True, False])
def test_a_dry_run_knows_the_labels_that_the_server_will_be_told(told):
    expected = ExpectedUpload(2, NoDefense(), labels_known=told)
    victims = Batch(*(t.unflatten(0, (2, 2)) for t in FOUR))
    seen = dry_run.observed(MODEL, Networks(networks(), {}), victims, expected, 0)
    assert (seen.labels is not None) == told
    assert not told or torch.equal(seen.labels, victims.labels)


def test_noise_of_a_step_is_in_the_step_and_not_in_the_whole_update():
    """One step at rate 0.1 of gradients with noise of 0.1: noise of 0.01 in the update."""
    broadcast, defense = Networks(networks(), {"extractor": {}, "classifier": {}}), Gaussian(0.01, where="step")
    plain, noisy = (
        dry_run.local_change(MODEL, broadcast, FOUR, LocalSteps(1, SGD), one, torch.Generator().manual_seed(0))
        for one in (NoDefense(), defense)
    )
    added = torch.cat([(t - plain[p][n]).flatten() for p, net in noisy.items() for n, t in net.items()])
    # 4 standard errors of a standard deviation of so many draws.
    assert float(added.std()) == pytest.approx(0.01, rel=4 / math.sqrt(2 * len(added)))


@pytest.mark.parametrize(("where", "noise"), [("step", 1 / math.sqrt(4)), ("update", 1 / (0.1 * 4))])
def test_the_noise_of_an_update_taken_for_a_gradient_is_that_of_its_steps_or_of_the_message(where, noise):
    """K = 4 steps at rate 0.1: sqrt(K) noises of one step over K, or the message's over lr K; the standard error is 0.7%."""
    defense = written_defense.create("gaussian:0.01", where)
    expected = ExpectedUpload(2, defense, local=LocalSteps(4, SGD))
    few = 4 / math.sqrt(2 * dry_run.NOISES)
    assert dry_run.gradient_noise_std(expected, 0) == pytest.approx(0.1 * noise, rel=few)


@pytest.mark.parametrize("defense", ["precode:32+gaussian:0.01", "gaussian:0.01+prune:1"])
def test_the_noise_of_steps_is_theirs_behind_other_defences(defense):
    plain, several = (
        dry_run.gradient_noise_std(ExpectedUpload(2, written_defense.create(each, "step"), local=LocalSteps(4, SGD)), 0)
        for each in ("gaussian:0.01", defense)
    )
    assert several == pytest.approx(plain, rel=4 / math.sqrt(2 * dry_run.NOISES))


@pytest.mark.parametrize("batch_size", [1, 4])
def test_nothing_is_crafted_of_networks_whose_training_diverged(batch_size):
    lost = {p: {n: torch.full_like(t, torch.nan) for n, t in net.items()} for p, net in networks().items()}
    broadcast = Networks(lost, {"extractor": {}, "classifier": {}})
    known = Knowledge(
        Batch(*(t.repeat_interleave(8, 0) for t in FOUR)), expected=ExpectedUpload(batch_size, NoDefense())
    )
    assert Imprint().craft(MODEL, broadcast, known, 0) == classifiers.HONEST


class Constant:
    """An attack whose every pixel is one number."""

    def __init__(self, level):
        self.level = level

    def reconstruct(self, seen, *_):
        images = torch.full((seen.victims, seen.batch_size, *seen.image_shape), self.level)
        return no_information.still(seen, images, labels.unknown(seen))


@pytest.mark.parametrize(("read", "crafts"), [(0.5, False), (None, True)], ids=["worse than class means", "better"])
def test_an_honest_server_is_worth_class_means_where_its_passive_attack_is_worse(read, crafts):
    """All images of a class are alike up to noise: class means are near them, grey is not, and black is worse still."""
    y = torch.arange(40) % 10
    x = (y[:, None, None, None] / 9).expand(-1, 1, 32, 32) + 0.01 * torch.rand(
        40, 1, 32, 32, generator=stream(0, "noise")
    )
    known = Knowledge(Batch(x, y), expected=ExpectedUpload(1, NoDefense()))
    broadcast = Networks(networks(), {"extractor": {}, "classifier": {}})
    others = dry_run.halves(known.auxiliary, 0)[0].images[:4, None]

    def answer(seen, *_):
        images = Constant(0.5).reconstruct(seen)
        return images if read else images._replace(images=others)

    made = ((Networks({"classifier": networks(1)["classifier"]}, {}),),)
    sent = dry_run.best(MODEL, broadcast, known, 4, 0, lambda _: made, answer, lambda _: Constant(0.0))
    assert bool(sent) == crafts


def test_one_auxiliary_image_is_sent_without_a_dry_run():
    """It plays the client; nobody is left to attack with."""
    known = Knowledge(Batch(*(t[:1] for t in FOUR)), expected=ExpectedUpload(1, NoDefense()))
    broadcast = Networks(networks(), {"extractor": {}, "classifier": {}})
    made = Imprint().craft(MODEL, broadcast, known, 0)
    assert classifiers.is_crafted(made.params["classifier"])
    # Levels for batches cannot be spread over it.
    with pytest.raises(UserError, match="two auxiliary images at least") as error:
        Imprint().craft(MODEL, broadcast, replace(known, expected=ExpectedUpload(2, NoDefense())), 0)
    assert "\n" not in str(error.value)
    # Of three, two play the client, and one is too few to craft from.
    three = Knowledge(Batch(*(t[:3] for t in FOUR)), expected=ExpectedUpload(2, NoDefense()))
    assert classifiers.is_crafted(Imprint().craft(MODEL, broadcast, three, 0).params["classifier"])


@pytest.mark.parametrize(
    ("defense", "wire", "weights", "largest"),
    [
        ("none", "float32", None, 10.0**dry_run.DECADES),
        ("gaussian:0.001", "fp16", None, 65504.0),
        ("secure-aggregation", "float32", (20, 31), 2.0**30 / 2 / 31),
        ("gaussian:0.001+secure-aggregation", "fp16", (300,) * 4, 65504.0),
    ],
)
def test_the_largest_entry_is_what_formats_and_whole_numbers_carry(defense, wire, weights, largest):
    expected = ExpectedUpload(len(weights or (1,)), written_defense.create(defense, "update"), wire, weights=weights)
    found = dry_run.largest_entry(expected)
    assert largest / 10 ** (1 / dry_run.STEPS_PER_DECADE) <= found <= largest
    size = classifiers.saturation(1e-3, found)
    assert size * classifiers.HEADROOM <= found
    assert dry_run.largest_entry(expected._replace(largest=7.0)) == 7.0
