"""Whose messages are attacked, which training images are the victims behind them, and what makes that impossible."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from privbench.data import tasks
from privbench.data.dataset import SIDE
from privbench.data.readers.resize import pixels
from privbench.data.tasks import TaskRows, TaskShape
from privbench.defense import Defense
from privbench.errors import UserError
from privbench.methods import participation
from privbench.methods.base import Method
from privbench.seeds import stream
from privbench.types import CLASSIFICATION, Federation


class ChosenImages(NamedTuple):
    """Training images whose batches clients send something of."""

    images: Tensor  # [N, B, C, H, W] in [0, 1]
    labels: Tensor  # [N, B]
    clients: Tensor  # [N]
    named: str = "victims"  # what draws for them are named after (privbench/seeds.py)


def senders(method: Method, round_: int, clients: int) -> tuple[int, ...]:
    """Of K clients those whose messages are attacked after `round_` rounds.

    A gradient or an update is of the round that comes next; networks that are sent as weights are of the one that is over.
    """
    return participation.of_round(method, round_ + 1 if visible(method) else round_, clients)


def summed(defense: Defense, method: Method, rounds: Iterable[int], clients: int) -> bool:
    """Whether a defence adds up the K clients' messages that are attacked after one of these rounds: where several are sent."""
    return "aggregate" in defense.places and any(len(senders(method, round_, clients)) > 1 for round_ in rounds)


def check_sent(name: str, method: Method, *, update: bool = False, round_: str = "best") -> None:
    """UserError where nothing that a method sends can be attacked: as updates, or in the round that "0", "best", ... names."""
    if not method.shared_parts:
        raise UserError(f"{name} sends nothing that depends on a training image, so there is nothing to attack")
    if visible(method):
        return
    if update:
        raise UserError(
            f"clients of {name} send the {', '.join(method.shared_parts)} as weights alone; leave out --observe update"
        )
    if round_ == "0":
        raise UserError(f"clients of {name} send weights alone, and none before round 1; attack a later round than 0")


def visible(method: Method) -> tuple[str, ...]:
    """Of E and C those whose gradient leaves a client."""
    return tuple(part for part in CLASSIFICATION if part in method.shared_parts)


def check_victims(
    federation: Federation,
    victims: int,
    batch_size: int,
    seed: int,
    shape: TaskShape | None = None,
    *,
    summed: bool = False,
    of: Sequence[int] | None = None,
) -> None:
    """UserError unless every client has the training images for its victims: batches of its own, clients in turn.

    `shape`: batches are of the support sets of tasks, whose number may depend on the `seed` by which they are dealt out.
    `summed`: a victim is a batch of every client. `of`: the clients that are attacked, by default all.
    """
    attacked = range(len(federation.clients)) if of is None else of
    if shape is not None:
        _check_support_sets(federation, victims, batch_size, seed, shape, attacked, summed=summed)
        return
    clients = len(attacked)
    sizes = [len(federation.clients[k].train.labels) for k in attacked]
    most = min(size // batch_size * clients + k for k, size in enumerate(sizes))
    if summed:
        most //= clients
    if victims <= most:
        return
    if not most:
        least = attacked[sizes.index(min(sizes))] + 1
        raise UserError(
            f"--batch-size {batch_size} was asked for, but client {least} has only {min(sizes)} training "
            f"images; lower it to {min(sizes)}, or raise --per-client"
        )
    each = "an image each" if batch_size == 1 else f"{batch_size} images each"
    each = f"{each} of every client" if summed else each
    sizes_ = f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
    who = f"the {clients} clients with {sizes_} training images each have"
    if of is not None and clients == 1:
        who = f"client {attacked[0] + 1}, which alone is attacked in a round of its own, has {sizes_} training images,"
    raise UserError(
        f"{victims} victims a seed were asked for, {each}, but {who} enough for {most}; lower --victims or --batch-size, or raise "
        "--per-client"
    )


def _check_support_sets(
    federation: Federation,
    victims: int,
    batch_size: int,
    seed: int,
    shape: TaskShape,
    attacked: Sequence[int],
    *,
    summed: bool,
) -> None:
    """UserError unless a support set has so many images, and every attacked client so many sets that share none."""
    if batch_size > shape.support:
        raise UserError(
            f"--batch-size {batch_size} was asked for, but the support set of a {shape.in_words()} task has {shape.support} "
            f"images; lower it to {shape.support}, or raise ways or shots with --set"
        )
    sizes = [len(_support_sets(federation, k, shape, seed)) for k in attacked]
    most = min(sizes) if summed else min(size * len(attacked) + turn for turn, size in enumerate(sizes))
    if victims > most:
        raise UserError(
            f"{victims} victims a seed were asked for, but the clients' images give {most} support sets of {shape.in_words()} "
            "tasks that share no image; lower --victims, or raise --per-client"
        )


def _support_sets(federation: Federation, k: int, shape: TaskShape, seed: int) -> list[TaskRows]:
    """Client k's tasks that may be attacked."""
    return tasks.disjoint(federation.clients[k].train.labels, shape, stream(seed, "victims", k, "tasks"))


def choose_victims(
    federation: Federation,
    victims: int,
    batch_size: int,
    seed: int,
    image_size: int = SIDE,
    shape: TaskShape | None = None,
    *,
    summed: bool = False,
    of: Sequence[int] | None = None,
) -> ChosenImages:
    """Victim images [V, B, C, H, W] in [0, 1], labels [V, B] and clients [V]: training images, clients in turn.

    The choice depends on data, seed, V, B and whose messages are attacked (`of`, by default all clients'), so every method of which
    all clients send is attacked on the same images. `shape`: each victim is of a task of its own, B images of its support set with
    the task's labels; tasks share no image. `summed`: a batch of every client for each of the `victims`, so that there are K times
    as many.
    """
    check_victims(federation, victims, batch_size, seed, shape, summed=summed, of=of)
    attacked = range(len(federation.clients)) if of is None else of
    victims = victims * len(attacked) if summed else victims
    each = {k: _batches(federation, k, batch_size, seed, shape) for k in attacked}
    images, labels, owners = [], [], []
    for v in range(victims):
        k, turn = attacked[v % len(attacked)], v // len(attacked)
        rows, names = each[k][turn]
        images.append(pixels(federation.clients[k].train.images[rows], image_size))
        labels.append(names)
        owners.append(k)
    return ChosenImages(torch.stack(images), torch.stack(labels), torch.tensor(owners))


def _batches(federation: Federation, k: int, batch_size: int, seed: int, shape: TaskShape | None) -> list[TaskRows]:
    """Client k's batches that may be attacked: disjoint, B images each."""
    if shape is not None:
        sets = _support_sets(federation, k, shape, seed)
        return [TaskRows(rows[:batch_size], names[:batch_size]) for rows, names in sets]
    labels = federation.clients[k].train.labels
    shuffle = torch.randperm(len(labels), generator=stream(seed, "victims", k))
    return [TaskRows(rows, labels[rows]) for rows in shuffle.split(batch_size) if len(rows) == batch_size]
