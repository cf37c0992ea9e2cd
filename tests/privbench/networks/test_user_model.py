"""Networks of a user's own in the training harness: cut at their head, trained alone and stacked, refused in one line."""

import dataclasses
import sys
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from privbench import presets, registry, trust
from privbench.errors import UserError
from privbench.execution import applicability, one_attack
from privbench.networks.model import GANS
from privbench.networks.user_model import UserModel
from privbench.observation import artifact_files, observe
from privbench.seeds import stream
from privbench.spec import TrainSpec
from privbench.training import checkpoint, defended, harness
from privbench.types import Knowledge
from tests.builders.federations import digits_federation, learn_round

CPU = torch.device("cpu")
PARTS = ("extractor", "classifier")


class Small(nn.Module):
    """A convolution with batch norm and two linear layers."""

    def __init__(self, channels, classes, image_size):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, 4, 8, stride=8), nn.BatchNorm2d(4)
        self.hidden, self.out = nn.Linear(4 * (image_size // 8) ** 2, 6), nn.Linear(6, classes)

    def forward(self, images):
        h = torch.tanh(self.norm(self.conv(images))).flatten(1)
        return self.out(torch.tanh(self.hidden(h)))


class HeadAlone(Small):
    """The same with the last layer as its head."""

    head = ("out",)


class Dropping(Small):
    """With a layer that draws."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.drop = nn.Dropout(0.5)


class DrawingInForward(Small):
    """With a draw that no layer shows."""

    def forward(self, images):
        return super().forward(images + torch.rand_like(images))


class Linear(nn.Sequential):
    """Nothing but linear layers."""

    def __init__(self, channels, classes, image_size):
        super().__init__(nn.Flatten(), nn.Linear(channels * image_size**2, classes))


class Stubborn(nn.Module):
    """Of ten classes, whatever is asked for."""

    def __init__(self, channels, classes, image_size):
        super().__init__()
        self.conv, self.out = nn.Conv2d(channels, 2, 8, stride=8), nn.Linear(32, 10)

    def forward(self, images):
        return self.out(self.conv(images).flatten(1))


class OfTwoInputs(Small):
    """Which takes labels besides."""

    def forward(self, images, labels):
        return super().forward(images) + labels


class Convolutional(nn.Module):
    """Whose head begins with a convolution, of features that are 6x6."""

    head = ("second", "out")

    def __init__(self, channels, classes, image_size):
        super().__init__()
        self.first, self.second = nn.Conv2d(channels, 3, 5, stride=5), nn.Conv2d(3, 2, 6)
        self.out = nn.Linear(2, classes)

    def forward(self, images):
        return self.out(self.second(torch.sigmoid(self.first(images))).flatten(1))


class Scaled(Small):
    """With a parameter that is one number, and features in an order that a buffer of whole numbers gives."""

    def __init__(self, channels, classes, image_size):
        super().__init__(channels, classes, image_size)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("order", torch.arange(self.hidden.in_features).flip(0))

    def forward(self, images):
        h = torch.tanh(self.scale * self.norm(self.conv(images))).flatten(1)[:, self.order]
        return self.out(torch.tanh(self.hidden(h)))


class Centred(nn.Module):
    """Which takes a running mean of its images off, in a buffer that no norm of torch's holds."""

    def __init__(self, channels, classes, image_size):
        super().__init__()
        self.register_buffer("centre", torch.full((channels, image_size, image_size), 0.5))
        self.conv, self.out = nn.Conv2d(channels, 2, 8, stride=8), nn.Linear(2 * (image_size // 8) ** 2, classes)

    def forward(self, images):
        entered = images - self.centre
        if self.training:
            self.centre = 0.9 * self.centre + 0.1 * images.detach().mean(0)
        return self.out(torch.tanh(self.conv(entered)).flatten(1))


class Spread(Small):
    """Without a norm, and with a buffer that is named as a norm's variance is."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.norm = nn.Identity()
        self.norm.register_buffer("var", torch.ones(()))

    def forward(self, images):
        if self.training:
            self.norm.var = images.detach().var()
        return super().forward(images / self.norm.var)


def broken(channels, classes, image_size):
    raise RuntimeError("no such size")


@pytest.fixture
def typed(monkeypatch):
    """Makes the classes above a module on the Python path, named by the user."""
    module = types.ModuleType("mine")
    known = (
        Small,
        HeadAlone,
        Dropping,
        DrawingInForward,
        Linear,
        Stubborn,
        OfTwoInputs,
        Convolutional,
        Scaled,
        Centred,
        Spread,
    )
    for each in (*known, broken):
        setattr(module, each.__name__, each)
    module.number = 3
    module.nothing = lambda *_: "a text"
    monkeypatch.setitem(sys.modules, "mine", module)
    return lambda name: registry.typed_backbone(f"mine:{name}")


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(("name", "shape"), [("Small", (64, 1, 1)), ("HeadAlone", (6, 1, 1))])
def test_the_parts_one_after_another_are_the_module(name, shape, train, typed):
    model = registry.model(typed(name), 1, 7)
    assert isinstance(model, UserModel)
    drawn = {part: model.net(part).init(stream(0, part)) for part in PARTS}
    whole = {"Small": Small, "HeadAlone": HeadAlone}[name](1, 7, 32)
    values = drawn["extractor"][0] | drawn["classifier"][0] | drawn["extractor"][1]
    assert {n for n, _ in whole.named_parameters()} == {n for part in drawn.values() for n in part[0]}
    missing, unexpected = whole.load_state_dict(values, strict=False)
    assert (missing, unexpected) == ([], [])
    x = torch.rand(3, 1, 32, 32, generator=stream(0, "images"))
    h, after = model.net("extractor").apply(*drawn["extractor"], x, train=train)
    logits, _ = model.net("classifier").apply(*drawn["classifier"], h, train=train)
    assert h.shape == (3, *model.feature_shape) == (3, *shape)
    torch.testing.assert_close(logits, whole.train(train)(x))
    torch.testing.assert_close(after["norm.running_var"], whole.norm.running_var)


def test_initial_values_are_those_of_the_class_and_follow_the_stream(typed):
    model = registry.model(typed("Small"), 1, 7)
    one, same, other = (model.net("classifier").init(stream(seed, "c"))[0] for seed in (0, 0, 1))
    torch.testing.assert_close(one, same, rtol=0, atol=0)
    assert not torch.equal(one["hidden.weight"], other["hidden.weight"])
    assert float(one["hidden.weight"].abs().max()) <= 1 / 8


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize(("method", "name"), [("fedavg", "Small"), ("fedcg", "Small"), ("fedavg", "Scaled")])
def test_a_round_stacked_equals_a_round_alone(method, name, typed):
    ends = []
    changes, settings = {"rounds": 1}, {"gan": "dense"} if method == "fedcg" else {}
    each = presets.train_spec(
        "smoke", "digits", method, backbone=typed(name), clients=2, changes=changes, method_settings=settings
    )
    for execution in ("alone", "stacked"):
        setup = harness.prepare(each, digits_federation((20, 20)), CPU)
        state = harness.initial(setup)
        learn_round([setup], [state], execution)
        ends.append(state)
    for one, other in zip(*(state.clients for state in ends), strict=True):
        for part in PARTS:
            torch.testing.assert_close(one.params[part], other.params[part])
            torch.testing.assert_close(one.buffers[part], other.buffers[part])


def test_a_trained_network_is_observed_stored_and_attacked(typed, tmp_path, monkeypatch):
    each = presets.train_spec("smoke", "digits", "fedsplit", backbone=typed("Small"), clients=2, changes={"rounds": 1})
    federation = digits_federation((20, 20))
    setup = harness.prepare(each, federation, CPU)
    assert defended.statistics(setup.method, setup.model) == (), "the classifier alone is shared"
    state = harness.initial(setup)
    learn_round([setup], [state])
    checkpoint.save_snapshot(tmp_path, each, state)
    seen, truth = observe.observe(
        checkpoint.load_snapshot(tmp_path, each.id, 1), federation, setup.model, setup.method, setup.defense,
        method_name="fedsplit", dataset="digits", victims=2, batch_size=1, labels_known=False, seed=0,
    )  # fmt: skip
    artifact_files.save(seen, tmp_path / "artifact")
    again = artifact_files.load(tmp_path / "artifact")
    assert again.model == seen.model
    ended = one_attack.attack_artifact("staged", {"steps": 2, "feature_steps": 2}, again, Knowledge(), 0, CPU, print)
    assert ended.images.shape == truth.images.shape
    assert torch.equal(ended.labels, truth.labels)
    monkeypatch.setattr(trust, "_names", set())
    with pytest.raises(UserError, match=r"backbone 'mine:Small' is code of its own.*--trust mine:Small"):
        artifact_files.load(tmp_path / "artifact")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("absent", "module 'mine' has no function 'absent'"),
        ("number", "module 'mine' has no function 'number'"),
        ("nothing", "should make a torch.nn.Module, but it made str"),
        (
            "broken",
            "could not be made of (1, 7, 32), the channels, the classes and the side of the images: no such size",
        ),
        ("Dropping", "'drop' drops at random while it is trained"),
        ("DrawingInForward", "backbone 'mine:DrawingInForward' draws at random while it is trained; leave that out"),
        ("Linear", "has no parameters; name the submodules of the classifier in an attribute"),
        ("OfTwoInputs", "cannot be called on images of shape [4, 1, 32, 32]: "),
        ("Stubborn", "should return 7 logits, but it returned 10"),
    ],
)
def test_what_is_no_network_is_refused_in_one_line(name, reason, typed):
    with pytest.raises(UserError) as error:
        registry.model(typed(name), 1, 7)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


def test_batch_norm_is_refused_by_a_defence_of_single_images(typed):
    each = presets.train_spec(
        "smoke", "digits", "fedavg", backbone=typed("Small"), clients=2, defense="dp-sgd:1,clip=1"
    )
    with pytest.raises(UserError, match=r"but mine:Small has batch norm \('norm'\); use torch.nn.GroupNorm"):
        harness.prepare(each, digits_federation((20, 20)), CPU)


def prepared(name, defense="none"):
    each = presets.train_spec(
        "smoke", "digits", "fedavg", backbone=name, defense=defense, clients=3, changes={"rounds": 1}
    )
    return each, harness.prepare(each, digits_federation((20, 20, 20)), CPU)


def test_whole_numbers_among_buffers_are_the_same_after_a_round_and_on_disk(typed, tmp_path):
    """Of three clients the weights are thirds, whose sum in single precision is no 1."""
    each, setup = prepared(typed("Scaled"))
    state = harness.initial(setup)
    learn_round([setup], [state])
    order = state.server.buffers["extractor"]["order"]
    assert order.dtype == torch.int64
    assert order.tolist() == list(range(64))[::-1]
    checkpoint.save_snapshot(tmp_path, each, state)
    assert torch.equal(checkpoint.load_snapshot(tmp_path, each.id, 1).server.buffers["extractor"]["order"], order)


def test_a_buffer_that_follows_the_images_is_named_beside_a_guarantee_or_refused(typed):
    _, setup = prepared(typed("Centred"), "dp-fedavg:noise=1")
    assert "buffer extractor.centre" in defended.guarantees(setup, 1)[0].leaves_out
    with pytest.raises(UserError, match=r"its buffer extractor.centre follows the images in training"):
        prepared(typed("Centred"), "dp-sgd:noise=1")
    _, spread = prepared(typed("Spread"), "dp-fedavg:noise=1")
    assert "buffer extractor.norm.var" in defended.guarantees(spread, 1)[0].leaves_out
    # One that is the same whatever the images are is none of them.
    _, fixed = prepared(typed("Scaled"), "dp-fedavg:noise=1")
    assert [text for text in defended.guarantees(fixed, 1)[0].leaves_out if "order" in text] == []


def test_attacks_that_do_not_fit_and_generators_that_do_not_are_refused_in_one_line(typed):
    train = presets.train_spec("smoke", "digits", "fedsplit", backbone=typed("Small"), clients=2)
    for attack, reason in (
        ("surrogate", "statistics of batch norm"),
        ("imprint", "by some of its own, without the statistics of batch norm"),
    ):
        limits = applicability.of(registry.resolve("attack", attack))
        assert reason in applicability.exceeded(attack, limits, presets.cell_spec("smoke", train, attack))
    model = registry.model(typed("Convolutional"), 1, 7)
    assert model.feature_shape == (3, 6, 6)
    with pytest.raises(
        UserError, match=r"1x1, 3x3, 4x4, .*but those of mine:Convolutional are 6x6; try --set gan=dense"
    ):
        model.net("generator")
    dense, y = dataclasses.replace(model, gan="dense"), torch.tensor([0, 3])
    g, d = (dense.net(part).init(stream(0, part)) for part in ("generator", "discriminator"))
    fake, _ = dense.net("generator").apply(*g, torch.randn(2, GANS["dense"]), y, train=True)
    assert fake.shape == (2, 3, 6, 6)
    assert dense.net("discriminator").apply(*d, fake, y, train=True)[0].shape == (2,)


def test_nothing_is_imported_that_only_a_file_names(monkeypatch):
    each = TrainSpec.model_validate(
        presets.train_spec("smoke", "digits", "fedavg").model_dump() | {"backbone": "strangers_module:Net"}
    )
    with pytest.raises(UserError, match="--trust strangers_module:Net"):
        harness.prepare(each, digits_federation((20, 20)), CPU)
    assert "strangers_module" not in sys.modules


def test_gradients_are_those_of_the_module(typed):
    """What a client sends is autograd's gradient of the whole module."""
    model, y = registry.model(typed("Small"), 1, 7), torch.tensor([3, 1])
    drawn = {part: model.net(part).init(stream(0, part)) for part in PARTS}
    leaves = {part: {n: t.requires_grad_() for n, t in params.items()} for part, (params, _) in drawn.items()}
    x = torch.rand(2, 1, 32, 32, generator=stream(0, "images"))
    h, _ = model.net("extractor").apply(leaves["extractor"], drawn["extractor"][1], x, train=True)
    F.cross_entropy(model.net("classifier").apply(leaves["classifier"], {}, h, train=True)[0], y).backward()
    whole = Small(1, 7, 32)
    whole.load_state_dict(leaves["extractor"] | leaves["classifier"], strict=False)
    F.cross_entropy(whole(x), y).backward()
    for name, parameter in whole.named_parameters():
        torch.testing.assert_close((leaves["extractor"] | leaves["classifier"])[name].grad, parameter.grad)
