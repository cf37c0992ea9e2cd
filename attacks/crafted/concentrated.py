"""A classifier whose gradient has its energy in few entries, for one image a gradient, under clipping, noise and coarse formats.

A defence that clips scales the whole gradient g to the norm C, and noise of the same size enters every entry. So what of g says
little of the image, or is not seen (that of a private E), is lost to the entries that say it. The server sends LeNet-5's head with

    z_1 = 0 in one row of the first layer, which has no weights; all other units of that layer are 0
    z_2 = M (a_1 - 1/2) = 0 in each of the m units of the second
    logits S r_y (mean of a_2 - 1/2) = 0,  r_y = +-1

Then p is the same for all classes, whatever the image. With d = p - e_y, its gradient has these entries and no others:

    last layer      d_c in the bias, d_c / 2 in the m weights of class c
    second layer    e_y = S / (4 m) sum_c d_c r_c in each of m biases, e_y / 2 in one weight of each unit
    first layer     k e_y [1 | h] in one row, k = M m / 4

No weights lead to E, whose gradient is 0. M and S give the second layer SCALE_SHARE of the energy in the features, and the last
layer at most LABEL_SHARE of all. Given y all but h and the clip's scale s is known, so that least squares have it all in closed
form:

    y = the class whose two outer layers, times a positive number, are nearest to what was sent
    s = that number,    h = (row of the first layer) / (s k e_y), with noise of variance v / (s k e_y)^2

Noise that nothing clips drowns in a g whose norm is ABOVE_NOISE times its standard deviation, or what the number format holds.

The clip of Abadi et al. (CCS 2016) is what it is made for; crafted weights that make a gradient say one thing alone are those of
Fowl et al. (ICLR 2022) and Boenisch et al. (EuroS&P 2023, arXiv 2112.02918). Setting the energy against the clip is ours.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.common import data_fit, labels
from attacks.crafted.isolation import FAR
from privbench.defending import described
from privbench.observation import wire
from privbench.observation.local_update import optimiser_of
from privbench.spec import SGD
from privbench.tensors import Params
from privbench.types import Artifact, ExpectedUpload, LocalSteps

FIRST, SECOND, LAST = "fc1", "fc2", "fc3"
SCALE_SHARE = 0.05  # of the second layer's energy in that of the features
LABEL_SHARE = 0.05  # of the last layer's in all
SQUARE = 0.25  # of a feature in (0, 1), a guess
ABOVE_CLIP = 2.0  # the norm relative to the clip's, at least
ABOVE_NOISE = 1e6  # the same relative to the standard deviation of noise that nothing clips
LARGEST = {"float32": 1e8, "bf16": 1e8, "fp16": 1e4}  # of such norms: half precision ends at 65,504
NEGLIGIBLE = 1e-9  # variance of a feature's noise below which it is taken for exact
# Of a feature, which lies in (0, 1): it says nothing. closed_form.of_rank_one takes no more than 20 times one row's for true.
MOST_VARIANCE = 15.0
SMALLEST = 1e-300
# Of what is handed to attacks on features, which know the variance of a gradient's noise and not that of features.
UNIT_VARIANCE = 1.0


class NoisyFeatures(NamedTuple):
    """What V one-image gradients say."""

    h: Tensor  # [V, c, s, s] float64
    variance: Tensor  # [V] of each feature's noise
    labels: Tensor  # [V] int64


def least_norm(expected: ExpectedUpload, noise_std: float) -> float | None:
    """The norm that a gradient should have at least: above the clip, or far above noise of that standard deviation.

    None where it is not of one image in one step, or more than clipping and noise is done to it. A message that is a step of SGD
    is as much shorter than its gradient as the learning rate says.
    """
    if expected.batch_size > 1 or not _is_gradient(expected.local):
        return None
    each = described.single(expected.defense.describe())
    if any(described.kinds(one) - data_fit.CLIP - data_fit.NOISE for one in each):
        return None
    rate = 1.0 if expected.local is None else optimiser_of(expected.local).lr
    clips = [
        float(one["clip"]) / (rate if one.get("where") == "update" else 1.0)
        for one in each
        if data_fit.CLIP & described.kinds(one)
    ]
    return ABOVE_CLIP * min(clips) if clips else min(ABOVE_NOISE * noise_std, LARGEST[expected.wire])


def _is_gradient(local: LocalSteps | None) -> bool:
    """Whether an upload is a gradient, or a multiple of one."""
    if local is None:
        return True
    return local.steps == 1 and isinstance(optimiser_of(local), SGD)


def crafted(like: Params, norm: float) -> Params:
    """The head to send in place of LeNet-5's, `like`, for gradients of at least that norm."""
    features, (classes, m) = like[f"{FIRST}.weight"].shape[1], like[f"{LAST}.weight"].shape
    outer = 5 / 4 * m  # energy of the second layer relative to e^2
    k = (outer / (SCALE_SHARE * SQUARE * features)) ** 0.5
    of_label = (1 - 1 / classes) * (m / 4 + 1)
    whole = max(of_label / LABEL_SHARE, norm**2)
    e = ((whole - of_label) / (outer + k**2 * (1 + SQUARE * features))) ** 0.5
    size, r = 4 * m * e, _responses(classes).to(like[f"{LAST}.weight"])
    sent = {name: torch.zeros_like(t) for name, t in like.items()}
    sent[f"{FIRST}.bias"][1:] = -FAR
    slope = 4 * k / m
    sent[f"{SECOND}.weight"][:, 0] = slope
    sent[f"{SECOND}.bias"][:] = -slope / 2
    sent[f"{LAST}.weight"][:] = size * r[:, None] / m
    sent[f"{LAST}.bias"][:] = -size * r / 2
    return sent


def is_concentrated(classifier: Params) -> bool:
    """Whether a crafted classifier is one of these: a first layer without weights, one of whose units is awake."""
    weight, bias = classifier.get(f"{FIRST}.weight"), classifier.get(f"{FIRST}.bias")
    return weight is not None and bias is not None and not bool(weight.any()) and int((bias != -FAR).sum()) == 1


def features_of(artifact: Artifact) -> NoisyFeatures:
    """h, y and the noise of h, of gradients of one image each that were clipped, noised, or neither.

    Where noise hides the scale, h is taken for as small as the noise lets it be.
    """
    gradient, sent = artifact.gradients["classifier"], artifact.weights["classifier"]
    g = {name: t.double() for name, t in gradient.items()}
    classes, m = sent[f"{LAST}.weight"].shape
    r = _responses(classes).to(g[f"{LAST}.bias"])
    size = float(sent[f"{LAST}.bias"].abs().max()) * 2
    k = float(sent[f"{SECOND}.weight"][0, 0]) * m / 4
    error = 1 / classes - torch.eye(classes).to(r)  # [y, c]
    e = size / (4 * m) * error @ r  # [y]
    # Both outer layers in units in which their noise is that of one entry.
    inner, outer = (5 / 4 * m + k**2) ** 0.5, (m / 4 + 1) ** 0.5
    second = g[f"{SECOND}.bias"].sum(1) + g[f"{SECOND}.weight"][:, :, 0].sum(1) / 2 + k * g[f"{FIRST}.bias"][:, 0]
    last = g[f"{LAST}.bias"] + g[f"{LAST}.weight"].sum(2) / 2
    seen = torch.cat([second[:, None] / inner, last / outer], 1)  # [V, 1 + Y]
    expected = torch.cat([e[:, None] * inner, error * outer], 1)  # [y, 1 + Y]
    likeness = seen @ F.normalize(expected, dim=1).T
    y = likeness.argmax(1) if artifact.labels is None else artifact.labels[:, 0]
    scale = (seen * expected[y]).sum(1) / expected[y].square().sum(1)
    variance = labels.noise_variance(artifact)
    smallest = max((variance / MOST_VARIANCE) ** 0.5, SMALLEST)
    amplitude = (scale * k * e[y].abs()).clamp_min(smallest) * e[y].sign()
    h = g[f"{FIRST}.weight"][:, 0] / amplitude[:, None]
    of_entry = variance / amplitude.square() + _rounding(artifact) * h.square().mean(1)
    return NoisyFeatures(h.unflatten(1, artifact.model.feature_shape), of_entry, y)


def of_features(artifact: Artifact, features: NoisyFeatures) -> Artifact:
    """An artifact whose gradients show these features, with that noise, and labels, to whoever reads features in closed form.

    Its first layer has one row, d [h | 1]; d^2 = 1 / variance + 1, as closed_form.of_rank_one subtracts the noise of one row.
    Features with negligible noise stand there as exact ones.
    """
    variance = features.variance.clamp_min(NEGLIGIBLE)
    d = (UNIT_VARIANCE * (1 / variance + 1)).sqrt()
    noisy = {"name": "gaussian", "variance": UNIT_VARIANCE, "where": "step"}
    row = {f"{FIRST}.weight": (d[:, None] * features.h.flatten(1))[:, None], f"{FIRST}.bias": d[:, None]}
    return replace(
        artifact,
        gradients={"classifier": row},
        labels=features.labels[:, None],
        defense={"name": described.NONE} if bool((features.variance < NEGLIGIBLE).all()) else noisy,
    )


def _rounding(artifact: Artifact) -> float:
    """The variance of the relative error of an entry in the number format that is sent, at most; 0 in single precision."""
    form = artifact.defense.get("wire")
    return 0.0 if form is None else torch.finfo(wire.FORMATS[form]).eps ** 2 / 12


def _responses(classes: int) -> Tensor:
    """r [Y], of both signs in turn."""
    return 1.0 - 2.0 * (torch.arange(classes) % 2)
