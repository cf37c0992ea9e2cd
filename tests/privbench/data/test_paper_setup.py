"""Each paper's sizes, split and flips, and the images that its accuracy is measured on."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from privbench import presets
from privbench.data import partition
from privbench.data.dataset import Dataset
from privbench.data.paper_setup import PROTOCOLS
from privbench.errors import UserError
from privbench.training import evaluation, federation, harness
from privbench.types import Images
from tests.privbench.data.test_partition import dataset, held, labelled


def laid_out(data, protocol, clients, per_client, how="iid", seed=0, **settings):
    return partition.federate(
        data, clients=clients, per_client=per_client, how=how, seed=seed, protocol=protocol, **settings
    )


def numbers(images):
    return set(images.labels.tolist())


@given(st.integers(1, 6), st.integers(5, 40), st.integers(6, 60), st.integers(0, 3))
def test_nfl_cgan_splits_both_sets_among_the_clients_and_validates_on_a_fifth_of_the_training_part(
    clients, per_client, test, seed
):
    data = dataset(clients * per_client, test)
    made = laid_out(data, "nfl-cgan", clients, per_client, seed=seed)
    assert len(held(made)) == len(set(held(made)))
    domain = data.domains["domain 0"]
    for client in made.clients:
        assert len(client.validation.labels) == max(1, round(0.2 * per_client))
        assert len(client.train.labels) + len(client.validation.labels) == per_client
        assert numbers(client.train) | numbers(client.validation) <= numbers(domain.train)
    # The four test parts are the whole test set: no half of it validates.
    assert set().union(*(numbers(c.test) for c in made.clients)) == numbers(domain.test)


@given(st.integers(1, 4), st.integers(1, 60), st.integers(5, 60), st.integers(0, 3))
def test_nfl_cgan_splits_every_domain_60_20_20_whatever_its_publisher_trains_on(domains, train, test, seed):
    data = dataset(train, test, domains=domains)
    made = laid_out(data, "nfl-cgan", domains, 10**9, "domain", seed)
    whole = train + test
    for client, domain in zip(made.clients, data.domains.values(), strict=True):
        sizes = [len(part.labels) for part in (client.train, client.validation, client.test)]
        assert sizes == [round(0.6 * whole), round(0.8 * whole) - round(0.6 * whole), whole - round(0.8 * whole)]
        assert numbers(client.train) | numbers(client.validation) | numbers(client.test) == (
            numbers(domain.train) | numbers(domain.test)
        )
    again = laid_out(data, "nfl-cgan", domains, 10**9, "domain", seed)
    other = laid_out(data, "nfl-cgan", domains, 10**9, "domain", seed + 1)
    assert [c.train.labels.tolist() for c in again.clients] == [c.train.labels.tolist() for c in made.clients]
    assert whole < 20 or [numbers(c.train) for c in other.clients] != [numbers(c.train) for c in made.clients]


def test_a_data_set_with_validation_images_of_its_own_keeps_its_split_under_every_protocol():
    data = dataset(20, 8, validation=6)
    for protocol in PROTOCOLS:
        for how, clients in (("iid", 2), ("domain", 1)):
            made = laid_out(data, protocol, clients, 10, how)
            validation_numbers = set().union(*(numbers(c.validation) for c in made.clients))
            assert validation_numbers == numbers(data.domains["domain 0"].validation), (protocol, how)


def test_fedmd_cg_tests_on_an_even_split_of_the_whole_test_set_and_validates_on_training_images():
    data = labelled([300, 300, 300], test=90)
    made = laid_out(data, "fedmd-cg", 3, 300, "dirichlet", omega=1.0, minimum=1)
    assert [len(c.test.labels) for c in made.clients] == [30, 30, 30]
    assert [len(c.validation.labels) for c in made.clients] == [15, 15, 15]
    assert sum(len(c.train.labels) for c in made.clients) == 900 - 45
    assert sum(torch.bincount(c.test.labels, minlength=3) for c in made.clients).tolist() == [30, 30, 30]
    numbered = dataset(60, 9)
    iid = laid_out(numbered, "fedmd-cg", 3, 20)
    validation = set().union(*(numbers(c.validation) for c in iid.clients))
    assert validation <= numbers(numbered.domains["domain 0"].train)
    assert len(held(iid)) == len(set(held(iid))) == 69


def test_the_g_acc_of_fedmd_cg_is_on_the_whole_test_set():
    each = presets.train_spec("smoke", "digits", "fedmd-cg", protocol="fedmd-cg", changes={"rounds": 1})
    fed, note = federation.of(each, None)
    whole = federation.read("digits", None, None, 32).domains["all"].test
    tested = torch.cat([c.test.images for c in fed.clients])
    assert sorted(map(tuple, tested.flatten(1).tolist())) == sorted(map(tuple, whole.images.flatten(1).tolist()))
    assert "one in twenty training images validates" in note
    setup = harness.prepare(each, fed, torch.device("cpu"))
    state = harness.initial(setup)
    harness.train_round([setup], [state], "alone")
    average = evaluation.average_model(state.clients, setup.weights)
    assert state.history[0]["global_accuracy"] == pytest.approx(
        evaluation.accuracy(setup.model, average, whole, torch.device("cpu"))
    )


def test_a_client_with_nothing_to_spare_for_validation_is_one_line():
    with pytest.raises(UserError, match="a client of 1 images has none to spare for validation; raise --per-client"):
        laid_out(dataset(4, 8), "nfl-cgan", 4, 1)


def halved(train=20, test=0):
    """One domain of two classes whose images tell their number by pixels, and whose publisher names few test images, or none."""
    count = train + test
    images = torch.arange(count)[:, None, None, None].expand(-1, 1, 2, 2).to(torch.uint8)
    labels = torch.arange(count) % 2
    parts = [Images(images[a:b], labels[a:b]) for a, b in ((0, train), (train, count))]
    return Dataset("objects", ("a", "b"), {"one": partition.Domain(*parts)}, flip=True, source="", halved=True)


@pytest.mark.parametrize("how", ["domain", "iid"])
def test_half_of_each_class_trains_drawn_anew_for_every_seed(how):
    trained = []
    for seed in range(3):
        (client,) = laid_out(halved(), "fedcg", 1, 10, how, seed).clients
        assert torch.bincount(client.train.labels).tolist() == [5, 5]
        pixels = [int(x[0, 0, 0]) for part in client[1:] for x in part.images]
        assert sorted(pixels) == list(range(20))
        trained.append(frozenset(client.train.images[:, 0, 0, 0].tolist()))
    assert len(set(trained)) == 3


def test_no_published_test_image_is_trained_on_where_a_domain_is_halved():
    (client,) = laid_out(halved(train=12, test=28), "fedcg", 1, 99, "domain").clients
    # Half of the 20 images of a class are 10, but the training list has 6 of each.
    assert torch.bincount(client.train.labels).tolist() == [6, 6]
    assert max(client.train.images[:, 0, 0, 0].tolist()) < 12


def test_the_paper_preset_takes_the_protocol_of_the_methods_own_paper():
    def layout(method, dataset, **options):
        spec = presets.train_spec("paper", dataset, method, **options)
        return spec.protocol, spec.partition, spec.clients, spec.per_client, spec.flip

    assert layout("nfl-cgan", "fmnist") == ("nfl-cgan", "iid", 4, 15_000, False)
    assert layout("nfl-cgan", "cifar10") == ("nfl-cgan", "iid", 4, 12_500, False)
    assert layout("nfl-cgan", "office10")[:3] == ("nfl-cgan", "domain", 4)
    assert layout("fedmd-cg", "fmnist") == ("fedmd-cg", "dirichlet", 10, 6000, False)
    assert layout("fedcg", "fmnist") == ("fedcg", "iid", 4, 2000, True)
    assert layout("fedavg", "fmnist", protocol="nfl-cgan") == ("nfl-cgan", "iid", 4, 15_000, False)
    assert layout("nfl-cgan", "fmnist", protocol="fedcg") == ("fedcg", "iid", 4, 2000, True)
    assert layout("fedcg", "cifar10", flip=False)[4] is False
    quick = presets.train_spec("quick", "photos", "nfl-cgan")
    assert (quick.protocol, quick.flip) == ("fedcg", True)
    rounds = {d: presets.train_spec("paper", d, "fedmd-cg").schedule.rounds for d in ("fmnist", "cifar10")}
    assert rounds == {"fmnist": 100, "cifar10": 250}
    with pytest.raises(UserError, match="unknown protocol 'nfl_cgan'; did you mean 'nfl-cgan'"):
        layout("fedavg", "fmnist", protocol="nfl_cgan")


def test_a_run_is_flipped_where_both_its_data_set_and_its_specification_say_so(monkeypatch):
    loaded = federation.read("digits", None, None, 32)
    monkeypatch.setattr(federation, "read", lambda *_: loaded._replace(flip=True))
    federation.laid_out.cache_clear()
    try:
        each = presets.train_spec("smoke", "digits", "fedavg")
        flips = [federation.of(each.model_copy(update={"flip": flip}), None)[0].flip for flip in (True, False)]
    finally:
        federation.laid_out.cache_clear()
    assert flips == [True, False]
