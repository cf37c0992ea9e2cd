"""Lays a data set out over K clients: IID shares, one domain per client, or shares whose labels are Dirichlet-distributed.

Training images come from the data set's training set. The paper's protocol says which images validate and how a domain without
published test images is split (privbench/data/paper_setup.py). By default a client's share of the test set is halved into
validation and test (FedCG's reference implementation). A data set with validation images of its own keeps its splits.

Test and validation images are shared out evenly at random, under `dirichlet` too: every client is validated and tested on the
distribution of all labels, not on its own. This is what FedMD-CG's local accuracy is measured on ("a random even split of the
test set"), and why isolated clients with few classes score low there. By domain, a client is tested on its own domain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from privbench import registry
from privbench.data import image_folder
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
    "cifar10": ("iid", 4, 2000),
    "fmnist": ("iid", 4, 2000),
    "mnist": ("iid", 4, 2000),
    "emnist": ("dirichlet", 20, 12_000),  # FedMD-CG: 20 clients hold the whole training set
    "emnist-letters": ("dirichlet", 20, 6_240),
    "emnist-balanced": ("dirichlet", 20, 5_640),
    "digit5": ("domain", 4, 2000),
    "office10": ("domain", 4, 2000),
    "domainnet": ("domain", 5, 10_000),  # half of each domain's images, however many
}
POOLED_PER_CLIENT = {
    "office10": 300,
    "domainnet": 1000,
}  # where the domains together cannot give every client its share
OMEGA = 1.0  # the middle of FedMD-CG's 0.1, 1 and 10
MINIMUM = (
    16  # training images that every client gets under `dirichlet`, unless said otherwise: one mini-batch of the papers
)
DRAWS = 2000  # Dirichlet draws before the minimum is given up
PUBLIC = 32_000  # training images of no client, held out for FedDF (FedCG section 5)


def defaults(name: str, protocol: str = "fedcg") -> tuple[str, int, int]:
    """(how, clients, images of the training set per client) of a data set under a paper's protocol.

    A data set of a user's own is laid out IID over four clients. A folder of domains gives one client each; from a folder of
    classes, half of the images are taken (60% are for training).
    """
    if name.startswith(registry.FOLDER):
        own = image_folder.survey(image_folder.path_of(name))
        if own.domains:
            return "domain", len(own.domains), 2000
        return "iid", 4, max(1, min(500, own.images // 8))
    return PROTOCOLS[protocol].layouts.get(name) or DEFAULTS.get(name, ("iid", 4, 500))


def splits(samples: int, clients: int, rng: torch.Generator) -> list[Tensor]:
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
        own = (labels == label).nonzero()[:, 0]
        parts = own[torch.randperm(len(own), generator=rng)].split(each)
        for share, part in zip(shares, parts, strict=True):
            share.append(part)
    joined = [torch.cat(share) for share in shares]
    return [share[torch.randperm(len(share), generator=rng)] for share in joined]


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
                label, `minimum` or more to each; "domain": one domain per client, which gives `per_client` images or all it has
    protocol    whose way of drawing validation and test images (privbench/data/paper_setup.py); where training images validate,
    they
                are some of the `per_client` images of each client
    public      under "iid" and "dirichlet" up to that many further images are held out, unless the data set names its public ones
    Under "iid" and "dirichlet" the domains of a data set that has several are pooled.
    UserError: fewer images than the clients ask for, another number of clients than of domains, omega not positive.
    """
    _at_least_one(clients, per_client)
    paper = PROTOCOLS[protocol]
    if how == "domain" and paper.domain_shares is not None:
        dataset = dataset._replace(
            domains={n: _split(n, d, seed, *paper.domain_shares) for n, d in dataset.domains.items()}
        )
    elif dataset.halved:
        dataset = dataset._replace(domains={n: _halved(n, d, seed) for n, d in dataset.domains.items()})
    if how in ("iid", "dirichlet"):
        dealt = (OMEGA if omega is None else omega, MINIMUM if minimum is None else minimum) if how != "iid" else None
        made, held_out = _by_share(dataset, clients, per_client, seed, public, dealt, paper)
    elif how == "domain":
        if len(dataset.domains) == 1 and clients != 1:
            raise UserError(f"{dataset.name} has one domain only; lay it out with --partition iid or dirichlet")
        if clients != len(dataset.domains):
            raise UserError(
                f"{dataset.name} has {len(dataset.domains)} domains ({', '.join(dataset.domains)}), one per client, "
                f"but {clients} clients were asked for"
            )
        made = [_of_domain(name, domain, per_client, seed, paper) for name, domain in dataset.domains.items()]
        held_out = dataset.public
    else:
        raise UserError(f"unknown partition '{how}'; known: iid, domain, dirichlet")
    return Federation(tuple(made), held_out, dataset.classes, dataset.flip)


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
    dealt: tuple[float, int] | None,
    paper: PaperProtocol,
) -> tuple[list[Client], Images | None]:
    """Clients of pooled domains; `dealt` is (omega, minimum) under Dirichlet and None under IID."""
    domains = list(dataset.domains.values())
    name = next(iter(dataset.domains)) if len(domains) == 1 else "pooled"
    trains, tests = [domain.train for domain in domains], [domain.test for domain in domains]
    own_validation = [domain.validation for domain in domains if domain.validation is not None]
    if own_validation and len(own_validation) < len(domains):
        raise UserError(f"{dataset.name} has validation images in some domains only; lay it out by domain")
    train, rest = iid(_size(trains), clients, per_client, public, stream(seed, "partition", "train"))
    test_shares = splits(_size(tests), clients, stream(seed, "partition", "test"))
    if own_validation:
        _enough(dataset.name, "test", _size(tests), clients)
        _enough(dataset.name, "validation", _size(own_validation), clients)
        validations = splits(_size(own_validation), clients, stream(seed, "partition", "validation"))
        held = [
            (gather(own_validation, first), gather(tests, second))
            for first, second in zip(validations, test_shares, strict=True)
        ]
    elif paper.validation is not None:
        _enough(dataset.name, "test", _size(tests), clients)
        cut = [set_apart(own, paper.validation) for own in train]
        train = [kept for kept, _ in cut]
        held = [
            (gather(trains, first), gather(tests, second)) for (_, first), second in zip(cut, test_shares, strict=True)
        ]
    else:
        _enough(dataset.name, "test", _size(tests), 2 * clients)
        held = [
            (gather(tests, first), gather(tests, second)) for first, second in (halves(share) for share in test_shares)
        ]
    if dealt is not None:
        pool = torch.cat(train)
        labels = torch.cat([part.labels for part in trains])[pool]
        shares_of = dirichlet(labels, clients, *dealt, stream(seed, "partition", "dirichlet"))
        train = [pool[share] for share in shares_of]
    made = [Client(name, gather(trains, own), *sets) for own, sets in zip(train, held, strict=True)]
    held_out = dataset.public or (gather(trains, rest) if len(rest) else None)
    return made, held_out


def _size(sets: Sequence[Images]) -> int:
    return sum(len(part.labels) for part in sets)


def _of_domain(name: str, domain: Domain, per_client: int, seed: int, paper: PaperProtocol) -> Client:
    _enough(name, "training", len(domain.train.labels), 1)
    order = torch.randperm(len(domain.train.labels), generator=stream(seed, "partition", name, "train"))
    own = order[:per_client]
    if domain.validation is not None:
        _enough(name, "validation", len(domain.validation.labels), 1)
        _enough(name, "test", len(domain.test.labels), 1)
        return Client(name, take(domain.train, own), domain.validation, domain.test)
    if paper.validation is not None:
        _enough(name, "test", len(domain.test.labels), 1)
        own, validation = set_apart(own, paper.validation)
        return Client(name, take(domain.train, own), take(domain.train, validation), domain.test)
    _enough(name, "test", len(domain.test.labels), 2)
    first, second = halves(torch.randperm(len(domain.test.labels), generator=stream(seed, "partition", name, "test")))
    return Client(name, take(domain.train, own), take(domain.test, first), take(domain.test, second))


def _halved(name: str, domain: Domain, seed: int) -> Domain:
    """A domain whose publisher names no test images, or too few: half of each class trains, drawn per seed.

    The training half comes from `train`, so that no published test image is trained on; what is left of it joins `test`.
    """
    train: list[Tensor] = []
    left: list[Tensor] = []
    for label in torch.cat([domain.train.labels, domain.test.labels]).unique().tolist():
        own = (domain.train.labels == label).nonzero()[:, 0]
        order = own[torch.randperm(len(own), generator=stream(seed, "partition", name, "half", label))]
        half = min((len(own) + int((domain.test.labels == label).sum())) // 2, len(own))
        train.append(order[:half])
        left.append(order[half:])
    test = gather(
        [domain.train, domain.test],
        torch.cat([*left, torch.arange(len(domain.test.labels)) + len(domain.train.labels)]),
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


def gather(sets: Sequence[Images], index: Tensor) -> Images:
    """Some images of several sets, numbered through, in the order of `index`; no set is copied as a whole."""
    if len(sets) == 1:
        return take(sets[0], index)
    first = sets[0].images
    images = torch.empty((len(index), *first.shape[1:]), dtype=first.dtype)
    labels = torch.empty(len(index), dtype=torch.int64)
    begin = 0
    for part in sets:
        own = (index >= begin) & (index < begin + len(part.labels))
        images[own], labels[own] = part.images[index[own] - begin], part.labels[index[own] - begin]
        begin += len(part.labels)
    return Images(images, labels)
