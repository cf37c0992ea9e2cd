"""ResNet-18 against torchvision's, its sizes, and what batch norm means for training."""

import pytest
import torch

from privbench import data, presets
from privbench.data import photos
from privbench.data.readers.download import torchvision_datasets
from privbench.data.readers.resize import to_square
from privbench.errors import UserError
from privbench.networks.layers import padded_conv
from privbench.networks.model import Model, check_backbone
from privbench.seeds import stream
from privbench.training import harness, phase_plans
from tests.builders.federations import digits_federation

STATISTICS = {"running_mean": "mean", "running_var": "var"}


def networks(model):
    return {part: model.net(part).init(stream(0, part)) for part in ("extractor", "classifier")}


@pytest.fixture(scope="module")
def torchvision_net():
    """torchvision's ResNet-18, also where its compiled operators do not load."""
    torchvision_datasets()
    from torchvision.models import resnet18

    torch.manual_seed(0)
    net = resnet18(num_classes=7, zero_init_residual=False).double()
    for name, buffer in net.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_()
        elif name.endswith("running_var"):
            buffer.uniform_(0.5, 1.5)
    return net


def from_torchvision(net, like):
    """torchvision's values under privbench's names, which differ in those of the running statistics alone."""
    state = {}
    for name, value in net.state_dict().items():
        layer, _, kind = name.rpartition(".")
        state[f"{layer}.{STATISTICS.get(kind, kind)}".removeprefix(".")] = value.clone()
    return {part: tuple({n: state[n] for n in tensors} for tensors in parts) for part, parts in like.items()}


def forward(net, images):
    """torchvision's modules in the order of its own forward, with the sigmoid of the paper after layer2."""
    h = net.maxpool(net.relu(net.bn1(net.conv1(2 * images - 1))))
    h = torch.sigmoid(net.layer2(net.layer1(h)))
    return net.fc(net.avgpool(net.layer4(net.layer3(h))).flatten(1)), h


@pytest.mark.parametrize(("size", "batch"), [(32, 3), (224, 2)])
@pytest.mark.parametrize("train", [True, False])
def test_resnet_equals_torchvisions_modules_with_the_same_weights(torchvision_net, train, size, batch):
    model = Model("resnet18", 3, 7, size)
    values = from_torchvision(torchvision_net, networks(model))
    x = torch.rand(batch, 3, size, size, dtype=torch.float64, generator=stream(0, "images"))
    h, extractor_after = model.net("extractor").apply(*values["extractor"], x, train=train)
    logits, classifier_after = model.net("classifier").apply(*values["classifier"], h, train=train)
    expected_logits, expected_h = forward(torchvision_net.train(train), x)
    torch.testing.assert_close(h, expected_h)
    torch.testing.assert_close(logits, expected_logits)
    after = from_torchvision(torchvision_net, networks(model))
    assert set(extractor_after) == set(values["extractor"][1])
    torch.testing.assert_close(extractor_after, after["extractor"][1])
    torch.testing.assert_close(classifier_after, after["classifier"][1])


def test_every_parameter_and_statistic_of_torchvisions_resnet_has_its_place(torchvision_net):
    parts = networks(Model("resnet18", 3, 7))
    names = [n for params, buffers in parts.values() for n in (*params, *buffers)]
    assert len(names) == len(set(names)) == len([n for n in torchvision_net.state_dict() if "num_batches" not in n])
    shapes = {n: t.shape for params, _ in parts.values() for n, t in params.items()}
    assert shapes == {n: p.shape for n, p in torchvision_net.named_parameters()}


def test_initial_values_are_spread_as_torchvisions(torchvision_net):
    torch.manual_seed(1)
    fresh = type(torchvision_net)(type(torchvision_net.layer1[0]), [2, 2, 2, 2], num_classes=7)
    initial = {n: t for params, _ in networks(Model("resnet18", 3, 7)).values() for n, t in params.items()}
    for name, parameter in fresh.state_dict().items():
        if parameter.numel() > 1000:
            assert float(initial[name].std() / parameter.std()) == pytest.approx(1, abs=0.05), name
            assert abs(float(initial[name].mean())) < 0.1 * float(parameter.std()), name


@pytest.mark.parametrize(
    ("side", "kernel", "stride"), [(1, 3, 1), (2, 3, 2), (2, 3, 1), (1, 1, 1), (2, 1, 2), (5, 7, 2)]
)
def test_a_padded_convolution_equals_torchs(side, kernel, stride):
    x = torch.randn(2, 3, side, side, generator=stream(0, "x"))
    weight = torch.randn(4, 3, kernel, kernel, generator=stream(0, "weight"))
    expected = torch.nn.functional.conv2d(x, weight, stride=stride, padding=kernel // 2)
    torch.testing.assert_close(padded_conv(x, weight, stride), expected)


@pytest.mark.parametrize(("size", "shape"), [(32, (128, 4, 4)), (224, (128, 28, 28))])
def test_generator_and_discriminator_fit_the_features(size, shape):
    model = Model("resnet18", 1, 4, size)
    assert model.feature_shape == shape
    y = torch.tensor([0, 3])
    parts = {part: model.net(part).init(stream(0, part)) for part in ("extractor", "generator", "discriminator")}
    real, _ = model.net("extractor").apply(*parts["extractor"], torch.rand(2, 1, size, size), train=True)
    fake, after = model.net("generator").apply(*parts["generator"], torch.randn(2, 100), y, train=True)
    assert real.shape == fake.shape == (2, *shape)
    assert 0 < fake.min() < fake.max() < 1
    assert set(after) == set(parts["generator"][1])
    for features in (real, fake):
        logits, after = model.net("discriminator").apply(*parts["discriminator"], features, y, train=True)
        assert logits.shape == (2,)
        assert set(after) == set(parts["discriminator"][1])


def test_an_unknown_backbone_or_size_is_one_clear_line():
    with pytest.raises(UserError, match="unknown backbone 'resnet81'; did you mean 'resnet18'"):
        check_backbone("resnet81", 32)
    with pytest.raises(UserError, match="lenet5 takes images of 32x32, but 224x224 was asked for"):
        Model("lenet5", 3, 10, 224)
    with pytest.raises(UserError, match="resnet18 takes images of 32x32 or 224x224, but 64x64 was asked for"):
        presets.train_spec("smoke", "digits", "fedavg", backbone="resnet18", image_size=64)


@pytest.mark.parametrize("size", [32, 224])
def test_small_images_are_enlarged_a_mini_batch_at_a_time(size):
    federation = digits_federation((20, 20))
    each = presets.train_spec("smoke", "digits", "fedavg", backbone="resnet18", image_size=size, clients=2)
    setup = harness.prepare(each, federation, torch.device("cpu"))
    assert setup.images[0].shape == (20, 1, 32, 32)
    shown = phase_plans.client_plan(setup, 0, 1, setup.method.client()[0], 0).images(0)
    assert shown.shape == (16, 1, size, size)
    assert 0 <= shown.min() < shown.max() <= 1
    small = federation.clients[0].train.images / 255
    (reduced,) = torch.nn.functional.interpolate(shown[:1], (32, 32), mode="area")
    assert (small - reduced).abs().mean((1, 2, 3)).min() < 0.02, "an enlarged image is none of the client's"


def test_photos_are_resized_from_their_larger_originals_and_digits_stay_as_they_are():
    small, large = (photos.crops("rocket", "test", 2, side) for side in (32, 224))
    assert large.shape == (2, 3, 224, 224)
    back = torch.nn.functional.interpolate(large.float(), (32, 32), mode="area")
    assert (back - small.float()).abs().mean() < 2
    assert not torch.equal(large, to_square(small, 224)), "enlarged from 32x32 instead of from the original"
    assert data.load("digits", None, None, 224).domains["all"].train.images.shape[2:] == (32, 32)
