"""What lies between the first two linear layers of a head, found by trying it: the code of a head may be a user's."""

from __future__ import annotations

import torch
from torch import Tensor

from privbench.networks.base import LinearClassifier
from privbench.networks.model import Model
from privbench.tensors import Params

OFF = (-1.0, -2.0)  # two inputs that a ReLU maps to the same value


def inputs(classifier: LinearClassifier, params: Params, features: Tensor) -> Params:
    """What enters each layer, [B, n], in the order in which they are called."""
    with torch.no_grad():
        return classifier.linear_layers(params, features.to(next(iter(params.values()))))[1]


def behind_first(model: Model, params: Params, z: Tensor) -> Tensor:
    """What enters the second linear layer [m'] where the first one returns z [m]; of a head of several layers."""
    classifier = model.classifier
    assert isinstance(classifier, LinearClassifier), "the head has linear layers"
    first, zero = classifier.features_layer, torch.zeros(1, *model.feature_shape)
    weight, bias = f"{first}.weight", f"{first}.bias"
    changed = params | {weight: torch.zeros_like(params[weight]), bias: z.to(params[bias])}
    entered: Tensor = list(inputs(classifier, changed, zero).values())[1][0]
    return entered.double()


def acts_on_single_units(model: Model, params: Params) -> bool:
    """Whether one activation of every unit alone, the same for all, lies there."""
    width = len(params[f"{model.classifier.features_layer}.bias"])
    z, half = torch.linspace(-3, 3, width), torch.arange(width) < width / 2
    one, turned, changed = (behind_first(model, params, each) for each in (z, z.flip(0), z.where(half, z + 1)))
    if one.shape != z.shape:
        return False
    # In single precision, and of values around 1.
    pairs = ((one.flip(0), turned), (one[half], changed[half]))
    return all(torch.allclose(*pair, rtol=1e-4, atol=1e-5) for pair in pairs)


def is_relu(model: Model, params: Params) -> bool:
    """Whether the first linear layer is followed by an activation that is exactly constant below 0."""
    classifier = model.classifier
    several = isinstance(classifier, LinearClassifier) and classifier.features_layer != classifier.logits_layer
    if not several or not acts_on_single_units(model, params):
        return False
    z = torch.ones(len(params[f"{classifier.features_layer}.bias"]))
    one, other = (behind_first(model, params, low * z) for low in OFF)
    return torch.equal(one, other)
