"""Images of which an inference says whether a client trained on them, and whether it did, which the score alone is given.

Of each attacked client as many training images as other images, pair by pair of one class, so that no class tells anything. The
others are images of the client's domain that no client trained on (privbench/execution/generator_scores.py, `non_members`).
Members are no victims, since the upload of a victim would tell. All are drawn from the run's seed by a name of their own.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from privbench.data.partition import take
from privbench.data.readers.resize import pixels
from privbench.errors import UserError
from privbench.execution import at_round, generator_scores
from privbench.observation import knowledge
from privbench.observation.chosen_victims import ChosenImages
from privbench.seeds import stream
from privbench.spec import CellSpec, TrainSpec
from privbench.training import federation
from privbench.types import Candidates, Federation, Images

NAME = "candidates"  # of the random streams
MOST = 100  # members of a client, with as many others


class AskedImages(NamedTuple):
    """What an inference is asked about, and the answer."""

    candidates: Candidates
    members: Tensor  # [K', N] bool


def of_cell(cell: CellSpec, spec: TrainSpec, fed: Federation, round_: int) -> AskedImages:
    """The candidates of one seed of a cell; UserError where clients train on tasks of their own, or as `choose`."""
    if federation.method_of(spec).client_tasks is not None:
        raise UserError(
            f"{cell.attack} asks whether a client trained on an image, but {spec.method} trains on tasks; try --method fedavg"
        )
    if not fed.test_alike and any(phase.public for phase in federation.method_of(spec).server()):
        raise UserError(
            f"{cell.attack} asks of training images of {spec.dataset} that no client has, as its test images are unlike them, and "
            f"{spec.method} distils on these; try --method fedavg, or another data set"
        )
    return choose(fed, at_round.victims_of(cell, spec, fed, round_), spec.seed, spec.image_size)


def choose(fed: Federation, victims: ChosenImages, seed: int, image_size: int) -> AskedImages:
    """As many candidates of every client that has a victim, MOST of either kind at most.

    UserError: there is no pair of a client's training image and another image of one class.
    """
    clients = sorted(set(victims.clients.tolist()))
    trained_on = knowledge.digests(client.train.images for client in fed.clients)
    each = []
    for k in clients:
        forbidden = knowledge.digests([(255 * victims.images[victims.clients == k].flatten(0, 1)).round().byte()])
        training = _without(fed.clients[k].train, forbidden, image_size)
        others = _without(generator_scores.non_members(fed, k), trained_on)
        rows = generator_scores.paired(training.labels, others.labels, len(fed.classes), stream(seed, NAME, k))
        each.append((training, others, rows))
    pairs = min(MOST, *(rows.shape[1] for _, _, rows in each))
    if not pairs:
        # Images that no client has are fewer, the more a client has; test images are as many as ever.
        way_out = "and raise --per-client" if fed.test_alike else "or lower --per-client"
        raise UserError(
            "a client has no training image, besides its victims, of a class of which there is another that nobody trained on; "
            f"lower --victims, {way_out}"
        )
    asked = [
        _mixed(*one, pairs, image_size, stream(seed, NAME, k, "order")) for k, one in zip(clients, each, strict=True)
    ]
    images, labels, members = (torch.stack(t) for t in zip(*asked, strict=True))
    return AskedImages(Candidates(images, labels), members)


def _mixed(
    training: Images, others: Images, rows: Tensor, pairs: int, image_size: int, rng: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """(images, labels, whether each is a member) of a client, in random order."""
    each = [take(images, chosen[:pairs]) for images, chosen in zip((training, others), rows, strict=True)]
    order = torch.randperm(2 * pairs, generator=rng)
    images = torch.cat([pixels(part.images, image_size) for part in each])[order]
    return images, torch.cat([part.labels for part in each])[order], order < pairs


def _without(images: Images, forbidden: set[bytes], image_size: int | None = None) -> Images:
    """The images that are none of the forbidden pictures, each picture once; compared at `image_size` where one is given."""
    seen, rows = set(forbidden), list[int]()
    for row in range(len(images.labels)):
        one = images.images[row : row + 1]
        if image_size is not None:
            one = (255 * pixels(one, image_size)).round().byte()
        digest = knowledge.digests([one])
        if not digest & seen:
            rows.append(row)
        seen |= digest
    return take(images, rows)
