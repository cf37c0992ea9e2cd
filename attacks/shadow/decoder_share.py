"""How much of the decoder's answer is worth keeping, settled in a shadow federation.

D is trained through aligned surrogates, one of each client (attacks/shadow/alignment.py), and reads no features that its
surrogates were aligned to. Real extractors disagree more than surrogates do; how much of D's answer is worth keeping,
    x = mu_y + a D(h, y),  a = [<D', x' - mu> / ||D'||^2, within [0, 1]] min(1, ||D'||^2 / ||D||^2),
is settled by a decoder D' trained in the same way in the shadow federation (attacks/shadow/shadow_federation.py), where that
applies (attacks/shadow/selection.py); norms are mean squares over victims and pixels. The least-squares share of D itself,
<D, x - mu> / ||D||^2, has a numerator that nobody knows; the one of the shadow's victims x' takes its place, and the denominator
is there to be seen. Features unlike those that D was trained on make it extrapolate: its answers grow, though they say no more of
the images, and count for less.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attacks.common import training_cache
from attacks.features.inversion import Extractors
from attacks.shadow import alignment, learned_decoder, recipes, selection, shadow_federation
from attacks.shadow.recipes import Recipe
from attacks.shadow.shadow_federation import ServerView
from privbench.tensors import Params
from privbench.types import Knowledge


class Share(NamedTuple):
    """What the shadow validation says of D's answers."""

    share: float  # in [0, 1], that is worth keeping of them
    energy: float  # their mean square


NOTHING = Share(0.0, 0.0)


def validated(
    recipe: Recipe,
    steps: int,
    settings: Mapping[str, Any],
    real: ServerView,
    round_: int,
    seed: int,
    knowledge: Knowledge,
) -> Share:
    """How much of D's answer is worth keeping; 0 unless it helps in the shadow by a standard error, and the shadow applies here.

    `steps` are those of D, `settings` what the outcome depends on besides the tensors.
    """
    outcome = training_cache.cached(
        knowledge.cache,
        "validation-decoder",
        {**settings, "seed": seed, "round": round_, **shadow_federation.training_settings(real.training, real.model)},
        recipes.depends_on(real),
        lambda: in_shadow(recipe, steps, real, round_, seed, knowledge),
        real.h.device,
    )
    if not outcome["share"] or not selection.applies(recipe, real, float(outcome["shift"]), seed, knowledge):
        return NOTHING
    return Share(float(outcome["share"]), float(outcome["energy"]))


def in_shadow(
    recipe: Recipe, steps: int, real: ServerView, round_: int, seed: int, knowledge: Knowledge
) -> dict[str, Tensor]:
    """The share and energy of D' on the shadow's victims, and the shadow's shift."""
    other, images = recipe.shadow(real, round_, seed, knowledge)
    means = learned_decoder.class_means(other)[other.labels]
    extractors = recipe.extractors(other, seed, knowledge)
    answer = answers(other, extractors, steps, seed, knowledge).flatten(1)
    missing = (images - means).flatten(1)
    share = ((answer * missing).sum() / answer.square().sum().clamp_min(1e-12)).clamp(0, 1)
    gain = missing.square().mean(1) - (missing - share * answer).square().mean(1)
    helps = gain.mean() > gain.std() / math.sqrt(len(gain))
    shift = torch.tensor(recipe.shift(other, extractors, seed, knowledge))
    return {"share": share * helps, "energy": answer.square().mean(), "shift": shift}


def answers(view: ServerView, members: Extractors, steps: int, seed: int, knowledge: Knowledge) -> Tensor:
    """D(h, y) of all victims, [V, C, H, W]; each fold's D is trained through surrogates that are not aligned to it."""
    dealt, means = alignment.folds(view), learned_decoder.class_means(view)[view.labels]
    answer = torch.zeros_like(means)
    for fold in sorted(set(dealt.tolist())):
        rows = torch.nonzero(dealt == fold)[:, 0]
        pairs = zip(view.client[rows].tolist(), view.victim[rows].tolist(), strict=True)
        networks = [members[victim][0] for _, victim in sorted(dict(pairs).items())]
        params = _trained(view, networks, steps, seed, knowledge)
        h = learned_decoder.shrunk(params, view.h[rows].float(), None if view.noise is None else view.noise[rows])
        answer[rows] = learned_decoder.decode(params, h, view.labels[rows], view.model.classes, means[rows])
    return answer


def _trained(view: ServerView, networks: list[Params], steps: int, seed: int, knowledge: Knowledge) -> Params:
    """D of one federation, trained through one surrogate of each of its clients."""
    return training_cache.cached(
        knowledge.cache,
        f"decoder-{view.name}",
        {"decoder_steps": steps, "seed": seed},
        [
            *view.auxiliary,
            *(params[name] for params in networks for name in sorted(params)),
            *(() if view.noise is None else (view.noise,)),
        ],
        lambda: learned_decoder.train(view, networks, steps, seed),
        view.h.device,
    )


def carried_over(validated: Share, answer: Tensor) -> float:
    """The share of real answers [V, ...] that is worth keeping: less than in the shadow where these are larger."""
    energy = float(answer.square().mean())
    return validated.share * min(1.0, validated.energy / energy) if energy > 0 else 0.0
