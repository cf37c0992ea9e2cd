"""A convolutional decoder h -> x, trained on auxiliary images seen through aligned surrogates: a learned inverse.

    min over D of  mean over auxiliary (x, y) and surrogates m of ||mu_y + D(E_m(x), y) - x||^2
mu_y is the mean of the class's auxiliary images; the surrogates are one of each client (attacks/aligned_surrogate.py), and no D
reads features that its surrogates were aligned to. Trained on
several at once, D learns what can be read whichever of them is right, and fades towards mu_y where they disagree. Real
extractors disagree more; how much of D's answer is worth keeping,
    x = mu_y + a D(h, y),  a = [<D', x' - mu> / ||D'||^2, within [0, 1]] min(1, ||D'||^2 / ||D||^2),
is settled by a decoder D' trained in the same way in the shadow federation (attacks/shadow/shadow_federation.py), where that
applies (attacks/shadow/selection.py); norms are mean squares over victims and pixels. The least-squares share of D itself,
<D, x - mu> / ||D||^2, has a numerator that nobody knows, and the one rehearsed on the shadow's victims x' stands for it; the
denominator is there to be seen. Features unlike those that D was trained on make it extrapolate: its answers grow, though they
say no more of the images, and count for less.
Learned inverses: Dosovitskiy and Brox, CVPR 2016; LTI (Wu et al., UAI 2023, arXiv 2210.10880) for
gradients. There is no descent on the victims, so the loss that is reported is the relative feature distance of the answer
through the client's surrogate.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.aligned_surrogate import AlignedSurrogate, folds
from attacks.common import gradient_distance, training_cache
from attacks.common.no_information import gave_up
from attacks.features import inversion
from attacks.features.inversion import Extractors
from attacks.shadow import shadow_federation, surrogate_training
from attacks.shadow.selection import FEWEST, SHORT, moment_shift, start_of
from attacks.shadow.shadow_federation import ServerView
from privbench.hyperparameters import Count
from privbench.networks.layers import uniform_init
from privbench.seeds import stream
from privbench.tensors import Params
from privbench.types import Artifact, Knowledge, Presets, Progress, Reconstruction, no_progress

WIDTH = 96
GRID = 8  # D works on GRID x GRID positions, and every one paints its own patch
BATCH = 32
LR = 2e-3


class Rehearsed(NamedTuple):
    """What the rehearsal says of D's answers."""

    share: float  # in [0, 1], that is worth keeping of them
    energy: float  # their mean square


@dataclass(frozen=True)
class Decoder(AlignedSurrogate):
    """D on top of aligned surrogates."""

    decoder_steps: Count = 500

    rung: ClassVar[str] = "L5"
    presets: ClassVar[Presets] = {"smoke": SHORT | {"align_steps": 3, "decoder_steps": 3}}
    revision: ClassVar[int] = 3  # 2, 3: as AlignedSurrogate

    def through_stand_ins(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """One pass of D per victim of a private extractor; their gradients are finite."""
        real = shadow_federation.real(artifact, knowledge, seed, "Decoder")
        rehearsed, members = Rehearsed(0.0, 0.0), Extractors()
        if len(real.auxiliary.labels) >= FEWEST:
            rehearsed = self.rehearsed_share(real, artifact.round, seed, knowledge)
        means, answer = class_means(real)[real.labels], torch.zeros_like(real.h[:, :1, :1, :1])
        if rehearsed.share:
            members = self.aligned(real, seed, knowledge)
            answer = self.answers(real, members, seed, knowledge)
        x = means + carried_over(rehearsed, answer) * answer.to(means)
        loss = torch.zeros(len(x), device=x.device)
        for v, victim in enumerate(real.victim.tolist() if members else ()):
            found = surrogate_training.extract(real.model, members[victim][0], x[v : v + 1])[0]
            loss[v] = gradient_distance.feature_distance(found, real.h[v].to(found))
        first = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        answered = Reconstruction(x[:, None], real.labels[:, None], loss, loss[:, None], first, 0)
        return answered if rehearsed.share else gave_up(answered)

    def rehearsed_share(self, real: ServerView, round_: int, seed: int, knowledge: Knowledge) -> Rehearsed:
        """How much of D's answer is worth keeping in the shadow; 0 unless it helps there by a standard error, and applies here."""
        kept = training_cache.cached(
            knowledge.cache,
            "rehearsal-decoder",
            {
                **asdict(self),
                "seed": seed,
                "round": round_,
                "initial": knowledge.initial is not None,
                "revision": self.revision,
                "training": str(real.training),
            },
            [*self.depends_on(real), *start_of(knowledge)],
            lambda: self._rehearse_share(real, round_, seed, knowledge),
            real.h.device,
        )
        if not self.applies("aligned", real, float(kept["shift"]), seed, knowledge):
            return Rehearsed(0.0, 0.0)
        return Rehearsed(float(kept["share"]), float(kept["energy"]))

    def _rehearse_share(self, real: ServerView, round_: int, seed: int, knowledge: Knowledge) -> dict[str, Tensor]:
        other, images = self.shadow(real, round_, seed, knowledge)
        means = class_means(other)[other.labels]
        made = self.aligned(other, seed, knowledge)
        answer = self.answers(other, made, seed, knowledge).flatten(1)
        missing = (images - means).flatten(1)
        share = ((answer * missing).sum() / answer.square().sum().clamp_min(1e-12)).clamp(0, 1)
        gain = missing.square().mean(1) - (missing - share * answer).square().mean(1)
        helps = gain.mean() > gain.std() / math.sqrt(len(gain))
        shift = torch.tensor(moment_shift(other, made))
        return {"share": share * helps, "energy": answer.square().mean(), "shift": shift}

    def answers(self, own: ServerView, members: Extractors, seed: int, knowledge: Knowledge) -> Tensor:
        """D(h, y) of all victims, [V, C, H, W]; each fold's D is trained through surrogates that are not aligned to it."""
        dealt, means = folds(own), class_means(own)[own.labels]
        answer = torch.zeros_like(means)
        for fold in sorted(set(dealt.tolist())):
            rows = torch.nonzero(dealt == fold)[:, 0]
            theirs = zip(own.client[rows].tolist(), own.victim[rows].tolist(), strict=True)
            networks = [members[victim][0] for _, victim in sorted(dict(theirs).items())]
            params = self.decoder(own, networks, seed, knowledge)
            answer[rows] = decode(params, own.h[rows].float(), own.labels[rows], own.model.classes, means[rows])
        return answer

    def decoder(self, own: ServerView, networks: list[Params], seed: int, knowledge: Knowledge) -> Params:
        """D of one world, trained through one surrogate of each of its clients."""
        return training_cache.cached(
            knowledge.cache,
            f"decoder-{own.name}",
            {"decoder_steps": self.decoder_steps, "seed": seed},
            [*own.auxiliary, *(params[name] for params in networks for name in sorted(params))],
            lambda: train(own, networks, self.decoder_steps, seed),
            own.h.device,
        )


def carried_over(rehearsed: Rehearsed, answer: Tensor) -> float:
    """The share of real answers [V, ...] that is worth keeping: less than was rehearsed where these are larger."""
    energy = float(answer.square().mean())
    return rehearsed.share * min(1.0, rehearsed.energy / energy) if energy > 0 else 0.0


def class_means(own: ServerView) -> Tensor:
    """mu_y of the auxiliary images: [Y, C, H, W]."""
    like = own.auxiliary.images
    belief = inversion.learned(own.auxiliary, own.model.classes, like)
    return ((belief.means + 1) / 2).view(-1, *like.shape[1:])


def init(channels: int, classes: int, shape: tuple[int, int, int], rng: torch.Generator) -> Params:
    """Random weights of D for features of `channels` and images of `shape`; its last layer begins at zero."""
    patch = shape[0] * (shape[1] // GRID) * (shape[2] // GRID)
    widths = (channels + classes, WIDTH, WIDTH, patch)
    params: Params = {}
    for i in range(3):
        fan = widths[i] * 9
        params[f"conv{i}.weight"] = uniform_init((widths[i + 1], widths[i], 3, 3), fan, rng) * math.sqrt(6)
        params[f"conv{i}.bias"] = torch.zeros(widths[i + 1])
    return {n: torch.zeros_like(t) if n.startswith("conv2") else t for n, t in params.items()}


def decode(params: Params, h: Tensor, labels: Tensor, classes: int, like: Tensor) -> Tensor:
    """D(h, y) [n, C, H, W], shaped as `like`, of features [n, c, s, s]."""
    h = (h - params["mean"]) / params["spread"]
    x = F.interpolate(h, (GRID, GRID), mode="bilinear", align_corners=True)
    planes = F.one_hot(labels, classes).to(h)[:, :, None, None].expand(-1, -1, GRID, GRID)
    x = torch.cat([x, planes], 1)
    for i in range(3):
        x = F.conv2d(x, params[f"conv{i}.weight"], params[f"conv{i}.bias"], padding=1)
        x = F.leaky_relu(x, 0.1) if i < 2 else x
    return F.pixel_shuffle(x, like.shape[-1] // GRID)


def train(own: ServerView, members: list[Params], steps: int, seed: int) -> Params:
    """D after `steps` of Adam with cosine decay, a surrogate and a mini-batch drawn at each."""
    return fitted(
        own, [surrogate_training.extract(own.model, member, own.auxiliary.images) for member in members], steps, seed
    )


def fitted(own: ServerView, seen: list[Tensor], steps: int, seed: int) -> Params:
    """The same of the features [N, c, s, s] that each of several extractors makes of the world's auxiliary images."""
    images, classes = own.auxiliary
    every = torch.cat(seen)
    rng = stream(seed, "attacker", "decoder", own.name)
    shape = (int(images.shape[1]), int(images.shape[2]), int(images.shape[3]))
    fresh = init(int(every.shape[1]), own.model.classes, shape, rng)
    params = {n: t.to(images).requires_grad_() for n, t in fresh.items()}
    fixed = {"mean": every.mean((0, 2, 3))[:, None, None], "spread": every.std((0, 2, 3))[:, None, None] + 0.01}
    means = class_means(own)
    optimiser = torch.optim.Adam(params.values(), lr=LR)
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = LR * (1 + math.cos(math.pi * step / steps)) / 2
        index = torch.randint(len(images), (BATCH,), generator=rng).to(images.device)
        h, y = seen[int(torch.randint(len(seen), (), generator=rng))][index], classes[index]
        answer = means[y] + decode({**params, **fixed}, h, y, own.model.classes, images)
        optimiser.zero_grad()
        F.mse_loss(answer, images[index]).backward()
        optimiser.step()
    return {n: t.detach() for n, t in {**params, **fixed}.items()}
