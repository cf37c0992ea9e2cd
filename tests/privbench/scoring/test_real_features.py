"""The feature space: an overlay of two digits is no digit there, as it is in pixels."""

import pytest
import torch

from privbench.data import digits
from privbench.scoring import manifolds, real_features
from privbench.seeds import stream
from privbench.types import Batch

IMAGES, LABELS = digits.shuffled()
IMAGES = IMAGES / 255


def precision(features, real, others):
    return float(manifolds.coverage(features(real), features(others)).precise.double().mean())


def test_overlays_are_less_precise_than_real_digits(monkeypatch):
    monkeypatch.setattr(real_features, "STEPS", 60)
    features = real_features.trained_on(Batch(IMAGES[:298], LABELS[:298]), 10, seed=0)
    real, others = IMAGES[298:598], IMAGES[598:898]
    overlaid = (others + others[torch.randperm(300, generator=stream(0, "overlay"))]) / 2

    def pixels(images):
        return images.flatten(1)

    assert precision(features, real, others) > 0.85
    assert precision(features, real, overlaid) < 0.6 < 0.75 < precision(pixels, real, overlaid)
    assert precision(features, real, torch.rand(others.shape, generator=stream(0, "noise"))) == 0


def test_features_depend_on_the_seed_alone(monkeypatch):
    monkeypatch.setattr(real_features, "STEPS", 3)
    batch = Batch(IMAGES[:40], LABELS[:40])
    a, b, c = (real_features.trained_on(batch, 10, seed)(IMAGES[40:44]) for seed in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_there_must_be_real_images():
    with pytest.raises(ValueError, match="there are none"):
        real_features.trained_on(Batch(IMAGES[:0], LABELS[:0]), 10, seed=0)
