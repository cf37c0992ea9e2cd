"""Tasks of few-shot learning: N classes with K images each to learn from (the support set), and others to be tested on (queries).

Within a task the classes are called 0 to N - 1, in the order in which they were drawn: a label has a meaning in its task alone.
Rows are those of the images that a task is drawn from; every draw is a function of the labels and the random stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from privbench.errors import UserError
from privbench.types import Client, Federation, Images


class TaskShape(NamedTuple):
    """How large tasks are, and how many test a meta-learner."""

    ways: int  # N, classes
    shots: int  # K, images of each class in a support set
    queries: int  # of each class, at most, by which a task is scored
    per_client: int  # tasks for validation, and as many for the test
    tuning_steps: int  # from the meta-learner on a support set, before the queries are classified

    @property
    def support(self) -> int:
        """Images in a support set, N K."""
        return self.ways * self.shots

    def in_words(self) -> str:
        """As tables and notes name it."""
        return f"{self.ways}-way {self.shots}-shot"


class Task(NamedTuple):
    """One task, class after class."""

    support: Tensor  # [N K] int64, which images
    support_labels: Tensor  # [N K] int64, 0 to N - 1
    queries: Tensor  # [N Q] int64
    query_labels: Tensor  # [N Q] int64


class TaskRows(NamedTuple):
    """Which images, and what their task calls them."""

    rows: Tensor  # [n] int64
    labels: Tensor  # [n] int64, 0 to N - 1


def by_class(labels: Tensor, least: int) -> list[Tensor]:
    """The rows of every class with `least` images or more, classes ascending."""
    each = [(labels == one).nonzero()[:, 0] for one in labels.unique().tolist()]
    return [rows for rows in each if len(rows) >= least]


def draw(labels: Tensor, shape: TaskShape, rng: torch.Generator) -> Task:
    """A task from the classes with more than K images; as many queries of a class as all of them have, up to Q."""
    classes = _enough(by_class(labels, shape.shots + 1), shape)
    queries = min(shape.queries, min(len(rows) for rows in classes) - shape.shots)
    support, query = [], []
    for rows in _drawn_classes(classes, shape, rng):
        order = rows[torch.randperm(len(rows), generator=rng)]
        support.append(order[: shape.shots])
        query.append(order[shape.shots : shape.shots + queries])
    return Task(*_joined(support), *_joined(query))


def support_set(labels: Tensor, shape: TaskShape, rng: torch.Generator) -> TaskRows:
    """K images of each of N classes of a client."""
    chosen = _drawn_classes(_enough(by_class(labels, shape.shots), shape), shape, rng)
    return _joined([rows[torch.randperm(len(rows), generator=rng)[: shape.shots]] for rows in chosen])


def pool(labels: Tensor, shape: TaskShape, rng: torch.Generator) -> TaskRows:
    """All images of each of N classes of a client, from which mini-batches are drawn where a defence acts on every image."""
    return _joined(_drawn_classes(_enough(by_class(labels, shape.shots), shape), shape, rng))


def smallest_pool(labels: Tensor, shape: TaskShape) -> int:
    """How many images the smallest `pool` of a client has."""
    return sum(sorted(len(rows) for rows in _enough(by_class(labels, shape.shots), shape))[: shape.ways])


def disjoint(labels: Tensor, shape: TaskShape, rng: torch.Generator) -> list[TaskRows]:
    """Support sets of a client that share no image, each in a random order, and as many as its classes give N at a time."""
    classes = _enough(by_class(labels, shape.shots), shape)
    order = torch.randperm(len(classes), generator=rng).tolist()
    shuffled = [classes[c][torch.randperm(len(classes[c]), generator=rng)] for c in order]
    tasks = []
    for first in range(0, len(shuffled) - shape.ways + 1, shape.ways):
        group = shuffled[first : first + shape.ways]
        for turn in range(min(len(rows) for rows in group) // shape.shots):
            rows, names = _joined([rows[turn * shape.shots : (turn + 1) * shape.shots] for rows in group])
            mixed = torch.randperm(len(rows), generator=rng)
            tasks.append(TaskRows(rows[mixed], names[mixed]))
    return tasks


def check(federation: Federation, training: TaskShape, test: TaskShape) -> None:
    """UserError unless every client has the classes for a task, and all together those to validate and test on."""
    for client in federation.clients:
        _enough(by_class(client.train.labels, training.shots), training)
    for purpose in ("validation", "test"):
        labels = torch.cat([getattr(client, purpose).labels for client in federation.clients])
        _enough(by_class(labels, test.shots + 1), test)


def relabelled(federation: Federation, ways: int) -> Federation:
    """A federation as it is known beside tasks of N classes: class y is called y mod N, as one of a task might call it.

    What a task calls a class is drawn anew each time, so that an image that is in none has no name that means anything.
    """

    def of(part: Images) -> Images:
        return part._replace(labels=part.labels % ways)

    clients = [Client(c.domain, of(c.train), of(c.validation), of(c.test)) for c in federation.clients]
    return federation._replace(clients=tuple(clients), classes=names(ways))


def names(ways: int) -> tuple[str, ...]:
    """What a task calls its classes."""
    return tuple(str(one + 1) for one in range(ways))


def _enough(classes: list[Tensor], shape: TaskShape) -> list[Tensor]:
    """The classes that may be drawn; UserError where they are fewer than N."""
    if len(classes) < shape.ways:
        raise UserError(
            f"{shape.in_words()} tasks need {shape.ways} classes, but only {len(classes)} have enough images in what they are "
            "drawn from; lower ways or shots with --set, or have fewer --clients"
        )
    return classes


def _drawn_classes(classes: list[Tensor], shape: TaskShape, rng: torch.Generator) -> list[Tensor]:
    """N of the classes in random order."""
    return [classes[c] for c in torch.randperm(len(classes), generator=rng)[: shape.ways].tolist()]


def _joined(each: Sequence[Tensor]) -> TaskRows:
    """The rows of N classes one after another, with their labels."""
    labels = [torch.full((len(rows),), name) for name, rows in enumerate(each)]
    return TaskRows(torch.cat(list(each)), torch.cat(labels))
