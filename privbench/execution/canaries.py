"""Canaries: inputs of an auditor's own, by which it measures how much what is sent says of who took part.

A canary of a defence of every image is one more image of a client, of which the auditor chooses the gradient: one coordinate of
what a stage trains, far longer than any clip. It is in the data or not, by one fair coin a run. If it is, each mini-batch
draws it at the rate of every image. Its score is the sum over the run of that coordinate of everything that the steps release.
A canary of a defence of messages is one more client. If it takes part, each of its messages is one coordinate, far longer than any
clip; if it does not, zeros. Its score is the sum of that coordinate over its messages. Clients add their noise themselves, so
that they are audited side by side.

What releases is the defence's own code. Of images the harness runs its rounds with the client's schedule and networks, and the
defence gets the canaries' rows in addition, drawn here at the sampler's rate; of messages the canaries are all that it gets. So an
audit says nothing of the sampler, of single images' gradients, or of how a message is made of networks. The noise, the rate and
the number of releases stay those of the run, and so does the epsilon that is claimed: it depends on the number of images through
the rate alone. With the canaries the client holds n + m/2 images on average, a mini-batch that many times the rate.
One client is trained, the one with the fewest images, whose rate is highest, and no other: the guarantee is against a server that
broadcasts whatever it likes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from privbench.defense import Defense, Facts, Guarantee, Place, StageFacts
from privbench.errors import UserError
from privbench.seeds import stream
from privbench.tensors import Parts
from privbench.training import defended, harness
from privbench.training.state import Setup

# The norm of a canary before it is clipped.
LENGTH = 1e6
NAMES = ("audit", "canaries")


class CanaryScores(NamedTuple):
    """What an audit is made of."""

    took_part: Tensor  # [m] bool
    scores: Tensor  # [m], higher where a canary that took part is likelier

    def right(self, guesses: int) -> int:
        """How many guesses are right, half of them "took part" for the highest scores, half "did not" for the lowest."""
        order = self.scores.argsort(stable=True)
        lowest, highest = order[: guesses // 2], order[len(order) - guesses // 2 :]
        return int((~self.took_part[lowest]).sum() + self.took_part[highest].sum())


class CanaryPlaces:
    """The parameters of some networks laid end to end, [P] in all."""

    def __init__(self, parts: Parts) -> None:
        self.shapes = {part: {name: t.shape for name, t in params.items()} for part, params in parts.items()}
        sizes = [math.prod(shape) for params in self.shapes.values() for shape in params.values()]
        self.starts = [sum(sizes[:i]) for i in range(len(sizes) + 1)]

    def coordinates(self, count: int, rng: torch.Generator) -> Tensor:
        """So many coordinates [count], no two alike; layers take turns, so that a layer that is not clipped shows.

        UserError: fewer parameters than that.
        """
        size = self.starts[-1]
        if count > size:
            raise UserError(f"{count} canaries need as many parameters, but {size} are trained; take fewer canaries")
        each = [torch.randperm(b - a, generator=rng) + a for a, b in zip(self.starts, self.starts[1:], strict=False)]
        turns = torch.cat([torch.arange(len(layer)) for layer in each])
        return torch.cat(each)[turns.argsort(stable=True)][:count]

    def in_turn(self, count: int, rng: torch.Generator) -> Tensor:
        """So many coordinates [count], a random one of each layer in turn: as many of a small layer as of a large one."""
        starts, sizes = torch.tensor(self.starts[:-1]), torch.tensor(self.starts).diff()
        layer = torch.arange(count) % len(sizes)
        return starts[layer] + (torch.rand(count, generator=rng, dtype=torch.float64) * sizes[layer]).long()

    def rows(self, places: Tensor) -> Parts:
        """Gradients of LENGTH at one coordinate each and zero elsewhere: part -> parameter -> [len(places), ...]."""
        flat = torch.zeros(len(places), self.starts[-1])
        flat[torch.arange(len(places)), places] = LENGTH
        pieces = iter(flat.split([b - a for a, b in zip(self.starts, self.starts[1:], strict=False)], 1))
        return {
            part: {name: next(pieces).view(-1, *shape) for name, shape in params.items()}
            for part, params in self.shapes.items()
        }

    def at(self, parts: Parts, places: Tensor) -> Tensor:
        """What the coordinates hold: [len(places)]."""
        each = [parts[part][name].detach().flatten() for part, params in self.shapes.items() for name in params]
        return torch.cat(each)[places].float().cpu()


@dataclass(frozen=True)
class WithCanaries(Defense):
    """A defence of every image that is given the canaries' gradients beside the images'; all else is the defence's."""

    defense: Defense
    images: int  # that the client's mini-batches are drawn from, without canaries
    took_part: Tensor  # [m] bool
    scores: Tensor  # [m], added to at every step
    rng: torch.Generator  # which coordinates, and which steps draw a canary
    # Parts under training -> their layers and the canaries' coordinates [m]; filled when a stage first steps.
    stages: dict[tuple[str, ...], tuple[CanaryPlaces, Tensor]]

    @property
    def places(self) -> frozenset[Place]:
        """Where the defence acts."""
        return self.defense.places

    def optimiser(self, setting: Mapping[str, Any]) -> Mapping[str, Any]:
        """The defence's."""
        return self.defense.optimiser(setting)

    def example(self, gradients: Parts, included: Tensor, expected: float, rng: torch.Generator) -> Parts:
        """The defence's step over images and canaries; adds each canary's coordinate of it to its score."""
        layers, places = self._stage(gradients)
        drawn = self.took_part & (torch.rand(len(places), generator=self.rng) < expected / self.images)
        rows = layers.rows(places[drawn])
        whole = {
            part: {name: torch.cat([t, rows[part][name].to(t)]) for name, t in params.items()}
            for part, params in gradients.items()
        }
        gradient = self.defense.example(
            whole, torch.cat([included, included.new_ones(int(drawn.sum()))]), expected, rng
        )
        self.scores.add_(layers.at(gradient, places))
        return gradient

    def _stage(self, gradients: Parts) -> tuple[CanaryPlaces, Tensor]:
        """The layers of what a stage trains, and the coordinate of each canary."""
        key = tuple(gradients)
        if key not in self.stages:
            layers = CanaryPlaces({p: {n: t[0] for n, t in params.items()} for p, params in gradients.items()})
            self.stages[key] = (layers, layers.coordinates(len(self.took_part), self.rng))
        return self.stages[key]


def one_run(setup: Setup, canaries: int, rounds: int) -> CanaryScores:
    """The scores of `canaries` after a run's client took part in so many rounds, or as many clients where messages are defended.

    UserError: more canaries than parameters; a defence that acts neither on images nor on what is sent.
    """
    rng = stream(setup.spec.seed, *NAMES)
    took_part = torch.rand(canaries, generator=rng) < 0.5
    if "example" in setup.defense.places:
        return _of_images(setup, took_part, rounds, rng)
    return _of_clients(setup, took_part, rounds, rng)


def _of_images(setup: Setup, took_part: Tensor, rounds: int, rng: torch.Generator) -> CanaryScores:
    k, size = defended.smallest_client(setup.method, setup.labels)
    audited = WithCanaries(setup.defense, size, took_part, torch.zeros(len(took_part)), rng, {})
    alone = replace(
        setup,
        defense=audited,
        federation=setup.federation._replace(clients=(setup.federation.clients[k],)),
        images=(setup.images[k],),
        labels=(setup.labels[k],),
        weights=torch.ones_like(setup.weights[:1]),
        counts=None if setup.counts is None else setup.counts[k : k + 1],
    )
    state = harness.initial(alone)
    for _ in range(rounds):
        harness.learn([alone], [state], "alone")
        state.round += 1
    return CanaryScores(took_part, audited.scores)


def _of_clients(setup: Setup, took_part: Tensor, rounds: int, rng: torch.Generator) -> CanaryScores:
    layers = CanaryPlaces(_networks(setup, tuple(setup.method.shared_parts)))
    places, scores = layers.coordinates(len(took_part), rng), torch.zeros(len(took_part))
    for i in range(len(places)):
        place = places[i : i + 1]
        sent = _present(layers.rows(place), bool(took_part[i]))
        scores[i] = sum(float(layers.at(released, place)) for released in _released(setup, i, sent, rounds))
    return CanaryScores(took_part, scores)


def _networks(setup: Setup, parts: Sequence[str]) -> Parts:
    state = harness.initial(setup)
    return {part: (state.clients[0].params | state.server.params)[part] for part in parts}


def _present(rows: Parts, took_part: bool) -> Parts:
    """The first of some rows; zeros where the canary does not take part."""
    return {part: {name: t[0] * took_part for name, t in params.items()} for part, params in rows.items()}


def _released(setup: Setup, k: int, sent: Parts, rounds: int) -> list[Parts]:
    """What a server receives of client k, whose every message, or every step, is `sent`: as many as the smallest client has."""
    if "message" in setup.defense.places:
        return [defended.sent(setup, k, round_, sent) for round_ in range(1, rounds + 1)]
    if "step" not in setup.defense.places:
        raise UserError("the defence acts neither on images nor on what is sent, so that it has no place for canaries")
    # The claim that is tested is that client's (audit.py).
    _, examples = defended.smallest_client(setup.method, setup.labels)
    stages = defended.facts(setup.method, setup.spec.schedule, examples, rounds, ()).stages
    # A step says nothing of networks that its stage does not train.
    nothing = {part: {name: torch.zeros_like(t) for name, t in net.items()} for part, net in sent.items()}
    each = []
    for round_ in range(1, rounds + 1):
        local = defended.in_round(setup, k, round_)
        assert local.step is not None, "a defence with the place 'step' acts on steps"
        for stage in stages:
            shared = {part: sent[part] for part in stage.trains if part in sent}
            each += [nothing | local.step(shared) for _ in range(stage.steps if shared else 0)]
    return each


class Singles(NamedTuple):
    """Independent releases of one canary each."""

    releases: int
    right: int  # guesses
    largest: float  # of all coordinates that a canary may be in, in units of the clip


def single_releases(setup: Setup, noise: float, releases: int) -> Singles:
    """Guesses of so many coins, each from one release in which nothing but a canary is or is not; `noise` as the guarantee has it.

    A release is one step over all images, or one message, of the run's networks. The guess is "took part" where the canary's
    coordinate exceeds half of the clip, the likelier of the two under Gaussian noise.
    """
    defense, rng = setup.defense, stream(setup.spec.seed, *NAMES, "single")
    layers = CanaryPlaces(_networks(setup, _released_parts(setup)))
    # The clip: the noise is `noise` times as large.
    bound = math.sqrt(defense.noise_variance(1)) / noise
    took_part = torch.rand(releases, generator=rng) < 0.5
    places, scores = layers.in_turn(releases, rng), torch.zeros(releases)
    for i in range(releases):
        rows = layers.rows(places[i : i + 1])
        if "example" in defense.places:
            released = defense.example(rows, took_part[i : i + 1], 1.0, rng)
        else:
            act = defense.message if "message" in defense.places else defense.step
            released = act(_present(rows, bool(took_part[i])), rng)
        scores[i] = layers.at(released, places[i : i + 1]) / bound
    return Singles(releases, int(((scores > 0.5) == took_part).sum()), float(scores.nan_to_num(torch.inf).max()))


def _released_parts(setup: Setup) -> tuple[str, ...]:
    """What one release is over: what the first stage trains that reads images, or what is shared."""
    if "example" not in setup.defense.places:
        return tuple(setup.method.shared_parts)
    return next(stage.trains for phase in setup.method.client() for stage in phase.stages if stage.reads == "images")


def guarantee_of_single(setup: Setup) -> Guarantee | None:
    """What the defence guarantees for one such release."""
    parts = _released_parts(setup)
    return setup.defense.guarantee(Facts(1, 1, (StageFacts("audit", parts, "images", 1, 1),), parts, ()))
