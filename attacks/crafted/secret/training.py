"""Networks trained so that, behind a secret projection, the gradient of a batch is that of its brightest image.

The first linear layer of C has dL/dz_j = d_j and gradients sum_i d_j(x_i) [1 | h_i]. The server draws M secret directions u_m over
its rows from its seed. Behind them a batch leaves
    t_m = sum_i a_m(x_i),   S_m = sum_i a_m(x_i) h_i,   a_m(x) = u_m d(x)
It trains E and C by gradient descent on images of its own, in batches as large as the victims', until a(x) is far smaller for all
images but the brightest (the null space), though d(x) is not. Then S_m / t_m is the brightest image's h. The losses are
    1.  cross-entropy + REBUILT ||r(E(x)) - x||^2           over E, C and r: features that give the image back
    2.  cross-entropy + softplus(log sum_{i != b} a_m(x_i)^2 - log a_m(x_b)^2 + MARGIN) + softplus(log FLOOR^2 - log a_m(x_b)^2)
        + HIDDEN softplus(2 log max_i |d(x_i)|^2 / sum_j |d(x_j)|^2)       over C; b: the brightest; j other than i
The last term, which is there of W' d as well, is for clients that compare the gradients of their images: no image may lead
before the projection. The
derivatives of 2 pass through d, which is a gradient itself. Batches whose brightest image is hardly brighter are left out.

Garov, Dimitrov, Jovanovic, Vechev: Hiding in Plain Sight: Disguising Data Stealing Attacks in Federated Learning, ICLR 2024, arXiv
2306.03013, section 4. Deviations, made so that minutes of a CPU do:
    - training begins at the broadcast, keeps its cross-entropy, and ends E before it hides images; the paper trains all at once
      from scratch, for days of a GPU, on the gradient's losses alone;
    - the projection takes the first linear layer's rows, M ROWS of them, with random signs; the paper's takes random entries of all
      layers, and is trained. Which rows it takes is as secret, and their weights are trained in its place;
    - LeNet-5 has no batch norm by which an image knows its batch. So the brightest image of each batch is to outweigh the others,
      where the paper lets images above a threshold through;
    - the term HIDDEN, and label smoothing, without which confident images would have no gradient that could be read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.crafted.secret import reconstructor
from privbench.networks.base import LinearClassifier
from privbench.networks.model import Model
from privbench.seeds import stream
from privbench.tensors import Params, Parts
from privbench.types import CLASSIFICATION, Batch, Networks, Progress, no_progress

DIRECTIONS, ROWS = 4, 10  # M, and how many rows each takes
SMOOTHING = 0.2  # of labels
REBUILT, HIDDEN = 20.0, 0.3  # weights of losses
MARGIN = 6.0  # nats of energy: a factor of 20 between the brightest and all others
FLOOR = 1e-5  # what a(x) of the brightest image should exceed
CLEAR = 0.75  # share of batches trained on: those in which the brightest image is furthest ahead
IMAGES, PER_STEP = 64, 256  # of a step of 1., and of 2.
FEWEST_BATCHES = 4
COPIES = 20  # of each auxiliary image, slightly changed
BRIGHTER, TURNED, MOVED = 0.15, 0.036, 0.03  # by how much at most: a factor, radians and scale, half sides
LR, FAST_LR, LONGEST = 1e-3, 3e-3, 5.0  # of Adam, and the norm to which gradients are clipped
SMALLEST = 1e-14
HELD_OUT = 5  # every fifth image


@dataclass(frozen=True)
class SecretTraining:
    """How long each part is trained; the brightest image survives, or the darkest."""

    start_steps: int
    train_steps: int
    darkest: bool


def secret(seed: int, rows: int) -> Tensor:
    """The directions [M, rows] of this attacker, orthonormal."""
    rng = stream(seed, "attacker", "seer", "secret")
    take = min(ROWS, rows // DIRECTIONS)
    order, u = torch.randperm(rows, generator=rng), torch.zeros(DIRECTIONS, rows)
    for m in range(DIRECTIONS):
        signs = 2 * torch.randint(2, (take,), generator=rng) - 1
        u[m, order[m * take : (m + 1) * take]] = signs / take**0.5
    return u


def responses(model: Model, classifier: Params, h: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """(d [N, m] of each image by itself, logits [N, Y]) at features [N, n]; a graph is kept for the derivatives of d."""
    c = model.classifier
    assert isinstance(c, LinearClassifier), "the limits say so"
    bias = f"{c.features_layer}.bias"
    each = classifier[bias].expand(len(h), -1).clone().requires_grad_()
    with torch.enable_grad():
        logits, _ = c.linear_layers(classifier | {bias: each}, h)
        loss = F.cross_entropy(logits, y, reduction="sum")
        (d,) = torch.autograd.grad(loss, each, create_graph=True)
    return d, logits


def features(model: Model, extractor: Params, images: Tensor) -> Tensor:
    """h [N, n], in pieces."""
    net = model.net("extractor")
    with torch.no_grad():
        return torch.cat([net.apply(extractor, {}, x, train=True)[0].flatten(1) for x in images.split(1000)])


def changed(images: Tensor, rng: torch.Generator) -> Tensor:
    """Images a little brighter or darker, turned, scaled and moved."""
    count = len(images)

    def draw() -> Tensor:
        return 2 * torch.rand(count, generator=rng) - 1

    light, turn, scale = 1 + BRIGHTER * draw(), TURNED * draw(), 1 + TURNED * draw()
    across, down = MOVED * draw(), MOVED * draw()
    cos, sin = scale * turn.cos(), scale * turn.sin()
    maps = torch.stack([torch.stack([cos, -sin, across], 1), torch.stack([sin, cos, down], 1)], 1).to(images)
    grid = F.affine_grid(maps, list(images.shape), align_corners=False)
    lit = (images * light.view(-1, 1, 1, 1).to(images)).clamp(0, 1)
    return F.grid_sample(lit, grid, padding_mode="border", align_corners=False)


def copies(images: Batch, rng: torch.Generator) -> Batch:
    """Every image, and COPIES - 1 changed ones of it."""
    more = [changed(images.images, rng) for _ in range(COPIES - 1)]
    return Batch(torch.cat([images.images, *more]), images.labels.repeat(COPIES))


def parted(images: Batch) -> tuple[Batch, Batch]:
    """(those that train, every fifth, which is held out)."""
    out = torch.arange(len(images.labels), device=images.labels.device) % HELD_OUT == HELD_OUT - 1
    out = out & (len(out) >= HELD_OUT)
    return Batch(*(t[~out] for t in images)), Batch(*(t[out] for t in images))


def networks(
    model: Model, broadcast: Networks, images: Batch, batch_size: int, training: SecretTraining, seed: int,
    progress: Progress = no_progress,
) -> Networks:  # fmt: skip
    """E and C to send in place of the broadcast ones, trained on images of the attacker's for batches of so many."""
    rng = stream(seed, "attacker", "seer", "training")
    params: Parts = {
        part: {n: t.detach().clone().requires_grad_() for n, t in broadcast.params[part].items()}
        for part in CLASSIFICATION
    }
    _readable(model, params, images, training.start_steps, rng, progress)
    _hiding(model, params, images, batch_size, training, secret(seed, _rows(model, params)), rng, progress)
    return Networks({part: {n: t.detach() for n, t in net.items()} for part, net in params.items()}, {})


def _rows(model: Model, params: Parts) -> int:
    return len(params["classifier"][f"{model.classifier.features_layer}.bias"])


def _readable(model: Model, params: Parts, images: Batch, steps: int, rng: torch.Generator, progress: Progress) -> None:
    """1.; an untrained broadcast is trained by cross-entropy first, half as long."""
    leaves = [t for net in params.values() for t in net.values()]
    x, y = images
    extractor = model.net("extractor")

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        h, _ = extractor.apply(params["extractor"], {}, x, train=True)
        logits, _ = model.net("classifier").apply(params["classifier"], {}, h, train=True)
        return h.flatten(1), logits

    with torch.no_grad():
        untrained = float(F.cross_entropy(both(x)[1], y)) > math.log(model.classes) / 2
    optimiser = torch.optim.Adam(leaves, FAST_LR)
    for _ in range(steps // 2 if untrained else 0):
        rows = torch.randint(len(y), (IMAGES,), generator=rng)
        optimiser.zero_grad()
        F.cross_entropy(both(x[rows])[1], y[rows]).backward()
        optimiser.step()
    r = reconstructor.initial(features(model, params["extractor"], x), x, rng)
    optimiser = torch.optim.Adam([*leaves, *reconstructor.trained(r)], LR)
    for step in range(steps):
        progress(step, steps, "seer: features")
        rows = torch.randint(len(y), (IMAGES,), generator=rng)
        seen = changed(x[rows], rng)
        h, logits = both(seen)
        loss = F.cross_entropy(logits, y[rows], label_smoothing=SMOOTHING)
        optimiser.zero_grad()
        (loss + REBUILT * F.mse_loss(reconstructor.decoded(r, h), seen.flatten(1))).backward()
        optimiser.step()


def _hiding(
    model: Model, params: Parts, images: Batch, size: int, training: SecretTraining, u: Tensor, rng: torch.Generator,
    progress: Progress,
) -> None:  # fmt: skip
    """2., on features of images and their changed copies."""
    every = copies(images, rng)
    h, y, light = features(model, params["extractor"], every.images), every.labels, every.images.flatten(1).mean(1)
    light = -light if training.darkest else light
    c, steps, count = params["classifier"], training.train_steps, max(PER_STEP // size, FEWEST_BATCHES)
    optimiser = torch.optim.Adam(c.values(), FAST_LR)
    anneal = torch.optim.lr_scheduler.LambdaLR(optimiser, partial(_annealed, steps))
    for step in range(steps):
        progress(step, steps, "seer: null space")
        rows = torch.randint(len(y), (count, size), generator=rng)
        top = light[rows].topk(2, 1)
        ahead = top.values[:, 0] - top.values[:, 1]
        rows = rows[ahead >= ahead.quantile(1 - CLEAR)]
        d, logits = responses(model, c, h[rows.flatten()], y[rows.flatten()])
        loss = F.cross_entropy(logits, y[rows.flatten()], label_smoothing=SMOOTHING)
        energy = (d @ u.T).square().unflatten(0, rows.shape)
        loss = loss + surviving(energy, light[rows].argmax(1)) + HIDDEN * leading(model, c, d, size)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(c.values(), LONGEST)
        optimiser.step()
        anneal.step()


def surviving(energy: Tensor, brightest: Tensor) -> Tensor:
    """How far the others of each batch are from the null space: a^2 [K, B, M] and who is the brightest [K] -> []."""
    own = energy[torch.arange(len(energy)), brightest]
    others = ((energy.sum(1) - own).clamp_min(0) + SMALLEST).log()
    own = (own + SMALLEST).log()
    return (F.softplus(others - own + MARGIN) + F.softplus(2 * math.log(FLOOR) - own)).mean()


def leading(model: Model, classifier: Params, d: Tensor, size: int) -> Tensor:
    """How far one image leads each batch, in the first layer's gradient and behind it in the extractor's: d [K B, m] -> []."""
    weight, total = classifier[f"{model.classifier.features_layer}.weight"], d.new_zeros(())
    for each in (d, d @ weight):
        squares = each.square().sum(1).unflatten(0, (-1, size))
        largest = squares.amax(1)
        ratio = (largest + SMALLEST).log() - (squares.sum(1) - largest + SMALLEST).log()
        total = total + F.softplus(2 * ratio).mean()
    return total


def _annealed(steps: int, step: int) -> float:
    return 0.03 + 0.97 * (1 + math.cos(math.pi * min(step / steps, 1.0))) / 2
