"""What the attacks on private extractors have in common: surrogates, closed-form features, and a rehearsal that sets the weights.

    1. h of every victim in closed form (attacks/common/closed_form.py).
    2. Extractors that the attacker holds whole (the initial one, a colluder's) may be the victims' very own, as in round 0,
       where all clients start alike. attacks/shadow/known_extractor.py tells without the truth, and inverts them as the oracle
       does.
    3. Recipes: ways to come by extractors that stand in for each other client's (attacks/shadow/surrogate_training.py). A rung
    with more
       knowledge has the recipes of the rungs below besides its own.
    4. Rehearsal: the same in a shadow federation (attacks/shadow/shadow_federation.py) whose victims the attacker knows. Of all
    recipes and error
       levels tau he takes what scores best there, tau = inf, the class mean, among them. The class mean is returned without a
       descent, and the reconstruction says so: its trace has one entry, or is NaN after it where others were descended on.
    5. Inversion of the real features with that choice (attacks/features/inversion.py), of those recipes to which the rehearsal
    applies:
       a recipe is left out where the channel moments of a client's victims' features lie farther from its surrogate's than
       UNLIKE times what the shadow's did, and than ALIKE (medians over clients).
So an inversion that would be hopeless ends at the class mean instead of in noise, without a look at the truth. Where the
method broadcasts the extractor there is nothing to stand in for, and the attack is `staged`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks import broadcast
from attacks.common import descend, failed_uploads, training_cache
from attacks.features import inversion, per_image
from attacks.features.inversion import ClassPrior, Extractors
from attacks.shadow import known_extractor, shadow_federation, surrogate_training
from attacks.shadow.shadow_federation import ServerView
from attacks.shadow.surrogate_training import Align
from privbench.applicability import Limits
from privbench.hyperparameters import Count, CountOrZero
from privbench.seeds import stream
from privbench.tensors import Params
from privbench.types import Artifact, Knowledge, Outcome, Presets, Progress, Reconstruction, no_progress

TAUS = (0.03, 0.1, 0.3, 0.6)  # of features in (0, 1); inf comes besides
UNLIKE = 1.5
ALIKE = 0.5  # a shift that is not worth a comparison
FEWEST = 4  # auxiliary images without which there is no rehearsal, and so no inversion

Recipe = Callable[[ServerView, int, Knowledge], Extractors]


# What every attack with surrogates is cut down to in the smoke preset.
SHORT = {"steps": 5, "exact_steps": 5, "members": 1, "train_steps": 3, "shadow_rounds": 1, "shadow_steps": 3}


class Choice(NamedTuple):
    """What the rehearsal recommends."""

    recipe: str
    tau: float  # inf: none of the recipes is worth anything


@dataclass(frozen=True)
class StandIn:
    """Surrogates for private extractors, inverted as far as a rehearsal says they are good for."""

    steps: Count = 80  # of the inversion
    exact_steps: Count = 400  # of the inversion of an extractor that turns out to be the victims' own
    members: Count = 2  # surrogates
    train_steps: Count = 400  # of each surrogate
    shadow_rounds: CountOrZero = 10  # at most, and no more than the attacked federation has behind it
    shadow_steps: Count = (
        2500  # a round and client, at most, and no more than the attacked clients take (shadow_federation.py)
    )

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier", "auxiliary"})
    uses: ClassVar[frozenset[str]] = frozenset({"gradient:extractor"})
    hands_in: ClassVar[tuple[str, ...]] = broadcast.ATTACKS
    limits: ClassVar[Limits] = Limits(linear_if_private=True, unmixed=True)
    knowledge: ClassVar[str] = "gradient + auxiliary"
    rung: ClassVar[str] = "L4"
    presets: ClassVar[Presets] = {"smoke": SHORT}
    revision: ClassVar[int] = 1  # 1: shadow clients train as the attacked ones do
    # Whether the rehearsal applies is decided on the features of all victims together.
    pools: ClassVar[bool] = True

    def recipes(self) -> Mapping[str, Recipe]:
        """By name: what makes surrogates of (world, seed, knowledge)."""
        return {"surrogate": self.plain}

    def whole(self, real: ServerView, knowledge: Knowledge) -> dict[int, Params]:
        """Attacked client -> an extractor that the attacker holds and that may be the client's own."""
        return {}

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """All victims, or those of `staged` where the extractor is broadcast."""
        if "extractor" in artifact.weights:
            return broadcast.attack(artifact, knowledge, seed, progress)

        def single(artifact: Artifact) -> Reconstruction:
            return failed_uploads.set_aside(
                artifact, lambda sound: self.through_stand_ins(sound, knowledge, seed, progress)
            )

        return per_image.attack(artifact, knowledge, seed, single, progress)

    def through_stand_ins(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """All victims of a private extractor; their gradients are finite, and of one image each."""
        real = shadow_federation.real(artifact, knowledge, seed, type(self).__name__)
        held = self.whole(real, knowledge)
        own = (
            known_extractor.fitting(real, held, min(known_extractor.SCREEN, self.exact_steps), seed, progress)
            if held
            else set()
        )
        sure = torch.tensor([int(k) in own for k in real.client], dtype=torch.bool, device=real.client.device)
        parts, outcome = [], torch.zeros_like(real.client)
        if bool(sure.any()):
            rows = torch.nonzero(sure)[:, 0]
            mine = shadow_federation.select(real, rows)
            nets = shadow_federation.of_clients(mine, {k: [held[k]] for k in own})
            parts.append((rows, known_extractor.invert(mine, nets, self.exact_steps, progress)))
        if not bool(sure.all()):
            rows = torch.nonzero(~sure)[:, 0]
            stood_in = self.stood_in(shadow_federation.select(real, rows), artifact.round, seed, knowledge, progress)
            if stood_in.trace.shape[1] == 1:
                # `unmoved`: the class mean
                outcome[rows] = Outcome.GAVE_UP
            if parts and stood_in.trace.shape[1] == 1:
                undescended = (0, parts[0][1].trace.shape[1] - 1)
                stood_in = stood_in._replace(trace=F.pad(stood_in.trace, undescended, value=math.nan))
            parts.append((rows, stood_in))
        return descend.reconstruction(descend.joined(parts), 1, real.labels[:, None])._replace(outcome=outcome)

    def stood_in(
        self, real: ServerView, round_: int, seed: int, knowledge: Knowledge, progress: Progress
    ) -> descend.Descent:
        """The images of a world whose extractors nobody handed over."""
        choice = self.rehearse(real, round_, seed, knowledge, progress)
        if math.isinf(choice.tau):
            return class_means(real)
        made = self.recipes()[choice.recipe](real, seed, knowledge)
        return self.invert(real, made, torch.full((len(real.h),), choice.tau), progress)

    def rehearse(self, real: ServerView, round_: int, seed: int, knowledge: Knowledge, progress: Progress) -> Choice:
        """The recipe and tau that serve best in the shadow."""
        return self.best_of(sorted(self.recipes()), real, round_, seed, knowledge, progress)

    def best_of(
        self, names: list[str], real: ServerView, round_: int, seed: int, knowledge: Knowledge, progress: Progress
    ) -> Choice:
        """Of some recipes the one, and its tau, that serve best in the shadow; tau inf where none does."""
        if len(real.auxiliary.labels) < FEWEST:
            return Choice("none", math.inf)
        kept = {name: self.rehearsed(name, real, round_, seed, knowledge, progress) for name in names}
        sound = [name for name in names if self.applies(name, real, float(kept[name]["shift"]), seed, knowledge)]
        if not sound:
            return Choice("none", math.inf)
        recipe, tau = best(torch.stack([kept[name]["psnr_db"].cpu() for name in sound]))
        return Choice(sound[recipe], tau)

    def rehearsed(
        self, name: str, real: ServerView, round_: int, seed: int, knowledge: Knowledge, progress: Progress
    ) -> dict[str, Tensor]:
        """The rehearsal of one recipe, which rungs that have it share."""
        return training_cache.cached(
            knowledge.cache,
            f"rehearsal-{name}",
            {
                **self.settings(name),
                "seed": seed,
                "round": round_,
                "taus": TAUS,
                "initial": knowledge.initial is not None,
                "training": str(real.training),
            },
            [*self.depends_on(real), *start_of(knowledge)],
            lambda: self.rehearsal(name, real, round_, seed, knowledge, progress),
            real.h.device,
        )

    def settings(self, recipe: str) -> dict[str, int | float]:
        """The settings that a recipe's rehearsal depends on."""
        wanted = {f.name for f in fields(StandIn)} if recipe in StandIn.recipes(self) else set(asdict(self))
        return {name: value for name, value in asdict(self).items() if name in wanted - {"exact_steps"}}

    def rehearsal(
        self, name: str, real: ServerView, round_: int, seed: int, knowledge: Knowledge, progress: Progress
    ) -> dict[str, Tensor]:
        """PSNR in dB of every tau (the last is inf) and shadow victim: [T + 1, V']; and the shadow's shift."""
        other, images = self.shadow(real, round_, seed, knowledge)
        made = self.recipes()[name](other, seed, knowledge)
        rows = torch.arange(len(other.h), device=other.h.device).repeat(len(TAUS))
        taus = torch.tensor(TAUS).repeat_interleave(len(other.h))
        found = [
            self.invert(shadow_federation.select(other, rows), made, taus, progress).x[:, 0],
            class_means(other).x[:, 0],
        ]
        error = (torch.cat(found).clamp(0, 1) - images.repeat(len(TAUS) + 1, 1, 1, 1)).square().flatten(1).mean(1)
        psnr_db = -10 * torch.log10(error.clamp_min(1e-10)).view(len(TAUS) + 1, -1)
        return {"psnr_db": psnr_db, "shift": torch.tensor(self.shift(other, made, seed, knowledge))}

    def applies(self, name: str, real: ServerView, shadow_shift: float, seed: int, knowledge: Knowledge) -> bool:
        """Whether what was rehearsed of a recipe says anything of the real federation."""
        made = self.recipes()[name](real, seed, knowledge)
        return self.shift(real, made, seed, knowledge) <= max(UNLIKE * shadow_shift, ALIKE)

    def shift(self, own: ServerView, made: Extractors, seed: int, knowledge: Knowledge) -> float:
        """How far the victims' features are from what the surrogates let expect, to be compared with the shadow's."""
        return moment_shift(own, made)

    def shadow(self, real: ServerView, round_: int, seed: int, knowledge: Knowledge) -> tuple[ServerView, Tensor]:
        """The shadow of a world, with its victims."""
        rounds = min(round_, self.shadow_rounds)
        start = None if knowledge.initial is None else knowledge.initial.params["extractor"]
        return shadow_federation.shadow(real, rounds, self.shadow_steps, seed, knowledge, start)

    def invert(self, own: ServerView, made: Extractors, taus: Tensor, progress: Progress) -> descend.Descent:
        """The images [V, 1, C, H, W] of a world's victims through the surrogates of their clients."""
        variance = taus.to(own.h).square() + (0 if own.noise is None else own.noise)
        return shadow_federation.by_extractors(
            own, prior_of(own), made, variance, exact=False, steps=self.steps, progress=progress
        )

    def plain(self, own: ServerView, seed: int, knowledge: Knowledge) -> Extractors:
        """The same surrogates for every client: cross-entropy through C alone, each from a start of its own."""
        kept = training_cache.cached(
            knowledge.cache,
            f"surrogates-{own.name}",
            {"steps": self.train_steps, "members": self.members, "seed": seed},
            [*own.auxiliary, *own.classifier.values()],
            lambda: self.trained_members(own, seed, "surrogate"),
            own.h.device,
        )
        members = unpacked(kept, self.members)
        return dict.fromkeys(own.victim.tolist(), members)

    def trained_members(
        self, own: ServerView, seed: int, name: str, align: Align | None = None, weight: float = 0.0
    ) -> dict[str, Tensor]:
        """`members` surrogates, each from a start of its own, whose draws belong to `name`."""
        found = []
        for m in range(self.members):
            names = ("attacker", name, own.name, m)
            start = {n: t.to(own.h.device) for n, t in own.model.net("extractor").init(stream(seed, *names))[0].items()}
            rng = stream(seed, *names, "batches")
            found.append(
                surrogate_training.train(
                    own.model, start, own.classifier, own.auxiliary, self.train_steps, rng, align, weight
                )
            )
        return packed(found)

    def depends_on(self, own: ServerView) -> list[Tensor]:
        """All that a rehearsal's outcome, or an aligned extractor, can depend on."""
        return [
            *own.auxiliary, *own.classifier.values(), own.h, own.labels, own.client, own.victim,
            *(() if own.noise is None else (own.noise,)),
            *(t for moments in own.moments.values() for t in moments),
        ]  # fmt: skip


def start_of(knowledge: Knowledge) -> list[Tensor]:
    """The initial extractor, which a shadow starts from where the attacker knows it; nothing where not."""
    initial = {} if knowledge.initial is None else knowledge.initial.params["extractor"]
    return [initial[name] for name in sorted(initial)]


def best(psnr_db: Tensor) -> tuple[int, float]:
    """(recipe, tau) of the best mean in [R, T + 1, V'], the class mean (tau inf) among them."""
    means = psnr_db.mean(2)
    means[1:, -1] = -math.inf  # the class mean is the same for all recipes
    recipe, column = divmod(int(means.argmax()), means.shape[1])
    taus = (*TAUS, math.inf)
    return recipe, taus[column] if means[recipe, column] > means[0, -1] else math.inf


def moment_shift(own: ServerView, made: Extractors) -> float:
    """How far the channel moments of victims' features are from their surrogates', relative to their own size; median client.

    Of a client with several surrogates the mean over them.
    """
    gaps = []
    for client in own.clients:
        mine = own.client == client
        nets = {id(made[v][0]): made[v][0] for v in own.victim[mine].tolist()}
        each = [surrogate_training.extract(own.model, params, own.auxiliary.images) for params in nets.values()]
        align = surrogate_training.to_features(own.h[mine].to(each[0]))
        gaps.append(statistics.fmean(float(align(seen, own.auxiliary.labels)) for seen in each))
    return statistics.median(gaps)


def prior_of(own: ServerView) -> ClassPrior:
    """What a world's attacker thinks of its images before seeing features."""
    return inversion.learned(own.auxiliary, own.model.classes, own.h)


def class_means(own: ServerView) -> descend.Descent:
    """The floor `class-mean` of every victim, with nothing descended on."""
    images, y = own.auxiliary.images.to(own.h), own.auxiliary.labels
    means = {c: images[y == c].mean(0) for c in set(y.tolist())}
    x = torch.stack([means.get(c, images.mean(0)) for c in own.labels.tolist()])[:, None]
    zero = torch.zeros_like(x[:, 0, 0, 0, 0])
    return descend.Descent(x, zero, zero[:, None], 0)


def packed(networks: list[Params]) -> dict[str, Tensor]:
    """Several networks in one dict."""
    return {f"{m}/{name}": t for m, params in enumerate(networks) for name, t in params.items()}


def unpacked(tensors: dict[str, Tensor], count: int) -> list[Params]:
    """The inverse of `packed`."""
    return [{n.partition("/")[2]: t for n, t in tensors.items() if n.partition("/")[0] == str(m)} for m in range(count)]
