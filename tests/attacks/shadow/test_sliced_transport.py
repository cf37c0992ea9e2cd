"""Surrogates aligned to generated features by sliced optimal transport."""

import dataclasses
import math

import pytest
import torch

from attacks.aligned_surrogate import AlignedSurrogate
from attacks.shadow import alignment, shadow_federation, sliced_transport, surrogate_training
from privbench.seeds import stream
from privbench.types import Batch, Knowledge
from tests.builders.small_artifacts import artifact, images_like_the_victims, smooth_images

pytestmark = pytest.mark.usefixtures("small_shadows")

SHORT = {"steps": 4, "exact_steps": 4, "members": 1, "train_steps": 4, "shadow_rounds": 1, "shadow_steps": 4}
BRIEF = AlignedSurrogate(**SHORT, align_steps=4)


def normal(count, name):
    return torch.randn(count, 2, 3, 1, generator=stream(0, "test", name))


def along(features, count=None):
    drawn = sliced_transport.directions(features[0].numel(), stream(0, "test", "directions"))
    return drawn if count is None else drawn[:, :count]


def transport(first, second):
    """The squared Wasserstein-2 distance of two lists of numbers, each as heavy as the other: the mean over a fine common grid."""
    fine = math.lcm(len(first), len(second))
    a, b = (sorted(x for x in values for _ in range(fine // len(values))) for values in (first, second))
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) / fine


def test_the_distance_is_that_of_a_plain_loop_over_classes_and_directions():
    generated = Batch(normal(48, "generated").exp(), torch.tensor([0, 1, 2]).repeat_interleave(16))
    # 4, 2 and 1 of the generated classes, and one of a class of which nothing is generated: all but the last divide LEVELS.
    h, labels = normal(8, "features"), torch.tensor([0, 2, 1, 0, 5, 0, 1, 0])
    directions = along(h, 5)
    by_class = {c: generated.images[generated.labels == c] for c in range(3)}
    spread = sum(float((t - t.mean(0)).square().sum()) for t in by_class.values()) / generated.images.numel()
    by_hand = 0.0
    for c, target in by_class.items():
        mine = h[labels == c]
        for direction in directions.T:
            first, second = ((t.flatten(1) @ direction).tolist() for t in (mine, target))
            by_hand += len(mine) / len(h) * transport(first, second) / len(directions.T)
    align = sliced_transport.to_generated(generated, directions)
    assert float(align(h, labels)) == pytest.approx(by_hand / (spread + surrogate_training.EPS), rel=1e-5)


def test_directions_are_unit_vectors_that_a_seed_names():
    drawn, again = along(normal(1, "any")), along(normal(1, "any"))
    torch.testing.assert_close(drawn.norm(dim=0), torch.ones(sliced_transport.DIRECTIONS))
    assert torch.equal(drawn, again)


def test_features_as_generated_cost_nothing_and_a_shift_costs_as_much_as_among_moments():
    h, labels = normal(32, "generated"), torch.arange(32) % 2
    whole = torch.eye(6)  # in all axes, whose mean squared shift is that of the features
    sliced = sliced_transport.to_generated(Batch(h, labels), whole)
    moments = surrogate_training.to_generator(surrogate_training.class_moments(h, labels, 2))
    assert float(sliced(h, labels)) == pytest.approx(0, abs=1e-10)
    shift = torch.tensor([0.5, -0.3])[:, None, None]  # of a channel, whose covariances it leaves
    assert float(sliced(h + shift, labels)) == pytest.approx(float(moments(h + shift, labels)), rel=1e-4)


def test_it_tells_distributions_of_the_same_two_moments_apart():
    labels = torch.zeros(64, dtype=torch.int64)
    two, three = (
        torch.tensor(v).repeat(16)[:, None, None, None] for v in ([-1.0, 1, -1, 1], [-(2**0.5), 0, 0, 2**0.5])
    )
    moments = surrogate_training.to_generator(surrogate_training.class_moments(two, labels, 1))
    assert float(moments(three, labels)) == pytest.approx(0, abs=1e-9)
    # Quantiles: -sqrt 2, 0, 0, sqrt 2 against -1, -1, 1, 1 of variance 1.
    by_hand = ((2**0.5 - 1) ** 2 + 1) / 2 / (1 + surrogate_training.EPS)
    assert float(sliced_transport.to_generated(Batch(two, labels), torch.ones(1, 1))(three, labels)) == pytest.approx(
        by_hand, rel=1e-5
    )


def test_aligned_features_come_nearer_and_their_gradient_is_that_of_differences():
    generated = Batch(normal(32, "generated"), torch.arange(32) % 2)
    h, labels = 2 * normal(8, "features").double() + 1, torch.arange(8) % 2
    align = sliced_transport.to_generated(Batch(generated.images.double(), generated.labels), along(h, 7))
    h.requires_grad_()
    (slope,) = torch.autograd.grad(align(h, labels), h)
    step = torch.zeros_like(h)
    step[3, 1, 2, 0] = 1e-6
    with torch.no_grad():
        assert (align(h - 0.1 * slope / slope.norm(), labels) < align(h, labels)).item()
        difference = float(align(h + step, labels) - align(h - step, labels)) / 2e-6
    assert float(slope[3, 1, 2, 0]) == pytest.approx(difference, rel=1e-5, abs=1e-9)


def test_the_setting_changes_surrogates_of_clients_with_a_generator_alone():
    seen = artifact(smooth_images(2), torch.tensor([3, 0]), ("classifier",))
    known = Knowledge(images_like_the_victims())
    view = shadow_federation.real(seen, known, 0, "test")
    assert view.generated.keys() == {0}
    counts = view.generated[0].labels.bincount()
    assert counts.tolist() == [shadow_federation.GENERATED] * 10
    for each, same in ((view, False), (view._replace(generated={}), True)):
        first, second = (
            alignment.from_plain(dataclasses.replace(BRIEF, alignment=kind), each, 0, Knowledge())
            for kind in ("moments", "sliced")
        )
        assert all(torch.equal(t, second[0][0][n]) for n, t in first[0][0].items()) == same


def test_a_shadow_holds_what_its_clients_would_generate():
    seen = artifact(smooth_images(2), torch.tensor([3, 0]), ("classifier",))
    real = shadow_federation.real(seen, Knowledge(images_like_the_victims()), 0, "test")
    shadow, _ = shadow_federation.shadow(real, 1, 3, 0, Knowledge())
    assert sorted(shadow.generated) == shadow.clients
    # Of all images that shadow clients have: half of the auxiliary ones, their victims among them.
    assert sum(len(batch.labels) for batch in shadow.generated.values()) == len(real.auxiliary.labels) // 2
    for h, y, client in zip(shadow.h, shadow.labels, shadow.client.tolist(), strict=True):
        batch = shadow.generated[client]
        gap = (batch.images[batch.labels == y].double() - h).flatten(1).abs().amax(1)
        # Of batches of other sizes, whose sums round otherwise.
        assert float(gap.min()) < 1e-5
