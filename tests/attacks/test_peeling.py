"""Layers are peeled exactly, what they leave open is filled by the prior, and a failure falls back on descent."""

import pytest
import torch

from attacks import case, features, peeling, prior, staged
from attacks.staged import Staged
from privbench.nets.layers import conv_then_average_pool
from privbench.score import psnr_db
from privbench.types import Knowledge
from tests.attacks.cases import artifact, smooth_images

Y = torch.tensor([3, 0])


@pytest.fixture(scope="module")
def shown():
    return artifact(smooth_images(2), Y)


def double(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_pooled_convolution_is_its_matrix():
    weight, x = double(4, 3, 5, 5), double(1, 3, 14, 14, seed=1)
    by_net = conv_then_average_pool(x, weight, double(4) * 0).flatten()
    torch.testing.assert_close(peeling._pooled_convolution(weight, 14) @ x.flatten(), by_net)


def test_a_correlation_is_the_weight_gradient():
    weight, x, delta = double(4, 3, 5, 5).requires_grad_(), double(1, 3, 14, 14, seed=1), double(4, 5, 5, seed=2)
    (conv_then_average_pool(x, weight, torch.zeros(4).double())[0] * delta).sum().backward()
    found = peeling._correlation(delta, 14) @ x[0].flatten(1).T  # [4 25, 3]
    torch.testing.assert_close(found.T.reshape(3, 4, 5, 5).transpose(0, 1), weight.grad)


def test_the_curvature_is_the_slope_of_the_first_gradient_over_z(shown):
    own_case, h = case.make(shown, 0), features.closed_form(shown)
    own = peeling.layers(own_case, prior.natural(1, 32, 0.1, (15, 50), h))
    one = peeling.victim(own_case, own, h[0], 0)
    z, d = own.b1 + double(len(own.b1)), double(len(own.b1), seed=1)
    u = (own.carry @ (z - own.b1)).view(1, -1)

    def first(z):
        return (u @ peeling._first_correlation(own, one, torch.sigmoid(z)).T).flatten()

    slope = (first(z + 1e-5 * d) - first(z - 1e-5 * d)) / 2e-5
    torch.testing.assert_close(peeling._curvature(own, one, z, torch.sigmoid(z)) @ d, slope, rtol=1e-6, atol=1e-12)


def test_smooth_grey_images_come_back_almost_exactly(shown):
    found = Staged().reconstruct(shown, Knowledge(), 0)
    assert (psnr_db(found.images[:, 0], smooth_images(2)) > 45).all()
    assert found.restart.tolist() == [0, 0]


def test_the_peeled_image_is_about_as_probable_as_the_true_one_and_grey_is_not(shown):
    own_case, h = case.make(shown, 0), features.closed_form(shown)
    gaussian = prior.natural(1, 32, 0.1, (15, 50), h)
    own = peeling.layers(own_case, gaussian)
    for v, x in enumerate(smooth_images(2).double()):
        one = peeling.victim(own_case, own, h[v], v)
        u, trace = peeling._solve(own, one, 8)
        assert trace[-1] == peeling.surprise(own, one, u)
        true = peeling.surprise(own, one, 2 * x.flatten() - 1)
        assert trace[-1] < 1.5 * true < 1e-3 * trace[0]
        assert (torch.stack(trace).diff() <= 0).all()


def test_the_prior_is_a_covariance_and_colours_are_smoother_than_brightness():
    gaussian = prior.natural(3, 8, 0.1, (15.0, 50.0), torch.zeros(1).double())
    t = double(5, 3 * 64)
    torch.testing.assert_close(gaussian.precision(gaussian.covariance(t)), t)
    torch.testing.assert_close(gaussian.colours @ gaussian.colours.T, torch.eye(3).double())
    images = torch.linalg.cholesky(gaussian.covariance(torch.eye(192).double())) @ double(192, 4000)
    images = images.T.unflatten(1, (3, 8, 8))
    step = torch.einsum("oc,nchw->onhw", gaussian.colours, images.diff(dim=-1)).flatten(1).square().mean(1)
    assert 0.5 * 0.1**2 < step[0] < 1.0 * 0.1**2
    torch.testing.assert_close(step[0] / step, torch.tensor([1, 15.0, 50.0]).double(), rtol=0.1, atol=0)


def test_a_victim_that_peeling_fails_on_is_descended_on_and_spoils_no_other(shown):
    broken = artifact(smooth_images(2), Y)
    broken.gradients["extractor"]["conv2.weight"][1] *= -1  # no image has this gradient
    found = Staged(steps=30, feature_steps=30).reconstruct(broken, Knowledge(), 0)
    alone = Staged().reconstruct(shown, Knowledge(), 0)
    torch.testing.assert_close(found.images[0], alone.images[0])
    assert found.restart.tolist() == [0, 1]
    own_case, h = case.make(broken, 0), features.closed_form(broken)
    peeled = peeling.peel(own_case, h, prior.natural(1, 32, 0.1, (15, 50), h), 8).x
    assert staged._unexplained(own_case, found.images)[1] < staged._unexplained(own_case, peeled)[1]


def test_a_gradient_without_numbers_is_a_failed_victim_and_no_crash():
    broken = artifact(smooth_images(2), Y)
    broken.gradients["extractor"]["conv1.weight"][1] = torch.nan
    found = Staged(steps=3, feature_steps=3).reconstruct(broken, Knowledge(), 0)
    assert not found.loss[1].isfinite()
    assert found.loss[0].isfinite()
    assert found.images.isfinite().all()


def test_noisy_and_batch_gradients_are_not_peeled():
    for shown in (artifact(smooth_images(2), Y, noise=1e-4), artifact(smooth_images(2), Y, batch_size=2)):
        found = Staged(steps=3, feature_steps=3).reconstruct(shown, Knowledge(), 0)
        without = Staged(steps=3, feature_steps=3, peel_iterations=0).reconstruct(shown, Knowledge(), 0)
        assert torch.equal(found.images, without.images)
