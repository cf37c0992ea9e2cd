"""A decoder trained through the true extractor of one client, and how much of its answer counts (attacks/oracle_decoder.py).

    x = mu_y + a D(h, y),  a = <D, x' - mu> / ||D||^2, within [0, 1],
with a from auxiliary images x' that D was not trained on (one in HELD_OUT). Where the gradient was noised, so are the features of
all auxiliary images.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attacks.common import training_cache
from attacks.shadow import learned_decoder, surrogate_training
from attacks.shadow.shadow_federation import ServerView
from privbench.tensors import Params
from privbench.types import Batch, Knowledge

HELD_OUT = 5  # of so many auxiliary images one is held out for the share


def answers(view: ServerView, net: Params, steps: int, means: Tensor, seed: int, knowledge: Knowledge) -> Tensor:
    """a D(h, y) of all victims of one client, [V, C, H, W], through its extractor `net`; D is kept on disk for other attacks."""
    depends_on = [*view.auxiliary, *(net[name] for name in sorted(net))]
    decoder = training_cache.cached(
        knowledge.cache,
        "oracle-decoder",
        {"decoder_steps": steps, "seed": seed},
        depends_on if view.noise is None else [*depends_on, view.noise],
        lambda: trained(view, net, steps, seed),
        view.h.device,
    )
    h = learned_decoder.shrunk(decoder, view.h, view.noise)
    return decoder["share"] * _answer(decoder, h, view.labels, view, means)


def trained(view: ServerView, net: Params, steps: int, seed: int) -> dict[str, Tensor]:
    """D of one client and its "share", a."""
    images, classes = view.auxiliary
    held_out = torch.arange(len(images), device=images.device) % HELD_OUT == 0
    fitted, other = Batch(images[~held_out], classes[~held_out]), Batch(images[held_out], classes[held_out])
    training = view._replace(auxiliary=fitted)
    decoder = learned_decoder.fitted(
        training, [surrogate_training.extract(view.model, net, fitted.images)], steps, seed
    )
    means = learned_decoder.class_means(training)[other.labels]
    clean = surrogate_training.extract(view.model, net, other.images)
    seen = learned_decoder.with_noise(decoder, view, clean, seed, "held out")
    copies = [_answer(decoder, h, other.labels, view, means) for h in seen]
    answer = torch.cat(copies).flatten(1)
    missing = (other.images - means).flatten(1).repeat(len(copies), 1)
    share = ((answer * missing).sum() / answer.square().sum().clamp_min(1e-12)).clamp(0, 1)
    return {**decoder, "share": share}


def _answer(decoder: Params, h: Tensor, y: Tensor, view: ServerView, like: Tensor) -> Tensor:
    """D(h, y) without a, shaped as the images."""
    return learned_decoder.decode(decoder, h.to(like), y, view.model.classes, like)
