"""A classifier under which one image of a batch outweighs all others, and that image read as if it had been alone.

With t = w h, and every row of the first layer z_j = s_j (t - c) at a level c above all t that are likely,
    d z_j = e_j sigma'(z_j),  sigma'(z) ~ exp(-|z|)  far from the level
so that the image with the largest t outweighs the next by exp(s (t_1 - t_2)), and e_j differs from class to class by a factor of 2
at most (attacks/crafted/classifiers.py, `responses`). All gradients from the first layer to the images pass through d z_j: they are
those of one image. The level, the slope and the direction w are chosen on the attacker's images, in batches as large as the
victims': s is as large as single precision lets it be (REACH), and w is that of Fisher's discriminants along which one image
stands alone most often. Where the rows, whose slopes differ, do not agree on h, several images are mixed.

With a class named, d z_j is 0 for all others: their logits have no weights, and its own has the probability 0 (class fishing). Then
the largest t of this class counts, if the batch has one.

h is in closed form. The label is the one that explains the size of the gradient, but for a clip (clip_scale.py). E's gradient is
that of t, times a number that the first layer shows. So what one image by itself would send to a server with a gentle classifier
along w is known, whatever the batch, its weights, or a clip of the message made of its length.

Wen, Geiping, Fowl, Goldblum, Goldstein: Fishing for User Data in Large-Batch Federated Learning via Gradient Magnification, ICML
2022, arXiv 2202.00580, section 3. Deviations: one image is not let through by a threshold on one feature, which none or several of
most batches pass, but outweighs the others by an exponential; any class may be fished; the units are sigmoids.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from attacks.common import labels
from attacks.crafted import classifiers, clip_scale
from attacks.features import per_image
from attacks.features.separation.row_spaces import Disaggregated
from privbench.networks.model import Model
from privbench.seeds import stream
from privbench.tensors import Params
from privbench.types import Artifact, Batch, ExpectedUpload, Networks

# Of s t, from the lowest of the batches' largest to the level. Single precision ends at exp(-87), fixed point at exp(-22).
REACH = 75.0
SHORT_REACH = 14.0
LOWEST = 0.05  # quantile of the largest t of a batch below which an image may be out of reach
MARGIN = 0.05  # of the range of the largest t, from the highest to the level
ALONE = 10.0  # s (t_1 - t_2) from which an image stands alone
FLATTEST = 0.9  # slope of the flattest row relative to the steepest
BATCHES = 500  # drawn of the attacker's images
NEVER = -200.0  # the logit of the named class: exp(-200) is 0 in single precision
AGREED = 1e-3  # between the rows' halves, relative to the distance of two images' features
SMALLEST = 1e-300


class Line(NamedTuple):
    """Where images lie along one direction."""

    w: Tensor  # [n] of unit length
    low: float  # the largest t of nearly all batches is above it
    level: float  # c


def candidates(
    model: Model, broadcast: Networks, images: Batch, expected: ExpectedUpload, seed: int, only: int | None = None
) -> tuple[Networks, ...]:
    """What a server with some images may send, that first whose reach the number format of the uploads holds.

    Empty where no image is of the class `only`.
    """
    like = broadcast.params["classifier"]
    known = of_networks(model, broadcast, images, expected.images_per_client)
    each = (crafted(like, known, expected.batch_size, reach, seed, only) for reach in reaches(expected))
    return tuple(Networks({"classifier": one}, {}) for one in each if one is not None)


def reaches(expected: ExpectedUpload) -> tuple[float, float]:
    """Both of them, that one first which the number format of the uploads holds."""
    is_coarse = expected.weights is not None or expected.wire == "fp16"
    return (SHORT_REACH, REACH) if is_coarse else (REACH, SHORT_REACH)


def crafted(
    like: Params, features: Batch, batch_size: int, reach: float, seed: int, only: int | None = None
) -> Params | None:
    """The head of LeNet-5 to send in place of `like`, for batches of images like those of some features [N, n] with labels.

    None where no image of the class `only` is among these.
    """
    h, y = features
    if only is not None and not bool((y == only).any()):
        return None
    w, low, level = line(h, y, len(like["fc3.bias"]), batch_size, reach, seed, only)
    count, none = len(like["fc1.bias"]), classifiers.Winners(0, 0, 0.0)
    slope = reach / max(level - low, classifiers.NARROWEST) * torch.linspace(FLATTEST, 1, count).to(w)
    sent = classifiers.classifier(like, w, classifiers.Rows(slope, torch.full_like(slope, level)), none, 0.0)
    # All units of the first layer are nearly 0, so that those of the second are 1/2, and the logits 0.
    sent["fc2.bias"] = torch.zeros_like(sent["fc2.bias"])
    if only is not None:
        others = torch.arange(len(sent["fc3.bias"])) != only
        sent["fc3.weight"] = sent["fc3.weight"].masked_fill(others[:, None], 0.0)
        sent["fc3.bias"] = torch.where(others, 0.0, NEVER).to(sent["fc3.bias"])
    return sent


def line(h: Tensor, y: Tensor, classes: int, batch_size: int, reach: float, seed: int, only: int | None) -> Line:
    """The direction along which one image stands alone most often, in batches drawn of features h [N, n] and labels y [N]."""
    every = classifiers.between_classes(h, y, classes)
    every = torch.cat([every, -every])
    t = h @ every.T
    if only is not None:
        t = t.where((y == only)[:, None], -torch.inf)
    drawn = torch.randint(len(h), (BATCHES, batch_size), generator=stream(seed, "attacker", "fishing", "batches"))
    best, chosen = -1.0, None
    for w, along in zip(every, t.T, strict=True):
        largest = along[drawn].topk(min(2, batch_size), 1).values
        first, second = largest[:, 0], largest[:, 1] if batch_size > 1 else torch.full_like(largest[:, 0], -torch.inf)
        there = first[first.isfinite()]
        low, high = (float(there.quantile(LOWEST)), float(there.max())) if len(there) else (0.0, 0.0)
        level = high + MARGIN * (high - low)
        slope = reach / max(level - low, classifiers.NARROWEST)
        share = float((first.isfinite() & (slope * (first - second) > ALONE)).double().mean())
        if share > best:
            best, chosen = share, Line(w, low, level)
    assert chosen is not None, "two classes have two directions"
    return chosen


def is_magnified(classifier: Params) -> bool:
    """Whether a classifier is one of these: rows of one direction, before a second layer without biases."""
    if not {"fc1.weight", "fc2.bias"} <= set(classifier):
        return False
    return classifiers.is_crafted(classifier) and not bool(classifier["fc2.bias"].any())


def features_of(artifact: Artifact, images: Batch) -> Batch:
    """(features [N, n] float64, labels) of the attacker's images, at the broadcast extractor."""
    return of_networks(artifact.model, Networks(artifact.weights, artifact.buffers), images, artifact.images_per_client)


def of_networks(model: Model, networks: Networks, images: Batch, per_client: int) -> Batch:
    """The same at networks that are to be sent to clients with so many images each."""
    params, buffers = networks.params["extractor"], networks.buffers.get("extractor", {})
    with torch.no_grad():
        h, _ = model.net("extractor").apply(params, buffers, images.images, train=model.train_mode(per_client))
    return Batch(h.flatten(1).double(), images.labels)


def standing_alone(artifact: Artifact, known: Tensor) -> Tensor:
    """In which uploads one image stands alone, [V] bool: the rows agree, relative to how features [N, n] of such images differ."""
    steep, flat = _inputs(artifact)
    usual = (2 * known.var(0, correction=0).sum()).sqrt().clamp_min(SMALLEST)
    agree: Tensor = (steep - flat).norm(dim=1) < AGREED * usual
    return agree & artifact.gradients["classifier"]["fc1.bias"].any(1)


def alone(artifact: Artifact, known: Tensor) -> Artifact:
    """What the images that stand alone would have sent by themselves, with their labels, at a gentle classifier along w.

    It is gentle over all t that features [N, n] of the attacker's images have.
    """
    sent, low_high = artifact.weights["classifier"], artifact.model.feature_range
    limits = [limit / (1 - artifact.model.dropout) for limit in low_high]
    h = _inputs(artifact)[0].clamp(*limits).unflatten(1, artifact.model.feature_shape)
    y = torch.tensor([_label(artifact, v, one) for v, one in enumerate(h)], device=h.device)
    w = sent["fc1.weight"][-1].double()
    w = w / w.norm()
    rows = classifiers.gentle(*classifiers.widened(known @ w), len(sent["fc1.bias"]), w)
    gentle = classifiers.classifier(sent, w, rows, classifiers.Winners(0, 0, 0.0), 0.0)
    weights = artifact.weights | {"classifier": gentle}
    instead = replace(artifact, weights=weights, batch_size=1, defense={"name": "none"})
    each = per_image.singles(instead, Disaggregated(h[:, None], y[:, None], h[:, 0, 0, 0], 0))
    length = _slope(each, w) / _slope(artifact, w)
    extractor = {
        n: (t.double() * length.view(-1, *(1,) * (t.ndim - 1))).to(t)
        for n, t in artifact.gradients["extractor"].items()
    }
    of_classifier = {n: t.to(sent[n]) for n, t in each.gradients["classifier"].items()}
    return replace(each, gradients={"extractor": extractor, "classifier": of_classifier})


def _slope(artifact: Artifact, w: Tensor) -> Tensor:
    """The number [V] by which E's gradient is that of t."""
    weight, bias = artifact.weights["classifier"]["fc1.weight"], artifact.gradients["classifier"]["fc1.bias"]
    slope: Tensor = bias.double() @ (weight.double() @ w)
    return slope


def _inputs(artifact: Artifact) -> tuple[Tensor, Tensor]:
    """What enters the first layer [V, n], by the steeper and by the flatter half of its rows."""
    weight, bias = (artifact.gradients["classifier"][f"fc1.{name}"].double() for name in ("weight", "bias"))
    half = bias.shape[1] // 2
    steep, flat = (
        (b[:, :, None] * w).sum(1) / b.square().sum(1, keepdim=True).clamp_min(SMALLEST)
        for w, b in ((weight[:, half:], bias[:, half:]), (weight[:, :half], bias[:, :half]))
    )
    return steep, flat


def _label(artifact: Artifact, victim: int, h: Tensor) -> int:
    """Which of the batch's labels explains the size of the first layer's gradient best, of an image that stands alone.

    Of a clipped message that is its size times a number, which the last bias tells: all images have the same probabilities, as
    the units before the last layer are 1/2 of them all.
    """
    y = labels.recover(artifact.select(torch.tensor([victim], device=h.device)))[0]
    candidates = y.unique()
    size = artifact.gradients["classifier"]["fc1.bias"][victim].double().sum()
    scale = clip_scale.of_last_bias(artifact, victim, per_image.probabilities(artifact, h[None]), y)
    size = size / (1.0 if scale is None else scale)
    weights = artifact.image_weights
    every = size.new_tensor([1 / artifact.batch_size]) if weights is None else weights[victim].unique().to(size)
    expected = torch.stack([per_image.gradient_of(artifact, h, y)["fc1.bias"].sum() for y in candidates])
    ratio = (size / (expected[:, None] * every)).clamp_min(SMALLEST).log().abs().amin(1)
    return int(candidates[ratio.argmin()])
