"""How the attack on each victim ended: an outcome for each, whatever the attack itself says."""

from dataclasses import replace

import torch

from attacks.common import failed_uploads, no_information
from attacks.features import per_image
from privbench.records import victims
from privbench.types import Outcome, Reconstruction
from tests.builders.small_artifacts import artifact, smooth_images

GAVE_UP, NOT_APPLICABLE, DIVERGED = Outcome.GAVE_UP, Outcome.NOT_APPLICABLE, Outcome.DIVERGED


def reconstruction(images, loss=None, outcome=None):
    v = len(images)
    loss = torch.zeros(v) if loss is None else torch.tensor(loss)
    labels = torch.zeros(images.shape[:2]).long()
    outcomes = None if outcome is None else torch.tensor(outcome)
    return Reconstruction(images, labels, loss, loss[:, None], torch.zeros(v).long(), 0, outcome=outcomes)


def seen(count, zero=()):
    observed = artifact(smooth_images(count), torch.arange(count))
    for net in observed.gradients.values():
        for g in net.values():
            for v in zero:
                g[v] = 0.0
    return observed


def test_labels_are_recovered_only_where_the_attack_gave_some():
    attacked, observed = reconstruction(smooth_images(2)[:, None]), seen(2)
    none, some = (attacked._replace(labels=torch.tensor(y)[:, None]) for y in ([-1, -1], [-1, 3]))
    assert [victims.labels_used(observed, each) for each in (attacked, some, none)] == [
        "recovered",
        "recovered",
        "none",
    ]
    assert victims.labels_used(replace(observed, labels=attacked.labels), none) == "known"


def test_numbers_that_are_not_finite_have_diverged_and_all_else_is_reconstructed():
    images = smooth_images(3)[:, None].clone()
    images[1, 0, 0, 3, 3] = torch.nan
    attacked = reconstruction(images, [0.1, 0.1, float("inf")])
    assert victims.outcomes(seen(3), attacked, is_floor=False) == ["reconstructed", "diverged", "diverged"]


def test_a_descent_that_ends_in_finite_grey_has_failed_and_a_floor_that_is_grey_has_not():
    images = smooth_images(2)[:, None].clone()
    images[1] = 0.5
    assert victims.outcomes(seen(2), reconstruction(images), is_floor=False) == ["reconstructed", "gave up"]
    assert victims.outcomes(seen(2), reconstruction(images), is_floor=True) == ["reconstructed", "reconstructed"]


def test_flat_is_less_than_one_step_of_8_bits_in_every_channel_of_every_image():
    images = torch.full((5, 2, 3, 8, 8), 0.5)
    images[1, 0, 1, 2, 2] += 0.9 / 255
    images[2, 0, 1, 2, 2] += 1.1 / 255
    images[3, 1, 0, 4, 4] += 0.2  # one image of two
    images[4, :, 0] = 0.9  # a colour
    assert victims.is_flat(images).tolist() == [True, True, False, False, True]
    assert victims.is_flat(torch.tensor([-3.0, -1.0]).view(1, 1, 1, 1, 2)).tolist() == [True]  # clipped, both are black


def test_what_the_attack_says_counts_but_a_zero_gradient_leaves_nothing_to_attack():
    images = smooth_images(5)[:, None]
    attacked = reconstruction(
        images, [0.0, 0.0, 0.0, 0.0, float("nan")], [0, GAVE_UP, NOT_APPLICABLE, DIVERGED, GAVE_UP]
    )
    expected = ["reconstructed", "gave up", "not applicable", "diverged", "diverged"]
    assert victims.outcomes(seen(5), attacked, is_floor=False) == expected
    assert victims.outcomes(seen(5, zero=(0, 1, 4)), attacked, is_floor=False) == [
        "not applicable", "not applicable", "not applicable", "diverged", "not applicable",
    ]  # fmt: skip
    assert victims.outcomes(seen(5, zero=(0,)), attacked, is_floor=True)[0] == "reconstructed"


def test_outcomes_survive_where_reconstructions_are_put_together():
    images = smooth_images(4)[:, None]
    whole = no_information.gave_up(reconstruction(images))
    part = reconstruction(images[:2], outcome=[0, GAVE_UP])
    assert failed_uploads.put(whole, torch.tensor([3, 1]), part).outcome.tolist() == [1, 1, 1, 0]
    assert failed_uploads.put(
        reconstruction(images), torch.tensor([2]), part._replace(**one_row(part))
    ).outcome.tolist() == [
        0,
        0,
        0,
        0,
    ]
    # A batch was given up where all its images were.
    assert per_image.folded(reconstruction(images, outcome=[1, 0, 1, 1]), 2).outcome.tolist() == [0, 1]
    assert per_image.folded(reconstruction(images), 2).outcome is None


def one_row(part):
    return {name: getattr(part, name)[:1] for name in ("images", "labels", "loss", "trace", "restart", "outcome")}
