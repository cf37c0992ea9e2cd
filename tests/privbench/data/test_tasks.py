"""Tasks have N classes and K images of each, share no image between support and queries, and name their classes anew."""

from contextlib import suppress

import pytest
import torch

from privbench.data import client_shares, partition, tasks
from privbench.data.dataset import Dataset, Domain, sound
from privbench.data.tasks import TaskShape
from privbench.errors import UserError
from privbench.observation import chosen_victims
from privbench.seeds import stream
from privbench.types import Images
from tests.builders.federations import digits_federation

SHAPE = TaskShape(ways=4, shots=3, queries=5, per_client=2, tuning_steps=1)
LABELS = torch.arange(60) % 6 * 10  # six classes of ten images


def rng(n=0):
    return stream(n, "tasks")


def test_a_task_has_n_classes_k_shots_and_queries_that_are_no_shots():
    seen = set()
    for n in range(30):
        task = tasks.draw(LABELS, SHAPE, rng(n))
        assert task.support_labels.tolist() == [y for y in range(4) for _ in range(3)]
        assert task.query_labels.tolist() == [y for y in range(4) for _ in range(5)]
        assert len({*task.support.tolist(), *task.queries.tolist()}) == 4 * 8
        for name in range(4):
            rows = torch.cat([task.support[task.support_labels == name], task.queries[task.query_labels == name]])
            assert len(LABELS[rows].unique()) == 1
        seen.add(tuple(LABELS[task.support[::3]].tolist()))
    assert len(seen) > 20  # which classes there are, and what they are called, is drawn anew


def test_a_class_without_enough_images_has_no_part_and_fewer_queries_are_those_that_all_have():
    labels = torch.cat([LABELS, torch.tensor([99, 99, 99])])
    assert all(99 not in labels[tasks.draw(labels, SHAPE, rng(n)).support] for n in range(20))
    few = torch.arange(20) % 4  # five images of each
    task = tasks.draw(few, SHAPE, rng())
    assert task.query_labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_support_set_and_its_pool_are_of_the_same_classes():
    support, pool = tasks.support_set(LABELS, SHAPE, rng(3)), tasks.pool(LABELS, SHAPE, rng(3))
    assert len(support.rows) == SHAPE.support == 12
    assert len(pool.rows) == 40 == tasks.smallest_pool(LABELS, SHAPE)
    assert torch.bincount(support.labels).tolist() == [3] * 4
    assert torch.bincount(pool.labels).tolist() == [10] * 4
    for name in range(4):
        assert {*LABELS[support.rows[support.labels == name]].tolist()} == {
            *LABELS[pool.rows[pool.labels == name]].tolist()
        }


def test_the_smallest_pool_is_that_of_the_smallest_classes():
    labels = torch.repeat_interleave(torch.arange(6), torch.tensor([9, 4, 2, 5, 3, 8]))
    assert tasks.smallest_pool(labels, SHAPE) == 3 + 4 + 5 + 8  # a class of two has too few
    assert all(len(tasks.pool(labels, SHAPE, rng(n)).rows) >= 20 for n in range(20))


def test_attacked_support_sets_share_no_image():
    sets = tasks.disjoint(LABELS, SHAPE, rng())
    assert len(sets) == 3  # of one group of four classes of ten; two classes are left over
    rows = torch.cat([one.rows for one in sets])
    assert len(rows.unique()) == len(rows) == 36
    for one in sets:
        assert torch.bincount(one.labels).tolist() == [3] * 4
        assert all(len(LABELS[one.rows[one.labels == name]].unique()) == 1 for name in range(4))
    assert any(one.labels.tolist() != sorted(one.labels.tolist()) for one in sets)


def test_fewer_classes_than_ways_are_refused_in_one_line():
    for draw in (tasks.draw, tasks.support_set, tasks.pool, tasks.disjoint):
        with pytest.raises(UserError, match=r"7-way 3-shot tasks need 7 classes, but only 6") as raised:
            draw(LABELS, SHAPE._replace(ways=7), rng())
        assert "\n" not in str(raised.value)


def images(labels):
    return Images(torch.zeros(len(labels), 1, 32, 32, dtype=torch.uint8), torch.tensor(labels))


def split_by_class(test=(4, 4, 5, 5)):
    domain = Domain(images([0, 0, 1, 1, 2, 2]), images(list(test)), images([3, 3]))
    return Dataset("made", tuple("abcdef"), {"all": domain}, flip=False, source="", by_class=True)


def test_a_data_set_that_is_split_by_class_has_no_class_twice_and_none_without_images():
    assert sound(split_by_class()).by_class
    with pytest.raises(UserError, match=r"its class 'c' has images for test and train"):
        sound(split_by_class((2, 4, 5)))
    with pytest.raises(UserError, match=r"its class 'e' has no image"):
        sound(split_by_class((5, 5)))


def test_clients_of_whole_classes_share_none_and_take_their_images_in_turn():
    labels = torch.arange(100) % 10
    shares = client_shares.by_class(labels, 3, 8, rng())
    held = [set(labels[share].tolist()) for share in shares]
    assert sorted(len(each) for each in held) == [3, 3, 4]
    assert set.union(*held) == set(range(10))
    assert all(len(share) == 8 for share in shares)
    for share in shares:
        counts = torch.bincount(labels[share], minlength=10)
        assert counts[counts > 0].min() >= counts.max() - 1
    with pytest.raises(UserError, match=r"11 clients of whole classes were asked for, but there are 10"):
        client_shares.by_class(labels, 11, 8, rng())


def test_a_federation_by_class_tests_all_clients_on_classes_that_none_trains_on():
    fed = partition.federate(split_by_class(), clients=2, per_client=9, how="classes", seed=0)
    assert fed.by_class
    trained = [set(client.train.labels.tolist()) for client in fed.clients]
    assert trained[0] | trained[1] == {0, 1, 2}
    assert not trained[0] & trained[1]
    assert sorted(y for client in fed.clients for y in client.test.labels.tolist()) == [4, 4, 5, 5]
    assert sorted(y for client in fed.clients for y in client.validation.labels.tolist()) == [3, 3]


def test_beside_tasks_a_class_is_called_by_its_number_modulo_n():
    fed = partition.federate(split_by_class(), clients=2, per_client=9, how="classes", seed=0)
    known = tasks.relabelled(fed, 4)
    assert known.classes == ("1", "2", "3", "4")
    for before, after in zip(fed.clients, known.clients, strict=True):
        for a, b in zip(before[1:], after[1:], strict=True):
            assert torch.equal(b.labels, a.labels % 4)
            assert b.images is a.images


def test_as_many_victims_as_are_said_to_be_there_can_be_chosen_whatever_the_seed():
    """Classes of unequal sizes are grouped by the seed, so that the number of support sets depends on it."""
    federation = digits_federation((90, 90))
    shape = TaskShape(ways=4, shots=1, queries=1, per_client=1, tuning_steps=1)
    counts = set()
    for seed in range(10):
        most = 0
        with suppress(UserError):
            while True:
                chosen_victims.check_victims(federation, most + 1, 1, seed, shape)
                most += 1
        chosen = chosen_victims.choose_victims(federation, most, 1, seed, shape=shape)
        assert len(chosen.images) == most
        counts.add(most)
        with pytest.raises(UserError, match=f"the clients' images give {most} support sets"):
            chosen_victims.choose_victims(federation, most + 1, 1, seed, shape=shape)
    assert len(counts) > 1
