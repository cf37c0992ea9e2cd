"""Layers are peeled exactly, what they leave open is filled by the prior, and a failure falls back on descent."""

from dataclasses import replace

import pytest
import torch

from attacks import case, features, peeling, prior, staged
from attacks.staged import Staged
from privbench.nets import Model
from privbench.nets.layers import conv_then_average_pool
from privbench.score import psnr_db
from privbench.types import Knowledge
from tests.attacks import cases
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


@pytest.fixture(params=[1, 3])
def three(request, monkeypatch):
    """Three victims, grey or in colour."""
    monkeypatch.setattr(cases, "MODEL", Model("lenet5", request.param, 10))
    made = artifact(smooth_images(3, request.param), torch.tensor([3, 0, 7]))
    return replace(made, image_shape=(request.param, 32, 32))


def peelable(shown, victims):
    """(case, features, prior, shared layers, equations) of the first victims."""
    own_case, h = case.make(shown, 0), features.closed_form(shown)
    gaussian = prior.natural(*shown.image_shape[:2], 0.1, (15, 50), h)
    own = peeling.layers(own_case, gaussian)
    return own_case, h, gaussian, own, peeling.victims(own_case, own, h, torch.arange(victims))


def test_the_curvature_is_the_slope_of_the_first_gradient_over_z(shown):
    _, _, _, own, some = peelable(shown, 1)
    z, d = own.b1 + double(1, len(own.b1)), double(len(own.b1), seed=1)
    u = (z - own.b1) @ own.carry.T
    one = peeling.Victims(*(t[0] for t in some))

    def gap(z):
        return peeling._gap(own, some, torch.sigmoid(z), u)[0]

    slope = (gap(z - 1e-5 * d) - gap(z + 1e-5 * d)) / 2e-5
    torch.testing.assert_close(
        peeling._curvature(own, one, z[0], torch.sigmoid(z[0])) @ d, slope, rtol=1e-6, atol=1e-12
    )


def test_matrices_made_block_by_block_equal_products_of_whole_matrices(three):
    """B'B, D1 T and D1 (Sigma - T M T') D1', and D1 and D1' on vectors."""
    channels = three.image_shape[0]
    _, _, gaussian, own, some = peelable(three, 1)
    spread = gaussian.covariance(torch.eye(channels * 1024).double()) - own.known.T @ own.known
    d2 = torch.block_diag(*[some.d2[0]] * 6)
    normal = (own.k2.T * some.certainty[0] ** 2) @ own.k2 + d2.T @ d2
    torch.testing.assert_close(peeling._normal(own, some.certainty[0], some.d2[0]), normal)
    a = torch.sigmoid(own.b1 + double(len(own.b1)))
    delta = some.back[0] * a * (1 - a)
    d1 = torch.block_diag(*[peeling._correlation(delta.view(own.shape), 32)] * channels)
    through, s = (t[0] for t in peeling._first_spread(own, delta[None]))
    scale = d1.square().sum(1).mean()
    torch.testing.assert_close(through, (d1 @ own.carry)[own.order])
    whole = (d1 @ spread @ d1.T)[own.order][:, own.order]
    torch.testing.assert_close(s.tril() / scale, whole.tril() / scale, rtol=1e-7, atol=1e-12)
    u, weights = double(1, channels * 1024, seed=2), double(1, channels, 150, seed=3)
    torch.testing.assert_close(peeling._gap(own, some, a[None], u)[0], some.first.flatten() - d1 @ u[0])
    torch.testing.assert_close(peeling._first_adjoint(own, delta[None], weights)[0], weights.flatten() @ d1)


def test_victims_peeled_together_equal_each_victim_alone(three, monkeypatch):
    """Rounding, which sums in another order change, is magnified through errors of 3e-6: 5e-5 of a pixel's range."""
    monkeypatch.setattr(peeling, "CHUNK", 2)
    own_case, h, gaussian, _, _ = peelable(three, 3)
    found = peeling.peel(own_case, h, gaussian, 8)
    for v in (0, 2):  # of the first chunk and of the second
        observed = {name: t[v : v + 1] for name, t in own_case.observed.items()}
        one = own_case._replace(observed=observed, labels=own_case.labels[v : v + 1])
        alone = peeling.peel(one, h[v : v + 1], gaussian, 8)
        torch.testing.assert_close(found.x[v], alone.x[0], rtol=0, atol=5e-5)
        torch.testing.assert_close(found.loss[v], alone.loss[0], rtol=1e-3, atol=0)


def test_smooth_grey_images_come_back_almost_exactly(shown):
    found = Staged().reconstruct(shown, Knowledge(), 0)
    assert (psnr_db(found.images[:, 0], smooth_images(2)) > 45).all()
    assert found.restart.tolist() == [0, 0]


def test_the_peeled_image_is_about_as_probable_as_the_true_one_and_grey_is_not(shown):
    own_case, h, gaussian, own, some = peelable(shown, 2)
    found = peeling.peel(own_case, h, gaussian, 8)
    torch.testing.assert_close(peeling.surprise(own, some, 2 * found.x.flatten(1) - 1), found.loss)
    true = peeling.surprise(own, some, 2 * smooth_images(2).double().flatten(1) - 1)
    assert (found.loss < 1.5 * true).all()
    assert (1.5 * true < 1e-3 * found.trace[:, 0]).all()
    assert (found.trace.diff(dim=1) <= 0).all()
    assert torch.equal(found.trace[:, -1], found.loss)


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
