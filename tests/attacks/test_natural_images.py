"""Which attacks use what is known of photographs in general: found by changing its numbers, beside what they declare."""

from dataclasses import replace

import pytest
import torch

from attacks.common import priors
from privbench import presets, registry
from privbench.errors import UserError
from privbench.execution import applicability, one_attack
from privbench.networks.model import Model
from privbench.types import Knowledge, LocalSteps, Networks, no_progress
from tests.builders.small_artifacts import artifact, networks, smooth_images, update

CPU, COLOUR = torch.device("cpu"), Model("lenet5", 3, 10, 32)
SGD = {"kind": "sgd", "lr": 0.1, "weight_decay": 0.0}
VARIANCE = 1e-4
HAS = {"auxiliary", "known", "rounds", "colluder", "oracle"}  # images of the attacker's own, or the victims' extractor
WITHOUT = [
    name
    for name in registry.ATTACKS
    if not registry.resolve("attack", name).needs & HAS
    and hasattr(registry.resolve("attack", name), "reconstruct")
    and name not in registry.FLOORS
    # These invert no gradient: they read a generator of images that a client sends.
    and not applicability.of(registry.resolve("attack", name)).image_generator
]


def seen_by_the_server():
    """One colour image each: gradients as they are and under noise, and whole updates likewise."""
    x, y = smooth_images(1, 3), torch.tensor([3])
    weights = networks(model=COLOUR)
    known = {"weights": weights, "model": COLOUR}
    each = [artifact(x, y, **known), artifact(x, y, noise=VARIANCE, **known), artifact(x, y, ("classifier",), **known)]
    each = [replace(one, image_shape=(3, 32, 32)) for one in each]
    change = update(smooth_images(1), y, LocalSteps(1, SGD))
    rng = torch.Generator().manual_seed(1)
    noisy = {
        part: {n: t + VARIANCE**0.5 * torch.randn(t.shape, generator=rng) for n, t in net.items()}
        for part, net in change.updates.items()
    }
    noise = {"name": "gaussian", "variance": VARIANCE, "where": "update"}
    start = Networks(weights, {"extractor": {}, "classifier": {}})
    return [*each, change, replace(change, updates=noisy, defense=noise)], Knowledge(initial=start, broadcast=start)


def images(name, seen, known):
    """What an attack reconstructs, None where it says that it cannot."""
    settings = presets.settings_of_attack("smoke", name)
    try:
        return one_attack.attack_artifact(name, settings, seen, known, 0, CPU, no_progress).images
    except UserError:
        return None


@pytest.mark.parametrize("name", WITHOUT)
def test_an_attack_without_images_declares_that_it_knows_photographs_exactly_where_they_change_its_result(
    name, monkeypatch
):
    every, known = seen_by_the_server()
    before = [images(name, seen, known) for seen in every]
    monkeypatch.setattr(priors, "STRENGTH", 0.2)
    monkeypatch.setattr(priors, "CHROMA", (1.5, 1.5))
    monkeypatch.setattr(priors, "MEAN", 2 * priors.MEAN)
    after = [images(name, seen, known) for seen in every]
    made = [(one, other) for one, other in zip(before, after, strict=True) if one is not None]
    assert made, "no artifact of this test is for this attack"
    uses = any(not torch.equal(one, other) for one, other in made)
    assert uses == ("natural images" in registry.resolve("attack", name).knowledge)
