"""Clients are disjoint, complete, drawn once per seed, and laid out as the papers lay them out."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from privbench import partition, plugins
from privbench.data.dataset import Dataset, Domain
from privbench.errors import UserError
from privbench.seeds import stream
from privbench.types import Images


def numbered(begin: int, count: int) -> Images:
    """Images that tell their number by label and by pixels."""
    numbers = torch.arange(begin, begin + count)
    pixels = torch.stack([numbers // 256, numbers % 256], 1).to(torch.uint8)
    return Images(pixels[:, :, None, None].expand(-1, -1, 2, 2).clone(), numbers)


def dataset(
    train: int, test: int, validation: int | None = None, domains: int = 1, public: Images | None = None
) -> Dataset:
    """Every image of the data set has a number of its own."""
    made = {}
    begin = 0
    for k in range(domains):
        sets = []
        for count in (train, test, validation):
            sets.append(None if count is None else numbered(begin, count))
            begin += count or 0
        made[f"domain {k}"] = Domain(*sets)
    return Dataset("numbers", ("a", "b"), made, flip=True, source="", public=public)


def iid(data, clients, per_client, seed=0, **settings):
    return partition.federate(data, clients=clients, per_client=per_client, how="iid", seed=seed, **settings)


def by_domain(data, clients, per_client, seed=0):
    return partition.federate(data, clients=clients, per_client=per_client, how="domain", seed=seed)


def held(federation) -> list[int]:
    """The numbers of all images that anyone holds."""
    sets = [part for client in federation.clients for part in (client.train, client.validation, client.test)]
    sets += [federation.public] if federation.public is not None else []
    return [number for part in sets for number in part.labels.tolist()]


@st.composite
def iid_cases(draw):
    clients = draw(st.integers(1, 9))
    per_client = draw(st.integers(1, 12))
    spare = draw(st.integers(0, 20))
    test = draw(st.integers(2 * clients, 60))
    validation = draw(st.one_of(st.none(), st.integers(clients, 30)))
    return (
        clients,
        per_client,
        clients * per_client + spare,
        test,
        validation,
        draw(st.integers(0, 25)),
        draw(st.integers(0, 9)),
    )


@given(iid_cases())
def test_iid_clients_are_disjoint_and_use_the_whole_test_set(case):
    clients, per_client, train, test, validation, public, seed = case
    data = dataset(train, test, validation)
    made = iid(data, clients, per_client, seed, public=public)
    numbers = held(made)
    assert len(numbers) == len(set(numbers))
    assert len(made.clients) == clients
    domain = data.domains["domain 0"]
    for client in made.clients:
        assert len(client.train.labels) == per_client
        assert set(client.train.labels.tolist()) <= set(domain.train.labels.tolist())
        assert len(client.validation.labels) >= 1
        assert len(client.test.labels) >= 1
    out = [
        number
        for client in made.clients
        for part in (client.validation, client.test)
        for number in part.labels.tolist()
    ]
    whole = domain.test.labels.tolist() + ([] if domain.validation is None else domain.validation.labels.tolist())
    assert sorted(out) == sorted(whole)
    kept = 0 if made.public is None else len(made.public.labels)
    assert kept == min(public, train - clients * per_client)
    if validation is not None:
        for client in made.clients:
            assert set(client.validation.labels.tolist()) <= set(domain.validation.labels.tolist())
    else:
        assert all(0 <= len(c.test.labels) - len(c.validation.labels) <= 1 for c in made.clients)
    sizes = [len(client.test.labels) for client in made.clients]
    assert max(sizes) - min(sizes) <= 1


@given(
    st.integers(1, 5),
    st.integers(1, 30),
    st.integers(2, 30),
    st.one_of(st.none(), st.integers(1, 9)),
    st.integers(1, 40),
    st.integers(0, 9),
)
def test_clients_by_domain_hold_their_own_domain_only(domains, train, test, validation, per_client, seed):
    data = dataset(train, test, validation, domains)
    made = by_domain(data, domains, per_client, seed)
    numbers = held(made)
    assert len(numbers) == len(set(numbers))
    for client, (name, domain) in zip(made.clients, data.domains.items(), strict=True):
        assert client.domain == name
        assert len(client.train.labels) == min(per_client, train)
        assert set(client.train.labels.tolist()) <= set(domain.train.labels.tolist())
        out = client.validation.labels.tolist() + client.test.labels.tolist()
        whole = domain.test.labels.tolist() + ([] if domain.validation is None else domain.validation.labels.tolist())
        assert sorted(out) == sorted(whole)
        if validation is None:
            assert len(client.validation.labels) == test // 2


@given(st.integers(1, 200), st.integers(1, 20), st.integers(0, 5))
def test_shares_are_disjoint_complete_and_even(samples, clients, seed):
    shares = partition.shares(samples, clients, stream(seed, "test"))
    assert torch.equal(torch.cat(shares).sort().values, torch.arange(samples))
    assert len(shares) == clients
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(st.integers(0, 100))
def test_halves_are_the_first_and_the_second_half(size):
    first, second = partition.halves(torch.arange(size))
    assert torch.equal(torch.cat([first, second]), torch.arange(size))
    assert 0 <= len(second) - len(first) <= 1


@pytest.mark.parametrize(
    "make",
    [lambda seed: iid(dataset(99, 40), 3, 20, seed), lambda seed: by_domain(dataset(99, 40, None, 3), 3, 20, seed)],
)
def test_the_seed_alone_decides_who_holds_what(make):
    assert held(make(4)) == held(make(4))
    assert held(make(4)) != held(make(5))


def test_images_and_labels_stay_together():
    for client in iid(dataset(600, 100), 3, 150).clients:
        for part in (client.train, client.validation, client.test):
            told = part.images[:, 0, 0, 0].long() * 256 + part.images[:, 1, 0, 0].long()
            assert torch.equal(told, part.labels)


def test_more_public_images_do_not_change_the_clients():
    few, many = (iid(dataset(99, 40), 3, 20, public=public) for public in (0, 39))
    assert few.public is None
    assert all(torch.equal(a.train.labels, b.train.labels) for a, b in zip(few.clients, many.clients, strict=True))


def test_a_data_set_that_names_its_public_images_keeps_them():
    data = dataset(10, 10, None, 2, public=numbered(100, 5))
    assert by_domain(data, 2, 5).public is data.public
    assert by_domain(data, 2, 5).flip
    assert by_domain(data, 2, 5).classes == ("a", "b")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: iid(dataset(3, 40), 4, 1), "4 clients were asked for, but the data set has only 3"),
        (lambda: iid(dataset(100, 40), 4, 26), "--per-client 25 is the most"),
        (lambda: iid(dataset(100, 7), 4, 5), "has 7 test images, but its clients need 8"),
        (lambda: iid(dataset(100, 40, 3), 4, 5), "has 3 validation images, but its clients need 4"),
        (lambda: iid(dataset(100, 3, 40), 4, 5), "has 3 test images, but its clients need 4"),
        (lambda: iid(dataset(100, 40), 0, 5), "at least one client"),
        (lambda: iid(dataset(100, 40), 4, 0), "at least one client"),
        (lambda: iid(dataset(100, 40, None, 2), 4, 5), "has 2 domains; lay it out by domain"),
        (lambda: by_domain(dataset(100, 40, None, 3), 4, 5), "one per client, but 4 clients"),
        (lambda: by_domain(dataset(0, 40), 1, 5), "0 training images"),
        (lambda: by_domain(dataset(9, 1), 1, 5), "1 test images, but its clients need 2"),
        (lambda: by_domain(dataset(9, 9), 1, -5), "at least one client"),
        (
            lambda: partition.federate(dataset(9, 9), clients=1, per_client=1, how="random", seed=0),
            "known: iid, domain",
        ),
    ],
)
def test_what_cannot_be_laid_out_is_one_line(make, message):
    with pytest.raises(UserError, match=message) as raised:
        make()
    assert "\n" not in str(raised.value)


def test_every_data_set_has_its_published_or_own_layout():
    assert set(partition.DEFAULTS) == set(plugins.DATASETS)
    assert partition.defaults("cifar10") == partition.defaults("fmnist") == ("iid", 4, 2000)
    assert partition.defaults("digit5") == ("domain", 4, 2000)
    assert partition.defaults("office10")[:2] == ("domain", 4)
    assert partition.defaults("photos") == ("iid", 4, 500)
    assert partition.defaults("digits4")[:2] == ("domain", 4)
    assert partition.PUBLIC == 32_000


@pytest.mark.parametrize("name", ["digits", "photos", "digits4"])
def test_embedded_data_sets_can_be_laid_out_by_default(name):
    from privbench import data

    how, clients, per_client = partition.defaults(name)
    made = partition.federate(data.load(name, None), clients=clients, per_client=per_client, how=how, seed=0)
    assert [len(client.train.labels) for client in made.clients] == [per_client] * clients
    assert all(len(client.validation.labels) > 50 and len(client.test.labels) > 50 for client in made.clients)
