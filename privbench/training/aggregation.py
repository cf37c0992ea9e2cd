"""What clients send in a round, and its weighted average in the server: of their messages, or by a defence that adds them up.

A defence adds up the messages of two clients or more. Where one client alone takes part in a round, its message arrives as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from privbench.defense import Defense, Sum
from privbench.methods.base import RoundClock
from privbench.seeds import stream
from privbench.tensors import Parts, average
from privbench.training import defended
from privbench.training.state import Setup, State, networks_of

GROUPS = ("parameters", "buffers")  # of what a client sends
COUNTS = "label counts"


def collect(setup: Setup, state: State, round_: int) -> Sum | None:
    """What clients that take part send, and in the server their weighted average: by the defence where it adds up messages."""
    taking_part = setup.taking_part(round_)
    messages = [_upload(setup, state, k, round_) for k in taking_part]
    state.uploads = [
        messages[taking_part.index(k)] if k in taking_part else before for k, before in enumerate(state.uploads)
    ]
    whole = None
    if sums(setup, taking_part):
        params, buffers, whole = summed(setup, messages, round_)
    else:
        weights = weights_of(setup, taking_part)
        params, buffers = (
            {part: average([m[group][part] for m in messages], weights) for part in setup.method.shared_parts}
            for group in range(len(GROUPS))
        )
    rate = setup.method.server_rate(RoundClock(round_, setup.spec.schedule.rounds))
    state.server.params |= _towards(state.server.params, params, rate)
    state.server.buffers |= buffers
    return whole


def _towards(before: Parts, mean: Parts, rate: float) -> Parts:
    """before + rate (mean - before); the mean itself, to the bit, where the rate is 1."""
    if rate == 1:
        return mean
    return {p: {n: before[p][n] + rate * (t - before[p][n]) for n, t in params.items()} for p, params in mean.items()}


def sent(state: State, taking_part: Sequence[int], whole: Sum | None, counts: int) -> dict[str, Any]:
    """What the history says of the bytes that each client sent, of which `counts` are label counts, and of adding them up.

    A client that did not take part sent none.
    """
    each = [size(state.uploads[k]) + counts for k in taking_part] if whole is None else whole.bytes_sent
    of_client = dict(zip(taking_part, each, strict=True))
    bytes_up = {"bytes_up": [of_client.get(k, 0) for k in range(len(state.clients))]}
    return bytes_up if whole is None else bytes_up | {"aggregation_seconds": whole.seconds}


def _upload(setup: Setup, state: State, k: int, round_: int) -> tuple[Parts, Parts]:
    """What client k sends: its shared parts, their change since the broadcast defended where the defence acts on it."""
    params, buffers = networks_of(state.clients[k], setup.method.shared_parts)
    if "message" not in setup.defense.places:
        return params, buffers
    received = state.server.params
    change = {p: {n: t - received[p][n] for n, t in params[p].items()} for p in params}
    change = defended.sent(setup, k, round_, change)
    return {p: {n: received[p][n] + t for n, t in change[p].items()} for p in change}, buffers


def weights_of(setup: Setup, part: Sequence[int]) -> Tensor:
    """What the messages of some clients count for in their average, by their numbers of training images: [len(part)] with sum 1."""
    if len(part) == len(setup.weights):
        return setup.weights
    chosen = setup.weights[list(part)]
    return chosen / chosen.sum()


def sums(setup: Setup, taking_part: Sequence[int]) -> bool:
    """Whether the server gets the sum of the messages of some clients alone; the sum of one would be its message."""
    return "aggregate" in setup.defense.places and bool(setup.method.shared_parts) and len(taking_part) > 1


def summed(setup: Setup, messages: Sequence[tuple[Parts, Parts]], round_: int) -> tuple[Parts, Parts, Sum]:
    """(parameters, buffers, what all of it took) of the mean of a round's messages, by what each client counts for.

    Label counts, where the method uploads them, are added up too; `privbench.methods` reads no more than their sum then.
    """
    rng = stream(setup.spec.seed, "round", round_, "defence", "aggregate")
    taking_part = setup.taking_part(round_)
    weights = [setup.method.counts_for(len(setup.labels[k])) for k in taking_part]
    params, buffers, whole = sum_of(setup.defense, messages, weights, rng)
    if setup.counts is not None:
        counts = sum_of_counts(setup.defense, setup.counts[list(taking_part)], rng)
        both = (a + b for a, b in zip(whole.bytes_sent, counts.bytes_sent, strict=True))
        whole = Sum(whole.tensors, tuple(both), whole.seconds + counts.seconds)
    return params, buffers, whole


def sum_of(
    defense: Defense, uploads: Sequence[tuple[Parts, Parts]], weights: Sequence[int], rng: torch.Generator
) -> tuple[Parts, Parts, Sum]:
    """(parameters, buffers, what it took) of the weighted mean of networks, each parameters and buffers."""
    messages = [
        {f"{group}/{part}": net for group, parts in zip(GROUPS, one, strict=True) for part, net in parts.items()}
        for one in uploads
    ]
    whole = defense.aggregate(messages, weights, rng)
    params, buffers = (
        {part: whole.tensors[f"{g}/{part}"] for part in parts} for g, parts in zip(GROUPS, uploads[0], strict=True)
    )
    return params, buffers, whole


def sum_of_counts(defense: Defense, counts: torch.Tensor, rng: torch.Generator) -> Sum:
    """The mean of n_i^y over clients, from [K, Y]."""
    each = [{COUNTS: {"n": row.double()}} for row in counts]
    return defense.aggregate(each, [1] * len(each), rng)


def size(networks: tuple[Parts, Parts]) -> int:
    """Bytes of parameters and buffers."""
    return sum(t.numel() * t.element_size() for parts in networks for p in parts.values() for t in p.values())
