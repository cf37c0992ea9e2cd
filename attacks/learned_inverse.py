"""A learned inverse: a network that has seen the noised gradients of other images says what the victim's image is.

The attacker takes gradients of auxiliary images at the broadcast networks, adds the defence's noise afresh in every epoch,
and trains
    min over f of  mean || f(s(g + n)) - x ||^2
Its output is the expected image given what the noise leaves, where a descent on one noisy gradient fits the noise. s(g) holds the
closed-form features h (attacks/features.py), the first linear layer's dL/db, and the extractor's gradient; f sees its first
principal components and answers in principal components of the auxiliary images.

Wu et al.: Learning to Invert: Simple Adaptive Attacks for Gradient Inversion in Federated Learning, UAI 2023, arXiv
2210.10880 (there the gradient is hashed into bins; here closed forms and principal components make it small). One image per
gradient. Epochs end where a tenth of the auxiliary images, held out, is met best. Nothing here looks at the victims before
the network is trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad

from attacks import case
from attacks.case import Case
from attacks.descend import each_of
from privbench.errors import UserError
from privbench.nets import LinearClassifier
from privbench.seeds import stream
from privbench.types import Artifact, Batch, Knowledge, Params, Parts, Reconstruction, Report, no_report

INPUTS, HIDDEN, OUTPUTS = 256, 256, 128
BATCH = 128
HELD_OUT = 10  # every tenth image
PIECE = 64  # images whose gradients are taken at once


class Signals(NamedTuple):
    """What N gradients say: of the first linear layer dL/db = d and its inputs h, and the extractor's gradient e."""

    d: Tensor  # [N, m]
    h: Tensor  # [N, n]
    e: Tensor  # [N, P]


@dataclass(frozen=True)
class LearnedInverse:
    """From noisy gradient to image by a perceptron trained on auxiliary images."""

    epochs: int = 30
    lr: float = 1e-3

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier", "gradient:extractor", "auxiliary"})
    knowledge: ClassVar[str] = "gradient + auxiliary"
    rung: ClassVar[str] = "L4"

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, report: Report = no_report
    ) -> Reconstruction:
        """Trains once, then reads off all victims; UserError for batches and for classifiers that begin with convolutions."""
        if artifact.batch_size != 1 or not isinstance(artifact.model.classifier, LinearClassifier):
            raise UserError(
                "learned-inverse reads one image per gradient off a classifier that begins with a linear layer; "
                "try --attack staged"
            )
        assert knowledge.auxiliary is not None, "the needs name auxiliary images"
        own = case.make(artifact, seed, torch.float32)
        net, trace = self._train(own, knowledge.auxiliary, seed, report)
        with torch.no_grad():
            x = net(seen(own)).unflatten(1, (1, *artifact.image_shape))
        loss = trace[-1].expand(artifact.victims)
        first = torch.zeros_like(own.labels[:, 0])
        evaluations = len(knowledge.auxiliary.labels)
        return Reconstruction(x, own.labels, loss, trace.expand(artifact.victims, -1), first, evaluations)

    def _train(self, own: Case, auxiliary: Batch, seed: int, report: Report) -> tuple[Inverse, Tensor]:
        """(the network of the best epoch, the lowest error on held-out images so far, epoch by epoch [epochs + 1])."""
        rng = stream(seed, "attacker", "learned inverse")
        device = auxiliary.images.device
        signals, x = simulated(own, auxiliary), auxiliary.images.flatten(1)
        held = torch.arange(len(x), device=device) % HELD_OUT == HELD_OUT - 1
        train, test = (torch.nonzero(rows)[:, 0] for rows in (~held, held if bool(held.any()) else ~held))
        net = Inverse(noised(signals, own.variance, rng), x[train], rng)
        test_input = noised(Signals(*(t[test] for t in signals)), own.variance, rng)
        optimiser = torch.optim.Adam(net.weights, self.lr)
        best, kept, trace = torch.tensor(torch.inf), [w.detach().clone() for w in net.weights], []
        for epoch in range(self.epochs + 1):
            report(epoch, self.epochs, "learned inverse")
            with torch.no_grad():
                error = F.mse_loss(net(test_input), x[test]).cpu()
            if error < best:
                best, kept = error, [w.detach().clone() for w in net.weights]
            trace.append(best)
            if epoch == self.epochs:
                break
            inputs = noised(signals, own.variance, rng)
            for rows in train[torch.randperm(len(train), generator=rng).to(device)].split(BATCH):
                optimiser.zero_grad()
                F.mse_loss(net(Signals(*(t[rows] for t in inputs))), x[rows]).backward()
                optimiser.step()
        net.weights = kept
        return net, torch.stack(trace).to(device)


class Inverse:
    """The perceptron between principal components, which it takes from its first inputs and from images [N, D]."""

    def __init__(self, inputs: Signals, images: Tensor, rng: torch.Generator) -> None:
        flat = torch.cat(inputs, 1)
        self.middle, self.scale = flat.mean(0), flat.std(0).clamp_min(1e-12)
        self.components, self.size = _principal((flat - self.middle) / self.scale, INPUTS)
        self.mean = images.mean(0)
        self.basis, self.spread = _principal(images - self.mean, OUTPUTS)
        widths = (len(self.components), HIDDEN, HIDDEN, len(self.basis))
        self.weights = []
        for before, after in pairwise(widths):
            w = torch.randn(after, before, generator=rng) * (2 / before) ** 0.5
            self.weights += [w.to(flat).requires_grad_(), flat.new_zeros(after).requires_grad_()]
        with torch.no_grad():
            self.weights[-2].mul_(0.1)

    def __call__(self, signals: Signals) -> Tensor:
        """Images [N, D]."""
        z = ((torch.cat(signals, 1) - self.middle) / self.scale).clamp(-10, 10) @ self.components.T / self.size
        w = self.weights
        z = F.leaky_relu(F.linear(z, w[0], w[1]), 0.1)
        z = F.leaky_relu(F.linear(z, w[2], w[3]), 0.1)
        return self.mean + (F.linear(z, w[4], w[5]) * self.spread) @ self.basis


def simulated(own: Case, auxiliary: Batch) -> Signals:
    """The signals of every auxiliary image's gradient at the case's networks, without noise."""
    extractor, classifier = own.model.net("extractor"), own.model.classifier
    assert isinstance(classifier, LinearClassifier), "the caller has looked at the classifier"

    def loss(leaves: Parts, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        h, _ = extractor.apply(leaves["extractor"], own.buffers["extractor"], x[None], train=own.train)
        logits, inputs = classifier.linear_layers(own.weights["classifier"] | leaves["classifier"], h)
        return F.cross_entropy(logits, y[None]), inputs["fc1"][0]

    leaves = {"extractor": own.weights["extractor"], "classifier": {"fc1.bias": own.weights["classifier"]["fc1.bias"]}}

    def one(x: Tensor, y: Tensor) -> Tensor:
        gradient, h = grad(loss, has_aux=True)(leaves, x, y)
        return torch.cat([gradient["classifier"]["fc1.bias"], h, _flat(gradient["extractor"])])

    pairs = zip(auxiliary.images.split(PIECE), auxiliary.labels.split(PIECE), strict=True)
    found = torch.cat([each_of(one)(x, y) for x, y in pairs]).detach()
    widths = (len(own.weights["classifier"]["fc1.bias"]), own.weights["classifier"]["fc1.weight"].shape[1])
    return Signals(*found.split([*widths, found.shape[1] - sum(widths)], 1))


def noised(signals: Signals, variance: float, rng: torch.Generator) -> Signals:
    """The signals as they come out of gradients with noise N(0, variance) on every entry.

    The least-squares h of attacks/features.py is b' (d h' + N) / |b|^2 with b = d + n; given b, b' N is normal again, of variance
    |b|^2 sigma^2.
    """
    if not variance:
        return signals

    def noise(like: Tensor) -> Tensor:
        return variance**0.5 * torch.randn(like.shape, generator=rng).to(like)

    b = signals.d + noise(signals.d)
    energy = b.square().sum(1, keepdim=True).clamp_min(1e-30)
    h = ((b * signals.d).sum(1, keepdim=True) * signals.h + energy.sqrt() * noise(signals.h)) / energy
    return Signals(b, h, signals.e + noise(signals.e))


def seen(own: Case) -> Signals:
    """The signals of the observed gradients."""
    rows, bias = own.observed["classifier/fc1.weight"], own.observed["classifier/fc1.bias"]
    h = (bias[:, :, None] * rows).sum(1) / bias.square().sum(1, keepdim=True).clamp_min(1e-30)
    names = own.weights["extractor"]
    return Signals(bias, h, torch.cat([own.observed[f"extractor/{n}"].flatten(1) for n in names], 1))


def _flat(params: Params) -> Tensor:
    return torch.cat([t.flatten() for t in params.values()])


def _principal(rows: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """(orthonormal directions [k, n], their standard deviations [k]) of centred rows [N, n], k at most `most`."""
    _, size, directions = torch.linalg.svd(rows, full_matrices=False)
    size = size / len(rows) ** 0.5
    k = max(1, min(most, int((size > 1e-6 * size[0]).sum())))
    return directions[:k], size[:k].clamp_min(1e-12)
