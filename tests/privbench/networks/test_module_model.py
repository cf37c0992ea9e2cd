"""A user's module cut in two: the parts' gradient is the module's own, and where the head begins is found or declared."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks.common import gradient_distance, problem
from privbench.errors import UserError
from privbench.networks.base import LinearClassifier
from privbench.networks.model import LastInputs
from privbench.networks.module_model import model_of
from privbench.seeds import stream
from tests.builders import user_modules
from tests.builders.user_modules import PICTURES, form_of, seen_by_server

VECTOR = (30, 1, 1)
pytestmark = pytest.mark.usefixtures("double_precision")

# (how it is made, shape of an input, images in a batch, train mode, head)
MODULES = [
    pytest.param(user_modules.flower_cnn, PICTURES, 2, False, (), id="Flower's CNN"),
    pytest.param(
        user_modules.flower_cnn, PICTURES, 2, True, ("conv2", "fc1", "fc2", "fc3"), id="a head with a convolution"
    ),
    pytest.param(user_modules.torchvision_resnet18, (3, 16, 16), 3, True, (), id="torchvision's ResNet-18"),
    pytest.param(user_modules.vit_tiny, PICTURES, 2, True, (), id="a ViT"),
    pytest.param(user_modules.mlp, VECTOR, 3, False, (), id="an MLP on vectors"),
    pytest.param(user_modules.mlp, VECTOR, 3, False, ("2", "4"), id="its last two layers"),
]


def batch_of(shape, size, classes=2):
    rng = stream(1, "a batch")
    return torch.rand(1, size, *shape, generator=rng), torch.randint(classes, (1, size), generator=rng)


@pytest.mark.parametrize(("make", "shape", "size", "train", "head"), MODULES)
def test_the_gradient_of_the_parts_is_the_modules_own_and_the_true_image_explains_it(make, shape, size, train, head):
    images, labels = batch_of(shape, size)
    seen = seen_by_server(make(), images, labels, form=form_of(shape), train=train, head=head)
    posed = problem.make(seen, 0)._replace(labels=labels)
    data = {name: t[0] for name, t in problem.data(posed).items()}
    gradient = gradient_distance.entries(posed, images[0], data)
    assert gradient.keys() == {f"{part}/{n}" for part, net in seen.gradients.items() for n in net}
    for name, t in gradient.items():
        observed = posed.observed[name][0]
        assert (t - observed).abs().max() <= 1e-7 * observed.abs().max().clamp_min(1e-3), name
    products = gradient_distance.candidate_products(posed, images[0], data)
    assert 0 <= float(gradient_distance.relative_distance(products).abs()) < 1e-13


def test_the_head_is_the_longest_chain_of_linear_layers():
    heads = {}
    for make, shape in (
        (user_modules.flower_cnn, PICTURES),
        (user_modules.vit_tiny, PICTURES),
        (user_modules.mlp, VECTOR),
    ):
        model = model_of(make(), form_of(shape), train=False)
        assert isinstance(model.classifier, LinearClassifier)
        heads[make.__name__] = (model.classifier.features_layer, model.classifier.logits_layer, model.feature_shape)
    assert heads == {
        "flower_cnn": ("fc1", "fc3", (400, 1, 1)),
        "vit_tiny": ("heads.head", "heads.head", (16, 1, 1)),
        "mlp": ("0", "4", (30, 1, 1)),
    }


def test_what_enters_the_last_layer_is_tried():
    cnn, vit = (model_of(make(), form_of(), train=False) for make in (user_modules.flower_cnn, user_modules.vit_tiny))
    assert isinstance(cnn.last_inputs, LastInputs)
    assert not cnn.last_inputs.negative
    assert vit.last_inputs.negative
    other_loss = model_of(user_modules.mlp(), form_of(VECTOR), train=False, loss=F.multi_margin_loss)
    assert other_loss.last_inputs is None


def test_the_features_of_an_mlp_are_its_input_and_give_the_image_back():
    model = model_of(user_modules.mlp(), form_of(VECTOR, mean=3.0, std=0.5), train=False)
    x = torch.rand(4, *VECTOR)
    h, _ = model.net("extractor").apply({}, {}, x, train=False)
    torch.testing.assert_close(h.flatten(1), (x.flatten(1) - 3) / 0.5)
    torch.testing.assert_close(model.images_of(h), x)
    assert model_of(user_modules.flower_cnn(), form_of(), train=False).images_of(h) is None


def test_what_goes_past_the_head_is_no_cut():
    class Skipping(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            h = self.one(x)
            return self.two(torch.relu(h)) + h

    model = model_of(Skipping(), form_of((4, 1, 1)), train=False)
    assert model.classifier.features_layer == "one"
    with pytest.raises(UserError, match="cannot be cut before two, because its outputs depend on more than"):
        model_of(Skipping(), form_of((4, 1, 1)), train=False, head=["two"])


def test_frozen_parameters_are_not_sent_and_dropout_and_running_statistics_are_left_alone():
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.Flatten(), nn.Dropout(0.5), nn.Linear(108, 4)
    )
    module[0].weight.requires_grad_(False)
    before = {name: t.clone() for name, t in module.state_dict().items()}
    model = model_of(module, form_of((1, 8, 8)), train=True)
    assert [*model.extractor_part.values()[0]] == ["0.bias", "1.weight", "1.bias"]
    assert {"0.weight", "1.running_mean", "1.running_var"} == model.extractor_part.values()[1].keys()
    assert module.training
    assert module[2].inplace
    assert all(torch.equal(t, before[name]) for name, t in module.state_dict().items())


def test_dropout_that_is_no_layer_is_refused_in_train_mode_alone():
    class Dropping(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(30, 8), nn.Linear(8, 3)

        def forward(self, x):
            return self.two(F.dropout(torch.relu(self.one(x)), 0.5, self.training))

    with pytest.raises(UserError, match="Dropping draws at random in train mode, and not by a dropout layer"):
        model_of(Dropping(), form_of(VECTOR), train=True)
    assert model_of(Dropping(), form_of(VECTOR), train=False).classifier.features_layer == "one"


@pytest.mark.parametrize(
    ("module", "shape", "head", "said"),
    [
        (user_modules.mlp(), PICTURES, (), r"Sequential cannot be called on images of shape \[8, 3, 32, 32\]"),
        (
            nn.Conv2d(3, 4, 3),
            PICTURES,
            (),
            r"should return \[8, classes\] for 8 images, but it returned \[8, 4, 30, 30\]",
        ),
        (user_modules.mlp(), VECTOR, ("fc",), "the module has no submodule 'fc'; known: 0, 1, 2, 3, 4"),
        (nn.Flatten(), VECTOR, (), "has no parameters that are trained"),
    ],
)
def test_a_module_that_is_none_of_images_is_refused_in_one_line(module, shape, head, said):
    with pytest.raises(UserError, match=said) as refusal:
        model_of(module.double() if isinstance(module, nn.Module) else module, form_of(shape), train=False, head=head)
    assert "\n" not in str(refusal.value)
