"""Shares of a data set as indices: random ones of one size, ones whose labels are Dirichlet-distributed, and their halves.

Which images they are of and whose clients get them is privbench/data/partition.py's.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from privbench.errors import UserError

OMEGA = 1.0  # the middle of FedMD-CG's 0.1, 1 and 10
# Training images that every client gets under `dirichlet`, unless said otherwise: one mini-batch of the papers.
MINIMUM = 16
DRAWS = 2000  # Dirichlet draws before the minimum is given up


def splits(samples: int, clients: int, rng: torch.Generator) -> list[Tensor]:
    """A random split of all `samples` indices into `clients` shares whose sizes differ by one at most."""
    return list(torch.randperm(samples, generator=rng).tensor_split(clients))


def iid(samples: int, clients: int, per_client: int, public: int, rng: torch.Generator) -> tuple[list[Tensor], Tensor]:
    """(`clients` disjoint shares of `per_client` indices, up to `public` further ones); UserError when there are too few."""
    at_least_one(clients, per_client)
    if clients > samples:
        raise UserError(f"{clients} clients were asked for, but the data set has only {samples} training images")
    if clients * per_client > samples:
        most = samples // clients
        raise UserError(
            f"{clients} clients with {per_client} training images each were asked for, but there are {samples}; "
            f"--per-client {most} is the most"
        )
    order = torch.randperm(samples, generator=rng)
    used = clients * per_client
    return list(order[:used].split(per_client)), order[used : used + public]


def dirichlet(labels: Tensor, clients: int, omega: float, minimum: int, rng: torch.Generator) -> list[Tensor]:
    """K disjoint shares of all indices of `labels`: of each class, client k gets the part p_k, p ~ Dirichlet(omega) over clients.

    A small omega (0.1) gives a client few classes, a large one (10) nearly its even part of each (FedMD-CG section 5; Hsu et al.
    2019; Li et al., ICDE 2022). All classes are drawn anew until every client has `minimum` images: the accepted draw is an exact
    one, given the minimum. UserError: omega not positive, or no such draw among 2,000.
    """
    check_omega(omega)
    if minimum * clients > len(labels):
        raise UserError(
            f"--min-per-client {minimum} is more than {clients} clients can have of {len(labels)} training images; "
            f"{len(labels) // clients} is the most"
        )
    classes, sizes = (t.tolist() for t in labels.unique(return_counts=True))
    draws = np.random.default_rng(int(torch.randint(2**62, (), generator=rng)))
    for _ in range(DRAWS):
        counts = _deal(np.array(sizes), clients, omega, draws)
        if counts.sum(0).min() >= minimum:
            break
    else:
        raise UserError(
            f"none of {DRAWS} draws of Dirichlet({omega:g}) gives each of {clients} clients {minimum} of {len(labels)} training "
            "images; lower --min-per-client, raise --omega, or have fewer --clients or more --per-client"
        )
    shares: list[list[Tensor]] = [[] for _ in range(clients)]
    for label, each in zip(classes, counts.tolist(), strict=True):
        members = (labels == label).nonzero()[:, 0]
        parts = members[torch.randperm(len(members), generator=rng)].split(each)
        for share, part in zip(shares, parts, strict=True):
            share.append(part)
    joined = [torch.cat(share) for share in shares]
    return [share[torch.randperm(len(share), generator=rng)] for share in joined]


def by_class(labels: Tensor, clients: int, per_client: int, rng: torch.Generator) -> list[Tensor]:
    """K shares of whole classes, as evenly many of them as can be, and of each client's classes in turn up to `per_client` images.

    UserError: fewer classes than clients.
    """
    classes = labels.unique()
    if clients > len(classes):
        raise UserError(f"{clients} clients of whole classes were asked for, but there are {len(classes)} classes")
    shares = []
    for chosen in classes[torch.randperm(len(classes), generator=rng)].tensor_split(clients):
        members = [(labels == one).nonzero()[:, 0] for one in chosen.tolist()]
        shuffled = [rows[torch.randperm(len(rows), generator=rng)] for rows in members]
        turns = torch.cat([torch.arange(len(rows)) for rows in shuffled])
        shares.append(torch.cat(shuffled)[turns.argsort(stable=True)][:per_client])
    return shares


def _deal(sizes: np.ndarray, clients: int, omega: float, draws: np.random.Generator) -> np.ndarray:
    """How many images of each class each client gets: [Y, K], rows that add up to `sizes` [Y].

    p is drawn through the logarithms of gamma variates, log g(omega) = log g(omega + 1) + log(u) / omega, because for a small
    omega the variates themselves underflow. Cumulated parts are rounded, so that no image is lost or counted twice.
    """
    shape = (len(sizes), clients)
    logs = np.log(draws.standard_gamma(omega + 1, shape)) + np.log1p(-draws.random(shape)) / omega
    parts = np.exp(logs - logs.max(1, keepdims=True))
    bounds = np.rint(np.cumsum(parts / parts.sum(1, keepdims=True), 1) * sizes[:, None]).astype(np.int64)
    return np.diff(bounds, axis=1, prepend=0)


def check_omega(omega: float) -> None:
    """UserError unless omega is a positive, finite number."""
    if not (math.isfinite(omega) and omega > 0):
        raise UserError(f"--omega must be a positive number, e.g. 0.1, 1 or 10, but {omega:g} was given")


def halves(share: Tensor) -> tuple[Tensor, Tensor]:
    """(validation, test): the first and the second half of a client's share of the test set; the second is never smaller."""
    return share[: len(share) // 2], share[len(share) // 2 :]


def set_apart(share: Tensor, part: float) -> tuple[Tensor, Tensor]:
    """(training, validation): the last `part` of a client's share validates, at least one image of it.

    UserError: nothing would be left to train on.
    """
    count = max(1, round(part * len(share)))
    if count >= len(share):
        raise UserError(
            f"a client of {len(share)} images has none to spare for validation; raise --per-client or choose --protocol fedcg"
        )
    return share[: len(share) - count], share[len(share) - count :]


def at_least_one(clients: int, per_client: int) -> None:
    """UserError where there is no client, or one without an image."""
    if clients < 1 or per_client < 1:
        raise UserError(
            f"at least one client with one training image is needed, but {clients} with {per_client} were asked for"
        )
