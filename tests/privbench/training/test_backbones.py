"""A round of every method with a generator, or with a defence of single images, on every backbone beside LeNet-5 and ResNet-18."""

import math

import pytest
import torch

from privbench import presets
from privbench.training import harness
from tests.builders.federations import digits_federation

pytestmark = pytest.mark.usefixtures("narrow_backbones")
NAMES = ("mlp", "convnet", "resnet18-torchvision", "vit")
CPU = torch.device("cpu")


def after_a_round(execution="alone", **chosen):
    each = presets.train_spec("smoke", "digits", clients=2, changes={"rounds": 1, "server_steps": 1}, **chosen)
    setup = harness.prepare(each, digits_federation((10, 10)), CPU)
    state = harness.initial(setup)
    before = {part: dict(net) for part, net in state.clients[0].params.items()}
    harness.train_round([setup], [state], execution)
    return before, state


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("method", ["fedcg", "fedgen", "fedmd-cg", "nfl-cgan", "feddf"])
def test_a_method_trains_every_part_of_its_networks(method, name):
    before, state = after_a_round(method=method, backbone=name)
    (entry,) = state.history
    assert all(math.isfinite(value) for values in entry["loss"].values() for value in values)
    for part, net in before.items():
        moved = [not torch.equal(t, state.clients[0].params[part][n]) for n, t in net.items()]
        # The rows of an embedding, and the bias before a batch norm, may have no gradient.
        assert sum(moved) > len(moved) / 2, part


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("name", NAMES)
def test_a_round_stacked_equals_a_round_alone(name):
    (_, one), (_, other) = (after_a_round(way, method="fedsplit", backbone=name) for way in ("alone", "stacked"))
    for a, b in zip(one.clients, other.clients, strict=True):
        torch.testing.assert_close(a.params, b.params)
        torch.testing.assert_close(a.buffers, b.buffers)


@pytest.mark.parametrize("name", NAMES)
def test_a_defence_of_single_images_leaves_no_batch_norm(name):
    _, state = after_a_round(method="fedavg", backbone=name, defense="dp-sgd:1,clip=1")
    assert state.clients[0].buffers == {"extractor": {}, "classifier": {}}
    assert all(t.isfinite().all() for net in state.clients[0].params.values() for t in net.values())
