"""What a gradient says of its image in few numbers, for networks that learn to read it: s(g) of attacks/learned_inverse.py."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import grad

from attacks.common import bottleneck, closed_form, labels, problem
from attacks.common.batched import each_of
from attacks.common.problem import InversionProblem
from privbench.methods.base import DropoutMask, SamplingContext
from privbench.networks.base import LinearClassifier
from privbench.tensors import Params, Parts
from privbench.types import Batch

PIECE = 64  # images whose gradients are taken at once


class Signals(NamedTuple):
    """What N gradients say: of the first linear layer dL/db = d and its inputs h, the extractor's gradient e, and the label y."""

    d: Tensor  # [N, m]
    h: Tensor  # [N, n]
    e: Tensor  # [N, P]
    y: Tensor  # [N, Y] probabilities; of `simulated` ones the error p - e_y as attacks/common/labels.py estimates it without noise


def simulated(posed: InversionProblem, auxiliary: Batch, labels_known: bool, rng: torch.Generator) -> Signals:
    """The signals of every auxiliary image's gradient at the problem's networks, without noise.

    Its y is the label itself where labels are known (`labels_known`). A model with dropout drops features, drawn from `rng`.
    """
    extractor, classifier = posed.model.net("extractor"), posed.model.classifier
    assert isinstance(classifier, LinearClassifier), "the caller has checked the classifier"
    first = str(classifier.features_layer)

    rate, context = posed.model.dropout, SamplingContext(posed.model, None)
    masks = DropoutMask().sample((len(auxiliary.labels), 1), context, rng).to(auxiliary.images.device)

    def loss(leaves: Parts, x: Tensor, y: Tensor, kept: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        h, _ = extractor.apply(leaves["extractor"], posed.buffers["extractor"], x[None], train=posed.train)
        h = h * kept / (1 - rate) if rate else h
        params = posed.weights["classifier"] | leaves["classifier"]
        logits, inputs = classifier.linear_layers(params, h)
        task = posed.model.loss(logits, y[None]) + bottleneck.divergence(posed.model, params, h)
        return task, (inputs[first][0], logits[0], inputs[classifier.logits_layer][0])

    leaves = {
        "extractor": posed.weights["extractor"],
        "classifier": {f"{first}.bias": posed.weights["classifier"][f"{first}.bias"]},
    }

    def one(x: Tensor, y: Tensor, kept: Tensor) -> Tensor:
        gradient, (h, logits, last) = grad(loss, has_aux=True)(leaves, x, y, kept)
        label = (torch.arange(len(logits), device=y.device) == y).to(logits)
        error = logits.softmax(0) - label
        error = labels.estimate(posed.model, error, error * last.sum(), len(last)) if posed.variance else error
        return torch.cat([
            gradient["classifier"][f"{first}.bias"], h, _flat(gradient["extractor"]), label if labels_known else error,
        ])  # fmt: skip

    pieces = zip(*(t.split(PIECE) for t in (*auxiliary, masks)), strict=True)
    rows = torch.cat([each_of(one)(*piece) for piece in pieces]).detach()
    widths = [*posed.weights["classifier"][f"{first}.weight"].shape, posed.model.classes]
    signals = Signals(*rows.split([*widths[:2], rows.shape[1] - sum(widths), widths[2]], 1))
    return signals._replace(h=_features(posed, signals.h))


def noised(signals: Signals, posed: InversionProblem, labels_known: bool, rng: torch.Generator) -> Signals:
    """The signals of `simulated` as they follow from gradients with the problem's noise on every entry; y as probabilities.

    The least-squares h of attacks/common/closed_form.py is b' (d h' + N) / |b|^2 with b = d + n; given b, b' N is normal again,
    of variance |b|^2 sigma^2.
    """
    variance = posed.variance
    if not variance:
        return signals if labels_known else signals._replace(y=labels.given_error(signals.y, 0))

    def noise(like: Tensor) -> Tensor:
        return variance**0.5 * torch.randn(like.shape, generator=rng).to(like)

    b = signals.d + noise(signals.d)
    energy = b.square().sum(1, keepdim=True).clamp_min(1e-30)
    h = ((b * signals.d).sum(1, keepdim=True) * signals.h + energy.sqrt() * noise(signals.h)) / energy
    e, y = signals.e + noise(signals.e), signals.y
    if not labels_known:
        remaining = variance / labels.precision(
            posed.model, posed.weights["classifier"][f"{posed.model.classifier.logits_layer}.weight"].shape[1]
        )
        y = labels.given_error(y + (remaining / variance) ** 0.5 * noise(y), remaining)
    return Signals(b, h, e, y)


def observed(posed: InversionProblem, y: Tensor) -> Signals:
    """The signals of the observed gradients, with the probabilities y [V, Y] of their labels."""
    first = posed.model.classifier.features_layer
    rows, bias = (posed.observed[f"classifier/{first}.{name}"] for name in ("weight", "bias"))
    e = torch.cat([posed.observed[f"extractor/{n}"].flatten(1) for n in posed.weights["extractor"]], 1)
    h = _features(posed, closed_form.least_squares(rows, bias), pruned=problem.COLUMNS in posed.observed)
    return Signals(bias, h, e, y.to(e))


def _features(posed: InversionProblem, entered: Tensor, *, pruned: bool = False) -> Tensor:
    """What entered the classifier [N, n], with those features filled in that are seen to be missing; as it is under noise."""
    if posed.variance:
        return entered
    shaped = entered.unflatten(1, posed.model.feature_shape)
    return closed_form.undropped(posed.model, shaped, closed_form.ZERO, pruned=pruned).h.flatten(1)


def _flat(params: Params) -> Tensor:
    return torch.cat([t.flatten() for t in params.values()])
