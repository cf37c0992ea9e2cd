"""Surrogate extractors whose features are aligned, client by client, to the client's generator and to its victims' features.

Each begins at a plain surrogate and goes on with the alignment terms of attacks/surrogates.py: class-conditional means and channel
covariances of what the client's uploaded generator makes (FedCG and its like; without a generator this term is left out); channel
means and covariances of its victims' closed-form features, which the attacker holds anyway; and the distance of each of these
features from the mean of its class. By moments, not adversarially: a client has a few victims here, too few for a
discriminator. Of two recipes (surrogate, aligned) the rehearsal takes one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from attacks import surrogates, trained
from attacks.inversion import Extractors
from attacks.stand_in import Recipe, StandIn, packed, unpacked
from attacks.surrogates import Align
from attacks.world import World
from privbench.seeds import stream
from privbench.settings import Count, Weight
from privbench.types import Knowledge, Params


@dataclass(frozen=True)
class AlignedSurrogate(StandIn):
    """Cross-entropy through C plus moments, one surrogate per client."""

    align_steps: Count = 300
    align_weight: Weight = 3.0  # of the alignment terms, with 1 for the cross-entropy

    uses: ClassVar[frozenset[str]] = StandIn.uses | {"upload:generator"}
    rung: ClassVar[str] = "L5"

    def recipes(self) -> Mapping[str, Recipe]:
        """The plain surrogate's, and this attack's own."""
        return {"surrogate": self.plain, "aligned": self.aligned}

    def aligned(self, own: World, seed: int, knowledge: Knowledge) -> Extractors:
        """One surrogate per client."""
        plain = self.plain(own, seed, knowledge)
        return self.aligned_from(own, plain[min(plain)][0], "surrogate", seed, knowledge)

    def aligned_from(self, own: World, start: Params, begun: str, seed: int, knowledge: Knowledge) -> Extractors:
        """One surrogate per client, all from one start, called `begun`."""
        kept = trained.kept(
            knowledge.cache,
            f"aligned-{own.name}",
            {"seed": seed, "align_steps": self.align_steps, "align_weight": self.align_weight, "from": begun},
            [*self.depends_on(own), *(start[name] for name in sorted(start))],
            lambda: self._aligned(own, start, seed),
            own.h.device,
        )
        each = unpacked(kept, len(own.clients))
        return {client: [params] for client, params in zip(own.clients, each, strict=True)}

    def _aligned(self, own: World, start: Params, seed: int) -> dict[str, Tensor]:
        return packed([
            surrogates.train(
                own.model, start, own.classifier, own.auxiliary, self.align_steps,
                stream(seed, "attacker", "aligned", own.name, client), alignment(own, client), self.align_weight,
            )
            for client in own.clients
        ])  # fmt: skip


def alignment(own: World, client: int) -> Align:
    """The sum of the terms that apply to one client. Noisy features have other moments, so they are left out."""
    terms: list[Align] = []
    if client in own.moments:
        terms.append(surrogates.to_generator(own.moments[client]))
    if own.noise is None:
        mine = own.client == client
        observed = own.h[mine].float()
        terms += [surrogates.to_features(observed), surrogates.to_victims(observed, own.labels[mine])]

    def align(h: Tensor, labels: Tensor) -> Tensor:
        return sum((term(h, labels) for term in terms), h.new_zeros(()))

    return align
