"""Crafted classifiers for heads of linear layers beside LeNet-5's, by what lies between the layers.

    bumps    an activation whose slope vanishes on both sides (sigmoid, tanh): an image answers to rows near its level
    steps    one whose slopes differ on the two sides (ReLU, leaky ReLU, ELU, GELU, softplus): an image answers to all rows below
             it, so that neighbouring rows differ by the images between their levels (Fowl et al., ICLR 2022, Eq. 2)
    single   one linear layer makes the logits: attacks/crafted/class_sums.py
Which it is, is tried on the head itself, whose code may be a user's. The first layer is that of classifiers.py. Each layer behind
makes of the mean of its inputs one number, the same in all rows, so that dL/da is the same for every unit of the first layer. Its
scale is read off the head's answers to t from the lowest to the highest level, between which an activation stays awake.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from privbench.errors import UserError
from privbench.networks import head_probe
from privbench.networks.base import LinearClassifier
from privbench.networks.head_probe import behind_first
from privbench.networks.model import Model
from privbench.tensors import Params

Kind = Literal["bumps", "steps", "single"]
LENET5 = "lenet5"
FAR = 100.0  # where an activation has reached its asymptotes
FLAT, BENT = 1e-4, 1e-2  # slopes below the first vanish; slopes that differ by more than the second are two
AWAKE: dict[Kind, tuple[float, float]] = {"bumps": (-2.0, 2.0), "steps": (1.0, 3.0)}  # what enters a hidden activation
GRID = 257  # numbers t at which a head is asked
ALL_ACTIVE = 0.25  # of the range: how far below it the level of rows lies that all images reach
STEEPNESS = 10.0  # of z from one level to the next, so that smooth steps are sharp


class Scale(NamedTuple):
    """How the logits answer to x, the mean of what enters the last layer, 0 at the lowest t and 1 at the highest."""

    response: Tensor  # r [Y]
    lead: Tensor  # k [Y]
    size: float  # S; 1 of a quiet classifier
    level: float | None  # t_0, where r acts in neither direction; None: at x = 1/2


def layers(model: Model, params: Params) -> list[str]:
    """The linear layers of a head in the order in which they are called; UserError where it is none."""
    classifier = model.classifier
    if not isinstance(classifier, LinearClassifier):
        raise UserError(f"imprint needs a classifier that begins with a linear layer, but it is {model.backbone}'s")
    return list(head_probe.inputs(classifier, params, torch.zeros(1, *model.feature_shape)))


def kind_of(model: Model, params: Params) -> Kind:
    """What lies between the linear layers of a head; UserError where images cannot be sorted into rows there."""
    if model.backbone == LENET5:
        return "bumps"
    names = layers(model, params)
    if len(names) == 1:
        return "single"
    if not head_probe.acts_on_single_units(model, params):
        raise UserError(
            f"imprint sorts images into the rows of {names[0]}, but of {model.backbone} more than an activation of single "
            f"units lies between {names[0]} and {names[1]}"
        )
    ones = torch.ones(len(params[f"{names[0]}.bias"]))
    slopes = [
        float((behind_first(model, params, 2 * end * ones) - behind_first(model, params, end * ones)).mean() / end)
        for end in (-FAR, FAR)
    ]
    if max(map(abs, slopes)) < FLAT:
        return "bumps"
    if abs(slopes[0] - slopes[1]) > BENT:
        return "steps"
    raise UserError(
        f"imprint sorts images into the rows of {names[0]}, but of {model.backbone} no activation lies between "
        f"{names[0]} and {names[1]}"
    )


def check_range(model: Model, kind: Kind, *, private: bool) -> None:
    """UserError where levels have to be spread over features of which nothing is known."""
    if private and kind != "single" and not model.has_sigmoid_features:
        raise UserError(
            f"imprint spreads levels over the features, but of a private extractor of {model.backbone} nobody knows their range; "
            "try --attack staged"
        )


def gains(kind: Kind, batch_size: int, noise_std: float) -> bool:
    """Whether there is anything to craft, beside LeNet-5: an honest head shows one image without noise in closed form.

    dL/dz of the layer of the logits is at most 1, whatever is sent, so that no single layer drowns noise.
    """
    return batch_size > 1 and not noise_std if kind == "single" else batch_size > 1 or noise_std > 0


def reached(low: float, high: float, rows: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """(slopes, levels) [m] of rows of steps to which every t from `low` on answers, as single images need."""
    slope = torch.linspace(0.5, 1, rows).to(like) / max(high - low, 1e-6)
    return slope, torch.full_like(slope, low - ALL_ACTIVE * (high - low))


def stepped(levels: Tensor) -> tuple[Tensor, Tensor]:
    """(slopes, levels) [m] of steep rows of steps at ascending levels."""
    gap = (levels[1:] - levels[:-1]).clamp_min(1e-3 * (levels[-1] - levels[0]) / len(levels))
    return STEEPNESS / torch.cat([gap, gap[-1:]]), levels


def calibrated(model: Model, like: Params, kind: Kind, first: tuple[Tensor, Tensor], w: Tensor, scale: Scale) -> Params:
    """The head to send in place of `like`: rows z_j = slope_j (w h - level_j), and behind them layers of one number each."""
    slope, level = first
    names, classifier = layers(model, like), model.classifier
    assert isinstance(classifier, LinearClassifier), "it has linear layers"
    sent = {n: t.double() for n, t in like.items()}
    sent |= {f"{names[0]}.weight": slope[:, None] * w, f"{names[0]}.bias": -slope * level}
    t = torch.linspace(float(level.min()), float(level.max()), GRID).to(w)
    if level.min() == level.max():
        t = torch.linspace(float((level - 2 / slope).min()), float((level + 2 / slope).max()), GRID).to(w)
        t = t.clamp_min(float(level.min())) if kind == "steps" else t
    probes = (t[:, None] * w).unflatten(1, model.feature_shape)
    for name in names[1:-1]:
        mean, low, width = _range(head_probe.inputs(classifier, sent, probes)[name])
        start, end = AWAKE[kind]
        weight = sent[f"{name}.weight"]
        sent[f"{name}.weight"] = torch.full_like(weight, (end - start) / width / weight.shape[1])
        sent[f"{name}.bias"] = torch.full_like(sent[f"{name}.bias"], start - (end - start) / width * low)
    mean, low, width = _range(head_probe.inputs(classifier, sent, probes)[names[-1]])
    middle = 0.5
    if scale.level is not None:
        middle = (float(mean[int((t - scale.level).abs().argmin())]) - low) / width
    weight = sent[f"{names[-1]}.weight"]
    r, per_input = scale.response, 1 / width / weight.shape[1]
    sent[f"{names[-1]}.weight"] = (scale.size * per_input * r)[:, None].expand(-1, weight.shape[1])
    sent[f"{names[-1]}.bias"] = scale.size * (scale.lead - r * (middle + low / width))
    return like | {n: sent[n].to(like[n]).contiguous() for n in like}


def _range(entered: Tensor) -> tuple[Tensor, float, float]:
    """(mean over the units [GRID], its lowest value, its range) of what enters a layer."""
    mean = entered.double().mean(1)
    return mean, float(mean.min()), max(float(mean.max() - mean.min()), 1e-9)
