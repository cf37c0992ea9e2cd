"""Extractors that are the victims' very own: distinguished from foreign ones without the truth, and inverted to the end.

In round 0 every client has the initial extractor, so that whoever knows it, or holds any one client's, holds all. Later ones
differ. Which it is, the inversion of attacks/features/inversion.py tells by its own objective,
    J(h) = min over z of ||logit E(x) - logit h||^2 / tau^2 + ||z||^2,
twice the negative logarithm of the posterior: of features that E did make, J is what it is for images of the attacker's own;
of foreign features no probable image explains the equations, and J is greater by orders of magnitude. E counts as a client's
own where the median J over the client's victims is at most ALIKE times the median over the attacker's images. Under noise the
victims with the least noise decide, whose features show a foreign extractor best, and the medians may differ by less, as J is that
of the noise at least. What passes is a client's own, or differs from it by less than the noise.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attacks.common import batched
from attacks.features import inversion
from attacks.features.inversion import Extractors
from attacks.shadow import shadow_federation, surrogate_training
from attacks.shadow.shadow_federation import ServerView
from privbench.tensors import Params
from privbench.types import Progress

TAU = 0.001  # of the logit of h, relative to its spread (docs/appendix/tuning.md)
SCREEN = 60  # steps after which J is compared
ALIKE = 5.0  # measured ratios after 40 steps: 1.5 in round 0, above 500 for foreign ones (docs/appendix/tuning.md)
ALIKE_NOISED = 1.5  # under noise
CLEAREST = 4.0  # of the noise of the victims that decide, relative to the least
IMAGES = 16  # of the attacker's own, at most


def variance(view: ServerView) -> Tensor:
    """The error variance [V] of each victim's features under its own extractor: that of the noise, or TAU^2 without any."""
    return torch.full_like(view.h[:, 0, 0, 0], TAU**2) if view.noise is None else view.noise


def invert(view: ServerView, nets: Extractors, steps: int, progress: Progress) -> batched.Descent:
    """The images [V, 1, C, H, W] of a server's victims through their own extractors."""
    prior = inversion.learned(view.auxiliary, view.model.classes, view.h)
    exact = view.noise is None
    return shadow_federation.by_extractors(
        view, prior, nets, variance(view), exact=exact, steps=steps, progress=progress
    )


def fitting(view: ServerView, extractors: dict[int, Params], steps: int, seed: int, progress: Progress) -> set[int]:
    """The attacked clients whose own extractor is the one that `extractors` has for them."""
    clients = torch.tensor(sorted(extractors), device=view.client.device)
    images, classes = (t[:IMAGES] for t in view.auxiliary)
    fit = set()
    for k in clients.tolist():
        h = surrogate_training.extract(view.model, extractors[k], images).to(view.h)
        of_client = view.client == k
        if view.noise is not None:
            of_client = of_client & (view.noise <= CLEAREST * view.noise[of_client].min())
        rows = torch.nonzero(of_client)[:, 0]
        noise = None if view.noise is None else shadow_federation.noise_levels(view.noise[rows], len(h), seed)
        h = h if noise is None else shadow_federation.noised(h, noise, seed)
        h, mask = (h, None) if view.known is None else shadow_federation.dropped(view, h, seed)
        shadow = view._replace(
            h=h,
            known=mask,
            noise=noise,
            labels=classes,
            probability=None,
            client=torch.full_like(classes, k),
            victim=torch.arange(len(h), device=h.device),
        )
        pair = (shadow_federation.select(view, rows), shadow)
        losses = [
            invert(each, shadow_federation.of_clients(each, {k: [extractors[k]]}), steps, progress).loss
            for each in pair
        ]
        # Noise below TAU^2, as that of a number format, is not reached in SCREEN steps, so that J differs as without any.
        ratio = ALIKE if noise is None or float(noise.median()) < TAU**2 else ALIKE_NOISED
        if float(losses[0].median()) <= ratio * float(losses[1].median()):
            fit.add(k)
    return fit
