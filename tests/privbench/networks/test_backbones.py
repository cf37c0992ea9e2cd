"""Every backbone beside LeNet-5 and ResNet-18: against plain torch modules, its sizes, alone and stacked."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import grad, vmap

from privbench.data.readers.download import torchvision_datasets
from privbench.networks import conv_gan, model
from privbench.networks.base import LinearClassifier
from privbench.networks.model import GANS, Model
from privbench.seeds import stream
from tests.privbench.networks.test_resnet18 import from_torchvision, networks

NAMES = ("mlp", "convnet", "resnet18-torchvision", "vit")
STATISTICS = {"running_mean": "mean", "running_var": "var"}


class Breaching(nn.Module):
    """`ConvNet` of width 64, as `breaching` 0.1.2 describes it."""

    def __init__(self, channels, classes):
        super().__init__()
        before = channels
        for i, width in enumerate((64, 128, 128, 256, 256, 256, 256, 256)):
            self.add_module(f"conv{i}", nn.Conv2d(before, width, 3, padding=1))
            self.add_module(f"bn{i}", nn.BatchNorm2d(width))
            before = width
        self.linear = nn.Linear(36 * 64, classes)

    def forward(self, images):
        h = 2 * images - 1
        for i in range(8):
            h = F.relu(self.get_submodule(f"bn{i}")(self.get_submodule(f"conv{i}")(h)))
            h = F.max_pool2d(h, 3) if i in (5, 7) else h
        return self.linear(h.flatten(1))


class Perceptron(nn.Module):
    """The 2NN of McMahan et al."""

    def __init__(self, channels, classes, side=32):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(channels * side**2, 200), nn.Linear(200, 200), nn.Linear(200, classes)

    def forward(self, images):
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1((2 * images - 1).flatten(1))))))


class Transformer(nn.Module):
    """torch.nn's encoder of 65 tokens of 64 numbers, four layers of four heads, normalised first."""

    def __init__(self, channels, classes):
        super().__init__()
        self.patches, self.head = nn.Conv2d(channels, 64, 4, stride=4), nn.Linear(64, classes)
        self.class_token, self.positions = (nn.Parameter(torch.randn(1, n, 64)) for n in (1, 65))
        layer = nn.TransformerEncoderLayer(64, 4, 128, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, nn.LayerNorm(64), enable_nested_tensor=False)

    def forward(self, images):
        tokens = self.patches(2 * images - 1).flatten(2).mT
        t = torch.cat([self.class_token.expand(len(images), -1, -1), tokens], 1) + self.positions
        return self.head(self.encoder(t)[:, 0])


class Whole(nn.Module):
    """torchvision's ResNet-18 as it is, called with the images of this suite."""

    def __init__(self, channels, classes):
        super().__init__()
        torchvision_datasets()
        from torchvision.models import resnet18

        self.net = resnet18(num_classes=classes)

    def forward(self, images):
        return self.net(2 * images - 1)


REFERENCES = {"mlp": Perceptron, "convnet": Breaching, "resnet18-torchvision": Whole, "vit": Transformer}
SIZES = [*((name, 32) for name in NAMES), ("resnet18-torchvision", 64)]


def reference(name):
    """The reference with running statistics that are not the initial ones, and its module whose names are the suite's."""
    torch.manual_seed(0)
    whole = REFERENCES[name](3, 7).double()
    for kind, buffer in whole.named_buffers():
        if kind.endswith("running_mean"):
            buffer.normal_(0, 0.1)
        elif kind.endswith("running_var"):
            buffer.uniform_(0.5, 1.5)
    return whole, whole.net if isinstance(whole, Whole) else whole


@pytest.mark.parametrize(
    ("name", "size", "train"),
    [*((*one, train) for one in SIZES for train in (True, False)), ("resnet18-torchvision", 224, False)],
)
def test_the_network_equals_the_reference_with_the_same_weights(name, size, train):
    whole, named = reference(name)
    of = Model(name, 3, 7, size)
    values = from_torchvision(named, networks(of))
    x = torch.rand(2, 3, size, size, dtype=torch.float64, generator=stream(0, "images"))
    h, extractor_after = of.net("extractor").apply(*values["extractor"], x, train=train)
    logits, classifier_after = of.net("classifier").apply(*values["classifier"], h, train=train)
    torch.testing.assert_close(logits, whole.train(train)(x))
    after = from_torchvision(named, networks(of))
    torch.testing.assert_close(extractor_after, after["extractor"][1])
    torch.testing.assert_close(classifier_after, after["classifier"][1])
    assert h.shape == (2, *of.feature_shape)
    low, high = of.feature_range
    assert low <= h.min()
    assert h.max() <= high


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_has_its_place_and_is_initialised_as_the_references(name):
    """But for the transformer's encoder, whose matrices are Xavier's: of variance 2 / (fan in + fan out)."""
    _, named = reference(name)
    drawn = {n: t for params, _ in networks(Model(name, 3, 7)).values() for n, t in params.items()}
    assert {n: t.shape for n, t in drawn.items()} == {n: p.shape for n, p in named.named_parameters()}
    for n, parameter in named.named_parameters():
        spread = float(parameter.detach().std())
        if name == "vit" and "weight" in n and parameter.ndim == 2 and n != "head.weight":
            spread = math.sqrt(2 / sum(parameter.shape))
        if parameter.ndim > 1 and parameter.numel() > 1000 and n not in ("positions", "class_token"):
            assert float(drawn[n].std()) == pytest.approx(spread, rel=0.06), n
    assert name != "vit" or float(drawn["positions"].std()) == pytest.approx(0.02, rel=0.06)


@pytest.mark.parametrize(
    ("name", "count"),
    [("mlp", 247_210), ("convnet", 2_904_970), ("resnet18-torchvision", 11_181_642), ("vit", 142_026)],
)
def test_parameters_are_as_many_as_documented(name, count):
    """The ConvNet's 2.9 million are those that `breaching` says; torchvision's 11.2 million with 10 classes."""
    channels = 1 if name == "mlp" else 3
    assert (
        sum(t.numel() for params, _ in networks(Model(name, channels, 10)).values() for t in params.values()) == count
    )


def test_the_perceptron_has_the_papers_parameters_on_its_images():
    assert sum(p.numel() for p in Perceptron(1, 10, 28).parameters()) == 199_210


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_two_networks_at_once_equal_each_alone(name, narrow_backbones):
    of, y = Model(name, 1, 4), torch.arange(3)
    drawn = [{p: of.net(p).init(stream(s, p)) for p in ("extractor", "classifier")} for s in range(2)]

    def loss(params, buffers, x):
        h, after = of.net("extractor").apply(params["extractor"], buffers["extractor"], x, train=True)
        logits, end = of.net("classifier").apply(params["classifier"], buffers["classifier"], h, train=True)
        return F.cross_entropy(logits, y), {"extractor": after, "classifier": end}

    params, buffers = (
        {p: {n: torch.stack([d[p][i][n] for d in drawn]) for n in drawn[0][p][i]} for p in drawn[0]} for i in range(2)
    )
    x = torch.rand(2, 3, 1, 32, 32, generator=stream(0, "images"))
    together, after = vmap(grad(loss, has_aux=True))(params, buffers, x)
    for i, each in enumerate(drawn):
        leaves = {p: {n: t.clone().requires_grad_() for n, t in net.items()} for p, (net, _) in each.items()}
        value, state = loss(leaves, {p: s for p, (_, s) in each.items()}, x[i])
        value.backward()
        for p, net in leaves.items():
            torch.testing.assert_close({n: t[i] for n, t in together[p].items()}, {n: t.grad for n, t in net.items()})
            torch.testing.assert_close({n: t[i] for n, t in after[p].items()}, state[p])


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("name", NAMES)
def test_gradient_matching_has_a_slope_at_every_image(name, narrow_backbones):
    """The second derivative, under vmap over images, against a finite difference in a random direction."""
    of, y = Model(name, 1, 4), torch.arange(2)
    params, buffers = (dict(zip(("e", "c"), each, strict=True)) for each in zip(
        *(of.net(p).init(stream(0, p)) for p in ("extractor", "classifier")), strict=True
    ))  # fmt: skip

    def size(x):
        def loss(params):
            h, _ = of.net("extractor").apply(params["e"], buffers["e"], x, train=True)
            return F.cross_entropy(of.net("classifier").apply(params["c"], buffers["c"], h, train=True)[0], y)

        return sum(t.square().sum() for net in grad(loss)(params).values() for t in net.values())

    x, step = (torch.rand(2, 2, 1, 32, 32, generator=stream(0, n)) * s for n, s in (("images", 1), ("step", 1e-7)))
    slope = (vmap(grad(size))(x) * step).flatten(1).sum(1)
    torch.testing.assert_close(slope, vmap(size)(x + step / 2) - vmap(size)(x - step / 2), rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    ("name", "size", "gan"), [*((*one, "conv") for one in SIZES), *((name, 32, "dense") for name in NAMES)]
)
def test_generator_and_discriminator_fit_the_features(name, size, gan):
    of, y = Model(name, 1, 4, size, gan=gan), torch.tensor([0, 3])
    g, d = (of.net(part).init(stream(0, part)) for part in ("generator", "discriminator"))
    fake, _ = of.net("generator").apply(*g, torch.randn(2, GANS[gan]), y, train=True)
    assert fake.shape == (2, *of.feature_shape)
    low, high = of.feature_range
    assert low <= fake.min() < fake.max() <= high
    assert (fake.min() < 0) == (low < 0)
    logits, _ = of.net("discriminator").apply(*d, fake, y, train=True)
    assert logits.shape == (2,)
    assert logits.isfinite().all()


def test_kernels_grow_from_one_place_to_the_side_that_they_are_for():
    for side, kernels in conv_gan.KERNELS.items():
        s = 1
        for kernel, stride, padding in kernels:
            s = (s - 1) * stride - 2 * padding + kernel
        assert s == side


def test_every_backbone_is_complete_and_the_head_is_its_whole_classifier():
    for name in model.BACKBONES:
        for size in model.backbone_module(name).IMAGE_SIZES:
            assert math.prod(Model(name, 3, 10, size).feature_shape) > 0
        classifier = Model(name, 3, 10).classifier
        assert isinstance(classifier, LinearClassifier) == (name in ("lenet5", "mlp", "convnet", "vit"))
        if name in ("mlp", "convnet", "vit"):
            assert classifier.features_layer == classifier.logits_layer


@pytest.mark.parametrize("name", model.BACKBONES)
def test_what_is_said_of_the_last_layers_inputs_holds(name):
    """Of images of noise at initial networks; ResNet-18's mean is LeNet-5's, with which its numbers were measured."""
    of = Model(name, 3, 10)
    e, c = (of.net(part).init(stream(0, part)) for part in ("extractor", "classifier"))
    h, _ = of.net("extractor").apply(*e, torch.rand(4, 3, 32, 32, generator=stream(0, "images")), train=True)
    weight, layer = c[0][f"{of.classifier.logits_layer}.weight"], of.classifier.logits_layer
    # Each input by itself is a logit of a layer that is the identity.
    whole = c[0] | {f"{layer}.weight": torch.eye(weight.shape[1]), f"{layer}.bias": torch.zeros(weight.shape[1])}
    inputs, _ = of.classifier.apply(whole, c[1], h, train=True)
    said = of.last_inputs
    assert said.negative or inputs.min() >= 0
    if name != "resnet18":
        assert float(inputs.mean()) == pytest.approx(said.mean, rel=0.1, abs=1e-3)
