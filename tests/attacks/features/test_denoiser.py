"""A learned denoiser as a share of the prior, and means over draws of the posterior."""

from functools import cache

import pytest
import torch

from attacks.chained import Chained
from attacks.features import inversion, map_estimate
from attacks.features.learned_prior import denoiser, plug_and_play
from attacks.features.learned_prior.plug_and_play import PluggedIn, Pulled
from attacks.posterior import Posterior
from attacks.shadow import shadow_federation
from attacks.shadow.fitting import calibrated_extractors
from attacks.shadow.fitting.calibration import Fit
from privbench import presets
from privbench.seeds import stream
from privbench.types import Batch, Knowledge, no_progress
from tests.attacks.test_claims import chaining
from tests.builders.small_artifacts import (
    MODEL,
    artifact,
    central_network,
    images_like_the_victims,
    networks,
    smooth_images,
)

Y = torch.tensor([3, 0])
SHORT = {"steps": 6, "direction_steps": 6, "starts": 3, "further_steps": 6}
KNOWN = Knowledge(images_like_the_victims())


def rectangles(count, name):
    """Dark images with a bright rectangle each, as no Gaussian prior has them: [count, 1, 16, 16]."""
    rng = stream(0, "test", name)
    corner, size = torch.randint(0, 8, (count, 2), generator=rng), torch.randint(3, 9, (count, 2), generator=rng)
    at = torch.arange(16)
    row, column = ((at >= corner[:, i, None]) & (at < corner[:, i, None] + size[:, i, None]) for i in range(2))
    return (0.1 + 0.8 * (row[:, :, None] & column[:, None, :]))[:, None].float()


@cache
def of_rectangles():
    """(a denoiser of 120 rectangles, their prior)."""
    images = Batch(rectangles(120, "known"), torch.zeros(120, dtype=torch.int64))
    learned = inversion.learned(images, 1, images.images.double())
    return denoiser.trained(images, learned, 0, None), learned


@pytest.mark.parametrize("sigma", [0.2, 0.5])
def test_it_lowers_the_error_of_other_noisy_images_below_the_best_linear_estimate(sigma):
    f, learned = of_rectangles()
    u = (2 * rectangles(40, "others").double() - 1).flatten(1)
    noisy = u + sigma * torch.randn(u.shape, generator=stream(0, "test", "noise"), dtype=torch.float64)
    mean, of_each = learned.means.expand(len(u), -1), torch.full((len(u),), sigma, dtype=torch.float64)
    linear = denoiser.wiener(learned.gaussian, mean, noisy, of_each)
    learnt = denoiser.denoised(f, learned.gaussian, mean, noisy, of_each)
    errors = [float((estimate - u).square().mean()) for estimate in (noisy, linear, learnt)]
    assert errors[2] < 0.7 * errors[1] < errors[0], errors


def test_the_linear_estimate_solves_the_normal_equations():
    learned = inversion.learned(images_like_the_victims(), 10, torch.zeros(1).double())
    u, mean = (torch.randn(2, 1024, generator=stream(0, "test", n), dtype=torch.float64) for n in ("u", "mean"))
    sigma = torch.tensor([0.3, 0.7], dtype=torch.float64)
    estimate = denoiser.wiener(learned.gaussian, mean, u, sigma)
    # The minimum of |t - u|^2 / sigma^2 + (t - mean)' Sigma^-1 (t - mean).
    slope = (estimate - u) / sigma[:, None].square() + learned.gaussian.precision(estimate - mean)
    assert slope.abs().max() < 1e-9 * learned.gaussian.precision(u).abs().max()


@pytest.mark.parametrize("count", [1, denoiser.FEWEST - 1])
def test_few_images_leave_the_linear_estimate(count):
    images = images_like_the_victims(count)
    learned = inversion.learned(images, 10, images.images.double())
    f = denoiser.trained(images, learned, 0, None)
    u, sigma = 2 * smooth_images(2).double().flatten(1) - 1, torch.tensor([0.2, 0.4], dtype=torch.float64)
    mean = learned.means[Y]
    torch.testing.assert_close(
        denoiser.denoised(f, learned.gaussian, mean, u, sigma), denoiser.wiener(learned.gaussian, mean, u, sigma)
    )


def test_images_of_an_odd_side_and_in_colour_keep_their_shape():
    images = Batch(torch.rand(24, 3, 7, 7, generator=stream(0, "test", "colour")), torch.arange(24) % 2)
    learned = inversion.learned(images, 2, images.images.double())
    f = denoiser._initial(3, stream(0, "test", "f"))
    u = images.images.double().flatten(1)
    ones = u.new_ones(len(u))
    assert denoiser.denoised(f, learned.gaussian, learned.means[images.labels], u, ones).shape == u.shape


def test_an_image_is_denoised_among_others_as_alone():
    f, learned = of_rectangles()
    u = (2 * rectangles(3, "others").double() - 1).flatten(1)
    sigma = torch.tensor([0.1, 0.3, 0.5], dtype=torch.float64)
    together = denoiser.denoised(f, learned.gaussian, learned.means.expand(3, -1), u, sigma)
    alone = denoiser.denoised(f, learned.gaussian, learned.means, u[1:2], sigma[1:2])
    torch.testing.assert_close(together[1:2], alone, atol=1e-5, rtol=1e-5)


def test_what_was_trained_is_read_back(tmp_path, monkeypatch):
    images = images_like_the_victims(denoiser.FEWEST)
    learned = inversion.learned(images, 10, images.images.double())
    monkeypatch.setattr(denoiser, "STEPS", 2)
    first = denoiser.trained(images, learned, 0, tmp_path)
    monkeypatch.setattr(denoiser, "_fitted", lambda *_: pytest.fail("trained again"))
    second = denoiser.trained(images, learned, 0, tmp_path)
    assert all(torch.equal(t, second[n]) for n, t in first.items())


def test_both_parts_of_the_prior_together_have_the_minimum_of_their_sum():
    f, learned = of_rectangles()
    u = (2 * rectangles(2, "others").double() - 1).flatten(1)
    prior = Pulled(learned.means.expand(2, -1), learned.gaussian)
    weight, sigma = 0.3, 0.2
    under = plug_and_play.pulled(PluggedIn(f, weight), prior, u, sigma)
    v = denoiser.denoised(f, learned.gaussian, prior.mean, u, torch.full((2,), sigma, dtype=torch.float64))

    def slope(t):
        return (1 - weight) * learned.gaussian.precision(t - prior.mean) + weight / sigma**2 * (t - v)

    for t in (u, v, under.mean):
        torch.testing.assert_close(slope(t), under.gaussian.precision(t - under.mean), atol=1e-8, rtol=1e-8)


@cache
def noised():
    """Two images unlike what the network was trained on, under noise that leaves something to be read."""
    params, _, _ = central_network(400, 0)
    return artifact(smooth_images(2), Y, weights=params, noise=1e-3)


def reconstructed(**settings):
    return Posterior(**{**SHORT, **settings}).reconstruct(noised(), KNOWN, 0)


def test_as_its_weight_falls_to_nothing_the_plain_most_probable_image_is_left(monkeypatch):
    """The distance from it falls about as the weight does, and is 0 at 0: the same prior and start."""
    monkeypatch.setattr(denoiser, "STEPS", 20)
    view = shadow_federation.real(artifact(smooth_images(2), Y, ("classifier",)), KNOWN, 0, "test")
    fits = {0: Fit(networks()["extractor"], 0.5)}
    plain = calibrated_extractors.invert(view, fits, 40, no_progress).x
    distance = []
    for weight in (0.5, 0.05, 0.005, 0.0):
        plugged = plug_and_play.of("denoiser", weight, KNOWN, MODEL.classes, 0)
        distance.append(float((calibrated_extractors.invert(view, fits, 40, no_progress, plugged).x - plain).norm()))
    assert distance[0] > 2 * distance[1] > 4 * distance[2] > 0
    assert distance[3] < 1e-5  # rounding, as 1 / (1 / s) is not s, in 40 steps


def test_under_noise_too_a_weight_of_nothing_goes_on_with_the_plain_descent(monkeypatch):
    monkeypatch.setattr(denoiser, "STEPS", 2)
    plain, longer = reconstructed(), reconstructed(prior="denoiser", denoiser_weight=0.0)
    assert (longer.loss <= plain.loss).all()
    assert torch.equal(longer.trace[:, :-1], plain.trace)
    assert torch.equal(longer.loss, longer.trace[:, -1])


def test_a_client_whose_fit_is_worth_nothing_stays_at_the_mean_of_its_class(monkeypatch):
    monkeypatch.setattr(denoiser, "STEPS", 2)
    seen = artifact(smooth_images(2), Y, ("classifier",))
    view = shadow_federation.real(seen, KNOWN, 0, "test")._replace(client=torch.tensor([0, 1]))
    nets = networks()["extractor"]
    fits = {0: Fit(nets, 0.1), 1: Fit(nets, torch.inf)}
    plugged = plug_and_play.of("denoiser", 0.5, KNOWN, MODEL.classes, 0)
    end, plain = (calibrated_extractors.invert(view, fits, 3, no_progress, p).x for p in (plugged, None))
    assert torch.equal(end[1], plain[1])
    assert not torch.equal(end[0], plain[0])


def test_a_chain_ends_under_a_denoiser_where_it_is_asked_for_one(monkeypatch):
    """At a weight of nothing its images are those of the plain chain; at the usual weight they are others."""
    monkeypatch.setattr(denoiser, "STEPS", 2)
    seen, _, whole = chaining()
    short = {"fit_steps": 5, "find_steps": 5, "again_steps": 5, "refine_steps": 5, "steps": 5}

    def ended(**settings):
        return Chained(**short, **settings).reconstruct(seen, whole, 0)

    plain, longer, other = ended(), ended(prior="denoiser", denoiser_weight=0.0), ended(prior="denoiser")
    assert torch.equal(plain.images, ended(prior="gaussian", denoiser_weight=0.8).images)
    torch.testing.assert_close(longer.images, plain.images, atol=1e-5, rtol=0)
    assert longer.gradient_evaluations > plain.gradient_evaluations
    assert not torch.allclose(other.images, plain.images, atol=1e-3)


def test_a_cell_of_the_usual_prior_says_nothing_of_it():
    train = presets.train_spec("quick", "digits", "fedsplit")
    plain, named = (
        presets.cell_spec("quick", train, "chained", attack_settings=s) for s in ({}, {"prior": "denoiser"})
    )
    assert plain.attack_settings == {}
    assert plain.id != named.id


@pytest.mark.parametrize("settings", [{"prior": "denoiser"}, {"samples": 1}])
def test_a_victim_with_others_ends_as_alone(settings, monkeypatch):
    monkeypatch.setattr(denoiser, "STEPS", 10)
    attack = Posterior(steps=3, direction_steps=3, starts=3, further_steps=3, **settings)
    together, alone = (attack.reconstruct(each, KNOWN, 0) for each in (noised(), noised().select(torch.tensor([0]))))
    torch.testing.assert_close(together.images[0], alone.images[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(together.loss[0], alone.loss[0])


def test_under_hopeless_noise_draws_are_those_of_the_prior_and_many_average_to_its_mean():
    seen = artifact(smooth_images(2), Y, noise=1e8)
    steps = {"steps": 1, "direction_steps": 1, "starts": 3, "further_steps": 6}
    learned = inversion.learned(KNOWN.auxiliary, 10, torch.zeros(1).double())
    one, many = (Posterior(**steps, samples=n).reconstruct(seen, KNOWN, 0) for n in (1, 4))
    middle = Posterior(**steps).reconstruct(seen, KNOWN, 0)
    for end, expected in ((one, 1.0), (many, 1 / 4)):
        # The prior there is wider than within a class, as the label is unknown: the smallest coefficients are those of both.
        gap = (2 * (end.images - middle.images)).flatten(2).flatten(0, 1)
        fine = learned.gaussian.coefficients(gap)[:, :, 8:, 8:] / learned.gaussian.variance[:, 8:, 8:].sqrt()
        # 1,152 squares of mean 1: their mean errs by 0.04.
        assert float(fine.square().mean()) == pytest.approx(expected, rel=0.25)


def test_draws_differ_and_the_loss_is_that_of_their_mean(monkeypatch):
    monkeypatch.setattr(map_estimate, "EVERYONE", 1)
    ends = [reconstructed(samples=n, starts=1) for n in (0, 1, 2)]
    assert len({end.images.numpy().tobytes() for end in ends}) == 3
    for end in ends[1:]:
        assert torch.equal(end.trace[:, :-1], ends[0].trace)
        assert torch.equal(end.trace[:, -1], end.loss)
