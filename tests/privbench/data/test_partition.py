"""Clients are disjoint, complete, drawn once per seed, and laid out as the papers lay them out."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from privbench import presets, registry
from privbench.data import client_shares, partition
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


def dealt(data, clients, per_client, seed=0, omega=1.0, minimum=1, **settings):
    return partition.federate(
        data,
        clients=clients,
        per_client=per_client,
        how="dirichlet",
        seed=seed,
        omega=omega,
        minimum=minimum,
        **settings,
    )


def labelled(counts: list[int], test: int = 400) -> Dataset:
    """One domain with so many training images of each class, and test images of all classes alike."""
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    tests = torch.arange(test) % len(counts)
    train, held_out = (Images(torch.zeros(len(y), 1, 2, 2, dtype=torch.uint8), y) for y in (labels, tests))
    return Dataset("labelled", tuple(map(str, range(len(counts)))), {"all": Domain(train, held_out)}, False, "")


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
    public_images = 0 if made.public is None else len(made.public.labels)
    assert public_images == min(public, train - clients * per_client)
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
    shares = client_shares.splits(samples, clients, stream(seed, "test"))
    assert torch.equal(torch.cat(shares).sort().values, torch.arange(samples))
    assert len(shares) == clients
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(st.integers(0, 100))
def test_halves_are_the_first_and_the_second_half(size):
    first, second = client_shares.halves(torch.arange(size))
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
            written = part.images[:, 0, 0, 0].long() * 256 + part.images[:, 1, 0, 0].long()
            assert torch.equal(written, part.labels)


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
        (
            lambda: by_domain(dataset(100, 40), 4, 5),
            "has one domain only; lay it out with --partition iid or dirichlet",
        ),
        (lambda: dealt(dataset(100, 40), 4, 5, omega=0.0), "--omega must be a positive number, .* but 0 was given"),
        (lambda: dealt(dataset(100, 40), 4, 5, omega=-1.0), "--omega must be a positive number, .* but -1 was given"),
        (lambda: dealt(dataset(100, 40), 4, 5, omega=float("nan")), "but nan was given"),
        (lambda: dealt(dataset(100, 40), 4, 5, omega=float("inf")), "but inf was given"),
        (
            lambda: dealt(dataset(100, 40), 4, 5, minimum=6),
            "--min-per-client 6 is more than 4 clients can have of 20 .*; 5 is the most",
        ),
        (
            lambda: dealt(labelled([100, 100]), 20, 10, omega=0.01, minimum=5),
            "none of 2000 draws of Dirichlet.0.01. gives each of 20",
        ),
        (lambda: dealt(dataset(100, 7), 4, 5), "has 7 test images, but its clients need 8"),
        (lambda: by_domain(dataset(100, 40, None, 3), 4, 5), "one per client, but 4 clients"),
        (lambda: by_domain(dataset(0, 40), 1, 5), "0 training images"),
        (lambda: by_domain(dataset(9, 1), 1, 5), "1 test images, but its clients need 2"),
        (lambda: by_domain(dataset(9, 9), 1, -5), "at least one client"),
        (
            lambda: partition.federate(dataset(9, 9), clients=1, per_client=1, how="random", seed=0),
            "known: iid, domain, dirichlet",
        ),
    ],
)
def test_what_cannot_be_laid_out_is_one_line(make, message):
    with pytest.raises(UserError, match=message) as raised:
        make()
    assert "\n" not in str(raised.value)


def test_every_data_set_has_its_published_or_own_layout():
    assert set(partition.DEFAULTS) == set(registry.DATASETS)
    assert partition.defaults("cifar10") == partition.defaults("fmnist") == ("iid", 4, 2000)
    assert partition.defaults("digit5") == ("domain", 4, 2000)
    assert partition.defaults("office10")[:2] == ("domain", 4)
    assert partition.defaults("mnist") == ("iid", 4, 2000)
    assert partition.defaults("emnist") == ("dirichlet", 20, 240_000 // 20)
    assert partition.defaults("emnist-letters") == ("dirichlet", 20, 124_800 // 20)
    assert partition.defaults("emnist-balanced") == ("dirichlet", 20, 112_800 // 20)
    assert partition.defaults("domainnet")[:2] == ("domain", 5)
    assert partition.defaults("photos") == ("iid", 4, 500)
    assert partition.defaults("digits4")[:2] == ("domain", 4)
    assert partition.PUBLIC == 32_000


@st.composite
def dirichlet_cases(draw):
    labels = draw(st.lists(st.integers(0, 6), min_size=1, max_size=150))
    clients = draw(st.integers(1, 6))
    omega = draw(st.sampled_from([1e-3, 0.1, 1.0, 10.0, 1e6]))
    # A minimum that a draw can be expected to meet: next to nothing when labels hardly spread.
    most = len(labels) // clients if omega > 1e3 else len(labels) // (8 * clients) if omega >= 1 else 0
    return (
        torch.tensor(labels),
        clients,
        omega,
        draw(st.integers(0, max(0, most - len(set(labels))))),
        draw(st.integers(0, 9)),
    )


@given(dirichlet_cases())
def test_a_dirichlet_partition_gives_every_image_to_one_client_and_keeps_the_minimum(case):
    labels, clients, omega, minimum, seed = case
    shares = client_shares.dirichlet(labels, clients, omega, minimum, stream(seed, "test"))
    assert len(shares) == clients
    assert torch.equal(torch.cat(shares).sort().values, torch.arange(len(labels)))
    assert min(len(share) for share in shares) >= minimum
    again = client_shares.dirichlet(labels, clients, omega, minimum, stream(seed, "test"))
    assert all(torch.equal(a, b) for a, b in zip(shares, again, strict=True))


@given(st.lists(st.integers(1, 300), min_size=1, max_size=8), st.integers(1, 8), st.integers(0, 9))
def test_with_a_large_omega_every_client_gets_its_even_part_of_every_class(sizes, clients, seed):
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    for share in client_shares.dirichlet(labels, clients, 1e9, 0, stream(seed, "test")):
        counts = torch.bincount(labels[share], minlength=len(sizes))
        assert ((counts - torch.tensor(sizes) / clients).abs() <= 1.1).all()


@given(st.integers(2, 8), st.integers(0, 30))
def test_with_a_small_omega_every_class_goes_to_one_client(clients, seed):
    labels = torch.arange(10).repeat_interleave(50)
    shares = client_shares.dirichlet(labels, clients, 1e-4, 0, stream(seed, "test"))
    counts = torch.stack([torch.bincount(labels[share], minlength=10) for share in shares])
    # P(the largest part of a class is below 0.999) is about K * ln(1000) * omega, 0.6%, for each of the ten classes.
    assert (counts.max(0).values >= 49).sum() >= 9


@given(st.integers(0, 60))
def test_a_minimum_that_most_draws_miss_is_kept_all_the_same(seed):
    labels = torch.arange(10).repeat_interleave(100)
    free, bounded = (client_shares.dirichlet(labels, 5, 0.3, minimum, stream(seed, "test")) for minimum in (0, 120))
    assert min(len(share) for share in bounded) >= 120
    assert torch.equal(torch.cat(bounded).sort().values, torch.arange(1000))
    if min(len(share) for share in free) >= 120:  # a first draw that will do is taken
        assert all(torch.equal(a, b) for a, b in zip(free, bounded, strict=True))


def test_the_parts_are_those_of_a_dirichlet_distribution():
    labels = torch.zeros(10_000, dtype=torch.int64)
    for omega in (0.3, 1.0, 5.0):
        first = torch.tensor(
            [len(client_shares.dirichlet(labels, 4, omega, 0, stream(s, "test"))[0]) / 10_000 for s in range(400)]
        )
        # A Dirichlet part of four: mean 1/4, variance (1/4)(3/4) / (4 omega + 1).
        variance = 3 / 16 / (4 * omega + 1)
        assert abs(float(first.mean()) - 0.25) < 4 * (variance / 400) ** 0.5
        assert 0.75 < float(first.var()) / variance < 1.33


def test_a_smaller_omega_gives_less_even_clients():
    spread = []
    for omega in (100.0, 10.0, 1.0, 0.1):
        made = dealt(labelled([300] * 10), 5, 600, omega=omega)
        counts = torch.tensor([client["train"] for client in partition.census(made)]).float()
        assert counts.sum() == 3000
        spread.append(float((counts / counts.sum(1, keepdim=True)).max(1).values.mean()))
    assert spread == sorted(spread)
    assert spread[0] < 0.15
    assert spread[-1] > 0.35


def test_under_dirichlet_validation_and_test_are_a_random_even_split_of_the_whole_test_set():
    made = dealt(labelled([200] * 4, test=800), 4, 200, omega=0.1)
    for client in partition.census(made):
        assert sum(client["validation"]) == sum(client["test"]) == 100
        assert min(client["test"]) > 10  # all four classes, near 25 each, whatever the client trains on
    assert max(max(client["train"]) / sum(client["train"]) for client in partition.census(made)) > 0.7


def test_under_dirichlet_clients_share_what_was_asked_for_and_the_rest_is_public():
    made = dealt(dataset(100, 40), 3, 20, minimum=5, public=25)
    numbers = held(made)
    assert len(numbers) == len(set(numbers))
    assert sum(len(client.train.labels) for client in made.clients) == 60
    assert made.public is not None
    assert len(made.public.labels) == 25


@pytest.mark.parametrize("make", [iid, dealt])
def test_domains_are_pooled_when_they_are_not_the_clients(make):
    made = make(dataset(30, 20, 10, domains=3), 4, 15)
    numbers = held(made)
    assert len(numbers) == len(set(numbers)) == 3 * 60
    for client in made.clients:
        assert client.domain == "pooled"
        for part in (client.train, client.validation, client.test):
            assert torch.equal(part.images[:, 0, 0, 0].long() * 256 + part.images[:, 1, 0, 0].long(), part.labels)


def test_domains_with_and_without_validation_images_are_not_pooled():
    data = dataset(30, 20, 10, domains=2)
    first = data.domains["domain 0"]._replace(validation=None)
    with pytest.raises(UserError, match="validation images in some domains only"):
        iid(data._replace(domains=data.domains | {"domain 0": first}), 2, 5)


@st.composite
def federations(draw):
    """(a data set, some of whose classes may be empty; its federation; clients * per_client)."""
    counts = draw(st.lists(st.integers(0, 12), min_size=1, max_size=6).filter(any))
    clients = draw(st.integers(1, min(5, sum(counts))))
    per_client = draw(st.integers(1, sum(counts) // clients))
    data, seed = labelled(counts, test=draw(st.integers(2 * clients, 40))), draw(st.integers(0, 9))
    omega = draw(st.sampled_from([None, 0.1, 1.0, 10.0]))
    if omega is None:
        return data, iid(data, clients, per_client, seed), clients * per_client
    return data, dealt(data, clients, per_client, seed, omega, minimum=0), clients * per_client


@given(federations())
def test_census_and_label_counts_count_every_image_that_was_dealt(case):
    data, made, images = case
    every, trained = partition.census(made), made.label_counts()
    assert trained.shape == (len(made.clients), len(data.classes))
    assert int(trained.sum()) == sum(sum(client["train"]) for client in every) == images
    held_out = sum(sum(client["validation"]) + sum(client["test"]) for client in every)
    assert held_out == len(data.domains["all"].test.labels)
    for client, counted, row in zip(made.clients, every, trained.tolist(), strict=True):
        assert counted["domain"] == "all"
        assert counted["train"] == row
        for name in ("train", "validation", "test"):
            labels = getattr(client, name).labels.tolist()
            assert counted[name] == [labels.count(y) for y in range(len(data.classes))]


@pytest.mark.parametrize("name", ["digits", "photos", "digits4"])
def test_embedded_data_sets_can_be_laid_out_by_default_and_by_dirichlet(name):
    from privbench import data

    loaded = data.load(name, None)
    how, clients, per_client = partition.defaults(name)
    made = partition.federate(loaded, clients=clients, per_client=per_client, how=how, seed=0)
    assert [len(client.train.labels) for client in made.clients] == [per_client] * clients
    assert all(len(client.validation.labels) > 50 and len(client.test.labels) > 50 for client in made.clients)
    for preset, omega in (("smoke", 0.1), ("quick", 1), ("paper", 10), ("paper", 0.1)):
        each = presets.train_spec(preset, name, "fedavg", omega=omega)
        made = partition.federate(
            loaded, clients=each.clients, per_client=each.per_client, how=each.partition, seed=0, omega=each.omega,
            minimum=each.min_per_client,
        )  # fmt: skip
        sizes = [len(client.train.labels) for client in made.clients]
        assert sum(sizes) == each.clients * each.per_client
        assert min(sizes) >= each.min_per_client
