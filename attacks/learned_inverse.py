"""A learned inverse: a network that has seen the noised gradients of other images says what the victim's image is.

The attacker takes gradients of auxiliary images at the broadcast networks, adds the defence's noise afresh in every epoch,
and trains
    min over f of  mean || f(s(g + n), y) - x ||^2
Its output is the expected image given what the noise leaves, where a descent on one noisy gradient fits the noise. s(g) holds the
closed-form features h (attacks/common/closed_form.py), the first linear layer's dL/db, and the extractor's gradient; f sees its
first principal components and answers in principal components of the auxiliary images. y is the label as the server has it:
known, or, in training as in the attack, as probable as the noised gradient makes each class (attacks/common/labels.py).

Wu et al.: Learning to Invert: Simple Adaptive Attacks for Gradient Inversion in Federated Learning, UAI 2023, arXiv
2210.10880 (there the gradient is hashed into bins; here closed forms and principal components make it small). One image per
gradient. Epochs end where a tenth of the auxiliary images, held out, is met best. Nothing here uses the victims before
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

from attacks.common import closed_form, labels, problem, training_cache
from attacks.common.descend import each_of
from attacks.common.problem import InversionProblem
from privbench.applicability import Limits
from privbench.errors import UserError
from privbench.hyperparameters import Count, Positive
from privbench.networks.base import LinearClassifier
from privbench.seeds import stream
from privbench.tensors import Params, Parts
from privbench.types import Artifact, Batch, Knowledge, Presets, Progress, Reconstruction, no_progress

INPUTS, HIDDEN, OUTPUTS = 256, 256, 128
LAYERS = ("w0", "b0", "w1", "b1", "w2", "b2")
SLOPE = 0.1
BATCH = 128
HELD_OUT = 10  # every tenth image
PIECE = 64  # images whose gradients are taken at once


class Signals(NamedTuple):
    """What N gradients say: of the first linear layer dL/db = d and its inputs h, the extractor's gradient e, and the label y."""

    d: Tensor  # [N, m]
    h: Tensor  # [N, n]
    e: Tensor  # [N, P]
    y: Tensor  # [N, Y] probabilities; of `simulated` ones the error p - e_y as attacks/common/labels.py estimates it without noise


@dataclass(frozen=True)
class LearnedInverse:
    """A perceptron from noised gradient to image, trained on auxiliary images (Wu et al., UAI 2023)."""

    epochs: Count = 30
    lr: Positive = 1e-3

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier", "gradient:extractor", "auxiliary"})
    limits: ClassVar[Limits] = Limits(linear_classifier=True, most_images=1)
    knowledge: ClassVar[str] = "gradient + auxiliary"
    rung: ClassVar[str] = "L4"
    presets: ClassVar[Presets] = {"smoke": {"epochs": 2}}
    revision: ClassVar[int] = 1  # 1: the label is an input

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """Trains once, then reads off all victims; UserError for batches and for classifiers that begin with convolutions."""
        if artifact.batch_size != 1 or not isinstance(artifact.model.classifier, LinearClassifier):
            raise UserError(
                "learned-inverse reads one image per gradient off a classifier that begins with a linear layer; "
                "try --attack staged"
            )
        assert knowledge.auxiliary is not None, "the needs name auxiliary images"
        own = problem.make(artifact, seed, torch.float32)
        auxiliary = knowledge.auxiliary
        told = artifact.labels is not None
        settings = {
            "epochs": self.epochs, "lr": self.lr, "variance": own.variance, "seed": seed, "told": told,
            "revision": self.revision,
        }  # fmt: skip
        networks = [t for part in ("extractor", "classifier") for t in own.weights[part].values()]
        made = training_cache.cached(
            knowledge.cache, "learned-inverse", settings, [*networks, *auxiliary],
            lambda: self._train(own, auxiliary, told, seed, progress), auxiliary.images.device,
        )  # fmt: skip
        trace = made.pop("trace")
        with torch.no_grad():
            x = invert(made, seen(own, labels.probabilities(artifact)[:, 0])).unflatten(1, (1, *artifact.image_shape))
        loss = trace[-1].expand(artifact.victims)
        first = torch.zeros_like(own.labels[:, 0])
        evaluations = len(knowledge.auxiliary.labels)
        return Reconstruction(x, own.labels, loss, trace.expand(artifact.victims, -1), first, evaluations)

    def _train(
        self, own: InversionProblem, auxiliary: Batch, told: bool, seed: int, progress: Progress
    ) -> dict[str, Tensor]:
        """The network of the best epoch, and "trace": the lowest error on held-out images so far [epochs + 1]."""
        rng = stream(seed, "attacker", "learned inverse")
        device = auxiliary.images.device
        signals, x = simulated(own, auxiliary, told), auxiliary.images.flatten(1)
        held = torch.arange(len(x), device=device) % HELD_OUT == HELD_OUT - 1
        train, test = (torch.nonzero(rows)[:, 0] for rows in (~held, held if bool(held.any()) else ~held))
        net = initial(Signals(*(t[train] for t in noised(signals, own, told, rng))), x[train], rng)
        test_input = noised(Signals(*(t[test] for t in signals)), own, told, rng)
        leaves = {n: net[n].requires_grad_() for n in LAYERS}
        optimiser = torch.optim.Adam(leaves.values(), self.lr)
        best, kept, trace = torch.tensor(torch.inf), leaves, []
        for epoch in range(self.epochs + 1):
            progress(epoch, self.epochs, "learned inverse")
            with torch.no_grad():
                error = F.mse_loss(invert(net, test_input), x[test]).cpu()
            if error < best:
                best, kept = error, {n: t.detach().clone() for n, t in leaves.items()}
            trace.append(best)
            if epoch == self.epochs:
                break
            inputs = noised(signals, own, told, rng)
            for rows in train[torch.randperm(len(train), generator=rng).to(device)].split(BATCH):
                optimiser.zero_grad()
                F.mse_loss(invert(net, Signals(*(t[rows] for t in inputs))), x[rows]).backward()
                optimiser.step()
        return {n: t.detach().contiguous() for n, t in (net | kept).items()} | {"trace": torch.stack(trace).to(device)}


def initial(inputs: Signals, images: Tensor, rng: torch.Generator) -> dict[str, Tensor]:
    """A perceptron between the principal components of its inputs and of images [N, D]."""
    flat = torch.cat(inputs[:3], 1)
    net = {"middle": flat.mean(0), "scale": flat.std(0).clamp_min(1e-12), "mean": images.mean(0)}
    net["components"], net["size"] = _principal((flat - net["middle"]) / net["scale"], INPUTS)
    net["basis"], net["spread"] = _principal(images - net["mean"], OUTPUTS)
    widths = (len(net["components"]) + inputs.y.shape[1], HIDDEN, HIDDEN, len(net["basis"]))
    for layer, (before, after) in enumerate(pairwise(widths)):
        gain = 0.1 if layer == 2 else 1.0  # begins near the mean image
        w = gain * torch.randn(after, before, generator=rng) * (2 / before) ** 0.5
        net |= {f"w{layer}": w.to(flat), f"b{layer}": flat.new_zeros(after)}
    return net


def invert(net: dict[str, Tensor], signals: Signals) -> Tensor:
    """Images [N, D]."""
    z = ((torch.cat(signals[:3], 1) - net["middle"]) / net["scale"]).clamp(-10, 10) @ net["components"].T / net["size"]
    z = torch.cat([z, signals.y.to(z)], 1)
    z = F.leaky_relu(F.linear(z, net["w0"], net["b0"]), SLOPE)
    z = F.leaky_relu(F.linear(z, net["w1"], net["b1"]), SLOPE)
    return net["mean"] + (F.linear(z, net["w2"], net["b2"]) * net["spread"]) @ net["basis"]


def simulated(own: InversionProblem, auxiliary: Batch, told: bool) -> Signals:
    """The signals of every auxiliary image's gradient at the problem's networks, without noise.

    Its y is the label itself where labels are known (`told`).
    """
    extractor, classifier = own.model.net("extractor"), own.model.classifier
    assert isinstance(classifier, LinearClassifier), "the caller has checked the classifier"

    def loss(leaves: Parts, x: Tensor, y: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        h, _ = extractor.apply(leaves["extractor"], own.buffers["extractor"], x[None], train=own.train)
        logits, inputs = classifier.linear_layers(own.weights["classifier"] | leaves["classifier"], h)
        return F.cross_entropy(logits, y[None]), (inputs["fc1"][0], logits[0], inputs[classifier.logits_layer][0])

    leaves = {"extractor": own.weights["extractor"], "classifier": {"fc1.bias": own.weights["classifier"]["fc1.bias"]}}

    def one(x: Tensor, y: Tensor) -> Tensor:
        gradient, (h, logits, last) = grad(loss, has_aux=True)(leaves, x, y)
        label = (torch.arange(len(logits), device=y.device) == y).to(logits)
        error = logits.softmax(0) - label
        error = labels.estimate(error, error * last.sum(), len(last)) if own.variance else error
        return torch.cat([
            gradient["classifier"]["fc1.bias"], h, _flat(gradient["extractor"]), label if told else error,
        ])  # fmt: skip

    pairs = zip(auxiliary.images.split(PIECE), auxiliary.labels.split(PIECE), strict=True)
    found = torch.cat([each_of(one)(x, y) for x, y in pairs]).detach()
    widths = [*own.weights["classifier"]["fc1.weight"].shape, own.model.classes]
    return Signals(*found.split([*widths[:2], found.shape[1] - sum(widths), widths[2]], 1))


def noised(signals: Signals, own: InversionProblem, told: bool, rng: torch.Generator) -> Signals:
    """The signals of `simulated` as they follow from gradients with the problem's noise on every entry; y as probabilities.

    The least-squares h of attacks/common/closed_form.py is b' (d h' + N) / |b|^2 with b = d + n; given b, b' N is normal again,
    of variance |b|^2 sigma^2.
    """
    variance = own.variance
    if not variance:
        return signals if told else signals._replace(y=labels.given_error(signals.y, 0))

    def noise(like: Tensor) -> Tensor:
        return variance**0.5 * torch.randn(like.shape, generator=rng).to(like)

    b = signals.d + noise(signals.d)
    energy = b.square().sum(1, keepdim=True).clamp_min(1e-30)
    h = ((b * signals.d).sum(1, keepdim=True) * signals.h + energy.sqrt() * noise(signals.h)) / energy
    e, y = signals.e + noise(signals.e), signals.y
    if not told:
        left = variance / labels.precision(
            own.weights["classifier"][f"{own.model.classifier.logits_layer}.weight"].shape[1]
        )
        y = labels.given_error(y + (left / variance) ** 0.5 * noise(y), left)
    return Signals(b, h, e, y)


def seen(own: InversionProblem, y: Tensor) -> Signals:
    """The signals of the observed gradients, with the probabilities y [V, Y] of their labels."""
    rows, bias = own.observed["classifier/fc1.weight"], own.observed["classifier/fc1.bias"]
    e = torch.cat([own.observed[f"extractor/{n}"].flatten(1) for n in own.weights["extractor"]], 1)
    h = closed_form.least_squares(rows, bias)
    if not own.variance:
        h = closed_form.undropped(own.model, h.unflatten(1, own.model.feature_shape), closed_form.ZERO).h.flatten(1)
    return Signals(bias, h, e, y.to(e))


def _flat(params: Params) -> Tensor:
    return torch.cat([t.flatten() for t in params.values()])


def _principal(rows: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """(orthonormal directions [k, n], their standard deviations [k]) of centred rows [N, n], k at most `most`."""
    _, size, directions = torch.linalg.svd(rows, full_matrices=False)
    size = size / len(rows) ** 0.5
    k = max(1, min(most, int((size > 1e-6 * size[0]).sum())))
    return directions[:k].contiguous(), size[:k].clamp_min(1e-12)
