"""Networks of a user's own are inverted by their equations, which are those of LeNet-5 where the network is LeNet-5."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks.common import closed_form, priors, problem
from attacks.features import layerwise
from attacks.features.equations import chain_inversion
from attacks.layerwise import Layerwise
from privbench import api
from privbench.errors import AttackRefused, UserError
from privbench.execution import one_attack
from privbench.networks import layer_chain
from privbench.scoring.image_scores import psnr_db
from privbench.types import Knowledge
from tests.builders.small_artifacts import artifact, smooth_images
from tests.builders.user_modules import form_of, gradient_of, seen_by_server

SIDE = 16
EXACT = chain_inversion.LEVELS[-1]
Y = torch.tensor([3, 0])


def network(between, width=12):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, 2, 2),
        between,
        nn.Conv2d(6, width, 5, 2, 2),
        between,
        nn.Flatten(),
        nn.Linear(16 * width, 10),
    )


def pictures():
    """[2, 1, 1, 16, 16]."""
    return F.interpolate(smooth_images(2), SIDE, mode="bilinear", antialias=True)[:, None]


def shown_by(module):
    return seen_by_server(module, pictures(), Y[:, None], form=form_of((1, SIDE, SIDE)))


def equations_of(shown, victim=0):
    """(blocks, parameters, equations) of one victim."""
    posed, h = problem.make(shown, 0), closed_form.closed_form(shown)
    params, grey = posed.weights["extractor"], torch.full((1, *shown.image_shape), 0.5, dtype=torch.float64)
    net, buffers = posed.model.net("extractor"), posed.buffers["extractor"]
    blocks = layer_chain.chain_of(net, params, buffers, shown.image_shape, train=posed.train)
    back = problem.feature_slope(posed)[victim : victim + 1]
    gradients = {n: posed.observed[f"extractor/{n}"][victim] for n in params}
    return blocks, params, chain_inversion.equations(blocks, params, h[victim : victim + 1], back, gradients, grey)


@pytest.mark.parametrize("between", [nn.Tanh(), nn.LeakyReLU(0.2), nn.ELU()], ids=str)
def test_the_equations_are_those_of_plain_autograd(between):
    """At the true image nothing is left of a double-precision gradient, and at another one what autograd says."""
    module = network(between).double()
    form, other = form_of((1, SIDE, SIDE)), pictures()[1].double()
    blocks, params, shown = equations_of(shown_by_double(module))
    assert chain_inversion.residuals(blocks, params, shown, pictures()[0].double()).abs().max() < 1e-6
    layers = chain_inversion.forward(blocks, params, other)
    torch.testing.assert_close(layers[1].z, module[:3](form.entered(other)))
    # With the features, and so dL/dz_L, held as observed, the upper weights' gradient is linear in what enters.
    upper = shown.gradients["2.weight"] + shown.errors["2.weight"] * chain_inversion.residuals(
        blocks, params, shown, other
    )[layers[1].z.numel() :][: shown.gradients["2.weight"].numel()].view_as(shown.gradients["2.weight"])
    entered = between(module[0](form.entered(other))).detach()
    weight = module[2].weight.detach().requires_grad_()
    (F.conv2d(entered, weight, stride=2, padding=2) * shown.back).sum().backward()
    torch.testing.assert_close(upper, weight.grad, rtol=1e-9, atol=1e-12)


def shown_by_double(module):
    form = form_of((1, SIDE, SIDE))
    each = [gradient_of(module, form.entered(x.double()), y[None]) for x, y in zip(pictures(), Y, strict=True)]
    shown = seen_by_server(module, pictures().double(), Y[:, None], form=form)
    assert all(torch.equal(t[0], each[0][n]) for part in shown.gradients.values() for n, t in part.items())
    return shown


def test_on_lenet5_the_objective_and_its_minimum_are_those_of_the_module_for_lenet5():
    shown = artifact(smooth_images(1), Y[:1])
    posed, h = problem.make(shown, 0), closed_form.closed_form(shown)
    gaussian = priors.natural(1, 32, 0.1, priors.CHROMA, h)
    special = layerwise.invert(posed, h, gaussian, 8)
    posterior = chain_inversion.ImagePosterior(*equations_of(shown), gaussian, (1, 32, 32))
    c = gaussian.whitened((2 * special.x[0] - 1).flatten(1))[0]
    # Both sum some thousand squares whose errors, of 1e-16 over 3e-6, are those of rounding.
    objective = posterior.objective(c, EXACT)
    torch.testing.assert_close(objective, special.loss[0], rtol=1e-7, atol=0)
    # From there Gauss-Newton gains no more than the share at which either of the two stops.
    step = posterior.newton(c, EXACT)
    after = posterior.objective(c + step, EXACT)
    assert bool(step.isfinite().all())
    assert abs(1 - after / objective) < chain_inversion.SMALL_GAIN
    assert psnr_db(posterior.image(c + step), special.x[0]) > psnr_db(special.x[0], smooth_images(1)) + 10


@pytest.mark.parametrize("between", [nn.Tanh(), nn.LeakyReLU(0.2)], ids=str)
def test_images_of_a_users_own_network_come_back(between):
    shown = shown_by(network(between))
    reconstruction = Layerwise().reconstruct(shown, Knowledge(), 0)
    for image, true in zip(reconstruction.images, pictures(), strict=True):
        assert psnr_db(image, true) > psnr_db(torch.full_like(true, 0.5), true) + 40
    assert bool((reconstruction.loss < 1e-3 * reconstruction.trace[:, 0]).all())


def test_an_image_of_which_a_users_network_is_sure_comes_back_as_well():
    """Its label's logit is raised by 10: a client's p - 1 in single precision is off by 1e-3 or so."""
    module = network(nn.Tanh())
    with torch.no_grad():
        module[-1].bias[Y[0]] += 10
    image, true = Layerwise().reconstruct(shown_by(module), Knowledge(), 0).images[0], pictures()[0]
    assert psnr_db(image, true) > psnr_db(torch.full_like(true, 0.5), true) + 40


def test_a_clipped_gradient_gives_the_same_images():
    """The scale is a power of two, so that nothing is rounded but in double precision."""
    shown = shown_by(network(nn.Tanh()))
    clipped = {p: {n: t / 128 for n, t in net.items()} for p, net in shown.gradients.items()}
    seen = replace(shown, gradients=clipped, defense={"name": "clip", "clip": 1e-3, "clips": "message"})
    one, other = (Layerwise().reconstruct(each, Knowledge(), 0).images for each in (shown, seen))
    for image, same, true in zip(one, other, pictures(), strict=True):
        assert psnr_db(same, image) > psnr_db(image, true)


def test_pooling_behind_the_last_activation_is_solved_with_the_rest():
    module = network(nn.Tanh())
    module = nn.Sequential(*module[:4], nn.AvgPool2d(2), nn.Flatten(), nn.Linear(48, 10))
    reconstruction = Layerwise().reconstruct(shown_by(module), Knowledge(), 0)
    assert psnr_db(reconstruction.images[0], pictures()[0]) > 40


def test_a_gradient_that_is_not_finite_spoils_no_other():
    shown = shown_by(network(nn.Tanh()))
    alone = Layerwise().reconstruct(
        replace(shown, client=shown.client[1:], gradients=rows(shown, slice(1, 2))), Knowledge(), 0
    )
    for net in shown.gradients.values():
        for t in net.values():
            t[0] = torch.nan
    both = Layerwise().reconstruct(shown, Knowledge(), 0)
    assert torch.equal(both.images[1], alone.images[0])
    assert bool(both.loss.isfinite().tolist() == [False, True])


def rows(shown, of):
    return {p: {n: t[of].clone() for n, t in net.items()} for p, net in shown.gradients.items()}


def test_an_audit_says_in_a_line_where_the_algebra_ends(tmp_path):
    module = network(nn.ReLU())
    gradient = gradient_of(module, pictures()[0] / 0.25 - 2, Y[:1])
    with pytest.raises(
        UserError, match=r"layerwise is not applicable: .* relu keeps nothing of what is below 0; try --attack"
    ):
        api.audit(
            module,
            gradients=gradient,
            input_shape=(1, SIDE, SIDE),
            mean=0.5,
            std=0.25,
            attack="layerwise",
            out=tmp_path,
        )


def test_slopes_by_residuals_and_by_numbers_of_the_image_are_the_same(monkeypatch):
    shown = equations_of(shown_by(network(nn.Tanh())))
    gaussian = priors.natural(1, SIDE, 0.1, priors.CHROMA, shown[2].top)
    posterior = chain_inversion.ImagePosterior(*shown, gaussian, (1, SIDE, SIDE))
    c = 0.1 * torch.randn(SIDE**2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    left, back = torch.func.vjp(lambda c: posterior.residuals(c, EXACT), c)
    some = torch.arange(300)
    by_residuals = chain_inversion._slopes(lambda u: back(torch.zeros_like(left).index_copy(0, some, u)), c, left[some])
    whole = chain_inversion._slopes(back, c, left)
    assert len(left) > 2 * len(c) > len(some)
    torch.testing.assert_close(whole[:, some], by_residuals, rtol=1e-9, atol=1e-12 * float(whole.abs().max()))


def test_a_network_with_more_equations_than_memory_is_refused(monkeypatch):
    monkeypatch.setattr(chain_inversion, "MOST_SLOPES", 2**18)
    with pytest.raises(UserError, match=r"not applicable: 2,142 equations of 256 numbers are more than"):
        Layerwise().reconstruct(shown_by(network(nn.Tanh())), Knowledge(), 0)


def test_noise_and_batches_are_refused():
    shown = shown_by(network(nn.Tanh()))
    with pytest.raises(
        AttackRefused, match=r"layerwise solves equations of which the defence leaves too little \(noise\)"
    ):
        one_attack.check_needs("layerwise", Layerwise(), replace(shown, defense={"name": "gaussian", "variance": 0.1}))
    clipped = {"name": "clip", "clip": 1.0, "clips": "message", "wire": "bf16"}
    with pytest.raises(AttackRefused, match=r"leaves too little \(rounded\)"):
        one_attack.check_needs("layerwise", Layerwise(), replace(shown, defense=clipped))
    with pytest.raises(UserError, match="not applicable: the features of one image are not in closed form"):
        Layerwise().reconstruct(replace(shown, batch_size=2), Knowledge(), 0)
