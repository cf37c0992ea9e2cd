"""The pilot of feature hijacking: an extractor to which Eq. 2 of FedCG pulls the clients', and what the server sends to do so.

    1. E_1 and C~ are trained on auxiliary images by cross-entropy; then E~ from a fresh start through the frozen C~, with Eq. 2
       towards E_1's class means at weight PULL: features that an extractor under Eq. 2 can come close to.
    2. C~ is made quiet, the weights of its later layers times QUIET, so that the cross-entropy has little hold on an extractor and
       Eq. 2 decides; and a generator is fitted to the pilot by Eq. 2 with the roles exchanged,
           min over G~ of  E_{x,y} E_z || G~(z,y) - E~(x) ||^2
z is drawn independently of x, so that
    E_z || E(x) - G~(z,y) ||^2 = || E(x) - mu_y ||^2 + Var G~(z,y),   mu_y = E_z G~(z,y):
nothing but the class means of the pilot's features is felt by a client, whatever the generator. So step 2 fits the means. What
the means fix is the frame: which channel is which, and with which sign. Imitators and the shadow's clients feel mu_y itself at
gamma = 1, where the ramp of every schedule ends.

The recipes (attacks/shadow/recipes.py) are the pilot itself; imitators, which are extractors trained on auxiliary images as the
clients are on theirs, from fresh starts on C~ and G~; and both. They are validated in a shadow federation that the attacker hijacks
in the same way, with a pilot from the other half of the images. How far off the victims' features are says how badly they were
hijacked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.common import training_cache
from attacks.features.inversion import Extractors
from attacks.shadow import recipes, shadow_federation, surrogate_training
from attacks.shadow.recipes import Recipe
from attacks.shadow.settings import SurrogateSettings
from attacks.shadow.shadow_federation import ServerView
from attacks.shadow.surrogate_training import Align
from privbench.networks.model import Model
from privbench.seeds import stream
from privbench.tensors import Params
from privbench.types import Batch, Knowledge, LocalTraining, Networks

CPU = torch.device("cpu")
BATCH = 64
LR = 2e-3  # of the generator
PULL = 30.0  # of Eq. 2 on the pilot
QUIET = 0.03  # of the weights behind the first layer of C~


@dataclass(frozen=True)
class Hijacking:
    """What the pilot and the recipes are made by."""

    surrogates: SurrogateSettings
    active_rounds: int  # for which the clients train on crafted networks
    pilot_steps: int  # of E_1 and C~; E~ takes twice as many
    settings: Mapping[str, Any]  # that the outcome of a shadow validation depends on

    def crafted(
        self, model: Model, broadcast: Networks, images: Batch, generator_steps: int, seed: int, knowledge: Knowledge
    ) -> Networks:
        """The quiet C~, and G~ after so many steps from the broadcast one, to send in place of the broadcast."""
        extractor, classifier = self.pilot(model, images, seed, knowledge)
        start = broadcast.params["generator"], broadcast.buffers["generator"]
        rng = stream(seed, "attacker", "pilot", "generator")
        params, buffers = imitate(model, start, extractor, images, generator_steps, rng)
        return Networks({"classifier": classifier, "generator": params}, {"generator": buffers})

    def recipes(self) -> tuple[Recipe, ...]:
        """The pilot, imitators of the clients, both together."""
        candidates = {"pilot": self.alone, "imitators": self.imitators, "both": self.both}
        return tuple(
            Recipe(name, extractors, self.shadow, self.settings, self.shift, negligible=0.0)
            for name, extractors in candidates.items()
        )

    def alone(self, view: ServerView, seed: int, knowledge: Knowledge) -> Extractors:
        """The pilot for every client; in the shadow, that of the shadow's attacker."""
        extractor, _ = self.pilot(view.model, view.auxiliary, seed, knowledge)
        return {victim: [extractor] for victim in view.victim.tolist()}

    def both(self, view: ServerView, seed: int, knowledge: Knowledge) -> Extractors:
        """The pilot and the imitators."""
        alone, more = self.alone(view, seed, knowledge), self.imitators(view, seed, knowledge)
        return {victim: alone[victim] + more[victim] for victim in alone}

    def imitators(self, view: ServerView, seed: int, knowledge: Knowledge) -> Extractors:
        """The same for every client: cross-entropy through C~ plus Eq. 2 on auxiliary images, each from a start of its own."""
        pilot, _ = self.pilot(view.model, view.auxiliary, seed, knowledge)
        settings = self.surrogates

        def make() -> dict[str, Tensor]:
            align = to_class_means(view.model, pilot, view.auxiliary)
            return recipes.trained_members(settings, view, seed, "imitator", align, 1.0)

        trained = training_cache.cached(
            knowledge.cache,
            f"imitators-{view.name}",
            {"steps": settings.train_steps, "members": settings.members, "seed": seed},
            [*view.auxiliary, *view.classifier.values(), *pilot.values()],
            make,
            view.h.device,
        )
        return dict.fromkeys(view.victim.tolist(), recipes.unpacked(trained, settings.members))

    def shift(self, view: ServerView, extractors: Extractors, seed: int, knowledge: Knowledge) -> float:
        """How far the victims' features are from the pilot's class means, root mean square: how badly they were hijacked."""
        pilot, _ = self.pilot(view.model, view.auxiliary, seed, knowledge)
        align = to_class_means(view.model, pilot, view.auxiliary)
        return float(align(view.h.to(view.auxiliary.images), view.labels)) ** 0.5

    def shadow(self, real: ServerView, round_: int, seed: int, knowledge: Knowledge) -> tuple[ServerView, Tensor]:
        """A shadow federation hijacked by a pilot of the shadow attacker's own."""
        images = shadow_federation.attackers_half(real, seed)
        extractor, classifier = self.pilot(real.model, images, seed, knowledge)
        pull = shadow_federation.Pull(to_class_means(real.model, extractor, images), [*images, *extractor.values()])
        rounds = min(round_, self.active_rounds, self.surrogates.shadow_rounds)
        hijacked = real._replace(classifier=classifier)
        return shadow_federation.shadow(hijacked, rounds, self.surrogates.shadow_steps, seed, knowledge, pull=pull)

    def pilot(self, model: Model, images: Batch, seed: int, knowledge: Knowledge) -> tuple[Params, Params]:
        """(E~, quiet C~) trained on some images; on the CPU wherever they are, so that crafting and inversion have the same one."""
        place = images.images.device
        on_cpu = Batch(*(t.to(CPU) for t in images))
        settings = {"steps": self.pilot_steps, "seed": seed, "model": str(model)}
        trained = training_cache.cached(
            knowledge.cache,
            "pilot",
            settings,
            on_cpu,
            lambda: _trained_pilot(model, on_cpu, self.pilot_steps, seed),
            CPU,
        )
        # Sorted, as networks that were read back come in another order, and caches are named by what they depend on in turn.
        extractor, classifier = recipes.unpacked({n: trained[n].to(place) for n in sorted(trained)}, 2)
        return extractor, quiet(classifier)


def _trained_pilot(model: Model, images: Batch, steps: int, seed: int) -> dict[str, Tensor]:
    def start(part: str, name: str) -> Params:
        return model.net(part).init(stream(seed, "attacker", "pilot", part, name))[0]

    rngs = [stream(seed, "attacker", "pilot", "batches", name) for name in ("first", "second")]
    fresh = start("classifier", "first")
    how = LocalTraining(surrogate_training.USUAL_OPTIMISER.model_dump(), BATCH, steps)
    # The server's own, which drops nothing.
    first, classifier = surrogate_training.train_client(
        replace(model, dropout=0.0), start("extractor", "first"), fresh, images, 1, how, rngs[0]
    )
    align = to_class_means(model, first, images)
    second = start("extractor", "second")
    extractor = surrogate_training.train(model, second, classifier, images, 2 * steps, rngs[1], align, PULL)
    return recipes.packed([extractor, classifier])


def quiet(classifier: Params) -> Params:
    """C~ with the weights of all layers but the first times QUIET: features have little effect on its logits."""
    return {n: t if n.startswith("fc1.") or n.endswith(".bias") else QUIET * t for n, t in classifier.items()}


def imitate(
    model: Model, start: tuple[Params, Params], extractor: Params, images: Batch, steps: int, rng: torch.Generator
) -> tuple[Params, Params]:
    """(parameters, buffers) of a generator after `steps` of Adam on E_z || G(z,y) - E(x) ||^2 over images x of class y."""
    features, net = surrogate_training.extract(model, extractor, images.images), model.net("generator")
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
    moments = surrogate_training.class_moments(
        surrogate_training.extract(model, extractor, images.images), images.labels, model.classes
    )

    def align(h: Tensor, labels: Tensor) -> Tensor:
        gap = (h - moments.mean[labels]).square().flatten(1).mean(1)
        return (gap * moments.known[labels]).mean()

    return align
