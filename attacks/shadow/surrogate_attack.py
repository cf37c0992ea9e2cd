"""The attack on private extractors: closed-form features, inverted through surrogates as far as these can be trusted.

    1. h of every victim in closed form (attacks/common/closed_form.py).
    2. Extractors that the attacker holds whole (the initial one, a colluder's) may be the victims' very own, as in round 0, where
       all clients start alike. attacks/shadow/known_extractor.py recognises them without the truth, and inverts them as the oracle
       does.
    3. Recipes: ways to come by extractors in place of each other client's (attacks/shadow/recipes.py). An attacker with more
       knowledge has more recipes.
    4. Shadow validation chooses the recipe and the error level tau (attacks/shadow/selection.py). Where it trusts nothing, the
       class mean is returned without a descent, and the reconstruction says so: its trace has one entry, or is NaN after it where
       others were descended on.
    5. Inversion of the real features with that choice (attacks/features/inversion.py).
A challenger is a recipe whose shadow flatters it, so that shadows do not compare it with the others. It is taken where the
others give nothing, or where it explains most victims' real features better: by the objective of attacks/features/inversion.py at
one tau,
    J(h; E') = min over z of ||E'(x(z)) - h||^2 / tau^2 + ||z||^2,
twice the negative logarithm of the posterior at its mode.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.common import batched, failed_uploads
from attacks.features import per_image
from attacks.shadow import known_extractor, selection, shadow_federation
from attacks.shadow.recipes import Recipe
from attacks.shadow.selection import Choice
from attacks.shadow.settings import SurrogateSettings
from attacks.shadow.shadow_federation import ServerView
from privbench.tensors import Params
from privbench.types import Artifact, Knowledge, Outcome, Progress, Reconstruction, no_progress


@dataclass(frozen=True)
class SurrogateAttack:
    """An attacker with some recipes; final, as attacks are composed of it and none extends it."""

    name: str  # in messages
    settings: SurrogateSettings
    recipes: tuple[Recipe, ...]
    challenger: Recipe | None = None
    extractors: Mapping[int, Params] = field(
        default_factory=dict
    )  # attacked client -> an extractor that may be its own
    # The recipe and tau in place of this attack's own choice, asked only where extractors are not known.
    chosen: Callable[[], Choice] | None = None

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """All victims."""
        return of_sound_images(
            artifact, knowledge, seed, lambda sound: self.of_single(sound, knowledge, seed, progress), progress
        )

    def of_single(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """All victims; their gradients are finite, and of one image each."""
        real, steps = shadow_federation.real(artifact, knowledge, seed, self.name), self.settings.exact_steps
        candidates = {client: params for client, params in self.extractors.items() if client in real.clients}
        fitting = set[int]()
        if candidates:
            fitting = known_extractor.fitting(real, candidates, min(known_extractor.SCREEN, steps), seed, progress)
        sure = torch.tensor([int(k) in fitting for k in real.client], dtype=torch.bool, device=real.client.device)
        parts, outcome = list[tuple[Tensor, batched.Descent]](), torch.zeros_like(real.client)
        if bool(sure.any()):
            rows = torch.nonzero(sure)[:, 0]
            view = shadow_federation.select(real, rows)
            nets = shadow_federation.of_clients(view, {k: [candidates[k]] for k in fitting})
            parts.append((rows, known_extractor.invert(view, nets, steps, progress)))
        if not bool(sure.all()):
            rows = torch.nonzero(~sure)[:, 0]
            end = self.by_surrogates(shadow_federation.select(real, rows), artifact.round, seed, knowledge, progress)
            if end.trace.shape[1] == 1:
                outcome[rows] = Outcome.GAVE_UP
            if parts and end.trace.shape[1] == 1:
                undescended = (0, parts[0][1].trace.shape[1] - 1)
                end = end._replace(trace=F.pad(end.trace, undescended, value=math.nan))
            parts.append((rows, end))
        return batched.reconstruction(batched.joined(parts), 1, real.labels[:, None])._replace(outcome=outcome)

    def by_surrogates(
        self, real: ServerView, round_: int, seed: int, knowledge: Knowledge, progress: Progress
    ) -> batched.Descent:
        """The images of victims whose extractors the attacker does not hold."""
        choice = self.choice(real, round_, seed, knowledge, progress)
        if math.isinf(choice.tau):
            return selection.class_means(real)
        return self.invert(choice.recipe, choice.tau, real, seed, knowledge, progress)

    def choice(self, real: ServerView, round_: int, seed: int, knowledge: Knowledge, progress: Progress) -> Choice:
        """The recipe and tau that serve best in the shadow, or the challenger where that explains the victims' features better."""
        if self.chosen is not None:
            return self.chosen()
        # The recipes are validated as by an attacker without the initial networks, who has the same.
        without = replace(knowledge, initial=None)
        lower = selection.best_of(self.recipes, self.settings.steps, real, round_, seed, without, progress)
        if self.challenger is None:
            return lower
        challenge = selection.best_of((self.challenger,), self.settings.steps, real, round_, seed, knowledge, progress)
        if math.isinf(challenge.tau):
            return lower
        if math.isinf(lower.tau) or self.explains_more(challenge.recipe, lower, real, seed, knowledge, progress):
            return challenge
        return lower

    def explains_more(
        self, recipe: str, than: Choice, real: ServerView, seed: int, knowledge: Knowledge, progress: Progress
    ) -> bool:
        """Whether J is lower through a recipe for more than half of the victims, at the other's tau for both."""
        first, second = (
            self.invert(name, than.tau, real, seed, knowledge, progress).loss for name in (recipe, than.recipe)
        )
        return bool((first < second).double().mean() > 0.5)

    def invert(
        self, recipe: str, tau: float, real: ServerView, seed: int, knowledge: Knowledge, progress: Progress
    ) -> batched.Descent:
        """The images of victims through the surrogates of one recipe, by name."""
        every = (*self.recipes, *(() if self.challenger is None else (self.challenger,)))
        chosen = next(one for one in every if one.name == recipe)
        extractors = chosen.extractors(real, seed, knowledge)
        taus = torch.full((len(real.h),), tau)
        return selection.invert(real, chosen, extractors, taus, self.settings.steps, progress)


def of_sound_images(
    artifact: Artifact,
    knowledge: Knowledge,
    seed: int,
    single: Callable[[Artifact], Reconstruction],
    progress: Progress,
) -> Reconstruction:
    """What `single` makes of sound gradients of one image each; batches are separated, and failed uploads set aside, first."""
    return per_image.attack(artifact, knowledge, seed, lambda each: failed_uploads.set_aside(each, single), progress)
