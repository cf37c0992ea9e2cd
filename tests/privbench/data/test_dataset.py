"""What every data set must keep: a fault is one line before anything is trained, and a user's own is checked, too."""

import pytest
import torch

from privbench.data import cifar10, photos
from privbench.data.dataset import Dataset, Domain, sound
from privbench.errors import UserError
from privbench.observation import knowledge
from privbench.training import federation as federations
from privbench.types import Images
from tests.builders.refusals import refused


def made(
    channels=(3, 3), labels=((0, 1), (1, 0)), public=None, classes=("a", "b"), dtype=torch.uint8, side=32
) -> Dataset:
    domains = {}
    for k, (c, y) in enumerate(zip(channels, labels, strict=True)):
        part = Images(torch.zeros(len(y), c, side, side, dtype=dtype), torch.tensor(y))
        domains[f"domain{k}"] = Domain(part, part)
    return Dataset("mine", classes, domains, False, "", public=public)


def test_a_sound_data_set_passes():
    whole = made()
    assert sound(whole) is whole
    assert sound(made(labels=((0,), (1,)))).classes == ("a", "b")  # a class may be absent in one domain


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (made(channels=(3, 1)), "domain1's train images are grey, but colour is expected as in domain0's train images"),
        (made(channels=(1, 3)), "domain0's train images are grey, but colour is expected as in domain1's train images"),
        (made(public=made(channels=(1, 1)).domains["domain0"].train), "the public images are grey"),
        (made(labels=((0, 0), (0, 0))), "no training image of the class 'b' in any domain"),
        (made(classes=("a", "b", "c", "d")), "of the class 'c' in any domain .nor of 1 others."),
        (made(labels=((0, 2), (1, 0))), "must be one per image .2., from 0 to 1"),
        (made(labels=((0, -1), (1, 0))), "must be one per image"),
        (made(dtype=torch.float32), "must be uint8 of shape"),
        (made(side=28), r"but are torch.uint8 \[2, 3, 28, 28\]"),
        (made(channels=(4, 4)), "must be uint8"),
        (made(channels=(), labels=()), "has no images"),
    ],
)
def test_a_fault_of_any_data_set_is_one_line_before_anything_is_trained(dataset, message):
    with pytest.raises(UserError, match=message) as raised:
        sound(dataset)
    assert "\n" not in str(raised.value)


def test_images_may_be_stored_at_32_or_at_the_side_asked_for_all_alike():
    small, large = made(), made(side=224)
    assert sound(small, 224) is small
    assert sound(large, 224) is large
    mixed = large._replace(public=small.domains["domain0"].train)
    message = "the public images must be uint8 of shape [N, 1 or 3, 224, 224], but are torch.uint8 [2, 3, 32, 32]"
    refused(lambda: sound(mixed, 224), message)
    refused(lambda: sound(large), "must be uint8 of shape [N, 1 or 3, 32, 32]")
    refused(lambda: sound(made(side=64), 224), "but are torch.uint8 [2, 3, 64, 64]")


def test_a_data_set_with_larger_originals_is_federated_and_lent_to_the_attacker_at_224(monkeypatch):
    monkeypatch.setattr(photos, "COUNT", {"train": 6, "validation": 2, "test": 2})
    for cached in (federations.read, federations.laid_out):
        cached.cache_clear()
    try:
        federation, _ = federations.laid_out("photos", None, None, 2, 8, "iid", 0, 224)
        images, _ = knowledge.auxiliary(federation, "photos", None, (3, 224, 224), 0)
    finally:
        for cached in (federations.read, federations.laid_out):
            cached.cache_clear()
    assert all(client.train.images.shape == (8, 3, 224, 224) for client in federation.clients)
    assert images.images.shape[1:] == (3, 224, 224)


def test_a_data_set_of_the_users_own_is_looked_over_before_it_is_used(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar10, "load", lambda root: made(labels=((0, 0), (0, 0))))
    federations.read.cache_clear()
    refused(
        lambda: federations.laid_out("cifar10", None, tmp_path, 2, 1, "domain", 0),
        "no training image of the class 'b'",
    )
