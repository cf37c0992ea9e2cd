"""Images that are no victims, whose uploads an attacker has: known ones, and those that a server kept of many rounds."""

import math

import pytest
import torch

from privbench import presets, spec
from privbench.errors import UserError
from privbench.observation import chosen_victims, knowledge, other_images
from privbench.training import checkpoint
from privbench.types import Artifact
from tests.builders.federations import digits_federation

FEDERATION = digits_federation((20, 20, 20))
VICTIMS = chosen_victims.choose_victims(FEDERATION, 6, 1, 0)


def contents(images):
    return knowledge.digests([(255 * images.flatten(0, 1)).round().to(torch.uint8)])


def known(count, victims=VICTIMS, federation=FEDERATION):
    return other_images.choose(federation, victims, count, 0, other_images.KNOWN, image_size=32)


def test_known_images_are_of_every_attacked_client_and_never_victims():
    chosen = known(8)
    assert torch.bincount(chosen.clients).tolist() == [8, 8, 8]
    assert not contents(chosen.images) & contents(VICTIMS.images)
    for k in range(3):
        train = FEDERATION.clients[k].train
        own = knowledge.digests([train.images])
        assert contents(chosen.images[chosen.clients == k]) <= own


def test_a_second_copy_of_a_victim_is_not_known_either():
    clients = list(FEDERATION.clients)
    train = clients[0].train
    # Every image of the client but two is a copy of its first victim.
    victim = (255 * VICTIMS.images[0, 0]).round().to(torch.uint8)
    copies = train._replace(images=torch.cat([victim.expand(18, -1, -1, -1), train.images[18:]]))
    clients[0] = clients[0]._replace(train=copies)
    federation = FEDERATION._replace(clients=tuple(clients))
    one = chosen_victims.ChosenImages(VICTIMS.images[:1], VICTIMS.labels[:1], VICTIMS.clients[:1])
    assert len(known(2, one, federation).images) == 2
    with pytest.raises(UserError, match="client 1 has only 2 training images besides its victims"):
        known(3, one, federation)


def test_whoever_knows_eight_knows_the_four_of_another():
    few, many = known(4), known(8)
    for k in range(3):
        assert torch.equal(few.images[few.clients == k], many.images[many.clients == k][:4])


def test_batches_are_whole():
    victims = chosen_victims.choose_victims(FEDERATION, 3, 2, 0)
    chosen = known(4, victims)
    assert chosen.images.shape[:2] == (6, 2)
    assert chosen.clients.tolist() == [0, 0, 1, 1, 2, 2]
    with pytest.raises(UserError, match="--known-images 3 was asked for, but uploads are of 2 images each"):
        known(3, victims)


def test_a_round_brings_the_same_images_in_another_order():
    kept = other_images.choose(FEDERATION, VICTIMS, 12, 0, other_images.KEPT, image_size=32)
    first, second = (other_images.in_round(kept, r, 0) for r in (0, 1))
    assert not torch.equal(first.images, second.images)
    for k in range(3):
        own = [each.images[each.clients == k] for each in (kept, first, second)]
        assert contents(own[0]) == contents(own[1]) == contents(own[2])
    by_image = {contents(x[None]).pop(): int(y) for x, y in zip(kept.images, kept.labels, strict=True)}
    assert all(by_image[contents(x[None]).pop()] == int(y) for x, y in zip(second.images, second.labels, strict=True))


def test_images_known_at_30_db_have_that_error():
    chosen = known(8)
    exact, noisy = (other_images.as_known(chosen, Artifact, quality, 0) for quality in (None, 30.0))
    assert torch.equal(exact.images, chosen.images)
    assert exact.error == 0
    error = (noisy.images - chosen.images).square().mean()
    # The mean of n squared normals errs by sqrt(2 / n): here 24,576 of them, five standard deviations.
    assert abs(float(error) / noisy.error**2 - 1) < 5 * math.sqrt(2 / noisy.images.numel())
    assert -10 * math.log10(noisy.error**2) == pytest.approx(30)


def test_by_default_the_server_observed_powers_of_two():
    assert other_images.observed_rounds(None, 10) == (0, 1, 2, 4, 8, 10)
    assert other_images.observed_rounds(None, 8) == (0, 1, 2, 4, 8)
    assert other_images.observed_rounds(None, 0) == (0,)
    assert other_images.observed_rounds((7, 0, 12), 10) == (0, 7, 10)


def test_a_cell_says_what_is_known_only_where_its_attack_needs_it():
    train = presets.train_spec("quick", "digits", "fedsplit")
    plain = presets.cell_spec("quick", train, "dlg")
    assert presets.cell_spec("quick", train, "dlg", known_images=4, observed_rounds=(0, 1)).id == plain.id
    assert not {"known_images", "known_quality_db", "observed_rounds", "uploads_per_round"} & set(plain.model_dump())
    few, many = (presets.cell_spec("quick", train, "calibrated", known_images=n) for n in (4, 16))
    assert few.id != many.id
    assert presets.cell_spec("quick", train, "calibrated", batch_size=3).known_images == 9
    kept = presets.cell_spec("quick", train, "chained", observed_rounds=(0, 5))
    assert (kept.known_images, kept.observed_rounds, kept.uploads_per_round) == (None, (0, 5), 12)
    assert spec.checked(spec.CellSpec, kept.model_dump(mode="json")) == kept


def test_as_published_the_observed_rounds_are_those_that_a_run_keeps():
    for preset, method, expected in (
        ("paper", "fedcg", (0, 1, 2, 5, 10, 20, 50)),
        ("standard", "fedsplit", (0, 1, 2, 5, 10, 20)),
        ("quick", "fedsplit", None),
    ):
        train = presets.train_spec(preset, "cifar10", method)
        assert presets.cell_spec(preset, train, "chained").observed_rounds == expected
        assert presets.cell_spec(preset, train, "chained", observed_rounds=(0, 3)).observed_rounds == (0, 3)
        assert presets.cell_spec(preset, train, "calibrated").observed_rounds is None
        assert train.schedule.rounds < checkpoint.LONG or expected
    assert other_images.observed_rounds((0, 1, 2, 5, 10, 20, 50), 34) == (0, 1, 2, 5, 10, 20, 34)
