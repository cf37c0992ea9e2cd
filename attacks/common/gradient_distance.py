"""How far a candidate's gradient or features are from the observed ones. Each equation is written for ONE victim.

The squared distance of a linear layer's weight gradient needs no weight gradient: with d_i = dL/dz_i and inputs h_i,
    || sum_i d_i h_i' - G ||^2 = sum_ij (d_i.d_j)(h_i.h_j) - 2 sum_i d_i' G h_i + ||G||^2,
and the d_i are the gradients over biases that come one per image. Near a solution these three cancel: what is left is exact to
the precision times ||G||^2, not times itself. In single precision that ends a descent early (docs/appendix/attacks.md).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad

from attacks.common.problem import KEPT, InversionProblem, squared
from privbench.networks.base import LinearClassifier
from privbench.tensors import Params, Parts


class Products(NamedTuple):
    """Of one parameter: the candidate's squared norm |g|^2, its product g.G with the observed one, and |G|^2."""

    own: Tensor
    cross: Tensor
    observed: Tensor

    @property
    def gap(self) -> Tensor:
        """||g - G||^2."""
        return self.own - 2 * self.cross + self.observed


def gradient_products(own: InversionProblem, x: Tensor, y: Tensor, observed: dict[str, Tensor]) -> dict[str, Products]:
    """Products of the gradient of CE(C(E(x)), y) with the observed one, by "<part>/<parameter>".

    x [B, C, H, W], y [B] int64, `observed` the gradient, with its squared norms where they are known (problem.data); only its
    parameters are matched. The problem gives the networks (E the true one or a surrogate), and batch norm the mode of the observed
    gradient. Features are dropped as `observed` has it under KEPT [B, c, s, s]. Linear layers go without their weight gradients
    where the classifier consists of them; every other parameter's gradient is taken as it is.
    """
    extractor, classifier = own.model.net("extractor"), own.model.classifier
    leaves = {p: {n: t for n, t in net.items() if f"{p}/{n}" in observed} for p, net in own.weights.items()}
    if isinstance(classifier, LinearClassifier):
        biases = {n: t for n, t in leaves["classifier"].items() if n.endswith(".bias")}
        leaves["classifier"] = {n: t.expand(len(x), -1) for n, t in biases.items()}

    def loss(leaves: Parts) -> tuple[Tensor, dict[str, Tensor]]:
        params = {p: own.weights[p] | leaves[p] for p in leaves}
        h, _ = extractor.apply(params["extractor"], own.buffers["extractor"], x, train=own.train)
        if KEPT in observed:
            h = h * observed[KEPT]
        if isinstance(classifier, LinearClassifier):
            logits, inputs = classifier.linear_layers(params["classifier"], h)
        else:
            logits, _ = classifier.apply(params["classifier"], own.buffers["classifier"], h, train=own.train)
            inputs = {}
        return F.cross_entropy(logits, y), inputs

    gradient, inputs = grad(loss, has_aux=True)(leaves)
    deltas = {
        layer: gradient["classifier"].pop(f"{layer}.bias")
        for layer in inputs
        if f"{layer}.bias" in leaves["classifier"]
    }
    rest = {f"{p}/{n}": g for p, net in gradient.items() for n, g in net.items()}
    products = {name: products_of(g, observed[name], observed.get(squared(name))) for name, g in rest.items()}
    return products | _linear_products(inputs, deltas, observed)


def classifier_products(
    classifier: LinearClassifier, params: Params, h: Tensor, y: Tensor, observed: dict[str, Tensor]
) -> dict[str, Products]:
    """The same of the gradient of CE(C(h), y) over the classifier, for features h [B, ...]; only what is observed is matched."""
    biases = {n: t.expand(len(h), -1) for n, t in params.items() if n.endswith(".bias")}

    def loss(biases: Params) -> tuple[Tensor, dict[str, Tensor]]:
        logits, inputs = classifier.linear_layers(params | biases, h)
        return F.cross_entropy(logits, y), inputs

    gradient, inputs = grad(loss, has_aux=True)(biases)
    return _linear_products(inputs, {layer: gradient[f"{layer}.bias"] for layer in inputs}, observed)


def _linear_products(
    inputs: dict[str, Tensor], deltas: dict[str, Tensor], observed: dict[str, Tensor]
) -> dict[str, Products]:
    """Products of linear layers by what enters them [B, n] and dL/dz [B, m], layer by layer."""
    products = {}
    for layer, d in deltas.items():
        h, bias, weight = inputs[layer], f"classifier/{layer}.bias", f"classifier/{layer}.weight"
        if bias in observed:
            products[bias] = products_of(d.sum(0), observed[bias], observed.get(squared(bias)))
        norm, seen = ((d @ d.T) * (h @ h.T)).sum(), observed[weight]
        size = observed.get(squared(weight))
        products[weight] = Products(norm, ((d @ seen) * h).sum(), seen.square().sum() if size is None else size)
    return products


def products_of(own: Tensor, observed: Tensor, size: Tensor | None = None) -> Products:
    """Products of one parameter's gradient, as it is; `size` is |observed|^2, summed here where it is not known."""
    return Products(own.square().sum(), (own * observed).sum(), observed.square().sum() if size is None else size)


def squared_distance(products: dict[str, Products]) -> Tensor:
    """Eq. 7 of FedCG: || grad(x) - grad(x~) ||^2."""
    return torch.stack([p.gap for p in products.values()]).sum()


def relative_distance(products: dict[str, Products]) -> Tensor:
    """|| g - G ||^2 / ||G||^2 over all parameters together: Eq. 7, whatever the size of the gradient."""
    return squared_distance(products) / torch.stack([p.observed for p in products.values()]).sum().clamp_min(1e-300)


def layer_scaled_distance(products: dict[str, Products]) -> Tensor:
    """Mean over parameters of ||g - G||^2 / ||G||^2: every layer counts alike, whatever its scale."""
    return torch.stack([p.gap / p.observed.clamp_min(1e-300) for p in products.values()]).mean()


def cosine_distance(products: dict[str, Products]) -> Tensor:
    """1 - cos(g, G) over all parameters together (Geiping et al. 2020)."""
    own, cross, observed = (torch.stack([getattr(p, f) for p in products.values()]).sum() for f in Products._fields)
    # The image 0.5 enters the network as zero, where a convolution has no weight gradient and the root no slope.
    return 1 - cross / (own * observed).clamp_min(1e-60).sqrt()


def feature_distance(features: Tensor, target: Tensor, known: Tensor | None = None) -> Tensor:
    """||E(x) - h||^2 relative to the spread of h around its mean, both over the `known` features alone where some are not."""
    if known is None:
        return (features - target).square().sum() / (target - target.mean()).square().sum().clamp_min(1e-12)
    spread = (target - (target * known).sum() / known.sum().clamp_min(1)).square()
    return ((features - target).square() * known).sum() / (spread * known).sum().clamp_min(1e-12)


def direction_distance(products: dict[str, Products]) -> Tensor:
    """min over a >= 0 of || a g - G ||^2 = ||G||^2 - <g, G>^2 / ||g||^2: Eq. 7 whatever the length of the candidate's gradient."""
    own, cross, observed = (torch.stack([getattr(p, f) for p in products.values()]).sum() for f in Products._fields)
    return observed - cross.clamp_min(0).square() / own.clamp_min(1e-60)


def statistics_distance(features: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """The second term of FedCG's Eq. 8: sum_c (mean(E~(x~)_c) - mu_c)^2 + (var(E~(x~)_c) - sigma_c^2)^2.

    features [B, c, s, s]; mean and variance [c] of the generator's features. The paper subtracts a standard deviation
    from a variance; here a variance is compared with a variance.
    """
    channels = features.transpose(0, 1).flatten(1)
    own_mean, own_variance = channels.mean(1), channels.var(1, unbiased=False)
    return (own_mean - mean).square().sum() + (own_variance - variance).square().sum()
