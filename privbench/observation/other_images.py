"""Images of the attacked clients that are no victims, whose uploads an attacker has as well: known ones, and those of many rounds.

known     k images of each attacked client, their pixels known exactly or with a Gaussian error, and which upload is of which
rounds    n images of each attacked client, whose uploads the server kept from every round that it observed; nobody knows them

Both are training images of the client, drawn from the run's seed by a name of their own. An image that is the same picture as a
victim of the client is left out. So more victims, or a longer row of known images, change nothing about which images come first,
but for those that have become victims.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from privbench.data.readers.resize import pixels
from privbench.errors import UserError
from privbench.observation.chosen_victims import ChosenImages
from privbench.observation.knowledge import digests
from privbench.seeds import stream
from privbench.types import Artifact, Federation, KnownImages

KNOWN, KEPT = "known images", "kept uploads"  # what their draws are named after
OPTIONS = {KNOWN: "--known-images", KEPT: "--uploads-per-round"}


def pixel_error(quality_db: float | None) -> float:
    """The standard deviation of the error of a pixel at some PSNR: 10^(-q / 20); 0 where none is named."""
    return 0.0 if quality_db is None else math.pow(10.0, -quality_db / 20)


def choose(
    federation: Federation, victims: ChosenImages, each: int, seed: int, named: str, *, image_size: int
) -> ChosenImages:
    """`each` images of every client that has a victim, in batches of as many as the victims': [N, B, C, H, W].

    None of them is a picture that is a victim's too. UserError: a client has fewer, or `each` is no whole number of batches.
    """
    batch = victims.images.shape[1]
    if each % batch:
        raise UserError(
            f"{OPTIONS[named]} {each} was asked for, but uploads are of {batch} images each; take a multiple of {batch}"
        )
    images, labels, owners = [], [], []
    for k in sorted(set(victims.clients.tolist())):
        train = federation.clients[k].train
        forbidden = _digests(victims.images[victims.clients == k].flatten(0, 1))
        rows = list[int]()
        for row in torch.randperm(len(train.labels), generator=stream(seed, named, k)).tolist():
            if len(rows) == each:
                break
            rows += [] if _digests(pixels(train.images[row : row + 1], image_size)) & forbidden else [row]
        if len(rows) < each:
            raise UserError(
                f"{OPTIONS[named]} {each} was asked for, but client {k + 1} has only {len(rows)} training images besides its "
                f"victims; lower it or --victims, or raise --per-client"
            )
        images.append(pixels(train.images[rows], image_size))
        labels.append(train.labels[rows])
        owners += [k] * (each // batch)
    return ChosenImages(
        torch.cat(images).unflatten(0, (-1, batch)), torch.cat(labels).unflatten(0, (-1, batch)), torch.tensor(owners), named
    )  # fmt: skip


def in_round(chosen: ChosenImages, round_: int, seed: int) -> ChosenImages:
    """The same images of every client as they come up in one round: in an order of its own, dealt to batches anew."""
    batch, rows = chosen.images.shape[1], list[Tensor]()
    owner = chosen.clients.repeat_interleave(batch)
    for k in sorted(set(chosen.clients.tolist())):
        of_client = torch.nonzero(owner == k)[:, 0]
        rows.append(of_client[torch.randperm(len(of_client), generator=stream(seed, KEPT, k, "order", round_))])
    order = torch.cat(rows)
    images, labels = (t.flatten(0, 1)[order].unflatten(0, (-1, batch)) for t in chosen[:2])
    return chosen._replace(images=images, labels=labels, named=f"{KEPT} {round_}")


def as_known(chosen: ChosenImages, seen: Artifact, quality_db: float | None, seed: int) -> KnownImages:
    """What an attacker holds of images that it knows at some quality in dB; None: exactly."""
    error = pixel_error(quality_db)
    noise = torch.randn(chosen.images.shape, generator=stream(seed, KNOWN, "error"))
    return KnownImages(chosen.images + error * noise if error else chosen.images, seen, error)


def observed_rounds(rounds: Sequence[int] | None, attacked: int) -> tuple[int, ...]:
    """The rounds whose uploads the server kept, the attacked one last: those asked for, by default 0, 1, 2, 4, 8, ..."""
    usual = (0, *(2**n for n in range(attacked.bit_length())))
    return (*sorted({r for r in (usual if rounds is None else rounds) if r < attacked}), attacked)


def _digests(images: Tensor) -> set[bytes]:
    """Of images [N, C, H, W] in [0, 1]."""
    return digests([(255 * images).round().to(torch.uint8)])
