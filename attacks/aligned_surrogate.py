"""Surrogate extractors whose features are aligned, client by client, to the client's generator and to its other victims' features.

Each begins at a plain surrogate and goes on with the alignment terms of attacks/shadow/surrogate_training.py: class-conditional
means and channel covariances of what the client's uploaded generator makes (FedCG and its like; without a generator this term is
left out); channel means and covariances of its victims' closed-form features, which the attacker holds anyway; and the distance
of each of these features from the mean of its class. By moments, not adversarially: a client has a few victims here, too few for a
discriminator.

A victim's own features do not align the surrogate that it is inverted through: that would draw its class mean to them, and so the
image to the class's mean image, and the rehearsal's measure of fit to 0. A client's victims are dealt into FOLDS folds, of one
victim each where there are no more; each fold has a surrogate, aligned to the others. Fewer than FEWEST_OTHERS others say nothing.

Of two recipes (surrogate, aligned) the rehearsal takes one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from attacks.common import training_cache
from attacks.features.inversion import Extractors
from attacks.shadow import surrogate_training
from attacks.shadow.selection import SHORT, Recipe, StandIn, packed, unpacked
from attacks.shadow.shadow_federation import ServerView
from attacks.shadow.surrogate_training import Align
from privbench.hyperparameters import Count, Weight
from privbench.seeds import stream
from privbench.tensors import Params
from privbench.types import Knowledge, Presets

FOLDS = 4  # of a client's victims, at most
FEWEST_OTHERS = 2  # victims of whose features there is a spread


@dataclass(frozen=True)
class AlignedSurrogate(StandIn):
    """Cross-entropy through C plus moments, one surrogate per client and fold of its victims."""

    align_steps: Count = 300
    align_weight: Weight = 3.0  # of the alignment terms, with 1 for the cross-entropy

    uses: ClassVar[frozenset[str]] = frozenset({"upload:generator"})
    rung: ClassVar[str] = "L5"
    presets: ClassVar[Presets] = {"smoke": SHORT | {"align_steps": 3}}
    revision: ClassVar[int] = 2  # 1: as StandIn; 2: no victim's features align its own surrogate

    def recipes(self) -> Mapping[str, Recipe]:
        """The plain surrogate's, and this attack's own."""
        return {"surrogate": self.plain, "aligned": self.aligned}

    def aligned(self, own: ServerView, seed: int, knowledge: Knowledge) -> Extractors:
        """One surrogate per client and fold."""
        plain = self.plain(own, seed, knowledge)
        return self.aligned_from(own, plain[min(plain)][0], "surrogate", seed, knowledge)

    def aligned_from(self, own: ServerView, start: Params, begun: str, seed: int, knowledge: Knowledge) -> Extractors:
        """One surrogate per client and fold of its victims, all from one start, called `begun`."""
        dealt = folds(own)
        pairs = sorted(set(zip(own.client.tolist(), dealt.tolist(), strict=True)))
        kept = training_cache.cached(
            knowledge.cache,
            f"aligned-{own.name}",
            {"seed": seed, "align_steps": self.align_steps, "align_weight": self.align_weight, "from": begun},
            [*self.depends_on(own), *(start[name] for name in sorted(start))],
            lambda: self._aligned(own, start, pairs, dealt, seed),
            own.h.device,
        )
        each = {pair: [params] for pair, params in zip(pairs, unpacked(kept, len(pairs)), strict=True)}
        theirs = zip(own.victim.tolist(), own.client.tolist(), dealt.tolist(), strict=True)
        return {victim: each[client, fold] for victim, client, fold in theirs}

    def _aligned(
        self, own: ServerView, start: Params, pairs: list[tuple[int, int]], dealt: Tensor, seed: int
    ) -> dict[str, Tensor]:
        return packed([
            surrogate_training.train(
                own.model, start, own.classifier, own.auxiliary, self.align_steps,
                stream(seed, "attacker", "aligned", own.name, client), alignment(own, client, dealt != fold), self.align_weight,
            )
            for client, fold in pairs
        ])  # fmt: skip


def folds(own: ServerView) -> Tensor:
    """Which fold of its client's victims each victim is in, in turn: [V] int64 below FOLDS."""
    each = F.one_hot(own.client, int(own.client.max()) + 1)
    place = (each.cumsum(0) * each).sum(1) - 1
    return place % FOLDS


def alignment(own: ServerView, client: int, others: Tensor) -> Align:
    """The sum of the terms that apply to one client, with those of its victims that are among `others` [V] bool.

    Noisy features have other moments, so they are left out.
    """
    terms: list[Align] = []
    if client in own.moments:
        terms.append(surrogate_training.to_generator(own.moments[client]))
    mine = (own.client == client) & others
    if own.noise is None and int(mine.sum()) >= FEWEST_OTHERS:
        observed = own.h[mine].float()
        terms += [surrogate_training.to_features(observed), surrogate_training.to_victims(observed, own.labels[mine])]

    def align(h: Tensor, labels: Tensor) -> Tensor:
        return sum((term(h, labels) for term in terms), h.new_zeros(()))

    return align
