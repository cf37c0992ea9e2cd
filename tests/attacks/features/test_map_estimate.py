"""`staged` on noised gradients: the most probable image without auxiliary images."""

from functools import cache

import pytest
import torch

from attacks.common import gradient_distance, priors, problem
from attacks.features import inversion, map_estimate
from attacks.floors import Grey
from attacks.inverting_gradients import InvertingGradients
from attacks.staged import Staged
from privbench.scoring.image_scores import score
from privbench.types import Knowledge, Truth
from tests.builders import small_artifacts
from tests.builders.small_artifacts import artifact, central_network, smooth_images

NOBODY = Knowledge()
SHORT = Staged(feature_steps=25, steps=20)
BRIEF = Staged(feature_steps=4, steps=4, starts=3)
Y = torch.arange(12) % 10


@cache
def surprised(images: int = 6, seed: int = 0):
    """Images unlike what the network was trained on, so that gradients stand out of noise of a studied variance."""
    params, _, _ = central_network(400, seed)
    x = smooth_images(images)
    return artifact(x, Y[:images], weights=params, noise=1e-3), x[:, None]


def scores(reconstruction, x):
    return score(reconstruction, Truth(x, torch.zeros(x.shape[:2], dtype=torch.int64))).psnr_db


def test_it_beats_grey_on_noised_gradients_of_three_images():
    """From three starts; of two of the images, with the networks of seeds 0-2, the mean gains are 2.8 to 6.7 dB."""
    seen, x = surprised()
    seen = seen.select(torch.arange(3))
    reconstruction = Staged(feature_steps=25, steps=20, starts=3).reconstruct(seen, NOBODY, 0)
    gain = scores(reconstruction, x[:3]) - scores(Grey().reconstruct(seen, NOBODY, 0), x[:3])
    assert gain.mean() > 1, gain
    assert (reconstruction.loss < reconstruction.trace[:, 0]).all()
    assert torch.equal(reconstruction.loss, reconstruction.trace[:, -1])


@pytest.mark.thorough
def test_it_beats_grey_significantly_and_inverting_gradients_on_noised_gradients():
    """Of twelve images and the networks of seeds 0-2: 3.3 to 3.5 dB over grey, 1.5 to 2.0 dB over the other attack."""
    gains, leads = [], []
    for seed in range(3):
        seen, x = surprised(len(Y), seed)
        reconstruction = SHORT.reconstruct(seen, NOBODY, 0)
        psnr = scores(reconstruction, x)
        gains.append(psnr - scores(Grey().reconstruct(seen, NOBODY, 0), x))
        leads.append(psnr - scores(InvertingGradients(steps=100, restarts=1).reconstruct(seen, NOBODY, 0), x))
        assert (reconstruction.loss < reconstruction.trace[:, 0]).all()
        assert torch.equal(reconstruction.loss, reconstruction.trace[:, -1])
    gain, lead = torch.cat(gains), torch.cat(leads)
    assert small_artifacts.over_victims(gain).low > 1, gain
    assert lead.mean() > 0.5, lead


def test_a_victim_with_others_ends_as_alone():
    seen = surprised()[0].select(torch.arange(3))
    together, alone = (BRIEF.reconstruct(each, NOBODY, 0) for each in (seen, seen.select(torch.tensor([0]))))
    torch.testing.assert_close(together.images[0], alone.images[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(together.loss[0], alone.loss[0])
    assert together.restart[0] == alone.restart[0]


def test_only_victims_whose_gradient_nothing_explains_are_tried_from_further_starts(monkeypatch):
    seen, _ = surprised()
    seen, tried = seen.select(torch.tensor([0, 1])), []
    plain = map_estimate.starts
    monkeypatch.setattr("attacks.features.map_estimate.starts", lambda *a: tried.append(a[2]) or plain(*a))
    monkeypatch.setattr("attacks.features.map_estimate.UNEXPLAINED", 1e9)
    BRIEF.reconstruct(seen, NOBODY, 0)
    assert tried == list(range(map_estimate.EVERYONE))
    tried.clear()
    monkeypatch.setattr("attacks.features.map_estimate.UNEXPLAINED", -1e9)
    Staged(feature_steps=1, steps=1).reconstruct(seen, NOBODY, 0)
    assert tried == list(range(Staged().starts))


@pytest.mark.parametrize("batch", [1, 3])
def test_under_hopeless_noise_the_answer_is_grey(batch):
    seen = artifact(smooth_images(3), Y[:3], batch_size=batch, noise=1e8)
    end = SHORT.reconstruct(seen, NOBODY, 0)
    assert (end.images - 0.5).abs().max() < 1e-2
    assert end.images.shape == (3 // batch, batch, 1, 32, 32)


@pytest.mark.parametrize("batches", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_a_noised_batch_ends_nearer_than_grey(batches):
    params, _, _ = central_network(400, 0)
    x = smooth_images(4)
    seen = artifact(x, Y[:4], batch_size=2, weights=params, noise=1e-6).select(torch.arange(2 - batches, 2))
    x = x.unflatten(0, (2, 2))[2 - batches :]
    end = Staged(feature_steps=30, steps=30).reconstruct(seen, NOBODY, 0)
    assert scores(end, x).mean() > scores(Grey().reconstruct(seen, NOBODY, 0), x).mean() + 1


def test_the_distance_of_directions_is_the_least_over_all_lengths():
    seen, x = surprised()
    posed = problem.make(seen, 0)
    data = {n: t[0] for n, t in problem.data(posed).items()}
    for other in (x[1], 1 - x[0]):
        products = gradient_distance.gradient_products(
            posed, other.double(), data["labels"], problem.observed_of(posed, data)
        )
        a, b = (sum(getattr(p, f) for p in products.values()) for f in ("candidate", "cross"))
        length = max(float(b / a), 0.0)
        by_hand = sum(float(length**2 * p.candidate - 2 * length * p.cross + p.observed) for p in products.values())
        assert gradient_distance.direction_distance(products).item() == pytest.approx(by_hand, rel=1e-9)
        assert by_hand <= gradient_distance.squared_distance(products)


def test_the_prior_of_photographs_falls_with_the_square_of_the_frequency_and_has_a_way_back():
    like = torch.zeros(1).double()
    gaussian = priors.photographed(3, 32, 0.4, (15.0, 50.0), like)
    frequency = 2 - 2 * torch.cos(torch.tensor(torch.pi / 32 * 5).double())
    by_hand = 0.4 * torch.exp(-frequency / 2) / (15 * (frequency + priors.MEAN))
    torch.testing.assert_close(gaussian.variance[1, 0, 5], by_hand)
    t = torch.randn(4, 3072, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(gaussian.whitened(gaussian.root(t)), t)


@pytest.mark.parametrize("mean", [0.0, 0.3])
def test_the_starts_are_the_mean_flat_images_and_different_draws(mean):
    seen, _ = surprised()
    seen = seen.select(torch.tensor([0, 1]))
    gaussian = priors.photographed(1, 32, 0.8, (15.0, 50.0), torch.zeros(1).double())
    prior = map_estimate.ImagePrior(gaussian, torch.full((2, 1, 1024), mean).double())
    images = [
        torch.stack(
            [
                map_estimate.image(gaussian, *z)
                for z in zip(map_estimate.starts(seen, prior, n, 0), prior.mean, strict=True)
            ]
        )
        for n in range(Staged().starts)
    ]
    brightness = (*([(1 + mean) / 2] * map_estimate.FIRST_FLAT), *map_estimate.FLAT)
    for start, value in zip(images, brightness, strict=False):
        torch.testing.assert_close(start, torch.full_like(start, value))
    drawn = torch.stack(images[len(brightness) :]).flatten(0, 1)
    assert len({t.numpy().tobytes() for t in drawn}) == len(drawn) == 2 * (Staged().starts - len(brightness))


def test_a_victim_of_an_uncertain_class_has_a_wider_prior_and_one_of_a_certain_class_the_same():
    """Two classes, black and white, of equal probability: the brightness has the variance of a coin's toss besides its own."""
    shape = (1, 32, 32)
    learned = inversion.usual(shape, 2, torch.zeros((), dtype=torch.float64))
    level = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    learned = learned._replace(means=level[:, None].expand(2, 1024).contiguous())
    certain, even = torch.tensor([[[0.0, 1.0]], [[0.5, 0.5]]])
    mixed = map_estimate.mixture(learned, torch.stack([certain, even]))
    torch.testing.assert_close(mixed.mean, torch.stack([learned.means[1:], torch.zeros_like(learned.means[1:])]))
    torch.testing.assert_close(mixed.variance[0, 0], learned.gaussian.variance)
    more = mixed.variance[1, 0] - learned.gaussian.variance
    assert float(more[0, 0, 0]) == pytest.approx(1024)  # of the coefficient of the mean, 32 times the brightness
    assert float(more.flatten()[1:].abs().max()) < 1e-9


def test_every_image_is_drawn_and_whitened_by_its_own_variance():
    gaussian = priors.photographed(3, 8, 0.8, (15.0, 50.0), torch.zeros((), dtype=torch.float64))
    wide = torch.stack([gaussian.variance, 4 * gaussian.variance])
    z = torch.randn(2, 192, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    widened = gaussian._replace(variance=wide)
    torch.testing.assert_close(widened.root(z), torch.cat([gaussian.root(z[:1]), 2 * gaussian.root(z[1:])]))
    torch.testing.assert_close(widened.whitened(widened.root(z)), z)
    torch.testing.assert_close(
        gaussian.coefficients(gaussian.root(z)).square().sum((1, 2, 3)), gaussian.root(z).square().sum(1)
    )
