"""What a batch leaves in the gradient of a head that is one linear layer, when the server sends one without weights.

z = W h + b with W = 0: all images have the same p = softmax(b), so that with w_i the weight of an image (1 / B) and [1, h_i] = g_i
    dL/d[b_c | W_c] = p_c S - S_c      S = sum_i w_i g_i,  S_c = sum of w_i g_i over the images of class c
S begins with 1, so that the first column gives every S_c's share. Of a class that no image has, p_c S is left: then S, and with it
every S_c, is known in closed form. An image alone in its class has h_i = S_c / (w_i). The rows of the gradient add up to 0, so that
nothing more than Y - 1 sums can be read: images that share a class stay mixed, and where each class has an image one sum is lost. b
makes that the rarest class's: p is 1 - RARE there, so that S counts for RARE in the others.

A clipped message is s times all this. Of a class that no image has dL/db_c = s p_c, and of others less, so that s is the largest
dL/db_c / p_c. Where each class has an image s comes out too small, and so the features are wrong.

The sum of a class is the signal of class fishing (Wen et al.: Fishing for User Data, ICML 2022, arXiv 2202.00580), who reach it
with features of the class alone; a head that is broadcast needs none. dL/dh = W' d = 0, so that the extractor sends no gradient.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from attacks.crafted import clip_scale
from privbench.networks.model import Model
from privbench.tensors import Params
from privbench.types import Artifact

RARE = 1e-3  # the probability of all classes but one; entries of single precision keep their relative error
MIXED = 1e-3  # relative to an image's weight: a share this near to it is one image's
NONE = -1


class OneClassEach(NamedTuple):
    """The images of V batches by their classes, those of one class after another."""

    h: Tensor  # [V, B, n] float64: an image's own, or the mean of those of its class
    row: Tensor  # [V, B] int64: its class where it is alone in it, else NONE


def crafted(model: Model, like: Params, rarest: int) -> Params:
    """The head to send in place of `like`: without weights, and one class nearly certain."""
    layer = model.classifier.logits_layer
    bias = torch.zeros_like(like[f"{layer}.bias"])
    bias[rarest] = math.log((1 - RARE) / RARE * (model.classes - 1))
    return like | {f"{layer}.weight": torch.zeros_like(like[f"{layer}.weight"]), f"{layer}.bias": bias}


def features_of(artifact: Artifact) -> OneClassEach:
    """What the gradient of every batch says of its classes' images."""
    layer, gradient = artifact.model.classifier.logits_layer, artifact.gradients["classifier"]
    p = torch.softmax(artifact.weights["classifier"][f"{layer}.bias"].double(), 0)
    weights, is_clipped = artifact.image_weights, clip_scale.is_unknown(artifact)
    each = []
    for v, one in enumerate(zip(gradient[f"{layer}.weight"].double(), gradient[f"{layer}.bias"].double(), strict=True)):
        s = _scale(one[1], p) if is_clipped else 1.0
        even = p.new_full((artifact.batch_size,), 1 / artifact.batch_size)
        of_images = even if weights is None else weights[v].double()
        each.append(_of_batch(one[0] / s, one[1] / s, p, of_images))
    h, row = (torch.stack(t) for t in zip(*each, strict=True))
    return OneClassEach(h, row)


def _scale(bias: Tensor, p: Tensor) -> float:
    """s of a clipped message's dL/db [Y]; 1 where no class says any."""
    s = float((bias / p).max())
    return min(s, 1.0) if s > 0 else 1.0


def _of_batch(weight: Tensor, bias: Tensor, p: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """(h [B, n], class [B]) of dL/dW [Y, n], dL/db [Y], p [Y] and the images' weights [B]."""
    share, least, batch = p - bias, float(weights.min()), len(weights)
    absent, surest = share < least / 2, int(p.argmax())
    if bool(absent.any()):
        total, lost = weight[absent].sum(0) / p[absent].sum(), NONE
    else:
        # All but the surest class's images, in place of the mean of all; it counts for RARE.
        others = torch.arange(len(p), device=p.device) != surest
        total, lost = -weight[others].sum(0) / (1 - share[surest]).clamp_min(least), surest
    sums = p[:, None] * total - weight
    h, row = [], []
    for c in torch.nonzero(~absent)[:, 0].tolist():
        alone = c != lost and float(share[c]) < (2 - MIXED) * least
        alone = alone and bool(((weights - share[c]).abs() < MIXED * weights).any())
        # Images of a class have weights around the mean.
        count = 1 if alone else max(1, round(float(share[c]) * batch))
        h += [total if c == lost else sums[c] / share[c]] * count
        row += [c if alone else NONE] * count
    # Unequal weights may leave counts that do not add up.
    h, row = [*h, *[total] * batch][:batch], [*row, *[NONE] * batch][:batch]
    return torch.stack(h), torch.tensor(row, device=p.device)
