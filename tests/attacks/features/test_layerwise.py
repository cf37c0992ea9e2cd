"""Layers are inverted exactly, what they leave open is filled by the prior, and a failure falls back on descent."""

from dataclasses import replace

import pytest
import torch

from attacks.common import closed_form, priors, problem
from attacks.features import anchored_matching, layerwise
from attacks.features.equations import layer_equations, pooled_convolution
from attacks.staged import Staged
from privbench.networks.layers import conv_then_average_pool
from privbench.networks.model import Model
from privbench.observation import wire
from privbench.scoring.image_scores import psnr_db
from privbench.types import Knowledge
from tests.builders import small_artifacts
from tests.builders.small_artifacts import artifact, smooth_images

Y = torch.tensor([3, 0])


@pytest.fixture(scope="module")
def shown():
    return artifact(smooth_images(2), Y)


def double(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_pooled_convolution_is_a_moved_window_of_its_input_or_of_its_pooled_input():
    weight, x = double(4, 3, 5, 5), double(1, 3, 14, 14, seed=1)
    by_net = conv_then_average_pool(x, weight, double(4) * 0).flatten()
    torch.testing.assert_close(
        pooled_convolution.strided_matrix(pooled_convolution.unpool(weight), 14) @ x.flatten(), by_net
    )
    torch.testing.assert_close(
        pooled_convolution.strided_matrix(weight, 13) @ pooled_convolution.pool(x).flatten(), by_net
    )


def test_a_correlation_is_the_weight_gradient():
    weight, x, delta = double(4, 3, 5, 5).requires_grad_(), double(1, 3, 14, 14, seed=1), double(4, 5, 5, seed=2)
    (conv_then_average_pool(x, weight, torch.zeros(4).double())[0] * delta).sum().backward()
    gradient = pooled_convolution.correlation(delta, 14) @ x[0].flatten(1).T  # [4 25, 3]
    torch.testing.assert_close(gradient.T.reshape(3, 4, 5, 5).transpose(0, 1), weight.grad)


@pytest.fixture(params=[1, 3])
def three(request, monkeypatch):
    """Three victims, grey or in colour."""
    monkeypatch.setattr(small_artifacts, "MODEL", Model("lenet5", request.param, 10))
    made = artifact(smooth_images(3, request.param), torch.tensor([3, 0, 7]))
    return replace(made, image_shape=(request.param, 32, 32))


def invertible(shown, victims):
    """(problem, features, prior, shared layers, equations) of the first victims."""
    posed, h = problem.make(shown, 0), closed_form.closed_form(shown)
    gaussian = priors.natural(*shown.image_shape[:2], 0.1, (15, 50), h)
    shared = layer_equations.linear_maps(posed, gaussian)
    return posed, h, gaussian, shared, layer_equations.equations(posed, shared, h, torch.arange(victims))


def in_colours(gaussian, images):
    """Images [n, C, H, W] in [0, 1] as layerwise inversion has them."""
    u = torch.einsum("kc,nchw->nkhw", gaussian.colours, 2 * images.double() - 1)
    w = gaussian._replace(colours=torch.eye(len(gaussian.colours)).double()).precision(u.flatten(1)).view_as(u)
    return layer_equations.LatentImages(u, w)


def dense_step(shared, one, z, u, factor, whole):
    """Gauss-Newton in image space with derivatives by autograd: (J' E^-1 J + Sigma^-1)^-1 J' E^-1 (y - f + J u)."""

    def of_p(x):
        p = pooled_convolution.pool(torch.sigmoid(z.flatten() + k1 @ (x - u).flatten()).view_as(z)).flatten(1)
        equations = torch.cat(
            [one.certainty * (shared.k2 @ p.flatten()) - one.z2, (one.d2 @ p.T - one.second).flatten()]
        )
        return torch.cat([equations, (p.flatten() - 0.5) / layer_equations.POOLED_SPREAD]) / factor

    def of_first(x):
        victim = layer_equations.Victims(*(t[None] for t in one))
        return (
            (
                layer_equations.first_gradient(shared, victim, layer_equations.activations(shared, x[None]), x[None])
                - victim.first
            )
            / one.error**0.5
        )[0]

    shape = shared.gaussian.variance.shape
    k1 = pooled_convolution.strided_matrix(shared.window, shape[-1])
    functions = [of_p, of_first] if whole else [of_p]
    j = torch.cat([torch.func.jacrev(f)(u).reshape(-1, u.numel()) for f in functions])
    gap = torch.cat([f(u).flatten() for f in functions])
    root = shared.gaussian._replace(colours=torch.eye(shape[0]).double()).root(torch.eye(u.numel()).double())
    whitened = torch.cat([j @ root, torch.eye(u.numel()).double()])
    target = torch.cat([j @ u.flatten() - gap, torch.zeros(u.numel()).double()])
    return (root @ torch.linalg.lstsq(whitened, target[:, None]).solution[:, 0]).view_as(u)


@pytest.mark.parametrize("level", ["rough", "all"])
def test_a_step_equals_the_dense_one_in_image_space(shown, level):
    """One grey 32x32 victim, linearised half-way to its image."""
    _, _, gaussian, shared, equations = invertible(shown, 1)
    one, u = layer_equations.pick(equations, 0), 0.5 * in_colours(gaussian, smooth_images(1)).u
    z, factor = layer_equations.z1(shared, u)[0], layerwise.FACTORS[level]
    step = layerwise._newton(shared, one, layer_equations.pooled_normal(shared, one), z, u[0], factor, level == "all").u
    expected = dense_step(shared, one, z, u[0], factor, level == "all")
    assert (expected - u[0]).abs().max() > 0.1
    torch.testing.assert_close(step, expected, rtol=0, atol=1e-4)


def test_matrices_made_block_by_block_equal_products_of_whole_matrices(three):
    """M and J1 Sigma J1' of dL/dW1, whose slope over the image is autograd's; and the shared step's covariance."""
    channels = three.image_shape[0]
    _, _, gaussian, shared, equations = invertible(three, 1)
    k1 = pooled_convolution.strided_matrix(shared.window, 32)
    smooth = gaussian._replace(colours=torch.eye(channels).double()).covariance(torch.eye(channels * 1024).double())
    torch.testing.assert_close(shared.spread, k1 @ smooth @ k1.T)
    one, u = layer_equations.pick(equations, 0), 0.1 * double(1, channels, 32, 32)
    a = layer_equations.activations(shared, u)
    delta = one.back * a[0] * (1 - a[0])
    d1 = pooled_convolution.correlation(delta, 32).unflatten(1, (32, 32))

    def first(x):
        return layer_equations.first_gradient(shared, equations, layer_equations.activations(shared, x), x)[0].flatten()

    j1 = torch.func.jacrev(first)(u).flatten(1)
    through, whole = layer_equations.first_spread(shared, d1, layer_equations.bend_of(shared, one, a[0], u[0]))
    scale = whole.diagonal().mean()
    torch.testing.assert_close(through / scale**0.5, j1 @ smooth @ k1.T / scale**0.5)
    torch.testing.assert_close(whole / scale, j1 @ smooth @ j1.T / scale)
    slope = torch.sigmoid(shared.b1) * (1 - torch.sigmoid(shared.b1))
    pooled = pooled_convolution.pool(torch.diag(slope.flatten()).T.reshape(-1, *slope.shape)).flatten(1).T
    covariance = pooled @ shared.spread @ pooled.T
    covariance.diagonal().add_(layer_equations.COMMON_ERROR**2)
    torch.testing.assert_close(shared.common @ shared.common.T, covariance)


def test_where_the_network_is_nearly_linear_the_shared_step_solves_the_equations_of_p(three):
    """Level 0 alone, and it is where Gauss-Newton of each victim would end, to half a hundredth of a pixel's range."""
    posed, h, gaussian, shared, equations = invertible(three, 3)
    quick = layerwise.invert(posed, h, gaussian, 1, levels=1).x[:, 0]
    now = in_colours(gaussian, quick)
    grey = in_colours(gaussian, torch.full_like(quick, 0.5))
    solved = layer_equations.misfit(shared, equations, layer_equations.activations(shared, now.u))
    assert (
        solved < 1e-6 * layer_equations.misfit(shared, equations, layer_equations.activations(shared, grey.u))
    ).all()
    one = layer_equations.pick(equations, 0)
    z = layer_equations.z1(shared, now.u[:1])[0]
    alone = layerwise._newton(shared, one, layer_equations.pooled_normal(shared, one), z, now.u[0], 1.0, False).u
    assert (alone - now.u[0]).square().mean().sqrt() < 0.01


def test_victims_inverted_together_equal_each_victim_alone(three, monkeypatch):
    """Rounding, which sums in another order change, is magnified through errors of 3e-6: 5e-5 of a pixel's range."""
    monkeypatch.setattr(layerwise, "CHUNK", 2)
    posed, h, gaussian, _, _ = invertible(three, 3)
    together = layerwise.invert(posed, h, gaussian, 8)
    for v in (0, 2):  # of the first chunk and of the second
        observed = {name: t[v : v + 1] for name, t in posed.observed.items()}
        one = posed._replace(observed=observed, labels=posed.labels[v : v + 1])
        alone = layerwise.invert(one, h[v : v + 1], gaussian, 8)
        torch.testing.assert_close(together.x[v], alone.x[0], rtol=0, atol=5e-5)
        torch.testing.assert_close(together.loss[v], alone.loss[0], rtol=1e-3, atol=0)


def test_smooth_grey_images_come_back_almost_exactly(shown):
    reconstruction = Staged().reconstruct(shown, Knowledge(), 0)
    assert (psnr_db(reconstruction.images[:, 0], smooth_images(2)) > 45).all()
    assert reconstruction.restart.tolist() == [0, 0]


@pytest.mark.parametrize("logit", [8.0, 11.0])
def test_images_of_which_the_network_is_sure_come_back_as_well(logit):
    """Their label's logit is raised by so much. A client's p - 1, in single precision, is off by 1e-4 of itself or more then."""
    weights = small_artifacts.networks()
    weights["classifier"]["fc3.bias"][3] += logit
    shown = artifact(smooth_images(2), torch.tensor([3, 3]), weights=weights)
    reconstruction = Staged().reconstruct(shown, Knowledge(), 0)
    assert (psnr_db(reconstruction.images[:, 0], smooth_images(2)) > 45).all()
    assert reconstruction.restart.tolist() == [0, 0]


def test_the_inverted_image_is_about_as_probable_as_the_true_one_and_grey_is_not(shown):
    posed, h, gaussian, shared, equations = invertible(shown, 2)
    inverted = layerwise.invert(posed, h, gaussian, 8)
    inverted_images = in_colours(gaussian, inverted.x[:, 0])
    torch.testing.assert_close(
        layerwise.neg_log_posterior(shared, equations, inverted_images), inverted.loss, rtol=1e-5, atol=0
    )
    true = layerwise.neg_log_posterior(shared, equations, in_colours(gaussian, smooth_images(2)))
    assert (inverted.loss < 1.5 * true).all()
    assert (1.5 * true < 1e-3 * inverted.trace[:, 0]).all()
    assert (inverted.trace.diff(dim=1) <= 0).all()
    assert torch.equal(inverted.trace[:, -1], inverted.loss)


def test_the_prior_is_a_covariance_and_colours_are_smoother_than_brightness():
    gaussian = priors.natural(3, 8, 0.1, (15.0, 50.0), torch.zeros(1).double())
    t = double(5, 3 * 64)
    torch.testing.assert_close(gaussian.precision(gaussian.covariance(t)), t)
    torch.testing.assert_close(gaussian.colours @ gaussian.colours.T, torch.eye(3).double())
    images = torch.linalg.cholesky(gaussian.covariance(torch.eye(192).double())) @ double(192, 4000)
    images = images.T.unflatten(1, (3, 8, 8))
    step = torch.einsum("oc,nchw->onhw", gaussian.colours, images.diff(dim=-1)).flatten(1).square().mean(1)
    assert 0.5 * 0.1**2 < step[0] < 1.0 * 0.1**2
    torch.testing.assert_close(step[0] / step, torch.tensor([1, 15.0, 50.0]).double(), rtol=0.1, atol=0)


@pytest.mark.parametrize("form", ["bf16", "fp16"])
def test_the_equations_of_a_message_in_fewer_bits_have_errors_of_its_format(shown, form):
    """With those of single precision, of which these are hundreds of times, the image explains the rounding."""
    seen = replace(shown, gradients=wire.rounded(shown.gradients, form), defense=wire.described({"name": "none"}, form))
    posed, h = problem.make(seen, 0), closed_form.closed_form(seen)
    gaussian = priors.natural(1, 32, 0.1, priors.CHROMA, h)
    image = Staged(steps=1, feature_steps=1).reconstruct(seen, Knowledge(), 0).images[:, 0]
    single = layerwise.invert(posed, h, gaussian, 8).x[:, 0]
    assert (psnr_db(image, smooth_images(2)) > psnr_db(single, smooth_images(2)) + 10).all()
    shared = layer_equations.linear_maps(posed, gaussian)
    factor = torch.finfo(wire.FORMATS[form]).eps / layer_equations.ERROR
    equations = layer_equations.equations(posed, shared, h, torch.arange(2), factor)
    found, true = (
        layerwise.neg_log_posterior(shared, equations, in_colours(gaussian, x)) for x in (image, smooth_images(2))
    )
    assert (found < true).all()


def test_a_victim_that_layerwise_inversion_fails_on_is_descended_on_and_spoils_no_other(shown):
    broken = artifact(smooth_images(2), Y)
    broken.gradients["extractor"]["conv2.weight"][1] *= -1  # no image has this gradient
    reconstruction = Staged(steps=30, feature_steps=30).reconstruct(broken, Knowledge(), 0)
    alone = Staged().reconstruct(shown, Knowledge(), 0)
    torch.testing.assert_close(reconstruction.images[0], alone.images[0])
    assert reconstruction.restart.tolist() == [0, 1]
    posed, h = problem.make(broken, 0), closed_form.closed_form(broken)
    inverted = layerwise.invert(posed, h, priors.natural(1, 32, 0.1, (15, 50), h), 8).x
    assert (
        anchored_matching.unexplained(posed, reconstruction.images)[1]
        < anchored_matching.unexplained(posed, inverted)[1]
    )


def test_a_gradient_without_numbers_is_a_failed_victim_and_no_crash():
    broken = artifact(smooth_images(2), Y)
    broken.gradients["extractor"]["conv1.weight"][1] = torch.nan
    reconstruction = Staged(steps=3, feature_steps=3).reconstruct(broken, Knowledge(), 0)
    assert not reconstruction.loss[1].isfinite()
    assert reconstruction.loss[0].isfinite()
    assert reconstruction.images.isfinite().all()


def test_noisy_and_batch_gradients_are_not_inverted_layer_by_layer():
    for shown in (artifact(smooth_images(2), Y, noise=1e-4), artifact(smooth_images(2), Y, batch_size=2)):
        reconstruction = Staged(steps=3, feature_steps=3).reconstruct(shown, Knowledge(), 0)
        without = Staged(steps=3, feature_steps=3, peel_iterations=0).reconstruct(shown, Knowledge(), 0)
        assert torch.equal(reconstruction.images, without.images)
