"""DomainNet from a tiny copy of its public layout: its largest classes, its lists, and what is missing."""

import torch

from privbench import data
from privbench.data import domainnet, partition
from privbench.data.dataset import Domain
from privbench.types import Images
from tests.builders import data_folders as folders
from tests.builders.refusals import refused


def halved(loaded):
    """The domains as clients have them: what they train on, and what validates or tests."""
    made = partition.federate(loaded, clients=len(loaded.domains), per_client=100, how="domain", seed=0)
    return [
        Domain(c.train, Images(*(torch.cat(both) for both in zip(c.validation, c.test, strict=True))))
        for c in made.clients
    ]


def test_domainnet_takes_the_ten_largest_classes_and_trains_on_half_of_each(tmp_path):
    folders.domainnet(tmp_path)
    loaded = data.load("domainnet", tmp_path)
    assert tuple(loaded.domains) == ("clipart", "infograph", "quickdraw", "real", "sketch")
    assert loaded.classes == tuple(f"thing{k:02}" for k in range(2, 12))  # the two small ones are left out
    assert loaded.flip
    assert loaded.note == ""
    for domain in halved(loaded):
        assert torch.bincount(domain.train.labels).tolist() == [3] * 10
        assert torch.bincount(domain.test.labels).tolist() == [3] * 10
        for part in (domain.train, domain.test):
            assert torch.equal(part.images[:, 0, 16, 16].long(), 20 * (part.labels + 2))
        numbers = torch.cat([domain.train.images, domain.test.images])[:, 1, 0, 0]
        assert sorted((numbers // 20).tolist()) == sorted([*range(6)] * 10)
    assert loaded.public is not None
    assert torch.bincount(loaded.public.labels).tolist() == [6] * 10
    assert (loaded.public.images[:, 2] == 20 * domainnet.DOMAINS.index("painting")).all()


def test_domainnets_lists_say_which_files_belong_and_none_of_the_test_list_trains(tmp_path):
    folders.domainnet(tmp_path, lists=True)
    loaded = data.load("domainnet", tmp_path)
    for domain in halved(loaded):
        assert torch.bincount(domain.train.labels).tolist() == [2] * 10  # half of the five that are listed
        assert torch.bincount(domain.test.labels).tolist() == [3] * 10
        trained = (domain.train.images[:, 1, 0, 0] // 20).tolist()
        tested = (domain.test.images[:, 1, 0, 0] // 20).tolist()
        assert set(trained) <= {0, 1, 2}  # the training list
        assert tested.count(3) == tested.count(4) == 10  # the test list
        assert 5 not in trained + tested  # on disk, but in neither list
    assert loaded.public is not None
    assert len(loaded.public.labels) == 50


def test_domainnet_can_make_painting_a_client_and_says_what_it_used(tmp_path):
    folders.domainnet(tmp_path, ("sketch", "painting"))
    loaded = data.load("domainnet", tmp_path, ("painting", "sketch"))
    assert tuple(loaded.domains) == ("painting", "sketch")
    assert loaded.public is None
    assert "domains painting, sketch only" in loaded.note
    assert "classes are those of sketch, painting alone" in loaded.note
    made = partition.federate(loaded, clients=2, per_client=100, how="domain", seed=0)
    assert [client.domain for client in made.clients] == ["painting", "sketch"]
    assert [len(client.train.labels) for client in made.clients] == [30, 30]


def test_what_is_missing_of_domainnet_is_named(tmp_path):
    folders.domainnet(tmp_path, lists=True)
    root = tmp_path / "domainnet"
    image = root / "real/thing05/4.png"
    image.rename(root / "away")
    refused(lambda: data.load("domainnet", tmp_path), image, "missing", "real_test.txt")
    assert any(line.startswith("damaged") and str(image) in line for line in data.check("domainnet", tmp_path))
    (root / "away").rename(image)
    lines = (root / "real_train.txt").read_text()
    for bad in ("real/thing05/0.png", "sketch/thing05/0.png 5", "real/../thing05.png 5", "real/0.png 5", "\x00"):
        (root / "real_train.txt").write_text(f"{lines}{bad}\n")
        refused(lambda: data.load("domainnet", tmp_path), "real_train.txt", "damaged")
    (root / "real_train.txt").unlink()
    refused(lambda: data.load("domainnet", tmp_path), "real_test.txt", "both")


def test_a_missing_an_empty_and_a_damaged_domain_are_named(tmp_path):
    folders.domainnet(tmp_path)
    root = tmp_path / "domainnet"
    image = root / "clipart/thing04/2.png"
    image.write_bytes(image.read_bytes()[:60])
    refused(lambda: data.load("domainnet", tmp_path), image, "damaged")
    for path in (root / "clipart").glob("*/*"):
        path.unlink()
    refused(lambda: data.load("domainnet", tmp_path), root / "clipart", "is empty")
    (root / "clipart").rename(root / "away")
    refused(lambda: data.load("domainnet", tmp_path), "domainnet/clipart under")
    refused(lambda: data.load("domainnet", tmp_path, ("clipart",)), "domainnet/clipart under")
    for path in (root / "real/thing03").iterdir():
        path.unlink()
    refused(lambda: data.load("domainnet", tmp_path, ("real",)), "real must hold two images or more of 'thing03'")


def test_domainnet_needs_ten_classes(tmp_path):
    folders.domainnet(tmp_path, classes=9)
    refused(lambda: data.load("domainnet", tmp_path), "needs 10 classes, but its folders hold 9")
