"""What the attacks on private extractors have in common: stand-ins, closed-form features, and a rehearsal that sets the weights.

    1. h of every victim in closed form (attacks/features.py).
    2. Recipes: ways to come by extractors that stand in for each attacked client's (attacks/surrogates.py). A rung with more
       knowledge has the recipes of the rungs below besides its own.
    3. Rehearsal: the same in a shadow federation (attacks/world.py) whose victims the attacker knows. Of all recipes and error
       levels tau he takes what scores best there, and tau = inf, the class mean, unless something beats it by more than a
       standard error.
    4. Inversion of the real features with that choice (attacks/inversion.py), unless the rehearsal does not apply: the channel
       moments of the victims' features lie farther from the surrogates' than UNLIKE times what the shadow's did. All victims
       are pooled in this question, as in alignment: the attacker holds all their features.
So an inversion that would be hopeless ends at the class mean instead of in noise, without a look at the truth. Where the
method broadcasts the extractor there is nothing to stand in for, and the attack is `staged`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from attacks import descend, inversion, surrogates, trained, world
from attacks.inversion import Belief
from attacks.staged import Staged
from attacks.world import World
from privbench.seeds import stream
from privbench.types import Artifact, Knowledge, Params, Reconstruction, Report, no_report

TAUS = (0.05, 0.15, 0.5, 1.5)  # of features in (0, 1); inf comes besides
UNLIKE = 1.5
FEWEST = 4  # auxiliary images without which there is no rehearsal, and so no inversion

Extractors = dict[int, list[Params]]  # attacked client -> stand-ins for its extractor


class Choice(NamedTuple):
    """What the rehearsal recommends."""

    recipe: str
    tau: float  # inf: none of the recipes is worth anything


@dataclass(frozen=True)
class StandIn:
    """Stand-ins for private extractors, inverted as far as a rehearsal says they are good for."""

    steps: int = 80  # of the inversion
    members: int = 2  # surrogates
    train_steps: int = 600  # of each surrogate
    shadow_rounds: int = 6  # at most, and no more than the attacked federation has behind it
    shadow_steps: int = 150  # a round and client

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier", "auxiliary"})
    knowledge: ClassVar[str] = "gradient + auxiliary"
    rung: ClassVar[str] = "L4"

    def recipes(self) -> Mapping[str, Callable[[World, int, Knowledge], Extractors]]:
        """By name: what makes stand-ins of (world, seed, knowledge)."""
        return {"surrogate": self.plain}

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, report: Report = no_report
    ) -> Reconstruction:
        """All victims, or those of `staged` where the extractor is broadcast."""
        if "extractor" in artifact.weights:
            return Staged(feature_steps=self.steps, steps=3 * self.steps).reconstruct(artifact, knowledge, seed, report)
        real = world.real(artifact, knowledge, seed, type(self).__name__)
        choice = self.rehearse(real, artifact.round, seed, knowledge, report)
        made = {} if math.isinf(choice.tau) else self.recipes()[choice.recipe](real, seed, knowledge)
        end = self.invert(real, made, torch.full((len(real.h),), choice.tau), report)
        return descend.reconstruction(end, 1, real.labels[:, None])

    def rehearse(self, real: World, round_: int, seed: int, knowledge: Knowledge, report: Report) -> Choice:
        """The recipe and tau that serve best in the shadow."""
        if len(real.auxiliary.labels) < FEWEST:
            return Choice("none", math.inf)
        names = sorted(self.recipes())
        kept = trained.kept(
            knowledge.cache,
            f"rehearsal-{type(self).__name__.lower()}",
            {**asdict(self), "seed": seed, "round": round_, "recipes": names, "taus": TAUS},
            self.depends_on(real),
            lambda: self.rehearsal(real, round_, seed, knowledge, report),
            real.h.device,
        )
        if not self.applies(real, float(kept["shift"]), seed, knowledge):
            return Choice("none", math.inf)
        recipe, tau = best(kept["psnr_db"].cpu())
        return Choice(names[recipe], tau)

    def rehearsal(self, real: World, round_: int, seed: int, knowledge: Knowledge, report: Report) -> dict[str, Tensor]:
        """PSNR in dB of every recipe, tau (the last is inf) and shadow victim: [R, T + 1, V']; and the shadow's shift."""
        other, images = self.shadow(real, round_, seed, knowledge)
        found = []
        for name in sorted(self.recipes()):
            made = self.recipes()[name](other, seed, knowledge)
            rows = torch.arange(len(other.h), device=other.h.device).repeat(len(TAUS) + 1)
            taus = torch.tensor([*TAUS, math.inf]).repeat_interleave(len(other.h))
            end = self.invert(_rows(other, rows), made, taus, report)
            error = (end.x[:, 0].clamp(0, 1) - images[rows]).square().flatten(1).mean(1)
            found.append(-10 * torch.log10(error.clamp_min(1e-10)).view(len(TAUS) + 1, -1))
        return {"psnr_db": torch.stack(found), "shift": torch.tensor(self.shift(other, seed, knowledge))}

    def shift(self, own: World, seed: int, knowledge: Knowledge) -> float:
        """How far the channel moments of the victims' features are from the first surrogate's, relative to their own size."""
        member = self.plain(own, seed, knowledge)[int(own.client[0])][0]
        seen = surrogates.extract(own.model, member, own.auxiliary.images)
        return float(surrogates.to_features(own.h.to(seen))(seen, own.auxiliary.labels))

    def applies(self, real: World, shadow_shift: float, seed: int, knowledge: Knowledge) -> bool:
        """Whether what was rehearsed says anything of the real federation."""
        return self.shift(real, seed, knowledge) <= UNLIKE * shadow_shift

    def shadow(self, real: World, round_: int, seed: int, knowledge: Knowledge) -> tuple[World, Tensor]:
        """The shadow of a world, with its victims."""
        rounds = min(round_, self.shadow_rounds)
        return world.shadow(real, rounds, self.shadow_steps, seed, knowledge)

    def invert(self, own: World, made: Extractors, taus: Tensor, report: Report) -> descend.Descent:
        """The images [V, 1, C, H, W] of a world's victims through the stand-ins of their clients."""
        belief = inversion.learned(own.auxiliary, own.model.classes, own.h)
        variance = taus.to(own.h).square() + (0 if own.noise is None else own.noise)
        # Without a stand-in nothing is weighed (tau is inf), but the objective still wants a network to call.
        nets = {client: made.get(client) or [_any(own)] for client in own.client.unique().tolist()}
        return by_client(own, belief, nets, variance, exact=False, steps=self.steps, report=report)

    def plain(self, own: World, seed: int, knowledge: Knowledge) -> Extractors:
        """The same surrogates for every client: cross-entropy through C alone, each from a start of its own."""
        kept = trained.kept(
            knowledge.cache,
            f"surrogates-{own.name}",
            {"steps": self.train_steps, "members": self.members, "seed": seed},
            [*own.auxiliary, *own.classifier.values()],
            lambda: self._plain(own, seed),
            own.h.device,
        )
        members = unpacked(kept, self.members)
        return dict.fromkeys(sorted(set(own.client.tolist())), members)

    def _plain(self, own: World, seed: int) -> dict[str, Tensor]:
        members = []
        for m in range(self.members):
            names = ("attacker", "surrogate", own.name, m)
            start = {n: t.to(own.h.device) for n, t in own.model.net("extractor").init(stream(seed, *names))[0].items()}
            rng = stream(seed, *names, "batches")
            members.append(surrogates.train(own.model, start, own.classifier, own.auxiliary, self.train_steps, rng))
        return packed(members)

    def depends_on(self, own: World) -> list[Tensor]:
        """All that a rehearsal's outcome can depend on."""
        return [
            *own.auxiliary, *own.classifier.values(), own.h, own.labels, own.client,
            *(() if own.noise is None else (own.noise,)),
            *(t for moments in own.moments.values() for t in moments),
            *(t for params in own.colluder.values() for t in params.values()),
        ]  # fmt: skip


def best(psnr_db: Tensor) -> tuple[int, float]:
    """(recipe, tau) of the best mean in [R, T + 1, V']; tau inf unless it beats the class mean by a standard error, paired."""
    means = psnr_db.mean(2)
    recipe, column = divmod(int(means.argmax()), means.shape[1])
    taus = (*TAUS, math.inf)
    gain = psnr_db[recipe, column] - psnr_db[recipe, -1]
    error = gain.std() / math.sqrt(len(gain)) if len(gain) > 1 else torch.tensor(math.inf)
    return recipe, taus[column] if float(gain.mean()) > float(error) else math.inf


def by_client(
    own: World, belief: Belief, nets: Extractors, variance: Tensor, *, exact: bool, steps: int, report: Report
) -> descend.Descent:
    """attacks/inversion.py for all victims of a world, each through the extractors of its client; `variance` [V]."""
    ends, order = [], []
    for client in sorted(set(own.client.tolist())):
        rows = torch.nonzero(own.client == client)[:, 0]
        ends.append(
            inversion.invert(
                own.model, nets[client], belief, own.h[rows], own.labels[rows], variance[rows],
                exact=exact, steps=steps, report=report,
            )
        )  # fmt: skip
        order.append(rows)
    back = torch.cat(order).argsort()
    x, loss, trace = (torch.cat([getattr(end, name) for end in ends])[back] for name in ("x", "loss", "trace"))
    return descend.Descent(x, loss, trace, sum(end.evaluations for end in ends))


def packed(networks: list[Params]) -> dict[str, Tensor]:
    """Several networks in one dict."""
    return {f"{m}/{name}": t for m, params in enumerate(networks) for name, t in params.items()}


def unpacked(tensors: dict[str, Tensor], count: int) -> list[Params]:
    """The inverse of `packed`."""
    return [{n.partition("/")[2]: t for n, t in tensors.items() if n.partition("/")[0] == str(m)} for m in range(count)]


def _rows(own: World, rows: Tensor) -> World:
    noise = None if own.noise is None else own.noise[rows]
    return own._replace(h=own.h[rows], noise=noise, labels=own.labels[rows], client=own.client[rows])


def _any(own: World) -> Params:
    start, _ = own.model.net("extractor").init(stream(0, "attacker", "unused"))
    return {n: t.to(own.h) for n, t in start.items()}
