"""Recipes: ways to come by extractors in place of the clients' private ones.

A recipe says how it makes extractors, how far the victims' features lie from what these let expect, and in which shadow
federation it is validated (attacks/shadow/selection.py). Here are surrogates trained by cross-entropy through the broadcast
classifier alone (attacks/shadow/surrogate_training.py), and the extractors of colluding clients.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

from attacks.common import training_cache
from attacks.features.inversion import Extractors
from attacks.shadow import shadow_federation, surrogate_training
from attacks.shadow.settings import SurrogateSettings
from attacks.shadow.shadow_federation import ServerView
from attacks.shadow.surrogate_training import Align
from privbench.seeds import stream
from privbench.tensors import Params
from privbench.types import Knowledge

ALIKE = 0.5  # a shift that is not worth a comparison


@dataclass(frozen=True)
class Recipe:
    """One way to come by extractors."""

    name: str
    extractors: Callable[[ServerView, int, Knowledge], Extractors]  # of (what the server sees, seed, knowledge)
    # Of (what the real server sees, its round, seed, knowledge): what the shadow's server sees, and its victims [V', C, H, W].
    shadow: Callable[[ServerView, int, int, Knowledge], tuple[ServerView, Tensor]]
    settings: Mapping[str, Any]  # that the outcome of its shadow validation depends on
    # Of (what a server sees, its extractors, seed, knowledge): how far its victims' features are from what those let expect.
    shift: Callable[[ServerView, Extractors, int, Knowledge], float]
    negligible: float = ALIKE  # a shift that is sound whatever the shadow's was
    # Whether features without noise are compared by their logits, tau relative to the logits' spread.
    by_logits: bool = False


def surrogates(settings: SurrogateSettings) -> Recipe:
    """The same surrogates for every client: cross-entropy through C alone, each from a start of its own."""

    def extractors(view: ServerView, seed: int, knowledge: Knowledge) -> Extractors:
        return trained_alone(settings, view, seed, knowledge)

    return Recipe(
        "surrogate", extractors, shadow_of(settings), validation_settings(settings, SurrogateSettings), moment_shift
    )


def of_colluders(settings: SurrogateSettings) -> Recipe:
    """The extractor of each attacked client's colluder."""

    def extractors(view: ServerView, seed: int, knowledge: Knowledge) -> Extractors:
        return shadow_federation.of_clients(view, {client: [params] for client, params in view.colluder.items()})

    return Recipe(
        "colluder", extractors, shadow_of(settings), validation_settings(settings, SurrogateSettings), moment_shift
    )


def trained_alone(settings: SurrogateSettings, view: ServerView, seed: int, knowledge: Knowledge) -> Extractors:
    """Surrogates trained by cross-entropy alone, the same for all victims."""
    trained = training_cache.cached(
        knowledge.cache,
        f"surrogates-{view.name}",
        {"steps": settings.train_steps, "members": settings.members, "seed": seed},
        [*view.auxiliary, *view.classifier.values()],
        lambda: trained_members(settings, view, seed, "surrogate"),
        view.h.device,
    )
    return dict.fromkeys(view.victim.tolist(), unpacked(trained, settings.members))


def trained_members(
    settings: SurrogateSettings, view: ServerView, seed: int, name: str, align: Align | None = None, weight: float = 0.0
) -> dict[str, Tensor]:
    """`members` surrogates, each from a start of its own, whose draws belong to `name`; packed."""
    networks = []
    for m in range(settings.members):
        names = ("attacker", name, view.name, m)
        start = {n: t.to(view.h.device) for n, t in view.model.net("extractor").init(stream(seed, *names))[0].items()}
        rng = stream(seed, *names, "batches")
        networks.append(
            surrogate_training.train(
                view.model, start, view.classifier, view.auxiliary, settings.train_steps, rng, align, weight
            )
        )
    return packed(networks)


def shadow_of(
    settings: SurrogateSettings, start: Params | None = None, *, as_many_victims: bool = False
) -> Callable[[ServerView, int, int, Knowledge], tuple[ServerView, Tensor]]:
    """A shadow federation of as many rounds as the attacked one, at most `shadow_rounds`; its extractors begin at `start`.

    With `as_many_victims` its clients have as many as the median attacked client: more would promise too much, fewer too little.
    """

    def shadow(real: ServerView, round_: int, seed: int, knowledge: Knowledge) -> tuple[ServerView, Tensor]:
        rounds = min(round_, settings.shadow_rounds)
        usual = int(real.client.bincount()[real.clients].median())
        victims = usual if as_many_victims else None
        return shadow_federation.shadow(real, rounds, settings.shadow_steps, seed, knowledge, start, victims=victims)

    return shadow


def validation_settings(settings: SurrogateSettings, kind: type[SurrogateSettings]) -> dict[str, int | float | str]:
    """The settings of one kind that the outcome of a shadow validation depends on: all but the steps of an exact inversion."""
    return {f.name: getattr(settings, f.name) for f in fields(kind) if f.name != "exact_steps"}


def depends_on(view: ServerView) -> list[Tensor]:
    """All tensors that a shadow validation's outcome, or an aligned extractor, can depend on."""
    return [
        *view.auxiliary, *view.classifier.values(), view.h, view.labels, view.client, view.victim,
        *(() if view.noise is None else (view.noise,)),
        *(t for each in view.generated.values() for t in each),
    ]  # fmt: skip


def moment_shift(view: ServerView, extractors: Extractors, seed: int, knowledge: Knowledge) -> float:
    """How far the channel moments of victims' features are from their surrogates', relative to their own size; median client.

    By the first surrogate of each victim; where those of one client differ, the mean over them. Under noise only victims
    count whose uploads show features, and where there are none, the shift is inf: nothing says that the surrogates apply.
    """
    gaps = []
    for client in view.clients:
        of_client = view.client == client
        nets = {id(extractors[v][0]): extractors[v][0] for v in view.victim[of_client].tolist()}
        each = [surrogate_training.extract(view.model, params, view.auxiliary.images) for params in nets.values()]
        if view.noise is not None:
            of_client = of_client & shadow_federation.shows_features(view.noise, each[0])
        if not bool(of_client.any()):
            continue
        align = surrogate_training.to_features(view.h[of_client].to(each[0]))
        gaps.append(statistics.fmean(float(align(seen, view.auxiliary.labels)) for seen in each))
    return statistics.median(gaps) if gaps else math.inf


def packed(networks: list[Params]) -> dict[str, Tensor]:
    """Several networks in one dict."""
    return {f"{m}/{name}": t for m, params in enumerate(networks) for name, t in params.items()}


def unpacked(tensors: dict[str, Tensor], count: int) -> list[Params]:
    """The inverse of `packed`."""
    return [{n.partition("/")[2]: t for n, t in tensors.items() if n.partition("/")[0] == str(m)} for m in range(count)]
