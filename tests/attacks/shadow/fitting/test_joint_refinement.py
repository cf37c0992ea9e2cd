"""Extractors refined together with the images behind uploads, which nobody knows."""

import itertools

import pytest
import torch

from attacks.features import inversion
from attacks.joint import Joint
from attacks.shadow import shadow_federation
from attacks.shadow.fitting import calibration, joint_refinement
from attacks.shadow.fitting.extractor_descent import Calibration, Uploads
from privbench.types import Knowledge
from tests.builders.small_artifacts import MODEL, artifact, images_like_the_victims, networks, smooth_images

X = smooth_images(16).double()
Y = torch.arange(16) % 10
HOW = Calibration(MODEL, exact=True, scale=0.5, steps=60)
PRIOR = inversion.learned(images_like_the_victims(), 10, X)
TRUE = networks(0)["extractor"]


def wrong(seed, by=0.2):
    """The true extractor but for so much of each tensor's size."""
    rng = torch.Generator().manual_seed(seed)
    return {n: t + by * t.square().mean().sqrt() * torch.randn(t.shape, generator=rng) for n, t in TRUE.items()}


def features(x):
    return MODEL.net("extractor").apply({n: t.double() for n, t in TRUE.items()}, {}, x, train=False)[0]


def uploads(rows, noise=None):
    h = features(X[rows])
    return Uploads(
        calibration.pairs(torch.zeros_like(X[rows]), h, None, noise, MODEL, calibration.TAU_OF_UNKNOWN), Y[rows]
    )


def error(params, rows):
    """Root mean square error of the logit features of some images, relative to their spread."""
    whole = calibration.pairs(X[rows], features(X[rows]), None, None, MODEL)
    gap = calibration.features(HOW, params, whole.images) - whole.target
    return float((gap.square() * whole.precision).mean().sqrt() * calibration.TAU)


def test_uploads_of_unknown_images_bring_the_extractor_nearer():
    start = wrong(1)
    (end,) = joint_refinement.refined(HOW, PRIOR, [start], [uploads(slice(0, 12))])
    # On images that sent nothing.
    assert error(end, slice(12, 16)) < 0.7 * error(start, slice(12, 16))


def test_clients_with_unequal_numbers_of_uploads_end_together_as_alone():
    how, starts = HOW._replace(steps=4), [wrong(3), wrong(4)]
    each = [uploads(slice(0, 2)), uploads(slice(2, 7))]
    together = joint_refinement.refined(how, PRIOR, starts, each)
    for start, one, params in zip(starts, each, together, strict=True):
        (alone,) = joint_refinement.refined(how, PRIOR, [start], [one])
        for name, t in alone.items():
            torch.testing.assert_close(params[name], t, rtol=1e-6, atol=1e-9, msg=name)


def test_a_narrower_prior_keeps_the_extractor_nearer_to_its_start():
    start = wrong(5)
    ends = [
        joint_refinement.refined(HOW._replace(scale=scale, steps=20), PRIOR, [start], [uploads(slice(0, 6))])[0]
        for scale in (0.01, 0.1, 1.0)
    ]
    moved = [sum(float((end[n] - start[n]).square().sum()) for n in start) for end in ends]
    assert all(less < more for less, more in itertools.pairwise(moved))


@pytest.mark.parametrize("count", [2, 5])
def test_it_is_validated_on_clients_with_as_many_uploads_as_the_attacked_ones(count):
    seen = artifact(smooth_images(count), torch.arange(count) % 10, ("classifier",), weights=networks(0))
    known = Knowledge(images_like_the_victims())
    view = shadow_federation.real(seen, known, 0, "joint")
    other, images = joint_refinement.joint(Joint(shadow_steps=2)).shadow(view, 1, 0, known)
    assert other.client.bincount().tolist() == [count] * shadow_federation.CLIENTS
    assert len(images) == count * shadow_federation.CLIENTS
