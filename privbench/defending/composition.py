"""Several defences as one: each place applies its members in the order in which they act, which is the order they are written in.

What is guaranteed is what one member guarantees: whatever acts on what it releases is post-processing, and it bounds by itself what
acts before it. Nothing more is claimed:
- Two members that guarantee something are refused. Each guarantee holds for the chain of both, and a row states one.
- The noise of several clients adds up in a sum that a server gets by secure aggregation, and one client's guarantee would be better
  against a server that sees the sum alone. It is stated for single messages all the same: it holds even if all others collude.
- Clipping by one member and noise by another is not accounted for (`gaussian:variance=...,clip=...` is).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from privbench import registry
from privbench.defending import described
from privbench.defending.described import JOINED, NONE
from privbench.defense import PLACES, Defense, Facts, Guarantee, Place, Sum
from privbench.errors import UserError
from privbench.networks.model import Model
from privbench.tensors import Parts

# Each takes what no other has left as it was: images' gradients, networks, one sum.
ONCE: dict[Place, str] = {
    "example": "single images",
    "representation": "the representation",
    "aggregate": "the sum of all messages",
    "network": "the networks",
}


@dataclass(frozen=True)
class Composition(Defense):
    """Two defences or more, in the order in which they act."""

    members: tuple[Defense, ...]

    def __post_init__(self) -> None:
        """Refuses members that have no sense together, and those whose guarantees nothing here accounts for."""
        if refusal := _refusal(self.members):
            raise UserError(f"the defence {JOINED.join(map(_name, self.members))} {refusal}")

    @property
    def places(self) -> frozenset[Place]:
        """All of its members'."""
        return frozenset[Place]().union(*(member.places for member in self.members))

    @property
    def mechanism(self) -> Defense:
        """The member that guarantees something; itself where none does."""
        return next((member.mechanism for member in self.members if member.is_private), self)

    @property
    def is_private(self) -> bool:
        """Whether a member guarantees anything."""
        return any(member.is_private for member in self.members)

    def example(self, gradients: Parts, included: Tensor, expected: float, rng: torch.Generator) -> Parts:
        """By its one member with that place."""
        return self._only("example").example(gradients, included, expected, rng)

    def representation(self, gradients: Parts, model: Model, nets: tuple[Parts, Parts], images: Tensor) -> Parts:
        """By its one member with that place."""
        return self._only("representation").representation(gradients, model, nets, images)

    def step(self, gradients: Parts, rng: torch.Generator) -> Parts:
        """By one member after another."""
        for member in self._at("step"):
            gradients = member.step(gradients, rng)
        return gradients

    def message(self, tensors: Parts, rng: torch.Generator) -> Parts:
        """By one member after another."""
        for member in self._at("message"):
            tensors = member.message(tensors, rng)
        return tensors

    def aggregate(self, messages: Sequence[Parts], weights: Sequence[int], rng: torch.Generator) -> Sum:
        """By its one member with that place."""
        return self._only("aggregate").aggregate(messages, weights, rng)

    def network(self, model: Model) -> Model:
        """By its one member with that place."""
        return self._only("network").network(model)

    def optimiser(self, setting: Mapping[str, Any]) -> Mapping[str, Any]:
        """By its one member that changes it, if there is one."""
        for member in self.members:
            setting = member.optimiser(setting)
        return setting

    def planned(self, every: Sequence[Facts]) -> Self:
        """Each member planned."""
        return type(self)(tuple(member.planned(every) for member in self.members))

    def guarantee(self, facts: Facts) -> Guarantee | None:
        """That of the one member that guarantees something."""
        return self.mechanism.guarantee(facts) if self.is_private else None

    @property
    def noisy(self) -> bool:
        """Whether a member is."""
        return any(member.noisy for member in self.members)

    def noise_variance(self, batch_size: int) -> float:
        """Of all noise that its members add; what a later member makes of it is left out."""
        return sum(member.noise_variance(batch_size) for member in self.members)

    def describe(self) -> dict[str, Any]:
        """All settings of its members (privbench/defending/described.py)."""
        return described.together([m.describe() for m in self.members], [m.noisy for m in self.members])

    def _at(self, place: Place) -> list[Defense]:
        return [member for member in self.members if place in member.places]

    def _only(self, place: Place) -> Defense:
        (member,) = self._at(place)
        return member


def _refusal(members: Sequence[Defense]) -> str:
    """Why some defences are none together; nothing where they are one."""
    names = [_name(member) for member in members]
    if NONE in names:
        return "names none, which is the absence of a defence; leave it out"
    if len({*map(type, members)}) < len(members):
        twice = next(name for name in names if names.count(name) > 1)
        return f"has {twice} twice; write one with the settings that are meant"
    for place, words in ONCE.items():
        at = [name for name, member in zip(names, members, strict=True) if place in member.places]
        if len(at) > 1:
            return f"has two that act on {words}, {' and '.join(at)}; leave one out"
    if {"example", "representation"} <= frozenset[Place]().union(*(member.places for member in members)):
        return (
            "prunes a mini-batch's representation by all of its images, and clips the gradient of each; leave one out"
        )
    if sorted(names, key=_rank(names, members)) != names:
        return f"is not written in the order in which it acts: {JOINED.join(sorted(names, key=_rank(names, members)))}"
    if len(private := [name for name, member in zip(names, members, strict=True) if member.is_private]) > 1:
        return f"has two guarantees, of {' and '.join(private)}, which nothing here adds up; leave one out"
    return ""


def _rank(names: Sequence[str], members: Sequence[Defense]) -> Callable[[str], int]:
    """When a member acts, by its name: its first place on gradients and messages; before all of them where it has none."""
    first = {
        name: min((PLACES.index(place) for place in member.places if place != "network"), default=-1)
        for name, member in zip(names, members, strict=True)
    }
    return first.__getitem__


def _name(defense: Defense) -> str:
    return registry.name_of("defense", type(defense))
