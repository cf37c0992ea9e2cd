"""The form every defence is written in: named places, each optional, each pure. A defence has the places that it says in `places`.

    example         per-example gradients of a local step -> the gradient that the step takes
    representation  the gradient of a local step, its networks and images -> that of a changed representation
    step            the gradient of a local step over the shared parts -> what the client steps by and what a server would see
    message         what one client sends -> what the server receives
    aggregate       what all clients send -> their weighted mean, which is all that the server receives
    network         the networks of a run -> those that train in their place

The same object acts in training and on every attacked upload, so that accuracy and PSNR describe one system. What it `describe`s
is what the attacker knows. `guarantee` is a statement about what was really done: the facts come from the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Tensor

from privbench.networks.model import Model
from privbench.tensors import Parts

Place = Literal["example", "representation", "step", "message", "aggregate", "network"]
PLACES: tuple[Place, ...] = ("example", "representation", "step", "message", "aggregate", "network")


class StageFacts(NamedTuple):
    """What one stage of a client's training did in a round."""

    name: str
    trains: tuple[str, ...]
    reads: Literal["images", "labels"]  # of the client's data
    batch: int  # images per step; expected ones under Poisson sampling
    steps: int


class Facts(NamedTuple):
    """What one client did with its data over all rounds."""

    examples: int  # training images
    rounds: int  # those in which it took part
    stages: tuple[StageFacts, ...]
    shared_parts: tuple[str, ...]
    # What leaves the client and no defence acts on, e.g. "label counts".
    besides: tuple[str, ...]


class Guarantee(NamedTuple):
    """(epsilon, delta)-differential privacy of what one client sent, against whoever receives it."""

    epsilon: float
    delta: float
    noise: float  # standard deviation of the noise, in units of the sensitivity
    # Neighbouring data sets differ in one training image added or removed, or in the whole client being there or not.
    unit: Literal["example", "client"]
    covers: tuple[str, ...]  # the networks whose training is clipped and noised
    leaves_out: tuple[str, ...]  # what leaves the client besides
    accountant: str


class Sum(NamedTuple):
    """What a server gets of the messages of K clients, and what that took."""

    tensors: Parts  # sum_k n_k t_k / sum_k n_k
    bytes_sent: tuple[int, ...]  # by each client, as serialised: [K]
    seconds: float  # of all clients, one after another, and of the server


@dataclass(frozen=True)
class Defense:
    """A frozen dataclass of settings. Subclasses name their `places` and write the method of each."""

    @property
    def places(self) -> frozenset[Place]:
        """Where it acts: nowhere, unless a subclass says so."""
        return frozenset()

    def example(self, gradients: Parts, included: Tensor, expected: float, rng: torch.Generator) -> Parts:
        """The gradient of one local step, from those of its images.

        gradients: part -> parameter -> [B, ...] of every part under training; included: [B] bool, which rows are images of the
        mini-batch and not padding; expected: how many images a mini-batch has in expectation. `rng` is the only source of noise.
        """
        raise NotImplementedError

    def representation(self, gradients: Parts, model: Model, nets: tuple[Parts, Parts], images: Tensor) -> Parts:
        """The gradient of one local step as if the classifier's first layer had seen changed features of these images.

        gradients: part -> parameter -> [...] of some or all parts, the mean over the mini-batch; nets: (parameters, buffers) of the
        networks at which it was taken; images: [B, C, H, W] of the mini-batch. Nothing is random.
        """
        raise NotImplementedError

    def step(self, gradients: Parts, rng: torch.Generator) -> Parts:
        """The gradient of one local step over the shared parts that it trains, from the mean over its mini-batch."""
        raise NotImplementedError

    def message(self, tensors: Parts, rng: torch.Generator) -> Parts:
        """What one client sends in a round (the change of its shared parts, or one gradient over them), all parts jointly."""
        raise NotImplementedError

    def aggregate(self, messages: Sequence[Parts], weights: Sequence[int], rng: torch.Generator) -> Sum:
        """The mean of K messages of the same names and shapes by whole weights n_k >= 0 (a client's number of images).

        NaN where an entry of a message cannot be carried. UserError where no mean can be, as where all weights are 0.
        """
        raise NotImplementedError

    def network(self, model: Model) -> Model:
        """The networks to train in place of the method's; UserError for networks that the defence does not fit."""
        raise NotImplementedError

    def optimiser(self, setting: Mapping[str, Any]) -> Mapping[str, Any]:
        """The optimiser of a client's stage in place of the schedule's; both are privbench.spec.SGD or Adam, written out."""
        return setting

    def planned(self, every: Sequence[Facts]) -> Self:
        """The defence for clients that will do what each of `every` says: solves for its noise where an epsilon was asked for."""
        return self

    def guarantee(self, facts: Facts) -> Guarantee | None:
        """What is guaranteed for what one client did; None: nothing."""
        return None

    @property
    def is_private(self) -> bool:
        """Whether it guarantees anything, known before it is planned: by default where a subclass writes `guarantee`."""
        return type(self).guarantee is not Defense.guarantee

    @property
    def mechanism(self) -> Defense:
        """What of it the guarantee is of: itself, unless it is composed of several."""
        return self

    @property
    def noisy(self) -> bool:
        """Whether it adds noise to what a server sees, known before it is planned."""
        return self.noise_variance(1) > 0

    def noise_variance(self, batch_size: int) -> float:
        """Per coordinate, of the noise on the gradient of `batch_size` images; 0 without any."""
        return 0.0

    def describe(self) -> dict[str, Any]:
        """Name and settings, as recorded and as the attacker knows them."""
        raise NotImplementedError
