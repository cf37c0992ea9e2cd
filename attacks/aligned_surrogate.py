"""Surrogate extractors whose features are aligned, client by client, to the client's generator and to its victims' features.

Each begins at a plain surrogate and goes on with the alignment terms of attacks/surrogates.py: class-conditional means and channel
covariances of what the client's uploaded generator makes (FedCG and its like; without a generator this term is left out), and
channel means and covariances of its victims' closed-form features, which the attacker holds anyway. By moments, not
adversarially: a client has a few victims here, too few for a discriminator. Of three recipes (surrogate, aligned, both
together) the rehearsal takes one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from attacks import surrogates, trained
from attacks.stand_in import Extractors, StandIn, packed, unpacked
from attacks.surrogates import Align
from attacks.world import World
from privbench.seeds import stream
from privbench.settings import Count, Weight
from privbench.types import Knowledge


@dataclass(frozen=True)
class AlignedSurrogate(StandIn):
    """Cross-entropy through C plus moments, one surrogate per client."""

    align_steps: Count = 400
    align_weight: Weight = 1.0

    knowledge: ClassVar[str] = "gradient + auxiliary + generator where shared"
    rung: ClassVar[str] = "L5"

    def recipes(self) -> Mapping[str, Callable[[World, int, Knowledge], Extractors]]:
        """The plain surrogate's, and this attack's own."""
        return {"surrogate": self.plain, "aligned": self.aligned, "both": self.both}

    def both(self, own: World, seed: int, knowledge: Knowledge) -> Extractors:
        """All of them together."""
        plain, aligned = self.plain(own, seed, knowledge), self.aligned(own, seed, knowledge)
        return {client: plain[client] + aligned[client] for client in plain}

    def aligned(self, own: World, seed: int, knowledge: Knowledge) -> Extractors:
        """One surrogate per client."""
        plain = self.plain(own, seed, knowledge)
        kept = trained.kept(
            knowledge.cache,
            f"aligned-{own.name}",
            {
                "steps": self.train_steps, "members": self.members, "seed": seed,
                "align_steps": self.align_steps, "align_weight": self.align_weight,
            },
            self.depends_on(own),
            lambda: self._aligned(own, plain, seed),
            own.h.device,
        )  # fmt: skip
        each = unpacked(kept, len(plain))
        return {client: [params] for client, params in zip(sorted(plain), each, strict=True)}

    def _aligned(self, own: World, plain: Extractors, seed: int) -> dict[str, Tensor]:
        return packed([
            surrogates.train(
                own.model, plain[client][0], own.classifier, own.auxiliary, self.align_steps,
                stream(seed, "attacker", "aligned", own.name, client), alignment(own, client), self.align_weight,
            )
            for client in sorted(plain)
        ])  # fmt: skip


def alignment(own: World, client: int) -> Align:
    """The sum of the terms that apply to one client. Noisy features have other moments, so they are left out."""
    terms: list[Align] = []
    if client in own.moments:
        terms.append(surrogates.to_generator(own.moments[client]))
    if own.noise is None:
        terms.append(surrogates.to_features(own.h[own.client == client].float()))

    def align(h: Tensor, labels: Tensor) -> Tensor:
        return sum((term(h, labels) for term in terms), h.new_zeros(()))

    return align
