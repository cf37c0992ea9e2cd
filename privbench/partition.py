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
    _at_least_one(clients, per_client)
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


def halves(share: Tensor) -> tuple[Tensor, Tensor]:
    """(validation, test): the first and the second half of a client's share of the test set; the second is never smaller."""
    return share[: len(share) // 2], share[len(share) // 2 :]


def federate(
    dataset: Dataset, *, clients: int, per_client: int, how: str, seed: int, public: int = PUBLIC
) -> Federation:
    """K clients with disjoint data; the same seed gives the same clients to every method.

    `how` is "iid" (every client draws `per_client` images from the one domain; up to `public` others are held out) or "domain"
    (one domain per client, which gives `per_client` images or all it has; a data set names its public images itself).
    UserError: fewer images than the clients ask for, another number of clients than of domains.
    """
    _at_least_one(clients, per_client)
    if how == "iid":
        if len(dataset.domains) != 1:
            raise UserError(f"{dataset.name} has {len(dataset.domains)} domains; lay it out by domain")
        made, held_out = _by_share(dataset, clients, per_client, seed, public)
    elif how == "domain":
        if clients != len(dataset.domains):
            raise UserError(
                f"{dataset.name} has {len(dataset.domains)} domains ({', '.join(dataset.domains)}), one per client, "
                f"but {clients} clients were asked for"
            )
        made = [_of_domain(name, domain, per_client, seed) for name, domain in dataset.domains.items()]
        held_out = dataset.public
    else:
        raise UserError(f"unknown partition '{how}'; known: iid, domain")
    return Federation(tuple(made), held_out, dataset.classes, dataset.flip)


def _by_share(
    dataset: Dataset, clients: int, per_client: int, seed: int, public: int
) -> tuple[list[Client], Images | None]:
    ((name, domain),) = dataset.domains.items()
    train, rest = iid(len(domain.train.labels), clients, per_client, public, stream(seed, "partition", "train"))
    tests = shares(len(domain.test.labels), clients, stream(seed, "partition", "test"))
    if domain.validation is None:
        _enough(dataset.name, "test", len(domain.test.labels), 2 * clients)
        held = [
            (take(domain.test, first), take(domain.test, second))
            for first, second in (halves(share) for share in tests)
        ]
    else:
        _enough(dataset.name, "test", len(domain.test.labels), clients)
        _enough(dataset.name, "validation", len(domain.validation.labels), clients)
        validations = shares(len(domain.validation.labels), clients, stream(seed, "partition", "validation"))
        held = [
            (take(domain.validation, first), take(domain.test, second))
            for first, second in zip(validations, tests, strict=True)
        ]
    made = [Client(name, take(domain.train, own), *sets) for own, sets in zip(train, held, strict=True)]
    return made, take(domain.train, rest) if len(rest) else None


def _of_domain(name: str, domain: Domain, per_client: int, seed: int) -> Client:
    _enough(name, "training", len(domain.train.labels), 1)
    order = torch.randperm(len(domain.train.labels), generator=stream(seed, "partition", name, "train"))
    train = take(domain.train, order[:per_client])
    if domain.validation is not None:
        _enough(name, "validation", len(domain.validation.labels), 1)
        _enough(name, "test", len(domain.test.labels), 1)
        return Client(name, train, domain.validation, domain.test)
    _enough(name, "test", len(domain.test.labels), 2)
    first, second = halves(torch.randperm(len(domain.test.labels), generator=stream(seed, "partition", name, "test")))
    return Client(name, train, take(domain.test, first), take(domain.test, second))


def _at_least_one(clients: int, per_client: int) -> None:
    if clients < 1 or per_client < 1:
        raise UserError(
            f"at least one client with one training image is needed, but {clients} with {per_client} were asked for"
        )


def _enough(name: str, what: str, there: int, needed: int) -> None:
    if there < needed:
        raise UserError(
            f"{name} has {there} {what} images, but its clients need {needed}; ask for fewer clients with --clients"
        )


def take(images: Images, index: Tensor | Sequence[int]) -> Images:
    """Some of the images."""
    return Images(images.images[index], images.labels[index])
