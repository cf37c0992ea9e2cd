"""Shadow validation: which recipe, and how much weight of the features, serve best where the attacker knows the victims.

A recipe's surrogates are made and inverted in a shadow federation (attacks/shadow/shadow_federation.py). Of all recipes and error
levels tau the attacker takes what scores best there, tau = inf, the class mean, among them. A recipe is left out where the
victims' features lie farther from what its surrogates let expect than UNLIKE times what the shadow's did, and than a shift that
is negligible. So an inversion that would be hopeless ends at the class mean instead of in noise, without looking at the truth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attacks.common import batched, training_cache
from attacks.features import inversion
from attacks.features.inversion import ClassPrior, Extractors
from attacks.shadow import recipes as recipes_of
from attacks.shadow import shadow_federation
from attacks.shadow.recipes import Recipe
from attacks.shadow.shadow_federation import ServerView
from privbench.types import Knowledge, Progress

TAUS = (0.03, 0.1, 0.3, 0.6)  # of features in (0, 1); inf comes besides
UNLIKE = 1.5
FEWEST = 4  # auxiliary images without which there is no shadow validation, and so no inversion


class Choice(NamedTuple):
    """What the shadow validation recommends."""

    recipe: str
    tau: float  # inf: none of the recipes is worth anything


NOTHING = Choice("none", math.inf)


def best_of(
    recipes: Sequence[Recipe],
    steps: int,
    real: ServerView,
    round_: int,
    seed: int,
    knowledge: Knowledge,
    progress: Progress,
) -> Choice:
    """Of some recipes the one, and its tau, that serve best in the shadow; tau inf where none does.

    Whether the shadow applies takes extractors of the real federation. They are trained for the best recipe alone, and for the next
    best where it does not.
    """
    if len(real.auxiliary.labels) < FEWEST:
        return NOTHING
    left = sorted(recipes, key=lambda recipe: recipe.name)
    validations = {recipe.name: validated(recipe, steps, real, round_, seed, knowledge, progress) for recipe in left}
    while left:
        row, tau = best([validations[recipe.name]["psnr_db"].cpu() for recipe in left])
        recipe = left.pop(row)
        if math.isinf(tau):
            break
        if applies(recipe, real, float(validations[recipe.name]["shift"]), seed, knowledge):
            return Choice(recipe.name, tau)
    return NOTHING


def validated(
    recipe: Recipe, steps: int, real: ServerView, round_: int, seed: int, knowledge: Knowledge, progress: Progress
) -> dict[str, Tensor]:
    """PSNR in dB of every tau (the last is inf) and shadow victim: [T + 1, V']; and the shadow's shift.

    Attacks that share a recipe share what is kept of it.
    """

    def make() -> dict[str, Tensor]:
        other, images = recipe.shadow(real, round_, seed, knowledge)
        extractors = recipe.extractors(other, seed, knowledge)
        rows = torch.arange(len(other.h), device=other.h.device).repeat(len(TAUS))
        taus = torch.tensor(TAUS).repeat_interleave(len(other.h))
        images_by_tau = [
            invert(shadow_federation.select(other, rows), recipe, extractors, taus, steps, progress).x[:, 0],
            class_means(other).x[:, 0],
        ]
        error = (
            (torch.cat(images_by_tau).clamp(0, 1) - images.repeat(len(TAUS) + 1, 1, 1, 1)).square().flatten(1).mean(1)
        )
        psnr_db = -10 * torch.log10(error.clamp_min(1e-10)).view(len(TAUS) + 1, -1)
        return {"psnr_db": psnr_db, "shift": torch.tensor(recipe.shift(other, extractors, seed, knowledge))}

    return training_cache.cached(
        knowledge.cache,
        f"validation-{recipe.name.replace(' ', '-')}",
        {
            **recipe.settings,
            "seed": seed,
            "round": round_,
            "taus": TAUS,
            **shadow_federation.training_settings(real.training, real.model),
        },
        [*recipes_of.depends_on(real), *start_of(knowledge)],
        make,
        real.h.device,
    )


def applies(recipe: Recipe, real: ServerView, shadow_shift: float, seed: int, knowledge: Knowledge) -> bool:
    """Whether what the shadow said of a recipe says anything of the real federation."""
    extractors = recipe.extractors(real, seed, knowledge)
    shift = recipe.shift(real, extractors, seed, knowledge)
    alike = UNLIKE * shadow_shift if math.isfinite(shadow_shift) else 0.0
    return math.isfinite(shift) and shift <= max(alike, recipe.negligible)


def best(psnr_db: Sequence[Tensor]) -> tuple[int, float]:
    """(recipe, tau) of the greatest mean gain over the class mean (tau inf), each recipe's [T + 1, V'] by its own victims."""
    gains = torch.stack([each[:-1].mean(1) - each[-1].mean() for each in psnr_db])
    recipe, column = divmod(int(gains.argmax()), gains.shape[1])
    return recipe, TAUS[column] if gains[recipe, column] > 0 else math.inf


def invert(
    view: ServerView, recipe: Recipe, extractors: Extractors, taus: Tensor, steps: int, progress: Progress
) -> batched.Descent:
    """The images [V, 1, C, H, W] of a server's victims through the extractors that a recipe has for their clients."""
    variance = taus.to(view.h).square() + (0 if view.noise is None else view.noise)
    return shadow_federation.by_extractors(
        view,
        prior_of(view),
        extractors,
        variance,
        exact=recipe.by_logits and view.noise is None,
        steps=steps,
        progress=progress,
    )


def prior_of(view: ServerView) -> ClassPrior:
    """What an attacker thinks of the images before seeing features."""
    return inversion.learned(view.auxiliary, view.model.classes, view.h)


def class_means(view: ServerView) -> batched.Descent:
    """The floor `class-mean` of every victim, with nothing descended on; of uncertain labels what their probabilities give."""
    images, y = view.auxiliary.images.to(view.h), view.auxiliary.labels
    means = {c: images[y == c].mean(0) for c in set(y.tolist())}
    every = torch.stack([means.get(c, images.mean(0)) for c in range(view.model.classes)])
    x = shadow_federation.expected(view, every)[:, None]
    zero = torch.zeros_like(x[:, 0, 0, 0, 0])
    return batched.Descent(x, zero, zero[:, None], 0)


def start_of(knowledge: Knowledge) -> list[Tensor]:
    """The initial extractor, which a shadow may start from where the attacker knows it; nothing where not."""
    initial = {} if knowledge.initial is None else knowledge.initial.params["extractor"]
    return [initial[name] for name in sorted(initial)]
