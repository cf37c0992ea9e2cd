"""A network is sorted into affine maps and activations that make the same of an image, or it is said what is in the way."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from privbench.errors import UserError
from privbench.networks import layer_chain
from privbench.networks.model import Model
from privbench.networks.module_model import model_of
from tests.builders.user_modules import form_of, vit_tiny

SHAPE = (3, 16, 16)


class Calls(nn.Module):
    """Two convolutions with what a function makes of each, and a head."""

    def __init__(self, between, norm=None):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 6, 5, 2, 2), nn.Conv2d(6, 6, 3, 1, 1)
        self.norm, self.between, self.head = norm or nn.Identity(), between, nn.LazyLinear(4)
        self(torch.zeros(2, *SHAPE))

    def forward(self, x):
        x = self.between(self.norm(self.one(x)))
        return self.head(self.between(self.two(x)).flatten(1))


class Residual(Calls):
    def forward(self, x):
        x = torch.tanh(self.one(x))
        return self.head((x + torch.tanh(self.two(x))).flatten(1))


class Tied(Calls):
    def forward(self, x):
        x = torch.tanh(self.one(x))
        return self.head(torch.tanh(self.two(torch.tanh(self.two(x)))).flatten(1))


def chain(module, train=False):
    """(the blocks of a module's extractor, its parameters, images -> features)."""
    torch.manual_seed(0)
    model = model_of(module.double(), form_of(SHAPE), train=train)
    net, (params, buffers) = model.extractor_part, model.extractor_part.values()
    blocks = layer_chain.chain_of(net, params, buffers, SHAPE, train=train)
    return blocks, params, lambda x: net.apply(params, buffers, x, train=train)[0]


@pytest.mark.parametrize(
    "between",
    [
        torch.sigmoid,
        torch.tanh,
        nn.LeakyReLU(0.2),
        F.elu,
        F.selu,
        lambda x: F.celu(x, 0.5),
        lambda x: F.leaky_relu(x.add_(1.0), 0.2, inplace=True),
        F.softplus,
        lambda x: F.avg_pool2d(torch.tanh(x), 2),
        lambda x: torch.tanh(2 * x - 1) / 3,
    ],
)
def test_the_blocks_make_of_an_image_what_the_network_makes_of_it(between):
    blocks, params, network = chain(Calls(between))
    x = torch.rand(1, *SHAPE, dtype=torch.float64)
    a = x
    for block in blocks:
        z = block.affine(params, a)
        a = z
        if block.activation is not None:
            a = block.activation.forward(z)
            torch.testing.assert_close(block.activation.inverse(a), z, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(a.flatten(), network(x).flatten(), rtol=1e-12, atol=1e-12)
    assert [name for block in blocks for name in block.names] == list(params)


def test_a_rounded_kink_is_smooth_and_nears_the_kink():
    activation = chain(Calls(nn.LeakyReLU(0.2)))[0][0].activation
    z = torch.linspace(-1, 1, 201, dtype=torch.float64)
    for width in (0.1, 0.01):
        rounded = activation.rounded(z, torch.tensor(width))
        # softplus lies at most log 2 above its kink, at it.
        assert float((rounded - activation.forward(z)).max()) == pytest.approx(0.8 * width * math.log(2))
        assert bool((rounded.diff() > 0).all())


def test_each_block_is_affine():
    for block, shape in zip(chain(Calls(torch.tanh))[0], (SHAPE, (6, 8, 8)), strict=True):
        params = chain(Calls(torch.tanh))[1]
        a, b = torch.rand(2, 1, *shape, dtype=torch.float64)
        both = block.affine(params, a.lerp(b, 0.25))
        torch.testing.assert_close(both, block.affine(params, a).lerp(block.affine(params, b), 0.25))


def test_batch_norm_by_running_statistics_is_a_layer_and_by_the_batch_is_none():
    assert chain(Calls(torch.tanh, nn.BatchNorm2d(6)))[0][0].names == (
        "one.weight",
        "one.bias",
        "norm.weight",
        "norm.bias",
    )
    with pytest.raises(UserError, match="batch norm in train mode takes its statistics from the batch"):
        chain(Calls(torch.tanh, nn.BatchNorm2d(6)), train=True)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (lambda: Calls(torch.relu), "relu keeps nothing of what is below 0"),
        (lambda: Calls(nn.LeakyReLU(0.0)), "leaky_relu of these settings has no inverse"),
        (lambda: Calls(lambda x: F.max_pool2d(torch.tanh(x), 2)), "max-pooling keeps one number of each window"),
        (lambda: Calls(F.gelu), "gelu is neither affine nor an activation with an inverse"),
        (lambda: Calls(lambda x: x * torch.tanh(x)), "mul combines several values of the image"),
        (lambda: Calls(lambda x: x * x), "mul is neither affine"),
        (lambda: Tied(torch.tanh), r"two\.weight belongs to several layers"),
        (lambda: Residual(torch.tanh), "add combines several values of the image"),
    ],
)
def test_what_ends_the_chain_is_said_in_a_line(module, reason):
    with pytest.raises(UserError, match=reason) as refused:
        chain(module())
    assert str(refused.value).startswith("not applicable: ")
    assert "\n" not in str(refused.value)


def test_attention_ends_the_chain():
    model = model_of(vit_tiny(), form_of(), train=False)
    with pytest.raises(UserError, match="cat is neither affine"):
        layer_chain.chain_of(model.extractor_part, *model.extractor_part.values(), (3, 32, 32), train=False)


def test_the_suites_lenet5_is_two_blocks():
    net = Model("lenet5", 1, 10).net("extractor")
    blocks = layer_chain.chain_of(net, *net.init(torch.Generator().manual_seed(0)), (1, 32, 32), train=True)
    assert [block.names for block in blocks] == [("conv1.weight", "conv1.bias"), ("conv2.weight", "conv2.bias")]
