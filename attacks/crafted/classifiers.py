"""Classifiers that an active server sends: all that they answer depends on one number of the features, t = w h.

Every row of the first layer has the direction w, z_j = s_j (t - c_j). With one image, dL/dh = (sum_j s_j dL/db_j) w, so
that E's gradient is that of t, times a number. Two ways to lay the rows:
    gentle   one level in the middle of what t can be, slopes that keep the sigmoid awake over all of it: for one image, whose
             features are in every row. w is Fisher's linear discriminant between two classes. That its entries change sign from
             place to place matters: along the features' first principal direction, smooth over the image, the gradient of the
             extractor's first layer repeats what the second's says already (1 dB, docs/appendix/tuning.md).
    steep    levels spread over the range of t, slopes so steep that an image answers to the nearest rows alone: for batches, whose
             images are sorted into rows. w is the features' first principal direction.
The layers behind make one number a of t, rising with it, and logits
    quiet    r_y (a - 1/2), r_y of both signs and never near 0: all classes are about equally probable, and no image goes without
             a gradient.
    saturated     S (r_y (a - a_0) + k_y), S as large as uploads carry, k = 1 and r = -1, 1 for two classes that always win, A for
             t below the level t_0 and B above it, and k = 0 and |r| <= 1/2 for the others. The loss is S times the lead of the
             winner over y, and as large are its gradients: noise drowns in them where nothing is clipped. No gradient comes
             from an image whose class has won, so that A, B, t_0 and w are chosen for A's images to lie above t_0 and B's below.
No two classes have the same r: the size of an image's gradient reveals its label.

All this is LeNet-5's, of sigmoids. Other heads: attacks/crafted/heads.py, and of one layer attacks/crafted/class_sums.py.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.crafted import class_sums, heads
from privbench.errors import UserError
from privbench.networks.base import LinearClassifier
from privbench.networks.model import Model
from privbench.tensors import Params
from privbench.types import Batch, Networks

GENTLE = 2.0  # |z| of the outermost t under the gentlest slope
SHARPNESS = 5.0  # of z from one level to the next in a steep layer
WIDENED = 1.2  # the range of t, relative to that of the auxiliary images
SHRUNK = 0.1  # of the mean variance of a feature, added to each within classes
NARROWEST = 1e-6  # half of a range of t
FEWEST_IMAGES = 2  # that differ along a direction
WORTH = 5.0  # how many images of its own what is known of all classes is worth to one
SATURATION = 1e15  # S, relative to the standard deviation of the noise
LEAST_SATURATED = 1e7
MOST_SATURATED = 1e18  # so that the squares of gradients are finite in single precision
HEADROOM = 2.0  # of the largest entry that arrives, relative to S: entries of digits' gradients are below 0.75 S
SATURATED_FROM = 100.0  # S of a saturated classifier is above it
ALIKE = 1e-4  # of the responses of the two classes that win, which are -1 and 1


HONEST = Networks({}, {})  # nothing in place of the broadcast


class Winners(NamedTuple):
    """The two classes that win, wherever an image's t lies."""

    below: int  # A
    above: int  # B
    level: float  # t_0


class Rows(NamedTuple):
    """A first layer, z_j = slope_j (t - level_j)."""

    slope: Tensor  # [m] float64
    level: Tensor  # [m] float64


def made_for(
    model: Model,
    broadcast: Networks,
    auxiliary: Batch,
    batch_size: int,
    noise_std: float,
    largest: float = math.inf,
) -> Networks:
    """The classifier to send in place of the honest one of `broadcast`, to clients whose uploads have that much noise.

    `largest`: the largest entry that an upload can carry.

    Where E is private nothing is known of t but where it can lie: w is the direction to which the honest first layer responds
    most, and under noise the two rarest classes win.
    """
    honest, several = broadcast.params["classifier"], batch_size > 1
    kind = heads.kind_of(model, honest)
    rarest = torch.bincount(auxiliary.labels, minlength=model.classes).argsort(stable=True)
    if kind == "single":
        return Networks({"classifier": class_sums.crafted(model, honest, int(rarest[0]))}, {})
    first = model.classifier.features_layer
    count = len(honest[f"{first}.bias"])
    if "extractor" in broadcast.params:
        params, buffers = broadcast.params["extractor"], broadcast.buffers.get("extractor", {})
        with torch.no_grad():
            train = model.train_mode(batch_size)
            h, _ = model.net("extractor").apply(params, buffers, auxiliary.images, train=train)
        h, y = h.flatten(1).double(), auxiliary.labels
        w = principal_direction(h) if several else discriminant(h, y, model.classes)
        t = h @ w
        rows = rows_at(kind, quantiles(t, count)) if several else awake(kind, *widened(t), count, w)
        winners = best_separated(t, y, model.classes)[1]
    else:
        w = principal_direction(honest[f"{first}.weight"].double(), centred=False)
        low, high = whole_range(w)
        levels = torch.linspace(low, high, count).to(w)
        rows = rows_at(kind, levels) if several else awake(kind, low, high, count, w)
        winners = Winners(int(rarest[0]), int(rarest[1]), (low + high) / 2)
    size = saturation(noise_std, largest)
    if model.backbone == heads.LENET5:
        return Networks({"classifier": classifier(honest, w, rows, winners, size)}, {})
    r, lead = responses(model.classes, winners, size, w)
    scale = heads.Scale(r, lead, size or 1.0, winners.level if size else None)
    return Networks({"classifier": heads.calibrated(model, honest, kind, rows, w, scale)}, {})


def rows_at(kind: heads.Kind, levels: Tensor) -> Rows:
    """Rows that sort images between ascending levels [m]."""
    return Rows(*heads.stepped(levels)) if kind == "steps" else steep(levels)


def awake(kind: heads.Kind, low: float, high: float, count: int, like: Tensor) -> Rows:
    """Rows to which every t from `low` to `high` answers."""
    return Rows(*heads.reached(low, high, count, like)) if kind == "steps" else gentle(low, high, count, like)


def gentle(low: float, high: float, rows: int, like: Tensor) -> Rows:
    """Rows awake for t from `low` to `high`; of slopes that differ, so that single precision rounds each otherwise."""
    slope = GENTLE / max((high - low) / 2, NARROWEST) * torch.linspace(0.5, 1, rows).to(like)
    return Rows(slope, torch.full_like(slope, (low + high) / 2))


def steep(levels: Tensor) -> Rows:
    """Rows at ascending levels [m], each awake up to its neighbours."""
    gap = (levels[2:] - levels[:-2]) / 2
    gap = torch.cat([gap[:1], gap, gap[-1:]]).clamp_min(1e-3 * (levels[-1] - levels[0]) / len(levels))
    return Rows(SHARPNESS / gap, levels)


def quantiles(t: Tensor, rows: int) -> Tensor:
    """Levels [rows] among which the t of images like the auxiliary ones, t [N], are spread evenly."""
    levels = torch.quantile(t, torch.linspace(0, 1, rows, dtype=t.dtype, device=t.device))
    return t.mean() + WIDENED * (levels - t.mean())


def whole_range(w: Tensor) -> tuple[float, float]:
    """The lowest and the highest t that features in [0, 1] can have."""
    return float(w.clamp_max(0).sum()), float(w.clamp_min(0).sum())


def widened(t: Tensor) -> tuple[float, float]:
    """A range of t that images like those of t [N] keep to."""
    low, high = float(t.min()), float(t.max())
    more = (WIDENED - 1) * (high - low) / 2
    return low - more, high + more


def between_classes(h: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Fisher's discriminants [Y (Y - 1) / 2, n] of unit length between any two classes of features h [N, n].

    (Sigma + shrinkage)^-1 (mu_a - mu_b), Sigma within classes; the mean of a class is shrunk towards that of all.
    """
    members = F.one_hot(labels, classes).to(h)
    mean = (members.T @ h + WORTH * h.mean(0)) / (members.sum(0) + WORTH)[:, None]
    within = h - mean[labels]
    spread = within.T @ within / len(h)
    spread.diagonal().add_((SHRUNK * spread.diagonal().mean()).clamp_min(1e-12))
    solved = torch.linalg.solve(spread, mean.T).T
    one, other = torch.combinations(torch.arange(classes, device=h.device)).T
    return F.normalize(solved[one] - solved[other], dim=1)


def discriminant(h: Tensor, labels: Tensor, classes: int) -> Tensor:
    """The one of them [n] that separates its two classes best."""
    every = between_classes(h, labels, classes)
    accuracy = [float(best_separated(h @ w, labels, classes)[0]) for w in every]
    return every[accuracy.index(max(accuracy))]


def principal_direction(rows: Tensor, *, centred: bool = True) -> Tensor:
    """The direction [n] along which rows [N, n] differ most, or (not centred) are largest; UserError for the former of one row."""
    if centred and len(rows) < FEWEST_IMAGES:
        raise UserError(
            "a server that crafts a classifier for batches learns from two auxiliary images at least where they differ, but has "
            "one; give it more with --auxiliary"
        )
    return torch.linalg.svd(rows - rows.mean(0) if centred else rows, full_matrices=False).Vh[0]


def best_separated(t: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Winners]:
    """(how well two classes are distinguished, and which, and where) of numbers t [N] of labelled images.

    The distance of their means over the sum of their standard deviations []; each class's mean and variance are shrunk towards
    those of all.
    """
    members = F.one_hot(labels, classes).to(t)
    count = members.sum(0) + WORTH
    mean = (t @ members + WORTH * t.mean()) / count
    spread = (((t[:, None] - mean).square() * members).sum(0) + WORTH * t.var(correction=0)) / count
    std = spread.sqrt().clamp_min(1e-30)
    separation = (mean[:, None] - mean) / (std[:, None] + std)  # [A, B]: A above B
    below, above = divmod(int(separation.argmax()), classes)
    level = (mean[below] * std[above] + mean[above] * std[below]) / (std[below] + std[above])
    return separation.max(), Winners(below, above, float(level))


def saturation(noise_std: float, largest: float = math.inf) -> float:
    """S against noise of some standard deviation, in uploads that carry entries up to `largest`.

    0, for a quiet classifier, where there is no noise, or where uploads carry no entries that drown it.
    """
    if not noise_std:
        return 0.0
    s = min(max(SATURATION * noise_std, LEAST_SATURATED), MOST_SATURATED, largest / HEADROOM)
    return s if s > SATURATED_FROM else 0.0


def classifier(like: Params, w: Tensor, rows: Rows, winners: Winners, saturation: float) -> Params:
    """The classifier to send in place of `like`: quiet where `saturation`, S, is 0."""
    classes, hidden = like["fc3.weight"].shape
    inputs = like["fc2.weight"].shape[1]
    slope = 2 * GENTLE / inputs * torch.linspace(0.5, 1, hidden).to(w)
    sent = {
        "fc1.weight": rows.slope[:, None] * w,
        "fc1.bias": -rows.slope * rows.level,
        "fc2.weight": slope[:, None].expand(-1, inputs),
        "fc2.bias": -slope * inputs / 2,
    }
    r, lead = responses(classes, winners, saturation, w)
    middle = 0.5
    if saturation:
        answers = torch.sigmoid(rows.slope * (winners.level - rows.level))
        middle = float(torch.sigmoid(slope * (answers.sum() - inputs / 2)).mean())
    size = saturation or 1.0
    sent |= {"fc3.weight": (size * r / hidden)[:, None].expand(-1, hidden), "fc3.bias": size * (lead - r * middle)}
    return like | {n: t.to(like[n]).contiguous() for n, t in sent.items()}


def responses(classes: int, winners: Winners, saturation: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """(r_y, k_y) [Y] of every class."""
    every = torch.arange(classes).to(like)
    lead = torch.zeros_like(every)
    if not saturation:
        return (1 - 2 * (every % 2)) * (1 + every / classes) / 2, lead
    r = every / classes - 0.5
    r[winners.below], r[winners.above] = -1, 1
    lead[winners.below] = lead[winners.above] = 1
    return r, lead


def check_craftable(model: Model, broadcast: Networks) -> None:
    """UserError where there is no classifier to craft, none that begins with a linear layer, or none whose rows can be laid."""
    if "classifier" not in broadcast.params:
        raise UserError("imprint crafts the classifier, which this method does not broadcast; try --attack staged")
    if not isinstance(model.classifier, LinearClassifier):
        raise UserError(f"imprint needs a classifier that begins with a linear layer, but it is {model.backbone}'s")
    kind = heads.kind_of(model, broadcast.params["classifier"])
    heads.check_range(model, kind, private="extractor" not in broadcast.params)


def is_honest(classifier: Params, broadcast: Networks | None) -> bool:
    """Whether the clients got what an honest server would have sent: in a run of its own that was the attack's choice."""
    if broadcast is None:
        return False
    # Networks of a training that diverged are honest ones, too.
    return all(
        bool(torch.isclose(t, classifier[name], rtol=0, atol=0, equal_nan=True).all())
        for name, t in broadcast.params["classifier"].items()
    )


def is_crafted(classifier: Params, layer: str = "fc1") -> bool:
    """Whether all rows of a first layer have one direction, or none has any."""
    weight = classifier.get(f"{layer}.weight", torch.eye(2))
    if not bool(weight.isfinite().all()):
        return False
    return int(torch.linalg.matrix_rank(weight.double(), rtol=1e-5)) <= 1


def is_saturated(classifier: Params, layer: str = "fc3") -> bool:
    """Whether a crafted classifier is a saturated one, of which two classes win; `layer` makes its logits."""
    if not float(classifier[f"{layer}.bias"].abs().max()) > SATURATED_FROM:
        return False
    r = classifier[f"{layer}.weight"][:, 0].double()
    most = (r.abs() > (1 - ALIKE) * r.abs().max()).nonzero()[:, 0]
    return len(most) == 2 and bool(r[most].prod() < 0)


def winners_of(classifier: Params, layer: str = "fc3") -> tuple[int, int]:
    """(A, B) of a saturated classifier."""
    r = classifier[f"{layer}.weight"][:, 0]
    return int(r.argmin()), int(r.argmax())
