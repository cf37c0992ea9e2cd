"""How far a candidate's gradient or features are from the observed ones. Each equation is written for ONE victim.

The squared distance of a linear layer's weight gradient needs no weight gradient: with d_i = dL/dz_i and inputs h_i,
    || sum_i d_i h_i' - G ||^2 = sum_ij (d_i.d_j)(h_i.h_j) - 2 sum_i d_i' G h_i + ||G||^2,
and the d_i are the gradients over biases that come one per image.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad

from privbench.nets import LinearClassifier, Model
from privbench.types import Params, Parts


class Products(NamedTuple):
    """Of one parameter: the candidate's squared norm |g|^2, its product g.G with the observed one, and |G|^2."""

    own: Tensor
    cross: Tensor
    observed: Tensor

    @property
    def gap(self) -> Tensor:
        """||g - G||^2."""
        return self.own - 2 * self.cross + self.observed


def gradient_products(
    model: Model, weights: Parts, x: Tensor, y: Tensor, observed: dict[str, Tensor]
) -> dict[str, Products]:
    """Products of the gradient of CE(C(E(x)), y) with the observed one, by "<part>/<parameter>".

    x [B, C, H, W], y [B] int64, `weights` of extractor and classifier (true or stand-in), `observed` the gradient; only
    its parameters are matched.
    """
    extractor, classifier = model.net("extractor"), cast(LinearClassifier, model.net("classifier"))
    biases = {n: t.expand(len(x), -1) for n, t in weights["classifier"].items() if n.endswith(".bias")}
    private = {n: t for n, t in weights["extractor"].items() if f"extractor/{n}" in observed}

    def loss(own: tuple[Params, Params]) -> tuple[Tensor, dict[str, Tensor]]:
        h, _ = extractor.apply(weights["extractor"] | own[0], {}, x, train=True)
        logits, inputs = classifier.linear_layers(weights["classifier"] | own[1], h)
        return F.cross_entropy(logits, y), inputs

    (conv, deltas), inputs = grad(loss, has_aux=True)((private, biases))
    products = {f"extractor/{n}": _products(g, observed[f"extractor/{n}"]) for n, g in conv.items()}
    for layer, h in inputs.items():
        d = deltas[f"{layer}.bias"]
        products[f"classifier/{layer}.bias"] = _products(d.sum(0), observed[f"classifier/{layer}.bias"])
        weight = observed[f"classifier/{layer}.weight"]
        own = ((d @ d.T) * (h @ h.T)).sum()
        products[f"classifier/{layer}.weight"] = Products(own, ((d @ weight) * h).sum(), weight.square().sum())
    return products


def _products(own: Tensor, observed: Tensor) -> Products:
    return Products(own.square().sum(), (own * observed).sum(), observed.square().sum())


def squared_distance(products: dict[str, Products]) -> Tensor:
    """Eq. 7 of FedCG: || grad(x) - grad(x~) ||^2."""
    return torch.stack([p.gap for p in products.values()]).sum()


def layer_scaled_distance(products: dict[str, Products]) -> Tensor:
    """Mean over parameters of ||g - G||^2 / ||G||^2: every layer counts alike, whatever its scale."""
    return torch.stack([p.gap / p.observed.clamp_min(1e-300) for p in products.values()]).mean()


def cosine_distance(products: dict[str, Products]) -> Tensor:
    """1 - cos(g, G) over all parameters together (Geiping et al. 2020)."""
    own, cross, observed = (torch.stack([getattr(p, f) for p in products.values()]).sum() for f in Products._fields)
    # The image 0.5 enters the network as zero, where a convolution has no weight gradient and the root no slope.
    return 1 - cross / (own * observed).clamp_min(1e-60).sqrt()


def feature_distance(features: Tensor, target: Tensor) -> Tensor:
    """||E(x) - h||^2 relative to the spread of h around its mean."""
    return (features - target).square().sum() / (target - target.mean()).square().sum().clamp_min(1e-12)


def statistics_distance(features: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """The second term of FedCG's Eq. 8: sum_c (mean(E~(x~)_c) - mu_c)^2 + (var(E~(x~)_c) - sigma_c^2)^2.

    features [B, c, s, s]; mean and variance [c] of the generator's features. The paper subtracts a standard deviation
    from a variance; here a variance is compared with a variance.
    """
    channels = features.transpose(0, 1).flatten(1)
    own_mean, own_variance = channels.mean(1), channels.var(1, unbiased=False)
    return (own_mean - mean).square().sum() + (own_variance - variance).square().sum()
