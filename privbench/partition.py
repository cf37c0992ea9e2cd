"""Lays a data set out over K clients: IID shares of one domain, or one domain per client.

Training images come from the data set's training set. A client's share of the test set is halved into validation and test
(FedCG's reference implementation), unless the data set has validation images of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from privbench.data.dataset import Dataset, Domain
from privbench.errors import UserError
from privbench.seeds import stream
from privbench.types import Client, Federation, Images

# (how, clients, training images per client): the papers' settings where there are any. Domains give at most that many.
DEFAULTS: dict[str, tuple[str, int, int]] = {
    "digits": ("iid", 4, 300),
    "photos": ("iid", 4, 500),
    "digits4": ("domain", 4, 400),
    "cifar10": ("iid", 4, 2000),
    "fmnist": ("iid", 4, 2000),
    "digit5": ("domain", 4, 2000),
    "office10": ("domain", 4, 2000),
}
PUBLIC = 32_000  # training images of no client, held out for FedDF (FedCG section 5)


def defaults(name: str) -> tuple[str, int, int]:
    """(how, clients, training images per client) of a data set; one of a user's own is laid out IID over four clients."""
    return DEFAULTS.get(name, ("iid", 4, 500))


def shares(samples: int, clients: int, rng: torch.Generator) -> list[Tensor]:
    """A random split of all `samples` indices into `clients` shares whose sizes differ by one at most."""
    return list(torch.randperm(samples, generator=rng).tensor_split(clients))


def iid(samples: int, clients: int, per_client: int, public: int, rng: torch.Generator) -> tuple[list[Tensor], Tensor]:
    """(`clients` disjoint shares of `per_client` indices, up to `public` further ones); UserError when there are too few."""
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


def federate(dataset: Dataset, *, clients: int, per_client: int, how: str, seed: int) -> Federation:
    """K clients with disjoint data; the same seed gives the same clients to every method."""
    if how == "iid":
        if len(dataset.domains) != 1:
            raise UserError(f"{dataset.name} has {len(dataset.domains)} domains; lay it out by domain")
        made, public = _by_share(next(iter(dataset.domains.values())), clients, per_client, seed)
    elif how == "domain":
        if clients != len(dataset.domains):
            raise UserError(
                f"{dataset.name} has {len(dataset.domains)} domains ({', '.join(dataset.domains)}), one per client, "
                f"but {clients} clients were asked for"
            )
        made = [_of_domain(name, domain, per_client, seed) for name, domain in dataset.domains.items()]
        public = dataset.public
    else:
        raise UserError(f"unknown partition '{how}'; known: iid, domain")
    return Federation(tuple(made), public, dataset.classes, dataset.flip)


def _by_share(domain: Domain, clients: int, per_client: int, seed: int) -> tuple[list[Client], Images | None]:
    train, rest = iid(len(domain.train.labels), clients, per_client, PUBLIC, stream(seed, "partition", "train"))
    tests = shares(len(domain.test.labels), clients, stream(seed, "partition", "test"))
    made = []
    if domain.validation is not None:
        validations = shares(len(domain.validation.labels), clients, stream(seed, "partition", "validation"))
        for own, validation, test in zip(train, validations, tests, strict=True):
            made.append(Client("all", take(domain.train, own), take(domain.validation, validation), take(domain.test, test)))
    else:
        for own, share in zip(train, tests, strict=True):
            half = len(share) // 2
            made.append(
                Client("all", take(domain.train, own), take(domain.test, share[:half]), take(domain.test, share[half:]))
            )
    return made, take(domain.train, rest) if len(rest) else None


def _of_domain(name: str, domain: Domain, per_client: int, seed: int) -> Client:
    if len(domain.train.labels) == 0:
        raise UserError(f"the domain {name} has no training image")
    order = torch.randperm(len(domain.train.labels), generator=stream(seed, "partition", name, "train"))
    share = torch.randperm(len(domain.test.labels), generator=stream(seed, "partition", name, "test"))
    half = len(share) // 2
    train = take(domain.train, order[:per_client])
    if domain.validation is not None:
        return Client(name, train, domain.validation, domain.test)
    return Client(name, train, take(domain.test, share[:half]), take(domain.test, share[half:]))


def take(images: Images, index: Tensor | Sequence[int]) -> Images:
    """Some of the images."""
    return Images(images.images[index], images.labels[index])
