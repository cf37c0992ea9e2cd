"""How far a candidate's gradient or features are from the observed ones. Each equation is written for ONE victim.

The squared distance of a linear layer's weight gradient needs no weight gradient: with d_i = dL/dz_i and inputs h_i,
    || sum_i d_i h_i' - G ||^2 = sum_ij (d_i.d_j)(h_i.h_j) - 2 sum_i d_i' G h_i + ||G||^2,
and the d_i are the gradients over biases that come one per image. Near a solution these three cancel: what is left is exact to
the precision times ||G||^2, not times itself. In single precision that ends a descent early (docs/appendix/attacks.md).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import grad, vjp

from attacks.common import bottleneck, data_fit
from attacks.common.batched import each_of
from attacks.common.bottleneck import NOISE
from attacks.common.problem import BESIDES, COLUMNS, MASK, WEIGHTS, InversionProblem, applied, observed_of, squared
from privbench.networks.base import LinearClassifier
from privbench.networks.model import Model
from privbench.tensors import Params, Parts


class Products(NamedTuple):
    """Of one parameter: the candidate's squared norm |g|^2, its product g.G with the observed one, and |G|^2."""

    candidate: Tensor
    cross: Tensor
    observed: Tensor

    @property
    def gap(self) -> Tensor:
        """||g - G||^2."""
        return self.candidate - 2 * self.cross + self.observed


def gradient_products(
    posed: InversionProblem, x: Tensor, y: Tensor, observed: dict[str, Tensor]
) -> dict[str, Products]:
    """Products of the gradient of CE(C(E(x)), y) with the observed one, by "<part>/<parameter>".

    x [B, C, H, W], y [B] int64, `observed` the gradient, with its squared norms where they are known (problem.data); only its
    parameters are matched. The problem gives the networks (E the true one or a surrogate), and batch norm the mode of the observed
    gradient. Features are dropped as `observed` has it under MASK [B, c, s, s], images weighted as under WEIGHTS [B], and a
    bottleneck samples by NOISE [B, k]. Columns that a defence zeroed (COLUMNS) are left out. Linear layers go without their weight
    gradients where the classifier consists of them; every other parameter's gradient is taken as it is.
    """
    classifier = posed.model.classifier
    leaves = {p: {n: t for n, t in net.items() if f"{p}/{n}" in observed} for p, net in posed.weights.items()}
    if isinstance(classifier, LinearClassifier):
        biases = {n: t for n, t in leaves["classifier"].items() if n.endswith(".bias")}
        leaves["classifier"] = {n: t.expand(len(x), -1) for n, t in biases.items()}

    def loss(leaves: Parts) -> tuple[Tensor, dict[str, Tensor]]:
        params = {p: posed.weights[p] | leaves[p] for p in leaves}
        h = applied(posed, "extractor", params["extractor"], x)
        if MASK in observed:
            h = h * observed[MASK]
        sampling = bottleneck.sampling(posed.model, observed.get(NOISE))
        if isinstance(classifier, LinearClassifier):
            logits, inputs = classifier.linear_layers(params["classifier"], h, *sampling)
        else:
            logits, inputs = applied(posed, "classifier", params["classifier"], h, *sampling), {}
        task = posed.model.loss(logits, y, observed.get(WEIGHTS))
        return task + bottleneck.divergence(posed.model, params["classifier"], h), inputs

    gradient, inputs = grad(loss, has_aux=True)(leaves)
    deltas = {
        layer: gradient["classifier"].pop(f"{layer}.bias")
        for layer in inputs
        if f"{layer}.bias" in leaves["classifier"]
    }
    if COLUMNS in observed:
        first = str(classifier.features_layer)
        inputs[first] = inputs[first] * observed[COLUMNS]
    flat = {f"{p}/{n}": g for p, net in gradient.items() for n, g in net.items()}
    products = {name: products_of(g, observed[name], observed.get(squared(name))) for name, g in flat.items()}
    return products | _linear_products(inputs, deltas, observed)


def candidate_products(posed: InversionProblem, x: Tensor, data: dict[str, Tensor]) -> dict[str, Products]:
    """`gradient_products` of x [B, C, H, W] with the labels and the observed gradient among one victim's data (problem.data)."""
    return gradient_products(posed, x, data["labels"], observed_of(posed, data))


def fitted_products(posed: InversionProblem, x: Tensor, data: dict[str, Tensor]) -> dict[str, Products]:
    """The same by an attacker who knows the defence: of s g where it clips, else of g and the nearest gradient that explains G.

    See attacks/common/data_fit.py. Without a defence, and under noise alone, these are `candidate_products`, bit for bit.
    """
    fit = posed.fit
    if fit.by_entry:
        gradient = entries(posed, x, data)
        target = data_fit.nearest(fit, gradient, data)
        return {name: products_of(g, target[name]) for name, g in gradient.items()}
    if fit.each_image_clipped and len(x) > 1:
        return {name: products_of(g, data[name]) for name, g in clipped_entries(posed, x, data).items()}
    products = candidate_products(posed, x, data)
    if fit.clip is None:
        return products
    candidate, cross = (torch.stack([getattr(p, f) for p in products.values()]).sum() for f in Products._fields[:2])
    s = data_fit.clip_scale(fit, candidate, cross)
    return {name: Products(p.candidate * s.square(), p.cross * s, p.observed) for name, p in products.items()}


def entries(posed: InversionProblem, x: Tensor, data: dict[str, Tensor]) -> dict[str, Tensor]:
    """The gradient of CE(C(E(x)), y) itself by "<part>/<parameter>", of the observed parameters; arguments as above."""
    leaves = {p: {n: t for n, t in net.items() if f"{p}/{n}" in posed.observed} for p, net in posed.weights.items()}

    def loss(leaves: Parts) -> Tensor:
        params = {p: posed.weights[p] | leaves[p] for p in leaves}
        h, _ = posed.model.net("extractor").apply(params["extractor"], posed.buffers["extractor"], x, train=posed.train)
        h = h * data[MASK] if MASK in posed.observed else h
        logits, _ = posed.model.net("classifier").apply(
            params["classifier"], posed.buffers["classifier"], h, train=posed.train
        )
        return posed.model.loss(logits, data["labels"])

    gradient = grad(loss)(leaves)
    return {f"{p}/{n}": g for p, net in gradient.items() for n, g in net.items()}


def clipped_entries(posed: InversionProblem, x: Tensor, data: dict[str, Tensor]) -> dict[str, Tensor]:
    """sum_b w_b g_b min(1, C / ||g_b||) over the images of x [B, C, H, W], by "<part>/<parameter>".

    w_b is 1/B, or as under WEIGHTS [B], where images of several clients count for what their clients do.
    """
    assert posed.fit.clip is not None, "the caller has checked what was clipped"
    masked = {MASK: data[MASK]} if MASK in posed.observed else {}
    each = {"labels": data["labels"], **masked}

    shapes = {n: posed.observed[n].shape[1:] for n in posed.observed if n not in BESIDES}

    def one(x: Tensor, part: dict[str, Tensor]) -> Tensor:
        gradient = entries(posed, x[None], {name: t[None] for name, t in part.items()})
        return torch.cat([gradient[n].flatten() for n in shapes])

    gradients = each_of(one)(x, each)
    norms = gradients.square().sum(1)
    scales = data_fit.clip_scale(posed.fit, norms, norms)
    mean = (scales * data[WEIGHTS]) @ gradients if WEIGHTS in posed.observed else (scales @ gradients) / len(x)
    pieces = mean.split([shape.numel() for shape in shapes.values()])
    return {n: t.view(shape) for (n, shape), t in zip(shapes.items(), pieces, strict=True)}


def pulled_back(posed: InversionProblem, x: Tensor, u: Tensor) -> dict[str, Tensor]:
    """J(x)' u by "extractor/<parameter>", J the Jacobian of E(x) by E's parameters: x [B, C, H, W], u [B, c, s, s] = dL/dh."""

    def features(params: Params) -> Tensor:
        return applied(posed, "extractor", params, x)

    pull = vjp(features, posed.weights["extractor"])[1]
    (gradient,) = pull(u)
    return {f"extractor/{name}": t for name, t in gradient.items()}


def classifier_products(
    model: Model, params: Params, h: Tensor, y: Tensor, observed: dict[str, Tensor]
) -> dict[str, Products]:
    """The same of the gradient of CE(C(h), y) over a linear classifier, for features h [B, ...]; of what is observed alone.

    Images are weighted as under WEIGHTS [B], where that is there.
    """
    classifier = model.classifier
    assert isinstance(classifier, LinearClassifier), "the caller has checked the classifier"
    biases = {n: t.expand(len(h), -1) for n, t in params.items() if n.endswith(".bias")}

    def loss(biases: Params) -> tuple[Tensor, dict[str, Tensor]]:
        logits, inputs = classifier.linear_layers(params | biases, h)
        return model.loss(logits, y, observed.get(WEIGHTS)), inputs

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


def products_of(gradient: Tensor, observed: Tensor, size: Tensor | None = None) -> Products:
    """Products of one parameter's gradient, as it is; `size` is |observed|^2, summed here where it is not known."""
    return Products(
        gradient.square().sum(), (gradient * observed).sum(), observed.square().sum() if size is None else size
    )


def squared_distance(products: dict[str, Products]) -> Tensor:
    """Eq. 7 of FedCG: || grad(x) - grad(x~) ||^2."""
    return torch.stack([p.gap for p in products.values()]).sum()


def relative_distance(products: dict[str, Products]) -> Tensor:
    """|| g - G ||^2 / ||G||^2 over all parameters together: Eq. 7, whatever the size of the gradient."""
    return squared_distance(products) / torch.stack([p.observed for p in products.values()]).sum().clamp_min(1e-300)


def layer_scaled_distance(products: dict[str, Products]) -> Tensor:
    """Mean over parameters of ||g - G||^2 / ||G||^2: every layer counts alike, whatever its scale; 0 where none is observed."""
    if not products:
        return torch.zeros(())
    return torch.stack([p.gap / p.observed.clamp_min(1e-300) for p in products.values()]).mean()


def cosine_distance(products: dict[str, Products]) -> Tensor:
    """1 - cos(g, G) over all parameters together (Geiping et al. 2020)."""
    candidate, cross, observed = (
        torch.stack([getattr(p, f) for p in products.values()]).sum() for f in Products._fields
    )
    # The image 0.5 enters the network as zero, where a convolution has no weight gradient and the root no slope.
    return 1 - cross / (candidate * observed).clamp_min(1e-60).sqrt()


def feature_distance(features: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    """||E(x) - h||^2 relative to the spread of h around its mean, both over the features of `mask` alone where one is given."""
    if mask is None:
        return (features - target).square().sum() / (target - target.mean()).square().sum().clamp_min(1e-12)
    spread = (target - (target * mask).sum() / mask.sum().clamp_min(1)).square()
    return ((features - target).square() * mask).sum() / (spread * mask).sum().clamp_min(1e-12)


def direction_distance(products: dict[str, Products]) -> Tensor:
    """min over a >= 0 of || a g - G ||^2 = ||G||^2 - <g, G>^2 / ||g||^2: Eq. 7 whatever the length of the candidate's gradient."""
    candidate, cross, observed = (
        torch.stack([getattr(p, f) for p in products.values()]).sum() for f in Products._fields
    )
    return observed - cross.clamp_min(0).square() / candidate.clamp_min(1e-60)


def statistics_distance(features: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """The second term of FedCG's Eq. 8: sum_c (mean(E~(x~)_c) - mu_c)^2 + (var(E~(x~)_c) - sigma_c^2)^2.

    features [B, c, s, s]; mean and variance [c] of the generator's features. The paper subtracts a standard deviation
    from a variance; here a variance is compared with a variance.
    """
    channels = features.transpose(0, 1).flatten(1)
    image_mean, image_variance = channels.mean(1), channels.var(1, unbiased=False)
    return (image_mean - mean).square().sum() + (image_variance - variance).square().sum()
