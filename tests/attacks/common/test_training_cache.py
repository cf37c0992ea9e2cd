"""What stays in memory of the things that attacks make: found by contents, the last few alone."""

import torch

from attacks.common.training_cache import Remembered
from attacks.features import inversion
from privbench.types import Batch

CPU = torch.device("cpu")


def test_the_last_results_are_found_by_settings_and_contents():
    made = []

    def of(remembered, value, **settings):
        def make():
            made.append((value, settings))
            return len(made)

        return remembered.of(settings, [torch.full((2,), value)], make, CPU)

    remembered = Remembered("thing", most=2)
    assert [of(remembered, 1.0), of(remembered, 1.0), of(remembered, 2.0), of(remembered, 1.0)] == [1, 1, 2, 1]
    assert of(remembered, 1.0, steps=3) == 3
    # The one that was asked for longest ago is gone, and is made anew.
    assert [of(remembered, 1.0), of(remembered, 2.0)] == [1, 4]
    assert len(remembered.kept) == 2
    assert made == [(1.0, {}), (2.0, {}), (1.0, {"steps": 3}), (2.0, {})]


def test_a_learned_prior_follows_its_images_their_classes_and_the_precision(monkeypatch):
    monkeypatch.setattr(inversion, "PRIORS", Remembered("class-prior", most=8))
    rng = torch.Generator().manual_seed(0)
    images = Batch(torch.rand(6, 1, 8, 8, generator=rng), torch.tensor([0, 1, 0, 1, 2, 2]))
    like = torch.zeros(1, dtype=torch.float64)
    first = inversion.learned(images, 3, like)
    assert inversion.learned(Batch(images.images.clone(), images.labels.clone()), 3, like) is first
    fresh = inversion._learned(images, 3, like)
    assert torch.equal(first.means, fresh.means)
    assert torch.equal(first.gaussian.variance, fresh.gaussian.variance)
    assert inversion.learned(images, 4, like).means.shape == (4, 64)
    assert inversion.learned(images, 3, images.images).means.dtype == torch.float32
    # Images that change in place are other images.
    images.images[0] += 0.25
    assert not torch.equal(inversion.learned(images, 3, like).means, first.means)
