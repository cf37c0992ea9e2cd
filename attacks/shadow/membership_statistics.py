"""What networks say of an image that may have trained them: numbers that are higher of a member than of another image.

confidence   z_y - log sum over j != y of exp z_j, z the logits C(E(x)) and y the label: Carlini et al.'s (IEEE S&P 2022, arXiv
             2112.03570) logit of the true class's probability, written so that it does not round to infinity
nearness     -log of the least mean square distance of E(x) from 64 features that the client's generator makes of class y,
             relative to their variance: GAN-Leaks (Chen et al., CCS 2020) in the space of features. Where there is a generator

Where the extractor is private, a surrogate stands for it: trained on auxiliary images through the broadcast classifier, aligned
to the moments of the client's generator where there is one (attacks/shadow/surrogate_training.py). No candidate is among its
training images.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attacks.shadow import shadow_federation, surrogate_training
from attacks.shadow.surrogate_training import PIECE
from attacks.shadow.trained_federations import OWN, Seen
from privbench.networks.model import Model
from privbench.seeds import stream
from privbench.tensors import Params
from privbench.types import Batch

ALIGN = 3.0  # weight of the alignment, as in attacks/shadow/settings.py
TINY = 1e-8


def of(model: Model, seen: Seen, asked: Batch, auxiliary: Batch, steps: int, seed: int) -> Tensor:
    """The statistics of each image, [N, 1] or [N, 2] float64; all draws are the same for every network and image."""
    made = None
    if OWN in seen.params:
        rng = stream(seed, "attacker", "membership", "generated")
        made = shadow_federation.made_by(model, seen.params[OWN], seen.buffers[OWN], rng)
    if "extractor" not in seen.params:
        surrogate = _surrogate(model, seen, made, auxiliary, steps, seed)
        seen = Seen(seen.params | {"extractor": surrogate}, seen.buffers | {"extractor": {}})
    h, logits = _outputs(model, seen, asked.images)
    columns = [confidence(logits, asked.labels)]
    if made is not None:
        columns.append(nearness(h, asked.labels, *made))
    return torch.stack(columns, 1)


def confidences(model: Model, seen: Seen, asked: Batch) -> Tensor:
    """The confidence of each image alone, [N] float64, by networks that have an extractor."""
    return confidence(_outputs(model, seen, asked.images)[1], asked.labels)


def _outputs(model: Model, seen: Seen, images: Tensor) -> tuple[Tensor, Tensor]:
    """Features [N, c, s, s] and logits [N, Y] of images, float64."""
    net, classifier = model.net("extractor"), model.net("classifier")
    with torch.no_grad():
        pieces = images.split(PIECE)
        h = torch.cat(
            [net.apply(seen.params["extractor"], seen.buffers["extractor"], x, train=False)[0] for x in pieces]
        )
        logits, _ = classifier.apply(seen.params["classifier"], seen.buffers["classifier"], h, train=False)
    return h.double(), logits.double()


def confidence(logits: Tensor, labels: Tensor) -> Tensor:
    """log p_y / (1 - p_y) of logits [N, Y]: [N]."""
    own = logits.gather(1, labels[:, None])[:, 0]
    return own - logits.scatter(1, labels[:, None], -torch.inf).logsumexp(1)


def nearness(h: Tensor, labels: Tensor, made: Tensor, classes: Tensor) -> Tensor:
    """How near features [N, c, s, s] are to those that were made [M, c, s, s] of the same class: [N]."""
    flat, others = h.flatten(1), made.to(h).flatten(1)
    spread = others.var(0).mean() + TINY
    near = torch.zeros(len(h), dtype=h.dtype, device=h.device)
    for y in labels.unique():
        rows = labels == y
        gap = torch.cdist(flat[rows], others[classes == y]).square().amin(1) / flat.shape[1]
        near[rows] = -(gap / spread + TINY).log()
    return near


def _surrogate(model: Model, seen: Seen, made: Batch | None, auxiliary: Batch, steps: int, seed: int) -> Params:
    start, _ = model.net("extractor").init(stream(seed, "attacker", "membership", "start"))
    start = {name: t.to(auxiliary.images.device) for name, t in start.items()}
    align = None
    if made is not None:
        align = surrogate_training.to_generator(surrogate_training.class_moments(*made, model.classes))
    rng = stream(seed, "attacker", "membership", "surrogate")
    classifier = seen.params["classifier"]
    return surrogate_training.train(model, start, classifier, auxiliary, steps, rng, align, ALIGN if made else 0.0)
