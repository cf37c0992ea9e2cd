"""Lays a data set out over K clients: IID shares, one domain per client, whole classes, or Dirichlet-distributed labels.

Training images come from the data set's training set. The paper's protocol says which images validate and how a domain without
published test images is split (privbench/data/paper_setup.py). By default a client's share of the test set is halved into
validation and test (FedCG's reference implementation). A data set with validation images of its own keeps its splits.

Test and validation images are shared out evenly at random, under `dirichlet` too: every client is validated and tested on the
distribution of all labels, not on its own. This is what FedMD-CG's local accuracy is measured on ("a random even split of the
test set"), and why isolated clients with few classes score low there. By domain, a client is tested on its own domain.
Of a data set that is split by class, no client trains on classes of the test.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from privbench import registry
from privbench.data import client_shares, image_folder
from privbench.data.dataset import Dataset, Domain
from privbench.data.paper_setup import PROTOCOLS, PaperProtocol
from privbench.errors import UserError
from privbench.seeds import stream
from privbench.types import Client, Federation, Images

# (how, clients, training images per client): the papers' settings where there are any. Domains give at most that many.
DEFAULTS: dict[str, tuple[str, int, int]] = {
    "digits": ("iid", 4, 300),
    "photos": ("iid", 4, 500),
    "digits4": ("domain", 4, 400),
    "glyphs": ("classes", 20, 400),  # ten classes each, or eleven
    "cifar10": ("iid", 4, 2000),
    "fmnist": ("iid", 4, 2000),
    "mnist": ("iid", 4, 2000),
    "emnist": ("dirichlet", 20, 12_000),  # FedMD-CG: 20 clients hold the whole training set
    "emnist-letters": ("dirichlet", 20, 6_240),
    "emnist-balanced": ("dirichlet", 20, 5_640),
    "digit5": ("domain", 4, 2000),
    "office10": ("domain", 4, 2000),
    "domainnet": ("domain", 5, 10_000),  # half of each domain's images, however many
    # Clients of enough classes for tasks of five: all of them.
    "omniglot": ("classes", 20, 1_000),
    "miniimagenet": ("classes", 8, 4_800),
}
# Where the domains together cannot give every client its share.
POOLED_PER_CLIENT = {"office10": 300, "domainnet": 1000}
POOLED = "pooled"  # what stands for a client's domain where several are pooled
PUBLIC = 32_000  # training images of no client, held out for FedDF (FedCG section 5)


def defaults(name: str, protocol: str = "fedcg", clients: int | None = None) -> tuple[str, int, int]:
    """(how, clients, images of the training set per client) of a data set under a paper's protocol.

    A data set of a user's own is laid out IID over four clients. A folder of domains gives one client each; from a folder of
    classes, half of the images are taken (60% are for training) by `clients`, or by four, at most 500 a client.
    """
    if name.startswith(registry.FOLDER):
        listing = image_folder.survey(image_folder.path_of(name))
        if listing.domains:
            return "domain", len(listing.domains), 2000
        return "iid", 4, max(1, min(500, listing.images // (2 * max(clients or 4, 1))))
    return PROTOCOLS[protocol].splits.get(name) or DEFAULTS.get(name, ("iid", 4, 500))


def federate(  # noqa: PLR0913 (what a partition depends on)
    dataset: Dataset,
    *,
    clients: int,
    per_client: int,
    how: str,
    seed: int,
    public: int = PUBLIC,
    omega: float | None = None,
    minimum: int | None = None,
    protocol: str = "fedcg",
) -> Federation:
    """K clients with disjoint data; the same seed gives the same clients to every method.

    how         "iid": every client draws `per_client` images; "dirichlet": clients * per_client images are drawn and distributed by
                label, `minimum` or more to each; "classes": every client has classes of its own, and up to `per_client` images
                of them; "domain": one domain per client, which gives `per_client` images or all it has
    protocol    whose way of drawing validation and test images (privbench/data/paper_setup.py); where training images validate,
                they are some of the `per_client` images of each client
    public      under "iid" and "dirichlet" up to that many further images are held out, unless the data set names its public ones
    But under "domain" the domains of a data set that has several are pooled.
    UserError: fewer images than the clients ask for, another number of clients than of domains, omega not positive.
    """
    client_shares.at_least_one(clients, per_client)
    paper = PROTOCOLS[protocol]
    if how == "domain" and paper.domain_shares is not None:
        dataset = dataset._replace(
            domains={n: _split(n, d, seed, *paper.domain_shares) for n, d in dataset.domains.items()}
        )
    elif dataset.halved:
        dataset = dataset._replace(domains={n: _halved(n, d, seed) for n, d in dataset.domains.items()})
    if how in ("iid", "dirichlet", "classes"):
        dealt = (
            (client_shares.OMEGA if omega is None else omega, client_shares.MINIMUM if minimum is None else minimum)
            if how == "dirichlet"
            else how
        )
        partitioned, held_out = _by_share(dataset, clients, per_client, seed, public, dealt, paper)
    elif how == "domain":
        if len(dataset.domains) == 1 and clients != 1:
            raise UserError(f"{dataset.name} has one domain only; lay it out with --partition iid or dirichlet")
        if clients != len(dataset.domains):
            raise UserError(
                f"{dataset.name} has {len(dataset.domains)} domains ({', '.join(dataset.domains)}), one per client, "
                f"but {clients} clients were asked for"
            )
        partitioned = [_of_domain(name, domain, per_client, seed, paper) for name, domain in dataset.domains.items()]
        held_out = dataset.public
    else:
        raise UserError(f"unknown partition '{how}'; known: iid, domain, dirichlet, classes")
    return Federation(tuple(partitioned), held_out, dataset.classes, dataset.flip, dataset.by_class, dataset.test_alike)


def census(federation: Federation) -> list[dict[str, str | list[int]]]:
    """One entry per client: its domain, and how many images of each class [Y] train, validate and test."""
    return [
        {"domain": client.domain}
        | {
            name: torch.bincount(part.labels, minlength=len(federation.classes)).tolist()
            for name, part in (("train", client.train), ("validation", client.validation), ("test", client.test))
        }
        for client in federation.clients
    ]


def _by_share(
    dataset: Dataset,
    clients: int,
    per_client: int,
    seed: int,
    public: int,
    dealt: tuple[float, int] | str,
    paper: PaperProtocol,
) -> tuple[list[Client], Images | None]:
    """Clients of pooled domains; `dealt` is (omega, minimum) under Dirichlet, else "iid" or "classes"."""
    domains = list(dataset.domains.values())
    name = next(iter(dataset.domains)) if len(domains) == 1 else POOLED
    trains, tests = [domain.train for domain in domains], [domain.test for domain in domains]
    validation_sets = [domain.validation for domain in domains if domain.validation is not None]
    if validation_sets and len(validation_sets) < len(domains):
        raise UserError(f"{dataset.name} has validation images in some domains only; lay it out by domain")
    if dealt == "classes":
        labels = torch.cat([part.labels for part in trains])
        train = client_shares.by_class(labels, clients, per_client, stream(seed, "partition", "classes"))
        unused = train[0][:0]
    else:
        train, unused = client_shares.iid(
            _size(trains), clients, per_client, public, stream(seed, "partition", "train")
        )
    test_shares = client_shares.splits(_size(tests), clients, stream(seed, "partition", "test"))
    if validation_sets:
        _enough(dataset.name, "test", _size(tests), clients)
        _enough(dataset.name, "validation", _size(validation_sets), clients)
        validations = client_shares.splits(_size(validation_sets), clients, stream(seed, "partition", "validation"))
        evaluation = [
            (gather(validation_sets, first), gather(tests, second))
            for first, second in zip(validations, test_shares, strict=True)
        ]
    elif paper.validation is not None:
        _enough(dataset.name, "test", _size(tests), clients)
        cut = [client_shares.set_apart(rows, paper.validation) for rows in train]
        train = [training for training, _ in cut]
        evaluation = [
            (gather(trains, first), gather(tests, second)) for (_, first), second in zip(cut, test_shares, strict=True)
        ]
    else:
        _enough(dataset.name, "test", _size(tests), 2 * clients)
        evaluation = [
            (gather(tests, first), gather(tests, second))
            for first, second in (client_shares.halves(share) for share in test_shares)
        ]
    if not isinstance(dealt, str):
        pool = torch.cat(train)
        labels = torch.cat([part.labels for part in trains])[pool]
        shares_of = client_shares.dirichlet(labels, clients, *dealt, stream(seed, "partition", "dirichlet"))
        train = [pool[share] for share in shares_of]
    partitioned = [Client(name, gather(trains, rows), *sets) for rows, sets in zip(train, evaluation, strict=True)]
    held_out = dataset.public or (gather(trains, unused) if len(unused) else None)
    return partitioned, held_out


def _size(sets: Sequence[Images]) -> int:
    return sum(len(part.labels) for part in sets)


def _of_domain(name: str, domain: Domain, per_client: int, seed: int, paper: PaperProtocol) -> Client:
    _enough(name, "training", len(domain.train.labels), 1)
    order = torch.randperm(len(domain.train.labels), generator=stream(seed, "partition", name, "train"))
    share = order[:per_client]
    if domain.validation is not None:
        _enough(name, "validation", len(domain.validation.labels), 1)
        _enough(name, "test", len(domain.test.labels), 1)
        return Client(name, take(domain.train, share), domain.validation, domain.test)
    if paper.validation is not None:
        _enough(name, "test", len(domain.test.labels), 1)
        share, validation = client_shares.set_apart(share, paper.validation)
        return Client(name, take(domain.train, share), take(domain.train, validation), domain.test)
    _enough(name, "test", len(domain.test.labels), 2)
    first, second = client_shares.halves(
        torch.randperm(len(domain.test.labels), generator=stream(seed, "partition", name, "test"))
    )
    return Client(name, take(domain.train, share), take(domain.test, first), take(domain.test, second))


def _halved(name: str, domain: Domain, seed: int) -> Domain:
    """A domain whose publisher names no test images, or too few: half of each class trains, drawn per seed.

    The training half comes from `train`, so that no published test image is trained on; what is left of it joins `test`.
    """
    train: list[Tensor] = []
    remaining: list[Tensor] = []
    for label in torch.cat([domain.train.labels, domain.test.labels]).unique().tolist():
        members = (domain.train.labels == label).nonzero()[:, 0]
        order = members[torch.randperm(len(members), generator=stream(seed, "partition", name, "half", label))]
        half = min((len(members) + int((domain.test.labels == label).sum())) // 2, len(members))
        train.append(order[:half])
        remaining.append(order[half:])
    test = gather(
        [domain.train, domain.test],
        torch.cat([*remaining, torch.arange(len(domain.test.labels)) + len(domain.train.labels)]),
    )
    return Domain(take(domain.train, torch.cat(train)), test)


def _split(name: str, domain: Domain, seed: int, training: float, validation: float) -> Domain:
    """All images of a domain, whatever their publisher trains on, drawn per seed for training, validation and test.

    A domain with validation images of its own keeps its split.
    """
    if domain.validation is not None:
        return domain
    sets = [domain.train, domain.test]
    order = torch.randperm(_size(sets), generator=stream(seed, "partition", name, "split"))
    first, second = round(training * len(order)), round((training + validation) * len(order))
    return Domain(gather(sets, order[:first]), gather(sets, order[second:]), gather(sets, order[first:second]))


def _enough(name: str, what: str, available: int, needed: int) -> None:
    if available < needed:
        raise UserError(
            f"{name} has {available} {what} images, but its clients need {needed}; ask for fewer clients with --clients"
        )


def take(images: Images, index: Tensor | Sequence[int]) -> Images:
    """Some of the images."""
    return Images(images.images[index], images.labels[index])


def gather(sets: Sequence[Images], index: Tensor) -> Images:
    """Some images of several sets, numbered through, in the order of `index`; no set is copied as a whole."""
    if len(sets) == 1:
        return take(sets[0], index)
    first = sets[0].images
    images = torch.empty((len(index), *first.shape[1:]), dtype=first.dtype)
    labels = torch.empty(len(index), dtype=torch.int64)
    begin = 0
    for part in sets:
        inside = (index >= begin) & (index < begin + len(part.labels))
        images[inside], labels[inside] = part.images[index[inside] - begin], part.labels[index[inside] - begin]
        begin += len(part.labels)
    return Images(images, labels)
