"""Batches through a linear layer with ReLUs: all inputs in closed form, where the batch is small."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks.features import disaggregation
from attacks.features.separation import relu_batches
from attacks.staged import Staged
from privbench.networks import head_probe
from privbench.scoring.image_scores import psnr_db
from privbench.types import Knowledge
from tests.builders.small_artifacts import MODEL, SHALLOW, networks
from tests.builders.user_modules import form_of, seen_by_server

# Below half a grey level of 255 two pictures are the same one.
SAME_PIXELS_DB = 54.15
GREY = (1, 16, 16)


def layer(batch, width=200, inputs=64, seed=0, dtype=torch.float64):
    """(dL/dW, dL/db, X', d') of one batch of an MLP of two hidden layers, by autograd."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, inputs, generator=rng, dtype=dtype)
    w, v, u = (
        torch.randn(o, i, generator=rng, dtype=dtype) / i**0.5
        for o, i in ((width, inputs), (width, width), (10, width))
    )
    b = 0.1 * torch.randn(width, generator=rng, dtype=dtype)
    z = (x @ w.T + b).requires_grad_()
    F.cross_entropy(F.relu(F.relu(z) @ v.T) @ u.T, torch.arange(batch) % 10).backward()
    return z.grad.T @ x, z.grad.sum(0), x, z.grad


@pytest.mark.parametrize("batch", [2, 4, 6, 8])
def test_all_inputs_of_a_batch_are_exact_in_double_precision(batch):
    weight, bias, x, d = layer(batch)
    found = relu_batches.separated(weight, bias, batch, 0, 0)
    order = torch.cdist(found.inputs, x).argmin(1)
    assert sorted(order.tolist()) == list(range(batch))
    # A direction is known to eps times the condition of its equations, and the inputs are solved for through d and x.
    tolerance = 1e3 * torch.finfo(torch.float64).eps * float(torch.linalg.cond(d) * torch.linalg.cond(x))
    assert float((found.inputs - x[order]).norm() / x.norm()) < tolerance < 1e-9
    assert float((found.deltas - d[order]).norm() / d.norm()) < tolerance


def test_single_precision_costs_its_rounding_alone():
    weight, bias, x, d = layer(6, dtype=torch.float32)
    found = relu_batches.separated(weight.double(), bias.double(), 6, 0, 0)
    order = torch.cdist(found.inputs, x.double()).argmin(1)
    tolerance = 1e3 * torch.finfo(torch.float32).eps * float(torch.linalg.cond(d) * torch.linalg.cond(x))
    assert float((found.inputs - x[order]).norm() / x.norm()) < min(tolerance, 1e-2)


def test_more_images_than_draws_can_find_are_left():
    weight, bias, _, _ = layer(16)
    assert relu_batches.separated(weight, bias, 16, 0, 0, draws=200) is None


def test_a_layer_without_zeros_shows_no_directions():
    rng = torch.Generator().manual_seed(0)
    d, x = torch.randn(4, 100, generator=rng).double(), torch.randn(4, 30, generator=rng).double()
    assert relu_batches.separated(d.T @ x, d.sum(0), 4, 0, 0, draws=4096) is None


def test_relus_are_told_from_sigmoids_and_from_leaky_ones():
    assert head_probe.is_relu(SHALLOW, networks(model=SHALLOW)["classifier"])
    assert not head_probe.is_relu(MODEL, networks()["classifier"])
    leaky = nn.Sequential(nn.Flatten(), nn.Linear(256, 40), nn.LeakyReLU(), nn.Linear(40, 10))
    seen = seen_by_server(leaky, torch.rand(1, 2, *GREY), torch.tensor([[1, 2]]), form=form_of(GREY))
    assert not head_probe.is_relu(seen.model, seen.weights["classifier"])


def mlp(width=200):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(256, width), nn.ReLU(), nn.Linear(width, 100), nn.ReLU(), nn.Linear(100, 10)
    )


@pytest.mark.parametrize("batch", [4, 8])
def test_staged_returns_every_image_of_a_batch_on_an_mlp(batch):
    rough = torch.rand(2 * batch, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    x = F.interpolate(rough, size=16, mode="bilinear").unflatten(0, (2, batch))
    y = torch.tensor([[3, 3, 1, 7, 0, 5, 5, 2], [8, 1, 1, 1, 4, 9, 6, 0]])[:, :batch]
    seen = seen_by_server(mlp(), x, y, form=form_of(GREY))
    ended = Staged().reconstruct(seen, Knowledge(), 0)
    for images, labels, true, true_labels in zip(ended.images.float(), ended.labels, x, y, strict=True):
        order = torch.cdist(images.flatten(1), true.flatten(1)).argmin(1)
        assert sorted(order.tolist()) == list(range(batch))
        assert psnr_db(images, true[order]).min() > SAME_PIXELS_DB
        assert torch.equal(labels, true_labels[order])


def test_a_closed_form_that_does_not_explain_the_gradient_is_not_taken(monkeypatch):
    x, y = torch.rand(1, 4, *GREY, generator=torch.Generator().manual_seed(2)), torch.tensor([[3, 3, 1, 7]])
    seen = seen_by_server(mlp(), x, y, form=form_of(GREY))
    every = torch.ones(1, dtype=torch.bool)
    separated, found = relu_batches.separated, []

    def noted(*args):
        found.append(separated(*args))
        return found[-1]

    monkeypatch.setattr(relu_batches, "separated", noted)
    assert set(disaggregation._through_relus(seen, every, 0)) == {0}
    wrong = found[-1]._replace(inputs=found[-1].inputs.flip(1))
    monkeypatch.setattr(relu_batches, "separated", lambda *_: wrong)
    assert not disaggregation._through_relus(seen, every, 0)
