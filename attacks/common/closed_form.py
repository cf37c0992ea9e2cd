"""The features of one image in closed form: for a linear layer z = W h + b, dL/dW_j = d_j h' and dL/db_j = d_j.

So h = dL/dW_j / dL/db_j for every row j with d_j != 0 (Phong et al. 2017; Geiping et al. 2020, Proposition 3.1). Noise on
the gradient calls for all rows at once: the least-squares h = sum_j d_j dL/dW_j / sum_j d_j^2.

Where C is trained with dropout, what enters its first layer is m h / (1 - p), m the mask, which no server knows beforehand. The
gradient shows it: a dropped feature's column of dL/dW is exactly 0. So a kept one is (1 - p) of what is `seen`, and a dropped one
is unknown; whatever needs whole features gets the mean of the image's kept ones of the channel in its place, and an inversion
leaves it out. Under noise no entry is 0, and what is seen is taken as it is: its expectation over m is h, and
`noise_variance` grows by that of m, h^2 p / (1 - p).

Clipping scales dL/dW and dL/db alike, and leaves h as it is. Of a pruned gradient only what was sent is used: each feature has the
rows in which it was sent, and is unknown where there are none.
A defence that zeroes columns (Soteria) is seen in the same way: a pruned feature is unknown, and the others are exact.

Behind a bottleneck (PRECODE) the first linear layer is its encoder, which h enters as it is: z, and whatever is drawn, come later.
So h is as exact as without the bottleneck, also where the classifier behind it begins with convolutions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from attacks.common import data_fit, labels
from privbench.errors import UserError
from privbench.networks.model import Model
from privbench.types import Artifact

SMALLEST = {torch.float32: 1e-30, torch.float64: 1e-300}  # in place of a ||d||^2 of zero
ZERO = 1e-6  # of an image's largest entry: what of a single image's gradient lies below it was dropped
BLURRED = 1e-2  # the same of separated images (attacks/features/disaggregation.py), whose features are less exact


class Features(NamedTuple):
    """Features as the extractor made them."""

    h: Tensor  # [..., c, s, s]
    known: Tensor | None  # [..., c, s, s] bool: False where dropout took the feature away; None where no zero shows it

    def batched(self) -> Features:
        """Those of single images, [V, c, s, s], as batches of one."""
        return Features(self.h[:, None], None if self.known is None else self.known[:, None])


def of_single(artifact: Artifact) -> Features | None:
    """The features [V, c, s, s] of one-image gradients; None as `seen`."""
    entered = seen(artifact)
    if entered is None:
        return None
    if data_fit.of(artifact).pruned:
        mask = _on_support(artifact)[1].unflatten(1, artifact.model.feature_shape)
        return imputed((1 - artifact.model.dropout) * entered, mask)
    if labels.noise_variance(artifact):
        return Features(entered, None)
    return undropped(artifact.model, entered, ZERO, pruned=prunes(artifact))


def closed_form(artifact: Artifact) -> Tensor | None:
    """h of `of_single`."""
    features = of_single(artifact)
    return None if features is None else features.h


def seen(artifact: Artifact) -> Tensor | None:
    """What enters C's first layer, [V, c, s, s], of one-image gradients; None for larger batches, whose gradient only spans it.

    None also where no linear layer takes the features (ResNet-18's classifier begins with convolutions), where C's gradient is
    not observed, and where it also contains imitated features.
    """
    if artifact.batch_size != 1 or artifact.imitated or "classifier" not in artifact.gradients:
        return None
    layer = artifact.model.classifier.features_layer
    if layer is None:
        return None
    if data_fit.of(artifact).pruned:
        return _on_support(artifact)[0].unflatten(1, artifact.model.feature_shape)
    gradient = artifact.gradients["classifier"]
    entered = least_squares(gradient[f"{layer}.weight"].double(), gradient[f"{layer}.bias"].double())
    return entered.unflatten(1, artifact.model.feature_shape)


def _on_support(artifact: Artifact) -> tuple[Tensor, Tensor]:
    """What a pruned gradient shows exactly: the least-squares inputs [V, n] over the entries that were sent, and of which [V, n].

    d_j h_k is at most d_j, as features lie in (0, 1), so that a row with an entry has its d_j. With dropout they reach
    1 / (1 - p); a row without its d_j counts for nothing.
    """
    layer, gradient = artifact.model.classifier.features_layer, artifact.gradients["classifier"]
    rows, bias = gradient[f"{layer}.weight"].double(), gradient[f"{layer}.bias"].double()
    energy = (bias.square()[:, :, None] * (rows != 0)).sum(1)
    return (bias[:, :, None] * rows).sum(1) / energy.clamp_min(SMALLEST[rows.dtype]), energy > 0


def prunes(artifact: Artifact) -> bool:
    """Whether a defence zeroes columns of the first layer's weight gradient."""
    return artifact.defense.get("zeros") == "columns"


def columns(artifact: Artifact) -> Tensor | None:
    """Which features' columns of the first layer's weight gradient are not all zero, [V, n] bool; None where none is pruned."""
    layer = artifact.model.classifier.features_layer
    if not prunes(artifact) or layer is None or "classifier" not in artifact.gradients:
        return None
    return artifact.gradients["classifier"][f"{layer}.weight"].any(1)


def undropped(model: Model, entered: Tensor, zero: float, *, pruned: bool = False) -> Features:
    """Features of what entered C [..., c, s, s]; `zero` is the share of an image's largest entry below which one was dropped.

    So it is where some were `pruned`.
    """
    if not model.dropout and not pruned:
        return Features(entered, None)
    size = entered.abs()
    return imputed((1 - model.dropout) * entered, size > zero * size.amax((-3, -2, -1), keepdim=True))


def imputed(h: Tensor, mask: Tensor) -> Features:
    """Features whose unknown ones are the mean of the image's known ones of the channel, or of all channels; [..., c, s, s]."""
    channel = (h * mask).sum((-2, -1), keepdim=True) / mask.sum((-2, -1), keepdim=True)
    whole = (h * mask).sum((-3, -2, -1), keepdim=True) / mask.sum((-3, -2, -1), keepdim=True).clamp_min(1)
    return Features(h.where(mask, channel.where(channel.isfinite(), whole)), mask)


def check_not_mixed(artifact: Artifact) -> None:
    """UserError where the observed gradients are made of imitated features too, so that none is that of its images alone."""
    if artifact.imitated:
        raise UserError(
            f"each gradient of this {artifact.method} run holds {artifact.imitated} imitated features beside those of its images, "
            "and this attack needs the images' own; leave observe_loss at classification, the upper bound, or try --attack dlg"
        )


def least_squares(rows: Tensor, bias: Tensor) -> Tensor:
    """sum_j d_j dL/dW_j / sum_j d_j^2, [V, n], from dL/dW [V, m, n] and d = dL/db [V, m]."""
    energy = bias.square().sum(1, keepdim=True).clamp_min(SMALLEST[bias.dtype])
    return (bias[:, :, None] * rows).sum(1) / energy


def noise_variance(artifact: Artifact) -> Tensor | None:
    """The variance [V] that the defence's noise gives each closed-form feature, sigma^2 / ||d||^2; None without noise.

    ||d||^2 is estimated from the noisy bias gradient, whose own noise energy is subtracted. With dropout the variance of the mask
    is added.
    """
    variance = labels.noise_variance(artifact)
    if not variance:
        return None
    bias = artifact.gradients["classifier"][f"{artifact.model.classifier.features_layer}.bias"].double()
    signal = (bias.square().sum(1) - variance * bias.shape[1]).clamp_min(0.05 * variance * bias.shape[1])
    of_noise: Tensor = variance / signal
    entered = seen(artifact) if artifact.model.dropout else None
    if entered is None:
        return of_noise
    # Of m h / (1 - p): h^2 / (1 - p) in expectation.
    energy = (entered.square().flatten(1).mean(1) - of_noise).clamp_min(0)
    return of_noise + artifact.model.dropout * energy
