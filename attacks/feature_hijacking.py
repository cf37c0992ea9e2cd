"""Feature-space hijacking through the distance term of FedCG's Eq. 2: an active server pulls private extractors to its own.

    1. Pilot: E~ and C~ trained on auxiliary images, L = CE(C~(E~(x)), y).
    2. Crafted broadcast: C~, and a generator fitted to the pilot by Eq. 2 with the roles exchanged,
           min over G~ of  E_{x,y} E_z || G~(z,y) - E~(x) ||^2
    3. For `active_rounds` rounds the clients start from C~ and minimise CE(C_i(E_i(x)), y) + gamma || E_i(x) - G~(z,y) ||^2
       (privbench/active.py).
    4. h in closed form, inverted through E~ (attacks/inversion.py). Recipe and tau are those that serve best in a shadow
       federation that the attacker hijacks in the same way, with a pilot from the other half of his images (attacks/stand_in.py).

Pasquini, Ateniese, Bernaschi: Unleashing the Tiger, CCS 2021, arXiv 2012.02670, hijack split learning so: there the server
returns a gradient for every private feature and matches distributions with a discriminator. Eq. 2 is a weaker lever. z is
drawn independently of x, so that
    E_z || E(x) - G~(z,y) ||^2 = || E(x) - mu_y ||^2 + Var G~(z,y),   mu_y = E_z G~(z,y):
nothing but the class means of the pilot's features is felt by a client, whatever the generator, and E(x) = mu_y, which keeps
nothing of x besides its class, is the minimiser. That is why step 2 fits the means and no discriminator is trained.

Deviations: the shadow's clients feel mu_y itself at gamma = 1, where the ramp of every schedule ends; the attacker's own
knowledge of gamma(r) is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks import stand_in, surrogates, trained, world
from attacks.analytic_features import relative_change
from attacks.stand_in import Extractors, StandIn
from attacks.surrogates import Align
from attacks.world import World
from privbench.errors import UserError
from privbench.nets import LinearClassifier, Model
from privbench.seeds import stream
from privbench.types import Artifact, Batch, Knowledge, Networks, Params, Reconstruction, Report, no_report

CPU = torch.device("cpu")
BATCH = 64
LR = 2e-3  # of the generator
ITS_OWN = 0.1  # relative distance of a classifier from the pilot's, below which it is the one that was sent


@dataclass(frozen=True)
class FeatureHijacking(StandIn):
    """Private extractors hijacked towards a pilot, which is then inverted."""

    active_rounds: int = 3
    pilot_steps: int = 600
    generator_steps: int = 300

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier", "upload:generator", "auxiliary"})
    knowledge: ClassVar[str] = "active server + auxiliary"
    rung: ClassVar[str] = "L7"
    active: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """ValueError without a round to hijack."""
        if self.active_rounds < 1:
            raise ValueError(f"active_rounds should be at least 1, but {self.active_rounds} was given")

    def craft(self, model: Model, broadcast: Networks, knowledge: Knowledge, seed: int) -> Networks:
        """C~ and G~; UserError unless the classifier begins with a linear layer, as h has no closed form then."""
        if not isinstance(model.classifier, LinearClassifier):
            raise UserError(
                f"feature-hijacking needs a classifier that begins with a linear layer, but it is {model.backbone}'s"
            )
        assert knowledge.auxiliary is not None, "the needs name auxiliary images"
        images = knowledge.auxiliary
        extractor, classifier = self.pilot(model, images, seed, knowledge)
        start = broadcast.params["generator"], broadcast.buffers["generator"]
        rng = stream(seed, "attacker", "pilot", "generator")
        params, buffers = imitate(model, start, extractor, images, self.generator_steps, rng)
        return Networks({"classifier": classifier, "generator": params}, {"generator": buffers})

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, report: Report = no_report
    ) -> Reconstruction:
        """All victims through the pilot; UserError where the clients did not get its classifier."""
        assert knowledge.auxiliary is not None, "the needs name auxiliary images"
        world.required_features(artifact, type(self).__name__)
        _, classifier = self.pilot(artifact.model, knowledge.auxiliary, seed, knowledge)
        if relative_change(artifact.weights["classifier"], classifier) > ITS_OWN:
            raise UserError(
                "feature-hijacking inverts clients that trained on its own crafted networks, but these got others; name it "
                "with --attack in a run of your own"
            )
        return super().reconstruct(artifact, knowledge, seed, report)

    def recipes(self) -> Mapping[str, Callable[[World, int, Knowledge], Extractors]]:
        """The pilot, surrogates through its classifier, both together."""
        return {"pilot": self.alone, "surrogate": self.plain, "both": self.both}

    def alone(self, own: World, seed: int, knowledge: Knowledge) -> Extractors:
        """The pilot for every client; in the shadow, that of the shadow's attacker."""
        extractor, _ = self.pilot(own.model, own.auxiliary, seed, knowledge)
        return {client: [extractor] for client in sorted(set(own.client.tolist()))}

    def both(self, own: World, seed: int, knowledge: Knowledge) -> Extractors:
        """The pilot and the surrogates."""
        alone, plain = self.alone(own, seed, knowledge), self.plain(own, seed, knowledge)
        return {client: alone[client] + plain[client] for client in alone}

    def reference(self, own: World, seed: int, knowledge: Knowledge) -> Params:
        """The pilot: how far the victims' features are from its own decides whether the rehearsal applies."""
        return self.pilot(own.model, own.auxiliary, seed, knowledge)[0]

    def shadow(self, real: World, round_: int, seed: int, knowledge: Knowledge) -> tuple[World, Tensor]:
        """A shadow federation whose last rounds are hijacked by a pilot of the shadow attacker's own."""
        rounds = min(round_, self.shadow_rounds)
        mine = world.attackers_half(real, seed)
        extractor, classifier = self.pilot(real.model, mine, seed, knowledge)
        align = to_class_means(real.model, extractor, mine)
        hijack = world.Hijack(min(self.active_rounds, rounds), classifier, align, [*mine, *extractor.values()])
        return world.shadow(real, rounds, self.shadow_steps, seed, knowledge, hijack)

    def pilot(self, model: Model, images: Batch, seed: int, knowledge: Knowledge) -> tuple[Params, Params]:
        """(E~, C~) trained on some images; on the CPU wherever they are, so that crafting and inversion have the same pilot."""
        place = images.images.device
        own = Batch(*(t.to(CPU) for t in images))

        def make() -> dict[str, Tensor]:
            names = ("attacker", "pilot")
            start = [model.net(part).init(stream(seed, *names, part))[0] for part in ("extractor", "classifier")]
            return stand_in.packed(
                list(
                    surrogates.train_both(
                        model, start[0], start[1], own, self.pilot_steps, stream(seed, *names, "batches")
                    )
                )
            )

        settings = {"steps": self.pilot_steps, "seed": seed, "model": str(model)}
        kept = trained.kept(knowledge.cache, "pilot", settings, own, make, CPU)
        extractor, classifier = stand_in.unpacked({n: t.to(place) for n, t in kept.items()}, 2)
        return extractor, classifier


def imitate(
    model: Model, start: tuple[Params, Params], extractor: Params, images: Batch, steps: int, rng: torch.Generator
) -> tuple[Params, Params]:
    """(parameters, buffers) of a generator after `steps` of Adam on E_z || G(z,y) - E(x) ||^2 over images x of class y."""
    features, net = surrogates.extract(model, extractor, images.images), model.net("generator")
    params = {n: t.detach().clone().requires_grad_() for n, t in start[0].items()}
    buffers = start[1]
    optimiser = torch.optim.Adam(params.values(), lr=LR)
    for _ in range(steps):
        index = torch.randint(len(images.labels), (BATCH,), generator=rng)
        z = torch.randn(BATCH, model.noise_dim, generator=rng)
        imitated, buffers = net.apply(params, buffers, z, images.labels[index], train=True)
        optimiser.zero_grad()
        F.mse_loss(imitated, features[index]).backward()
        optimiser.step()
        buffers = {n: t.detach() for n, t in buffers.items()}
    return {n: t.detach() for n, t in params.items()}, buffers


def to_class_means(model: Model, extractor: Params, images: Batch) -> Align:
    """|| h - mu_y ||^2, element-wise mean, over the images of a batch: what Eq. 2 comes to, but for a constant.

    A class without auxiliary images has no pull.
    """
    moments = surrogates.class_moments(
        surrogates.extract(model, extractor, images.images), images.labels, model.classes
    )

    def align(h: Tensor, labels: Tensor) -> Tensor:
        gap = (h - moments.mean[labels]).square().flatten(1).mean(1)
        return (gap * moments.known[labels]).mean()

    return align
