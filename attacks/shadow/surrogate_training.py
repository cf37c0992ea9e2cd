"""Surrogates for private extractors, trained on auxiliary images through a classifier that the server knows.

    L = CE(C(E'(x)), y)  +  align A(E')
C stays frozen, so that E' has to speak the language that C understands. A says how far the features of E' are from what is known
of one client's: class-conditional moments of its generator's samples, moments of its victims' closed-form features, and these
features themselves, each against the mean of its class.
The idea is that of the split-learning attacks: PCAT (Gao, Zhang, USENIX Security 2023) trains a pseudo client through the server's
frozen model; SDAR (Zhu et al., NDSS 2025, arXiv 2310.10483) and FORA (Xu et al., CVPR 2024) align its features, adversarially
and by maximum mean discrepancy. Here: by first and second moments, which a handful of victims still determines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from privbench.networks.model import Model
from privbench.spec import Adam
from privbench.tensors import Params
from privbench.training.engine.descent import LATE
from privbench.types import Batch, LocalTraining

BATCH = 64
LR = 3e-3
WEIGHT_DECAY = 1e-4
# How a client of the shadow federation trains where nobody says how the attacked ones do: as in the quick preset.
USUAL_OPTIMISER, CLIENT_BATCH = Adam(lr=LR, weight_decay=WEIGHT_DECAY), 16
EPS = 1e-4
VICTIM_EPS = 1e-3  # in a variance of features: of untrained ones the spread is smaller, and says nothing
PIECE = 512  # images at once, without gradients

Align = Callable[[Tensor, Tensor], Tensor]  # (features [B, c, s, s], labels [B]) -> scalar


class ClassMoments(NamedTuple):
    """Of features given their class."""

    mean: Tensor  # [Y, c, s, s]
    known: Tensor  # [Y] bool: whether there was anything of the class
    spread: Tensor  # [] mean variance within a class
    covariance: Tensor  # [c, c] of channels, over positions and images


def extract(model: Model, extractor: Params, images: Tensor) -> Tensor:
    """E(x) [N, c, s, s] without gradients."""
    with torch.no_grad():
        net = model.net("extractor")
        return torch.cat([net.apply(extractor, {}, part, train=False)[0] for part in images.split(PIECE)])


def class_moments(h: Tensor, labels: Tensor, classes: int) -> ClassMoments:
    """The moments of some features [N, c, s, s], N >= 1."""
    mean, counts = _class_means(h, labels, classes)
    return ClassMoments(mean, counts > 0, (h - mean[labels]).square().mean(), channel_covariance(h))


def channel_covariance(h: Tensor) -> Tensor:
    """Second central moments of the channels over images and positions: [N, c, s, s] -> [c, c]."""
    rows = h.transpose(0, 1).flatten(1)
    rows = rows - rows.mean(1, keepdim=True)
    return rows @ rows.T / rows.shape[1]


def _class_means(h: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    members = F.one_hot(labels, classes).to(h)
    counts = members.sum(0)
    sums = (members.T @ h.flatten(1)).view(classes, *h.shape[1:])
    return sums / counts.clamp_min(1)[:, None, None, None], counts


def to_generator(target: ClassMoments) -> Align:
    """Distance of class means, in within-class standard deviations, and relative distance of channel covariances."""

    def align(h: Tensor, labels: Tensor) -> Tensor:
        mean, counts = _class_means(h, labels, len(target.mean))
        share = counts * target.known / len(labels)
        gap = ((mean - target.mean).square().flatten(1).mean(1) * share).sum() / (target.spread + EPS)
        return gap + _relative(channel_covariance(h), target.covariance)

    return align


def to_features(observed: Tensor) -> Align:
    """Relative distances of channel means and covariances from those of some features [n, c, s, s], whatever their labels."""
    mean, covariance = observed.mean((0, 2, 3)), channel_covariance(observed)

    def align(h: Tensor, labels: Tensor) -> Tensor:
        gap = (h.mean((0, 2, 3)) - mean).square().sum() / (covariance.diagonal().sum() + EPS)
        return gap + _relative(channel_covariance(h), covariance)

    return align


def to_victims(observed: Tensor, classes: Tensor) -> Align:
    """Mean distance of each of some features [n, c, s, s] from the mean of its class [n], in standard deviations, halved.

    Half of what is expected of a feature and an unrelated one of the same class is no distance at all; what it corrects are
    channels that the classifier reads as well with another sign or scale.
    """
    spread = (observed - observed.mean(0)).square().mean()

    def align(h: Tensor, labels: Tensor) -> Tensor:
        mean, counts = _class_means(h, labels, int(max(labels.max(), classes.max())) + 1)
        gap = (observed - mean[classes]).square().flatten(1).mean(1)
        return (gap * (counts[classes] > 0)).mean() / (2 * (spread + VICTIM_EPS))

    return align


def _relative(covariance: Tensor, target: Tensor) -> Tensor:
    return (covariance - target).square().sum() / (target.square().sum() + EPS)


def train(
    model: Model,
    start: Params,
    classifier: Params,
    data: Batch,
    steps: int,
    rng: torch.Generator,
    align: Align | None = None,
    weight: float = 0.0,
) -> Params:
    """E' after `steps` of Adam through the frozen classifier, with cosine decay of the rate."""
    e = {n: t.detach().clone().requires_grad_() for n, t in start.items()}
    optimiser = torch.optim.Adam(e.values(), lr=LR, weight_decay=WEIGHT_DECAY)
    nets = model.net("extractor"), model.net("classifier")
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = LR * (1 + math.cos(math.pi * step / steps)) / 2
        index = torch.randint(len(data.labels), (BATCH,), generator=rng).to(data.labels.device)
        y = data.labels[index]
        h, _ = nets[0].apply(e, {}, data.images[index], train=True)
        loss = F.cross_entropy(nets[1].apply(classifier, {}, h, train=True)[0], y)
        if align is not None:
            loss = loss + weight * align(h, y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return {n: t.detach() for n, t in e.items()}


def optimiser_for(leaves: list[Tensor], setting: Mapping[str, Any]) -> torch.optim.Optimizer:
    """torch's optimiser of what privbench.spec.SGD or Adam say, written out.

    Moments that begin at 0 and are not corrected for that are those of a late step.
    """
    options = dict(setting)
    if options.pop("kind", "adam") == "sgd":
        return torch.optim.SGD(leaves, **options)
    corrected = options.pop("bias_correction", True)
    adam = torch.optim.Adam(leaves, betas=(options.pop("beta1"), options.pop("beta2")), **options)
    if not corrected:
        for leaf in leaves:
            zeros = {"exp_avg": torch.zeros_like(leaf), "exp_avg_sq": torch.zeros_like(leaf)}
            adam.state[leaf] = {"step": torch.tensor(LATE), **zeros}
    return adam


def train_client(
    model: Model,
    extractor: Params,
    classifier: Params,
    data: Batch,
    rounds: int,
    training: LocalTraining,
    rng: torch.Generator,
    align: Align | None = None,
) -> tuple[Params, Params]:
    """(E, C) of a client that trains both on the cross-entropy plus A as `training` says, in every round from the broadcast C.

    C sees each feature, divided by 1 - p, with probability 1 - p, p = model.dropout, and 0 in its place else.
    """
    e = {n: t.detach().clone().requires_grad_() for n, t in extractor.items()}
    c = classifier
    nets = model.net("extractor"), model.net("classifier")
    size = min(training.batch, len(data.labels))
    for _ in range(rounds):
        c = {n: t.detach().clone().requires_grad_() for n, t in classifier.items()}
        optimiser = optimiser_for([*e.values(), *c.values()], training.optimiser)
        for _ in range(training.steps):
            index = torch.randint(len(data.labels), (size,), generator=rng).to(data.labels.device)
            y = data.labels[index]
            h, _ = nets[0].apply(e, {}, data.images[index], train=True)
            entering = h
            if model.dropout:
                kept = torch.empty(h.shape).bernoulli_(1 - model.dropout, generator=rng)
                entering = h * kept.to(h) / (1 - model.dropout)
            loss = F.cross_entropy(nets[1].apply(c, {}, entering, train=True)[0], y)
            if align is not None:
                loss = loss + align(h, y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return {n: t.detach() for n, t in e.items()}, {n: t.detach() for n, t in c.items()}
