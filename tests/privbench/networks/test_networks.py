"""Pure layers and networks against torch.nn."""

import pytest
import torch
import torch.nn.functional as F

from privbench.networks import layers
from privbench.networks.layers import (
    LARGE,
    Overlap,
    as_matrix,
    conv_then_average_pool,
    conv_transpose2x2,
    patches2x2,
    times,
)
from privbench.networks.model import Model
from privbench.networks.normalisation import (
    SpectralProduct,
    batch_norm,
    power_iteration,
    spectral_norm,
    statistics_with_slopes,
)
from privbench.seeds import stream


def test_folded_convolution_and_pooling_equal_the_two_steps():
    x, w, b = torch.rand(2, 3, 32, 32), torch.randn(6, 3, 5, 5), torch.randn(6)
    plain = F.avg_pool2d(F.conv2d(x, w, b), 2)
    torch.testing.assert_close(conv_then_average_pool(x, w, b), plain, rtol=1e-4, atol=1e-5)


def channels_last(t):
    """The same values, laid out as training lays its kernels."""
    return t.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("laid", [torch.clone, channels_last])
@pytest.mark.parametrize("side", [1, 2, 5])
@pytest.mark.parametrize("batch", [1, 4])
def test_transposed_2x2_convolution_as_a_product_equals_torchs(side, batch, laid):
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(batch, 3, side, side, dtype=torch.float64, generator=rng)
    weight = laid(torch.randn(3, 7, 2, 2, dtype=torch.float64, generator=rng))
    derivatives = []
    for way in (conv_transpose2x2, torch.nn.functional.conv_transpose2d):
        leaves = x.clone().requires_grad_(), weight.clone().requires_grad_()
        y = way(*leaves)
        first = torch.autograd.grad(y.square().sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), leaves)
        derivatives.append((y, *first, *second))
    torch.testing.assert_close(*derivatives)


@pytest.mark.parametrize("side", [2, 3, 5])
def test_patches_times_the_kernel_are_torchs_convolution(side):
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(4, 3, side, side, dtype=torch.float64, generator=rng)
    weight = channels_last(torch.randn(7, 3, 2, 2, dtype=torch.float64, generator=rng))
    patches = patches2x2(x)
    product = (patches @ as_matrix(weight).T).permute(0, 3, 1, 2)
    torch.testing.assert_close(product, F.conv2d(x, weight))


@pytest.mark.parametrize("side", [2, 4])
def test_overlapping_pieces_are_added_as_fold_adds_them(side):
    pieces = torch.randn(3, side, side, 4 * 7, generator=torch.Generator().manual_seed(0)).requires_grad_()
    columns = pieces.view(3, side * side, 4, 7).permute(0, 3, 2, 1).reshape(3, 28, side * side)
    folded = F.fold(columns, (side + 1, side + 1), 2).permute(0, 2, 3, 1)
    added = Overlap.apply(pieces)
    assert torch.equal(added, folded)
    grad = torch.randn(added.shape, generator=torch.Generator().manual_seed(1))
    assert torch.equal(*(torch.autograd.grad(each, pieces, grad)[0] for each in (added, folded)))


@pytest.fixture(params=["oneDNN", "MKL"])
def library(request, monkeypatch):
    """Whichever library takes large products, whatever the processor."""
    if request.param == "oneDNN" and layers.LINEAR is None:
        pytest.skip("this torch has no linear layer by oneDNN")
    monkeypatch.setattr(layers, "ONEDNN", layers.LINEAR if request.param == "oneDNN" else None)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("transposed", [False, True])
def test_a_large_product_equals_that_in_double_precision(transposed):
    """A sum of K products in single precision is off by at most K eps |x| |W|."""
    rng = torch.Generator().manual_seed(0)
    x, matrix = torch.randn(64, 300, generator=rng), torch.randn(300, 256, generator=rng)
    assert len(x) * matrix.numel() >= LARGE
    matrix = matrix.T.contiguous().T if transposed else matrix
    grad = torch.randn(64, 256, generator=rng)
    leaves = x.clone().requires_grad_(), matrix.detach().requires_grad_()
    y = times(*leaves)
    over_x, over_matrix = torch.autograd.grad(y, leaves, grad)
    eps = torch.finfo(torch.float32).eps
    for product, left, right in ((y, x, matrix), (over_x, grad, matrix.T), (over_matrix, x.T, grad)):
        exact, bound = left.double() @ right.double(), left.double().abs() @ right.double().abs()
        assert ((product.double() - exact).abs() <= left.shape[1] * eps * bound).all()


@pytest.mark.usefixtures("library")
def test_the_products_of_many_networks_at_once_equal_each_alone():
    rng = torch.Generator().manual_seed(0)
    x, matrices = (
        torch.randn(5, 3, dtype=torch.float64, generator=rng),
        torch.randn(4, 3, 2, dtype=torch.float64, generator=rng),
    )

    def loss(x, matrix):
        return times(x, matrix).square().sum()

    both = torch.func.vmap(torch.func.grad(loss, (0, 1)), (None, 0))(x, matrices)
    each = [torch.func.grad(loss, (0, 1))(x, matrix) for matrix in matrices]
    torch.testing.assert_close(both, tuple(torch.stack(one) for one in zip(*each, strict=True)))


@pytest.mark.parametrize("train", [True, False])
def test_batch_norm_equals_torch(train):
    layer = torch.nn.BatchNorm2d(3)
    layer.weight.data, layer.bias.data = torch.randn(3), torch.randn(3)
    layer.running_mean, layer.running_var = torch.randn(3), torch.rand(3) + 0.5
    before = layer.running_mean.clone(), layer.running_var.clone()
    x = torch.randn(4, 3, 5, 5)
    y, mean, var = batch_norm(x, layer.weight, layer.bias, *before, train=train)
    layer.train(train)
    torch.testing.assert_close(y, layer(x))
    torch.testing.assert_close((mean, var), (layer.running_mean, layer.running_var))


def test_running_statistics_have_slopes_where_they_are_asked_for_and_are_the_same_numbers():
    rng = torch.Generator().manual_seed(0)
    x, before = (
        torch.randn(4, 3, 2, 2, dtype=torch.float64, generator=rng),
        (torch.zeros(3).double(), torch.ones(3).double()),
    )

    def moved(x):
        _, mean, var = batch_norm(x, None, None, *before, train=True)
        return mean, var

    with statistics_with_slopes():
        inside = moved(x)
        assert torch.autograd.gradcheck(moved, x.clone().requires_grad_())
        slopes = torch.func.vmap(torch.func.grad(lambda one: sum(t.sum() for t in moved(one))))(x[None])
    assert slopes.abs().max() > 0
    outside = moved(x.clone().requires_grad_())
    assert not any(t.requires_grad for t in outside)
    torch.testing.assert_close(inside, outside)


def test_spectral_norm_equals_torch_over_several_steps():
    torch.manual_seed(0)
    layer = torch.nn.utils.spectral_norm(torch.nn.Conv2d(4, 6, 2, bias=False))
    x, weight, u = torch.randn(2, 4, 3, 3), layer.weight_orig.detach().clone().requires_grad_(), layer.weight_u.clone()
    for _ in range(3):
        sigma, u = spectral_norm(weight, u, train=True)
        y = F.conv2d(x, weight) / sigma
        expected = layer(x)
        torch.testing.assert_close(y, expected)
    (slope,) = torch.autograd.grad(y.square().sum(), weight)
    (expected_slope,) = torch.autograd.grad(expected.square().sum(), layer.weight_orig)
    torch.testing.assert_close(slope, expected_slope, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(
    "model", [Model("lenet5", 3, 10), Model("resnet18", 3, 10), Model("lenet5", 3, 10, gan="dense")]
)
def test_the_discriminator_of_two_batches_equals_two_calls_in_turn(model, train):
    """Statistics of its own for each batch, one power iteration for each: state and gradients as from plain calls."""
    net, rng = model.net("discriminator"), torch.Generator().manual_seed(0)
    params, buffers = ({n: t.double() for n, t in group.items()} for group in net.init(rng))
    params = {n: t.requires_grad_() for n, t in params.items()}
    real, fake = torch.rand(2, 6, *model.feature_shape, dtype=torch.float64, generator=rng).requires_grad_()
    labels = torch.arange(6)
    first, state = net.apply(params, buffers, real, labels, train=train)
    second, after = net.apply(params, buffers | state, fake, labels, train=train)
    both, after_both = net.apply_in_turn(params, buffers, (real, fake), labels, train=train)
    torch.testing.assert_close(both, (first, second))
    torch.testing.assert_close(dict(after_both), dict(state | after))
    inputs = [*params.values(), real, fake]
    grads = [
        torch.autograd.grad(a.sigmoid().mean() - b.sin().mean(), inputs, allow_unused=True)
        for a, b in ((first, second), both)
    ]
    torch.testing.assert_close(*grads)


def test_the_spectral_product_equals_the_layer_divided_by_sigma():
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(4, 3, 5, 5, dtype=torch.float64, generator=rng)
    weight = torch.randn(7, 3, 2, 2, dtype=torch.float64, generator=rng).requires_grad_()
    u = F.normalize(torch.randn(7, dtype=torch.float64, generator=rng), dim=0)
    sigma, _ = spectral_norm(weight, u, train=True)
    plain = F.conv2d(x, weight) / sigma
    matrix, patches = as_matrix(weight), patches2x2(x)
    vectors = power_iteration(matrix, u, train=True)
    y = SpectralProduct.apply(patches.flatten(0, 2)[None], matrix, *(t[None] for t in vectors))
    y = y.view(4, 4, 4, 7).permute(0, 3, 1, 2)
    torch.testing.assert_close(y, plain)
    grads = [torch.autograd.grad(each.sin().sum(), weight)[0] for each in (y, plain)]
    torch.testing.assert_close(*grads)


def test_lenet_equals_the_papers_layers_in_torch_nn():
    model = Model("lenet5", 3, 10)
    e, _ = model.net("extractor").init(stream(0, "e"))
    c, _ = model.net("classifier").init(stream(0, "c"))
    nn = torch.nn
    plain = nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.AvgPool2d(2), nn.Sigmoid(), nn.Conv2d(6, 16, 5), nn.AvgPool2d(2), nn.Sigmoid(), nn.Flatten(),
        nn.Linear(400, 120), nn.Sigmoid(), nn.Linear(120, 84), nn.Sigmoid(), nn.Linear(84, 10),
    )  # fmt: skip
    for weight, parameter in zip([*e.values(), *c.values()], plain.parameters(), strict=True):
        parameter.data = weight
    x = torch.rand(2, 3, 32, 32)
    h, _ = model.net("extractor").apply(e, {}, x, train=True)
    logits, _ = model.net("classifier").apply(c, {}, h, train=True)
    assert h.shape == (2, 16, 5, 5)
    torch.testing.assert_close(logits, plain(2 * x - 1))


def test_gan_sizes_and_ranges():
    model = Model("lenet5", 1, 7)
    g, state = model.net("generator").init(stream(0, "g"))
    d, vectors = model.net("discriminator").init(stream(0, "d"))
    y = torch.tensor([0, 6, 3])
    h, after = model.net("generator").apply(g, state, torch.randn(3, 100), y, train=True)
    assert h.shape == (3, 16, 5, 5)
    assert (h > 0).all()
    assert (h < 1).all()
    assert set(after) == set(state)
    logits, after = model.net("discriminator").apply(d, vectors, h, y, train=True)
    assert logits.shape == (3,)
    assert set(after) == set(vectors)
    assert sum(t.numel() for t in g.values()) == 7 * 7 + 4 * (107 * 512 + 512 * 256 + 256 * 128 + 128 * 16) + 2 * (
        512 + 256 + 128
    )
