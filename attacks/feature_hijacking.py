"""Feature-space hijacking through the distance term of FedCG's Eq. 2: an active server pulls private extractors to its own.

    1. Pilot: E_1 and C~ trained on auxiliary images by cross-entropy; then E~ from a fresh start through the frozen C~, with Eq. 2
       towards E_1's class means at weight PULL: features that an extractor under Eq. 2 can come close to.
    2. Crafted broadcast: C~ with the weights of its later layers times QUIET, so that the cross-entropy has little hold on an
       extractor and Eq. 2 decides; and a generator fitted to the pilot by Eq. 2 with the roles exchanged,
           min over G~ of  E_{x,y} E_z || G~(z,y) - E~(x) ||^2
    3. For `active_rounds` rounds the clients start from C~ and minimise CE(C_i(E_i(x)), y) + gamma || E_i(x) - G~(z,y) ||^2
       (privbench/observation/active_server.py).
    4. Imitators: extractors trained on auxiliary images as the clients are on theirs, from fresh starts on C~ and G~.
    5. h in closed form, inverted through pilot or imitators (attacks/features/inversion.py). Which, and tau, is what serves best
    in a
       shadow federation that the attacker hijacks in the same way, with a pilot from the other half of his images
       (attacks/shadow/selection.py); the class mean, where the real clients were hijacked much worse than the shadow's.

Pasquini, Ateniese, Bernaschi: Unleashing the Tiger, CCS 2021, arXiv 2012.02670, hijack split learning so: there the server
returns a gradient for every private feature and matches distributions with a discriminator. Eq. 2 is a weaker lever. z is
drawn independently of x, so that
    E_z || E(x) - G~(z,y) ||^2 = || E(x) - mu_y ||^2 + Var G~(z,y),   mu_y = E_z G~(z,y):
nothing but the class means of the pilot's features is felt by a client, whatever the generator. So step 2 fits the means, and
no discriminator is trained. What the means fix is the frame: which channel is which, and with which sign. What an extractor
keeps of x besides is its own affair, which is why imitators may serve better than the pilot.

Deviation: imitators and the shadow's clients feel mu_y itself at gamma = 1, where the ramp of every schedule ends. A client
could notice: the same C~ comes every round, and z changes next to nothing in what G~ makes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.analytic_features import relative_change
from attacks.common import training_cache
from attacks.features.inversion import Extractors
from attacks.shadow import selection, shadow_federation, surrogate_training
from attacks.shadow.selection import SHORT, Recipe, StandIn
from attacks.shadow.shadow_federation import ServerView
from attacks.shadow.surrogate_training import Align
from privbench.applicability import Limits
from privbench.errors import UserError
from privbench.hyperparameters import Count
from privbench.networks.base import LinearClassifier
from privbench.networks.model import Model
from privbench.seeds import stream
from privbench.tensors import Params
from privbench.types import (
    Artifact,
    Batch,
    Knowledge,
    LocalTraining,
    Networks,
    Presets,
    Progress,
    Reconstruction,
    no_progress,
)

CPU = torch.device("cpu")
BATCH = 64
LR = 2e-3  # of the generator
PULL = 30.0  # of Eq. 2 on the pilot
QUIET = 0.03  # of the weights behind the first layer of C~
ITS_OWN = 0.1  # relative distance of a classifier from the pilot's, below which it is the one that was sent


@dataclass(frozen=True)
class FeatureHijacking(StandIn):
    """Private extractors hijacked towards a pilot, which is then inverted."""

    active_rounds: Count = 10  # or as many as there are
    pilot_steps: Count = 600  # of E_1 and C~; E~ takes twice as many
    generator_steps: Count = 300

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier", "upload:generator", "auxiliary"})
    limits: ClassVar[Limits] = Limits(linear_classifier=True, unmixed=True)
    knowledge: ClassVar[str] = "active server + auxiliary + generator"
    rung: ClassVar[str] = "L7"
    presets: ClassVar[Presets] = {"smoke": SHORT | {"pilot_steps": 3, "generator_steps": 3}}
    active: ClassVar[bool] = True

    def craft(self, model: Model, broadcast: Networks, knowledge: Knowledge, seed: int) -> Networks:
        """The quiet C~, and G~; UserError unless the classifier begins with a linear layer, as h has no closed form then."""
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
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """All victims through the pilot; UserError where the clients did not get its classifier."""
        assert knowledge.auxiliary is not None, "the needs name auxiliary images"
        shadow_federation.check_features(artifact, type(self).__name__)
        _, classifier = self.pilot(artifact.model, knowledge.auxiliary, seed, knowledge)
        if relative_change(artifact.weights["classifier"], classifier) > ITS_OWN:
            raise UserError(
                "feature-hijacking inverts clients that trained on its own crafted networks, but these got others; name it "
                "with --attack in a run of your own"
            )
        return super().reconstruct(artifact, knowledge, seed, progress)

    def recipes(self) -> Mapping[str, Recipe]:
        """The pilot, imitators of the clients, both together."""
        return {"pilot": self.alone, "imitators": self.imitators, "both": self.both}

    def alone(self, own: ServerView, seed: int, knowledge: Knowledge) -> Extractors:
        """The pilot for every client; in the shadow, that of the shadow's attacker."""
        extractor, _ = self.pilot(own.model, own.auxiliary, seed, knowledge)
        return {victim: [extractor] for victim in own.victim.tolist()}

    def both(self, own: ServerView, seed: int, knowledge: Knowledge) -> Extractors:
        """The pilot and the imitators."""
        alone, more = self.alone(own, seed, knowledge), self.imitators(own, seed, knowledge)
        return {victim: alone[victim] + more[victim] for victim in alone}

    def imitators(self, own: ServerView, seed: int, knowledge: Knowledge) -> Extractors:
        """The same for every client: cross-entropy through C~ plus Eq. 2 on auxiliary images, each from a start of its own."""
        pilot, _ = self.pilot(own.model, own.auxiliary, seed, knowledge)
        kept = training_cache.cached(
            knowledge.cache,
            f"imitators-{own.name}",
            {"steps": self.train_steps, "members": self.members, "seed": seed},
            [*own.auxiliary, *own.classifier.values(), *pilot.values()],
            lambda: self.trained_members(own, seed, "imitator", to_class_means(own.model, pilot, own.auxiliary), 1.0),
            own.h.device,
        )
        return dict.fromkeys(own.victim.tolist(), selection.unpacked(kept, self.members))

    def applies(self, name: str, real: ServerView, shadow_shift: float, seed: int, knowledge: Knowledge) -> bool:
        """Whether the real clients were hijacked about as well as the shadow's."""
        return self.shift(real, {}, seed, knowledge) <= selection.UNLIKE * shadow_shift

    def shift(self, own: ServerView, made: Extractors, seed: int, knowledge: Knowledge) -> float:
        """How far the victims' features are from the pilot's class means, root mean square: how well they were hijacked."""
        pilot, _ = self.pilot(own.model, own.auxiliary, seed, knowledge)
        return float(to_class_means(own.model, pilot, own.auxiliary)(own.h.to(own.auxiliary.images), own.labels)) ** 0.5

    def shadow(self, real: ServerView, round_: int, seed: int, knowledge: Knowledge) -> tuple[ServerView, Tensor]:
        """A shadow federation hijacked by a pilot of the shadow attacker's own."""
        mine = shadow_federation.attackers_half(real, seed)
        extractor, classifier = self.pilot(real.model, mine, seed, knowledge)
        pull = shadow_federation.Pull(to_class_means(real.model, extractor, mine), [*mine, *extractor.values()])
        rounds = min(round_, self.active_rounds, self.shadow_rounds)
        hijacked = real._replace(classifier=classifier)
        return shadow_federation.shadow(hijacked, rounds, self.shadow_steps, seed, knowledge, pull=pull)

    def pilot(self, model: Model, images: Batch, seed: int, knowledge: Knowledge) -> tuple[Params, Params]:
        """(E~, quiet C~) trained on some images; on the CPU wherever they are, so that crafting and inversion have the same one."""
        place = images.images.device
        own = Batch(*(t.to(CPU) for t in images))

        def make() -> dict[str, Tensor]:
            def start(part: str, name: str) -> Params:
                return model.net(part).init(stream(seed, "attacker", "pilot", part, name))[0]

            rngs = [stream(seed, "attacker", "pilot", "batches", name) for name in ("first", "second")]
            steps, fresh = self.pilot_steps, start("classifier", "first")
            how = LocalTraining(surrogate_training.UNTOLD.model_dump(), BATCH, steps)
            first, classifier = surrogate_training.train_client(
                model, start("extractor", "first"), fresh, own, 1, how, rngs[0]
            )
            align = to_class_means(model, first, own)
            second = start("extractor", "second")
            extractor = surrogate_training.train(model, second, classifier, own, 2 * steps, rngs[1], align, PULL)
            return selection.packed([extractor, classifier])

        settings = {"steps": self.pilot_steps, "seed": seed, "model": str(model)}
        kept = training_cache.cached(knowledge.cache, "pilot", settings, own, make, CPU)
        # Sorted, as networks that were read back come in another order, and caches are named by what they depend on in turn.
        extractor, classifier = selection.unpacked({n: kept[n].to(place) for n in sorted(kept)}, 2)
        return extractor, quiet(classifier)


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
