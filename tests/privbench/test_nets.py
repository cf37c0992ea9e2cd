"""Pure layers and networks against torch.nn."""

import pytest
import torch
import torch.nn.functional as F

from privbench.nets import Model
from privbench.nets.layers import (
    Overlap,
    batch_norm,
    conv2x2,
    conv_then_average_pool,
    conv_transpose2x2,
    spectral_norm,
)
from privbench.seeds import stream


def test_folded_convolution_and_pooling_equal_the_two_steps():
    x, w, b = torch.rand(2, 3, 32, 32), torch.randn(6, 3, 5, 5), torch.randn(6)
    plain = F.avg_pool2d(F.conv2d(x, w, b), 2)
    torch.testing.assert_close(conv_then_average_pool(x, w, b), plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("side", [2, 3, 5])
@pytest.mark.parametrize("batch", [1, 4])
def test_2x2_convolutions_as_products_equal_torchs(side, batch):
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(batch, 3, side, side, generator=rng)
    weight = torch.randn(7, 3, 2, 2, generator=rng)
    torch.testing.assert_close(conv2x2(x, weight), torch.nn.functional.conv2d(x, weight))
    for own in (x, x[..., :1, :1]):
        up = torch.randn(3, 7, 2, 2, generator=rng)
        torch.testing.assert_close(conv_transpose2x2(own, up), torch.nn.functional.conv_transpose2d(own, up))
        grads = []
        for way in (conv_transpose2x2, torch.nn.functional.conv_transpose2d):
            leaves = own.double().requires_grad_(), up.double().requires_grad_()
            grads.append(torch.autograd.grad(way(*leaves).square().sum(), leaves))
        torch.testing.assert_close(*grads)


@pytest.mark.parametrize("side", [2, 4])
def test_overlapping_pieces_are_added_as_fold_adds_them(side):
    """Bit for bit: published runs were trained with fold."""
    pieces = torch.randn(3, side, side, 7, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    columns = pieces.view(3, side * side, 28).transpose(1, 2)
    folded = F.fold(columns, (side + 1, side + 1), 2).permute(0, 2, 3, 1)
    added = Overlap.apply(pieces)
    assert torch.equal(added, folded)
    grad = torch.randn(added.shape, generator=torch.Generator().manual_seed(1))
    assert torch.equal(*(torch.autograd.grad(each, pieces, grad)[0] for each in (added, folded)))


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


def test_spectral_norm_equals_torch_over_several_steps():
    torch.manual_seed(0)
    layer = torch.nn.utils.spectral_norm(torch.nn.Conv2d(4, 6, 2, bias=False))
    x, weight, u = torch.randn(2, 4, 3, 3), layer.weight_orig.detach().clone().requires_grad_(), layer.weight_u.clone()
    for _ in range(3):
        sigma, u = spectral_norm(weight, u, train=True)
        y = F.conv2d(x, weight) / sigma
        expected = layer(x)
        torch.testing.assert_close(y, expected)
    (own,) = torch.autograd.grad(y.square().sum(), weight)
    (theirs,) = torch.autograd.grad(expected.square().sum(), layer.weight_orig)
    torch.testing.assert_close(own, theirs, rtol=1e-4, atol=1e-5)


def test_lenet_equals_the_papers_layers_in_torch_nn():
    model = Model("lenet5", 3, 10)
    e, _ = model.net("extractor").init(stream(0, "e"))
    c, _ = model.net("classifier").init(stream(0, "c"))
    nn = torch.nn
    plain = nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.AvgPool2d(2), nn.Sigmoid(), nn.Conv2d(6, 16, 5), nn.AvgPool2d(2), nn.Sigmoid(), nn.Flatten(),
        nn.Linear(400, 120), nn.Sigmoid(), nn.Linear(120, 84), nn.Sigmoid(), nn.Linear(84, 10),
    )  # fmt: skip
    for own, theirs in zip([*e.values(), *c.values()], plain.parameters(), strict=True):
        theirs.data = own
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
