"""A torch module as a network without state of its own: against the module itself, under vmap, twice differentiated."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import grad, vmap

from privbench.errors import UserError
from privbench.networks.module_net import ModuleNet
from privbench.seeds import stream

pytestmark = pytest.mark.usefixtures("double_precision")


class Attentive(nn.Module):
    """Two tokens of a convolution, attention among them, an index buffer, and a weight that two layers share."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 4, stride=4)
        self.register_buffer("order", torch.arange(4).flip(0))
        self.attention = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True, activation="gelu")
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, images):
        tokens = self.conv(images).flatten(2).mT[:, self.order]
        return self.second(self.first(self.attention(tokens))).mean(1)


def normalised(momentum=0.1, affine=True, track=True):
    torch.manual_seed(0)
    norms = [nn.BatchNorm2d(3, momentum=momentum, eps=1e-3, affine=affine, track_running_stats=track)]
    return nn.Sequential(nn.Conv2d(1, 3, 3), *norms, nn.Tanh(), nn.Flatten(), nn.Linear(108, 5), nn.BatchNorm1d(5))


def attentive():
    torch.manual_seed(0)
    return Attentive()


def images(seed, *lead):
    return torch.rand(*lead, 4, 1, 8, 8, generator=stream(seed, "images"))


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("kind", [{}, {"momentum": None}, {"momentum": 0.3, "affine": False}, {"track": False}])
def test_batch_norm_equals_the_modules_own_call_after_call(kind, train):
    module = normalised(**kind)
    net = ModuleNet(module)
    params, buffers = net.values()
    before = copy.deepcopy(module.state_dict())
    reference = copy.deepcopy(module).train(train)
    for step in range(3):
        output, after = net.apply(params, buffers, images(step), train=train)
        torch.testing.assert_close(output, reference(images(step)))
        assert after.keys() == buffers.keys()
        assert all(after[n] is not t for n, t in buffers.items())
        buffers = after
    expected = dict(reference.named_buffers())
    assert expected.keys() - buffers.keys() <= {"1.num_batches_tracked", "5.num_batches_tracked"}
    assert ("1.num_batches_tracked" in buffers) == (kind.get("momentum", 0.1) is None)
    torch.testing.assert_close(buffers, {n: expected[n] for n in buffers})
    torch.testing.assert_close(dict(module.state_dict()), dict(before), rtol=0, atol=0)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("make", [normalised, attentive])
def test_gradients_of_many_networks_at_once_equal_autograd_of_each(make, train):
    net = ModuleNet(make())
    drawn = [net.init(stream(seed, "network")) for seed in range(3)]
    params, buffers = ({n: torch.stack([d[i][n] for d in drawn]) for n in drawn[0][i]} for i in range(2))
    y = torch.arange(4) % 4

    def loss(params, buffers, x):
        output, after = net.apply(params, buffers, x, train=train)
        return F.cross_entropy(output, y), after

    x = images(0, 3)
    together, after = vmap(grad(loss, has_aux=True))(params, buffers, x)
    for i in range(3):
        module = make()
        for name, t in (*module.named_parameters(), *module.named_buffers()):
            if name in params or name in buffers:
                t.data.copy_((params | buffers)[name][i])
        for each in module.train(train).modules():
            each.p = 0.0 if isinstance(each, nn.Dropout) else getattr(each, "p", None)
            if isinstance(each, nn.MultiheadAttention):
                each.dropout = 0.0
        F.cross_entropy(module(x[i]), y).backward()
        torch.testing.assert_close(
            {n: t[i] for n, t in together.items()}, {n: t.grad for n, t in module.named_parameters()}
        )
        torch.testing.assert_close({n: t[i] for n, t in after.items()}, {n: module.get_buffer(n) for n in after})


@pytest.mark.parametrize("make", [normalised, attentive])
def test_the_gradient_of_a_gradients_distance_equals_a_finite_difference(make):
    """What gradient matching descends along, over victims whose batch statistics differ and whose network is one."""
    net, y = ModuleNet(make()), torch.arange(4) % 4
    params, buffers = net.init(stream(0, "network"))

    def size(x):
        gradient = grad(lambda p: F.cross_entropy(net.apply(p, buffers, x, train=True)[0], y))(params)
        return sum(g.square().sum() for g in gradient.values())

    x, step = images(0, 2), 1e-6 * images(1, 2)
    slope = (vmap(grad(size))(x) * step).flatten(1).sum(1)
    torch.testing.assert_close(slope, vmap(size)(x + step / 2) - vmap(size)(x - step / 2), rtol=1e-5, atol=0)


def test_initial_values_depend_on_the_generator_alone_and_leave_the_global_one_as_it_was():
    net, fresh = ModuleNet(attentive()), ModuleNet(attentive(), Attentive)
    state = torch.get_rng_state()
    for each in (net, fresh):
        (a, _), (b, _), (c, _) = (each.init(stream(seed, "network")) for seed in (1, 1, 2))
        torch.testing.assert_close(a, b, rtol=0, atol=0)
        assert not torch.equal(a["conv.weight"], c["conv.weight"])
    assert torch.equal(state, torch.get_rng_state())
    with torch.device("meta"):
        outline, buffers = net.init(None)
    assert {n: t.shape for n, t in outline.items()} == {n: t.shape for n, t in a.items()}
    assert buffers["order"].device.type == "meta"


def test_a_shared_weight_is_one_parameter_and_dropout_layers_are_named():
    net = ModuleNet(attentive())
    assert "first.weight" in net.parameter_names
    assert "second.weight" not in net.parameter_names
    assert net.draws == (
        "attention.self_attn",
        "attention.dropout",
        "attention.dropout1",
        "attention.dropout2",
    )


def test_threads_do_not_see_each_others_numbers():
    net = ModuleNet(attentive())
    drawn = [net.init(stream(seed, "network")) for seed in range(4)]
    alone = [net.apply(*each, images(0), train=True)[0] for each in drawn]
    with ThreadPoolExecutor(4) as executor:
        together = list(executor.map(lambda i: net.apply(*drawn[i % 4], images(0), train=True)[0], range(80)))
    for i, output in enumerate(together):
        assert torch.equal(output, alone[i % 4])
    assert torch.backends.cuda.flash_sdp_enabled()
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_module_without_shapes_is_refused():
    with pytest.raises(UserError, match="lazy parameters"):
        ModuleNet(nn.LazyLinear(3))
