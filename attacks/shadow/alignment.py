"""Surrogates whose features are aligned, client by client, to the client's generator and to its other victims' features.

Each begins at a plain surrogate, or at the initial extractor, and goes on with the alignment terms of
attacks/shadow/surrogate_training.py: class-conditional means and channel covariances of what the client's uploaded generator makes,
or the sliced distance from it (sliced_transport.py; FedCG and its like, without a generator this term is left out); channel means
and covariances of its victims' closed-form features, which the attacker holds anyway; and the distance of each of these features
from the mean of its class. Victims' by moments, not adversarially: a client has a few victims here, too few for a discriminator.

A victim's own features do not align the surrogate that it is inverted through: that would draw its class mean to them, and so the
image to the class's mean image, and the shadow validation's measure of fit to 0. A client's victims are dealt into FOLDS folds, of
one victim each where there are no more; each fold has a surrogate, aligned to the others. Fewer than FEWEST_OTHERS others say
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from attacks.common import training_cache
from attacks.features.inversion import Extractors
from attacks.shadow import recipes, sliced_transport, surrogate_training
from attacks.shadow.recipes import Recipe
from attacks.shadow.settings import AlignedSettings
from attacks.shadow.shadow_federation import ServerView
from attacks.shadow.surrogate_training import Align
from privbench.seeds import stream
from privbench.tensors import Params
from privbench.types import Knowledge

FOLDS = 4  # of a client's victims, at most
FEWEST_OTHERS = 2  # victims of whose features there is a spread
FROM_INITIAL = "from initial"


def aligned(settings: AlignedSettings) -> Recipe:
    """One surrogate per client and fold of its victims, aligned from a plain one."""

    def extractors(view: ServerView, seed: int, knowledge: Knowledge) -> Extractors:
        return from_plain(settings, view, seed, knowledge)

    return Recipe(
        "aligned",
        extractors,
        recipes.shadow_of(settings),
        recipes.validation_settings(settings, AlignedSettings),
        recipes.moment_shift,
    )


def from_initial(settings: AlignedSettings, initial: Params) -> Recipe:
    """The same from the initial extractor, validated in a shadow federation whose clients start there too."""

    def extractors(view: ServerView, seed: int, knowledge: Knowledge) -> Extractors:
        return from_start(settings, view, initial, "initial", seed, knowledge)

    return Recipe(
        FROM_INITIAL,
        extractors,
        recipes.shadow_of(settings, initial),
        recipes.validation_settings(settings, AlignedSettings),
        recipes.moment_shift,
    )


def from_plain(settings: AlignedSettings, view: ServerView, seed: int, knowledge: Knowledge) -> Extractors:
    """Aligned surrogates that begin at the first plain one."""
    plain = recipes.trained_alone(settings, view, seed, knowledge)
    return from_start(settings, view, plain[min(plain)][0], "surrogate", seed, knowledge)


def from_start(
    settings: AlignedSettings, view: ServerView, start: Params, begun: str, seed: int, knowledge: Knowledge
) -> Extractors:
    """One surrogate per client and fold of its victims, all from one start, called `begun`."""
    dealt = folds(view)
    pairs = sorted(set(zip(view.client.tolist(), dealt.tolist(), strict=True)))

    def make() -> dict[str, Tensor]:
        return recipes.packed([
            surrogate_training.train(
                view.model, start, view.classifier, view.auxiliary, settings.align_steps,
                stream(seed, "attacker", "aligned", view.name, client),
                terms(view, client, dealt != fold, _to_generator(settings, view, client, seed)), settings.align_weight,
            )
            for client, fold in pairs
        ])  # fmt: skip

    trained = training_cache.cached(
        knowledge.cache,
        f"aligned-{view.name}",
        {
            "seed": seed, "align_steps": settings.align_steps, "align_weight": settings.align_weight, "from": begun,
            "alignment": settings.alignment,
        },
        [*recipes.depends_on(view), *(start[name] for name in sorted(start))],
        make,
        view.h.device,
    )  # fmt: skip
    each = {pair: [params] for pair, params in zip(pairs, recipes.unpacked(trained, len(pairs)), strict=True)}
    victims = zip(view.victim.tolist(), view.client.tolist(), dealt.tolist(), strict=True)
    return {victim: each[client, fold] for victim, client, fold in victims}


def folds(view: ServerView) -> Tensor:
    """Which fold of its client's victims each victim is in, in turn: [V] int64 below FOLDS."""
    each = F.one_hot(view.client, int(view.client.max()) + 1)
    place = (each.cumsum(0) * each).sum(1) - 1
    return place % FOLDS


def _to_generator(settings: AlignedSettings, view: ServerView, client: int, seed: int) -> Sequence[Align]:
    """The term of a client's generator; none where it has none."""
    if client not in view.generated:
        return []
    generated = view.generated[client]
    if settings.alignment == "moments":
        return [surrogate_training.to_generator(surrogate_training.class_moments(*generated, view.model.classes))]
    along = sliced_transport.directions(generated.images[0].numel(), stream(seed, "attacker", "directions"))
    return [sliced_transport.to_generated(generated, along)]


def terms(view: ServerView, client: int, others: Tensor, to_generator: Sequence[Align]) -> Align:
    """The sum of the alignment terms of one client: its generator's, and of those of its victims that are among `others` [V] bool.

    Noisy features have other moments, so they are left out.
    """
    each = list(to_generator)
    aligned_to = (view.client == client) & others
    if view.noise is None and int(aligned_to.sum()) >= FEWEST_OTHERS:
        observed = view.h[aligned_to].float()
        each += [
            surrogate_training.to_features(observed),
            surrogate_training.to_victims(observed, view.labels[aligned_to]),
        ]

    def align(h: Tensor, labels: Tensor) -> Tensor:
        return sum((term(h, labels) for term in each), h.new_zeros(()))

    return align
