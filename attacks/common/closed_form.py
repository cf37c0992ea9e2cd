"""The features of one image in closed form: for a linear layer z = W h + b, dL/dW_j = d_j h' and dL/db_j = d_j.

So h = dL/dW_j / dL/db_j for every row j with d_j != 0 (Phong et al. 2017; Geiping et al. 2020, Proposition 3.1). All rows at once
give the least-squares h = sum_j d_j dL/dW_j / sum_j d_j^2.

Under noise of variance sigma^2 per coordinate d is not known either: [dL/dW | dL/db] is d [h' | 1] and noise. dL/db alone is a
poor estimate of d, as sigma sqrt(m) of m rows soon exceeds ||d||. The columns of dL/dW say the same of d, weighed by h, and h
follows from d. For attacks that know the noise `of_rank_one` finds both by mean-field variational Bayes (Lim and Teh, Variational
Bayesian Approach to Movie Rating Prediction, KDD Cup 2007), under normal priors whose moments are those of empirical Bayes. What
counts is what the gradient says of h without the prior: sum_j E[d_j] dL/dW_j / E||d||^2, with variance sigma^2 / E||d||^2 and that
of the common scale. It is large without bound where d is lost in the noise.

Where C is trained with dropout, what enters its first layer is m h / (1 - p), m the mask, which no server knows beforehand. The
gradient shows it: a dropped feature's column of dL/dW is exactly 0. So a kept one is (1 - p) of what is `seen`, and a dropped one
is unknown; whatever needs whole features gets the mean of the image's kept ones of the channel in its place, and an inversion
leaves it out. Under noise no entry is 0, and what is seen is taken as it is: its expectation over m is h, and
`with_noise` adds that of m, h^2 p / (1 - p).

Clipping scales dL/dW and dL/db alike, and leaves h as it is. Of a pruned gradient only what was sent is used: each feature has the
rows in which it was sent, and is unknown where there are none.
A defence that zeroes columns (Soteria) is seen in the same way: a pruned feature is unknown, and the others are exact.

Behind a bottleneck (PRECODE) the first linear layer is its encoder, which h enters as it is: z, and whatever is drawn, come later.
So h is as exact as without the bottleneck, also where the classifier behind it begins with convolutions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.common import data_fit, labels
from privbench import tensors
from privbench.errors import UserError
from privbench.networks.model import Model
from privbench.observation import wire
from privbench.types import Artifact

LEAST_OF_ONE_ROW = 0.05  # of d^2, relative to the noise of one row
ITERATIONS = 100  # of `of_rank_one`
OF_MEAN = 0.15**2  # the variance of the mean of an image's features in (0, 1)
MOST_SCALED = 2.0  # in one iteration
ABOVE_NOISE = 1.1  # of a singular value that noise alone hardly has
LEAST_ENERGY = 1e-3  # of d, relative to what noise leaves open of it
SMALLEST = {torch.float32: 1e-30, torch.float64: 1e-300}  # in place of a ||d||^2 of zero
ZERO = 1e-6  # of an image's largest entry: what of a single image's gradient lies below it was dropped
BLURRED = 1e-2  # the same of separated images (attacks/features/disaggregation.py), whose features are less exact


class Uniform(NamedTuple):
    """Moments of a uniform distribution."""

    mean: float
    variance: float


IN_UNIT = Uniform(1 / 2, 1 / 12)  # of features in (0, 1), before the gradient is seen


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


def of_rank_one(model: Model, rows: Tensor, bias: Tensor, variance: float) -> tuple[Tensor, Tensor]:
    """What noised gradients say of h: its estimate [V, n] and the variance [V] of an entry, from dL/dW [V, m, n], dL/db [V, m].

    Of one row there is the quotient alone; of gradients that are not finite nothing, and all is NaN.
    """
    m, n = rows.shape[1:]
    if m == 1:
        signal = (bias.square().sum(1) - variance).clamp_min(LEAST_OF_ONE_ROW * variance)
        return least_squares(rows, bias), variance / signal
    sound = tensors.finite_rows(rows, bias)
    both = torch.cat([rows, bias[:, :, None]], 2).where(sound[:, None, None], 0.0)
    h, mean, spread, lost = _before(model, both, variance)
    of_h = spread
    for _ in range(ITERATIONS):
        size = h.square().sum(1, keepdim=True) + n * of_h + 1
        d = (both @ F.pad(h, (0, 1), value=1.0)[:, :, None])[:, :, 0] / size
        of_d = variance / size
        energy = (d.square().mean(1, keepdim=True) - of_d).clamp_min(LEAST_ENERGY * of_d)
        kept = energy / (energy + of_d)
        scale, of_scale = _scale(model, bias, kept * d, h, variance)
        d, kept = scale * kept * d, scale.square() * kept
        squares = (d.square().sum(1, keepdim=True) + m * kept * of_d) / variance
        seen_h = (d[:, :, None] * rows).sum(1) / (squares * variance)
        of_h = 1 / (squares + 1 / spread)
        h = of_h * (squares * seen_h + mean / spread)
        if model.has_sigmoid_features:
            sure, before = n / spread, 1 / OF_MEAN
            mean = (sure * h.mean(1, keepdim=True) + before * IN_UNIT.mean) / (sure + before)
        spread = ((h - mean).square() + of_h).mean(1, keepdim=True)
    size = h.square().mean(1, keepdim=True)
    return seen_h, (1 / squares + of_scale * size + lost * seen_h.square().mean(1, keepdim=True) / LEAST_ENERGY)[:, 0]


def _before(model: Model, both: Tensor, variance: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Where features [V, n] begin, mean and variance [V, 1] of their prior, and which are lost, from [dL/dW | dL/db] [V, m, n + 1].

    Those that are not in (0, 1) begin at the first right singular vector. Without a prior mean they are lost where its singular
    value is not above the largest of noise alone, sigma (sqrt(m) + sqrt(n + 1)).
    """
    like = both[:, 0, :1]
    if model.has_sigmoid_features:
        mean = torch.full_like(like, IN_UNIT.mean)
        spread = torch.full_like(like, IN_UNIT.variance)
        return mean.expand(-1, both.shape[2] - 1), mean, spread, torch.zeros_like(like)
    of_all = torch.linalg.svd(both, full_matrices=False)
    h = of_all.Vh[:, 0, :-1] / of_all.Vh[:, 0, -1:]
    most = (variance**0.5) * (both.shape[1] ** 0.5 + both.shape[2] ** 0.5)
    lost = (of_all.S[:, :1] < ABOVE_NOISE * most).to(like)
    return h, torch.zeros_like(like), h.square().mean(1, keepdim=True), lost


def _scale(model: Model, bias: Tensor, d: Tensor, h: Tensor, variance: float) -> tuple[Tensor, Tensor]:
    """By what d has to be multiplied, and h divided, [V, 1], and how far that is open, relative to it.

    dL/dW says d h' alone. dL/db says the scale, and so does the mean of features in (0, 1).
    """
    squares = d.square().sum(1, keepdim=True)
    sure = squares / variance
    of_bias = (bias * d).sum(1, keepdim=True) / squares.clamp_min(SMALLEST[d.dtype])
    if model.has_sigmoid_features:
        before, of_prior = IN_UNIT.mean**2 / OF_MEAN, h.mean(1, keepdim=True) / IN_UNIT.mean
    else:
        before, of_prior = 1.0, torch.ones_like(sure)
    scale = (sure * of_bias + before * of_prior) / (sure + before)
    return scale.clamp(1 / MOST_SCALED, MOST_SCALED), 1 / (sure + before)


def rounding_variance(artifact: Artifact, h: Tensor) -> Tensor:
    """The variance [V] that a number format gives features h [V, c, s, s], mean over them, which are least squares over all rows.

    h_k = sum_j d_j G_jk / sum_j d_j^2, each entry rounded to the nearest by itself, so that its error has a twelfth of its step's
    square. Those of d_j change h_k by -h_k sum_j d_j (error of d_j) / sum_j d_j^2, as G_jk = d_j h_k.
    """
    layer, gradient = artifact.model.classifier.features_layer, artifact.gradients["classifier"]
    rows, d = gradient[f"{layer}.weight"].double(), gradient[f"{layer}.bias"].double()
    of_rows, of_d = (wire.step(t, artifact.defense).square() / 12 for t in (rows, d))
    energy, flat = d.square().sum(1, keepdim=True).clamp_min(SMALLEST[d.dtype]), h.flatten(1)
    each = (d.square()[:, :, None] * of_rows).sum(1) + flat.square() * (d.square() * of_d).sum(1, keepdim=True)
    return (each / energy.square()).mean(1)


def with_noise(artifact: Artifact) -> tuple[Features, Tensor | None] | None:
    """The features [V, c, s, s] of one-image gradients, and the variance [V] of each entry by the defence's noise; None as `seen`.

    Without noise they are those of `of_single`, and there is no variance, but that of entries rounded to a number format where all
    features are known: near 0 and 1 logits would magnify it. With dropout the variance of the mask is added to that of noise.
    """
    features, variance = of_single(artifact), labels.noise_variance(artifact)
    if features is None:
        return None
    if not variance:
        by_entry = data_fit.of(artifact).by_entry
        is_rounded = "wire" in artifact.defense and features.known is None and not by_entry
        return features, rounding_variance(artifact, features.h) if is_rounded else None
    layer, gradient, model = artifact.model.classifier.features_layer, artifact.gradients["classifier"], artifact.model
    h, noise = of_rank_one(model, gradient[f"{layer}.weight"].double(), gradient[f"{layer}.bias"].double(), variance)
    # Of m h / (1 - p): h^2 / (1 - p) in expectation.
    energy = (h.square().mean(1) - noise).clamp_min(0)
    return Features(h.unflatten(1, model.feature_shape), None), noise + model.dropout * energy
