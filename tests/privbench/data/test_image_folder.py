"""MNIST, EMNIST and DomainNet from tiny files in their public layouts; folders of a user's own; what is wrong is one line."""

import gzip
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from privbench import data, presets, registry
from privbench.data import cifar10, digit5, domainnet, emnist, image_folder, mnist, partition, photos
from privbench.data.dataset import Dataset, Domain, sound
from privbench.data.readers import formats, resize, tree
from privbench.data.readers.download import torchvision_datasets
from privbench.errors import UserError
from privbench.observation import knowledge
from privbench.training import federation as federations
from privbench.types import Images
from tests.builders import data_folders as folders


def refused(act, *words) -> str:
    """The one line of a refusal, which holds the words."""
    with pytest.raises(UserError) as raised:
        act()
    line = str(raised.value)
    assert "\n" not in line
    for word in words:
        assert str(word) in line, line
    return line


# MNIST and EMNIST


def test_mnist_is_grey_resized_and_never_flipped(tmp_path, monkeypatch):
    folders.mnist(tmp_path, monkeypatch)
    loaded = data.load("mnist", tmp_path)
    train, test, validation = loaded.domains["all"]
    assert train.images.shape == (30, 1, 32, 32)
    assert test.images.shape == (20, 1, 32, 32)
    assert validation is None
    assert train.labels.tolist() == [k % 10 for k in range(30)]
    assert not loaded.flip
    assert loaded.note == ""
    written = torch.from_numpy(folders.rng(30).integers(0, 256, (30, 28, 28), np.uint8))[:, None]
    assert torch.equal(train.images, resize.to_32(written))
    assert all("the published file" in line for line in data.check("mnist", tmp_path))


def test_mnist_and_digit5_agree_on_the_files_and_fetch_them_in_the_same_way():
    assert digit5.PLACES["mnist"].layouts == mnist.LAYOUTS
    assert digit5.PLACES["mnist"].fetch is mnist.download
    theirs = torchvision_datasets().MNIST
    assert {name.removesuffix(".gz") for name, _ in theirs.resources} == {
        file.path.rpartition("/")[2] for file in mnist.LAYOUTS[1]
    }


def test_a_damaged_mnist_file_is_named(tmp_path, monkeypatch):
    folders.mnist(tmp_path, monkeypatch)
    path = tmp_path / mnist.LAYOUTS[0][1].path
    path.write_bytes(path.read_bytes()[:-3])
    refused(lambda: data.load("mnist", tmp_path), path, "checksum")


NAMES = {"digits": "emnist", "letters": "emnist-letters", "balanced": "emnist-balanced"}


@pytest.mark.parametrize("split", NAMES)
@pytest.mark.parametrize("gzipped", [True, False])
def test_emnist_is_put_upright_and_its_labels_start_at_zero(tmp_path, split, gzipped):
    written = folders.emnist_files(tmp_path, split, gzipped=gzipped)
    loaded = data.load(NAMES[split], tmp_path)
    train, test, _ = loaded.domains["all"]
    classes = len(emnist.SPLITS[split].classes)
    assert train.labels.tolist() == [k % classes for k in range(2 * classes)]
    assert len(test.labels) == classes
    assert len(loaded.classes) == classes
    assert loaded.name == NAMES[split]
    upright = torch.from_numpy(written.transpose(0, 2, 1).copy())[:, None]
    assert torch.equal(train.images, resize.to_32(upright))
    assert "not as published" in loaded.note
    assert not loaded.flip
    assert len(data.check(NAMES[split], tmp_path)) == 4
    assert all("readable images of" in line for line in data.check(NAMES[split], tmp_path))


@pytest.mark.parametrize("split", NAMES)
def test_torchvision_reads_the_same_emnist_and_calls_its_classes_the_same(tmp_path, split):
    folders.emnist_files(tmp_path, split, gzipped=False)
    own = data.load(NAMES[split], tmp_path)
    theirs = torchvision_datasets().EMNIST(tmp_path, split=split, train=True)
    first = emnist.SPLITS[split].first
    assert tuple(theirs.classes[first:]) == own.classes
    assert (theirs.targets - first).tolist() == own.domains["all"].train.labels.tolist()
    assert torch.equal(resize.to_32(theirs.data.transpose(1, 2)[:, None].contiguous()), own.domains["all"].train.images)


def test_a_damaged_emnist_file_is_named(tmp_path):
    folders.emnist_files(tmp_path, "digits", gzipped=True)
    path = tmp_path / "EMNIST/raw/emnist-digits-train-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:20])
    refused(lambda: data.load("emnist", tmp_path), path, "does not decompress")
    assert data.check("emnist", tmp_path)[1].startswith("damaged")
    path.write_bytes(gzip.compress(folders.idx_bytes(np.full(20, 10, np.uint8))))
    refused(lambda: data.load("emnist", tmp_path), "a label 10, where 0 to 9 are known")


def test_a_letter_labelled_zero_is_refused(tmp_path):
    folders.emnist_files(tmp_path, "letters", gzipped=False)
    path = tmp_path / "EMNIST/raw/emnist-letters-train-labels-idx1-ubyte"
    path.write_bytes(folders.idx_bytes(np.zeros(52, np.uint8)))
    refused(
        lambda: data.load("emnist-letters", tmp_path), "emnist-letters-train", "a label -1, where 0 to 25 are known"
    )


# DomainNet


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


# A folder of the user's own


def paint(path, colour=(10, 20, 30), mode="RGB", size=(40, 30)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)


def class_folders(root, classes=("cat", "dog"), count=10, mode="RGB", shift=0):
    """Every image differs: its red (or grey) value tells class and number."""
    for label, name in enumerate(classes):
        for k in range(count):
            value = shift + 100 * label + k
            paint(root / name / f"{k:02}.png", value if mode == "L" else (value, 0, 0), mode)


def name_of(path) -> str:
    return registry.typed("dataset", f"folder:{path}")


def values(images: Images) -> list[int]:
    return images.images[:, 0, 0, 0].tolist()


@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("L", 1)])
def test_class_folders_are_one_domain_split_60_20_20_in_every_class(tmp_path, mode, channels):
    class_folders(tmp_path, mode=mode)
    loaded = data.load(name_of(tmp_path), None)
    assert loaded.classes == ("cat", "dog")
    assert tuple(loaded.domains) == ("all",)
    assert not loaded.flip
    train, test, validation = loaded.domains["all"]
    assert validation is not None
    assert train.images.shape == (12, channels, 32, 32)
    for part, count in ((train, 6), (validation, 2), (test, 2)):
        assert torch.bincount(part.labels).tolist() == [count, count]
        assert [value // 100 for value in values(part)] == part.labels.tolist()
    assert sorted(values(train) + values(validation) + values(test)) == [*range(10), *range(100, 110)]
    again = data.load(name_of(tmp_path), None)
    assert torch.equal(again.domains["all"].train.images, train.images)


def test_domain_folders_give_one_client_each(tmp_path):
    for shift, domain in enumerate(("ink", "oil", "pen")):
        class_folders(tmp_path / domain, ("cat", "dog", "owl")[: 2 + shift % 2], shift=20 * shift)
    loaded = data.load(name_of(tmp_path), None)
    assert tuple(loaded.domains) == ("ink", "oil", "pen")
    assert loaded.classes == ("cat", "dog", "owl")  # ink and pen know no owl
    assert torch.bincount(loaded.domains["oil"].train.labels).tolist() == [6, 6, 6]
    assert torch.bincount(loaded.domains["ink"].train.labels).tolist() == [6, 6]
    how, clients, per_client = partition.defaults(name_of(tmp_path))
    assert (how, clients) == ("domain", 3)
    made = partition.federate(loaded, clients=clients, per_client=per_client, how=how, seed=0)
    assert [client.domain for client in made.clients] == ["ink", "oil", "pen"]
    chosen = data.load(name_of(tmp_path), None, ("pen", "oil"))
    assert tuple(chosen.domains) == ("pen", "oil")
    assert "domains pen, oil only" in chosen.note
    refused(lambda: data.load(name_of(tmp_path), None, ("wax",)), "no domain 'wax'; known: ink, oil, pen")
    refused(lambda: data.load(name_of(tmp_path), None, ("pen", "pen")), "twice")


def test_the_default_layout_of_class_folders_fits_their_number(tmp_path):
    class_folders(tmp_path, count=30)
    how, clients, per_client = partition.defaults(name_of(tmp_path))
    assert (how, clients, per_client) == ("iid", 4, 7)
    loaded = data.load(name_of(tmp_path), None)
    assert len(partition.federate(loaded, clients=4, per_client=7, how="iid", seed=0).clients) == 4


def test_copies_of_an_image_never_cross_from_one_split_to_another(tmp_path):
    draw = random.Random(0)
    for domain in ("one", "two"):
        for name in ("cat", "dog"):
            for k in range(30):
                shade = draw.randrange(25)  # the same shade comes back within, across classes and across domains
                paint(tmp_path / domain / name / f"{k}.{draw.choice(['png', 'bmp'])}", (shade, 0, 0))
            for k in range(3):
                paint(tmp_path / domain / name / f"own{k}.png", (100 + k, len(name + domain), 0))
    loaded = data.load(name_of(tmp_path), None)
    shades = [
        {value for domain in loaded.domains.values() for value in values(domain[purpose])} - {100, 101, 102}
        for purpose in range(3)
    ]
    assert sum(map(len, shades)) == len(set().union(*shades))
    assert sum(len(part.labels) for domain in loaded.domains.values() for part in domain) == 2 * 2 * 33


@given(st.lists(st.integers(0, 12), min_size=3, max_size=40), st.dictionaries(st.integers(0, 12), st.integers(0, 2)))
def test_a_split_keeps_copies_together_and_obeys_what_is_taken(shades, taken_shades):
    from hashlib import sha256

    images = torch.tensor(shades, dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 32, 32).contiguous()
    key = {k: sha256(bytes([k]) * 1024).digest() for k in range(13)}
    taken = {key[shade]: purpose for shade, purpose in taken_shades.items()}
    before = dict(taken)
    try:
        rows = image_folder.split(images, taken, tree.Path("cat"), ("all", "cat"))
    except UserError:
        own, free = {taken_shades[s] for s in shades if s in taken_shades}, {s for s in shades if s not in taken_shades}
        assert len(own) + len(free) < 3
        return
    assert sorted(k for own in rows for k in own) == list(range(len(shades)))
    assert all(rows)
    of = {}
    for purpose, own in enumerate(rows):
        for k in own:
            assert of.setdefault(shades[k], purpose) == purpose
            assert taken_shades.get(shades[k], purpose) == purpose
    assert before.items() <= taken.items()
    if len(set(shades)) == len(shades) and not taken_shades.keys() & set(shades):
        assert abs(len(rows[0]) - 0.6 * len(shades)) <= 1
        assert abs(len(rows[1]) - 0.2 * len(shades)) <= 1


def test_a_folder_with_other_content_is_another_run(tmp_path):
    class_folders(tmp_path)
    one = presets.train_spec("smoke", name_of(tmp_path), "fedavg", per_client=2)
    assert one.content
    assert one == presets.train_spec("smoke", name_of(tmp_path), "fedavg", per_client=2)
    (tmp_path / ".hidden").write_text("not looked at")
    assert data.content(name_of(tmp_path)) == one.content
    paint(tmp_path / "cat/10.png", (77, 77, 77))
    two = presets.train_spec("smoke", name_of(tmp_path), "fedavg", per_client=2)
    (tmp_path / "cat/10.png").rename(tmp_path / "dog/10.png")
    three = presets.train_spec("smoke", name_of(tmp_path), "fedavg", per_client=2)
    assert len({one.id, two.id, three.id}) == 3
    assert data.content("digits") is None
    refused(lambda: federations.of(one, None), "have changed since this run began")
    assert len(federations.of(three, None)[0].clients) == 4


def test_the_same_folder_has_one_name_from_wherever_it_is_named(tmp_path, monkeypatch):
    class_folders(tmp_path / "pets")
    monkeypatch.chdir(tmp_path)
    assert (
        registry.dataset("folder:pets") == registry.dataset(f"folder:{tmp_path}/x/../pets") == f"folder:{tmp_path}/pets"
    )
    assert registry.short(registry.dataset("folder:pets")) == "folder:pets"
    assert registry.stem(registry.dataset("folder:pets")) == "folder-pets"
    assert registry.short("digits") == registry.dataset("digits") == "digits"
    refused(lambda: registry.dataset("folder:"), "needs a path")
    refused(lambda: registry.dataset("digts"), "did you mean 'digits'")


def harm_nothing_there(root):
    return root, "there is no folder"


def harm_empty(root):
    root.mkdir()
    return root, "is empty"


def harm_loose_image(root):
    class_folders(root)
    paint(root / "loose.png")
    return root / "loose.png", "outside any class"


def harm_one_class(root):
    class_folders(root, ("cat",))
    return root, "two classes or more, but it holds only 'cat'"


def harm_empty_class(root):
    class_folders(root)
    (root / "owl").mkdir()
    return root / "owl", "is empty"


def harm_empty_domain(root):
    class_folders(root / "ink")
    (root / "oil").mkdir()
    return root / "oil", "is empty"


def harm_empty_class_of_a_domain(root):
    class_folders(root / "ink")
    (root / "oil/cat").mkdir(parents=True)
    return root / "oil/cat", "is empty"


def harm_mixed_layouts(root):
    class_folders(root)
    class_folders(root / "oil")
    return root, "mixes two layouts: cat holds images and oil holds folders"


def harm_too_deep(root):
    class_folders(root / "ink")
    class_folders(root / "ink/cat/more")
    return root / "ink/cat/more", "too deep"


def harm_splits(root):
    class_folders(root / "train")
    class_folders(root / "test")
    return root, "look like splits, not domains"


def harm_few_images(root):
    class_folders(root)
    for k in range(2, 10):
        (root / f"dog/{k:02}.png").unlink()
    return root / "dog", "three different images or more, one each to train, validate and test, but it holds 2"


def harm_few_different_images(root):
    class_folders(root)
    for k in range(10):
        paint(root / f"dog/{k:02}.png", (250 + k % 2, 0, 0))
    return root / "dog", "but it holds 2"


def harm_copies_of_another_class(root):
    class_folders(root)
    for k in range(10):
        paint(root / f"dog/{k:02}.png", (0, 0, 0))  # the first cat
    return root / "dog", "but it holds 1, 1 of them copied from other folders"


def harm_grey_among_colour(root):
    class_folders(root)
    paint(root / "dog/03.png", 7, "L")
    return root / "dog/03.png", "is a grey image, but colour is expected as in"


def harm_colour_among_grey(root):
    class_folders(root, mode="L")
    paint(root / "dog/03.png")
    return root / "dog/00.png", "is a grey image, but colour is expected as in"


def harm_grey_domain(root):
    class_folders(root / "ink")
    class_folders(root / "oil", mode="L")
    return root / "oil/cat/00.png", "is a grey image, but colour is expected as in"


def harm_damaged(root):
    class_folders(root)
    path = root / "dog/04.png"
    path.write_bytes(path.read_bytes()[:50])
    return path, "is damaged"


def harm_deep_colour(root):
    class_folders(root)
    Image.fromarray(np.zeros((32, 32), np.uint16)).save(root / "dog/04.png")
    return root / "dog/04.png", "more than eight bits"


HARMS = [value for name, value in sorted(globals().items()) if name.startswith("harm_")]


@pytest.mark.parametrize("harm", HARMS, ids=[harm.__name__.removeprefix("harm_") for harm in HARMS])
def test_a_folder_that_cannot_be_a_data_set_gets_one_line(tmp_path, harm):
    assert len(HARMS) == 18
    named, message = harm(tmp_path / "mine")
    refused(lambda: data.load(name_of(tmp_path / "mine"), None), named, message)


def test_checking_a_folder_reads_every_image_and_names_each_damaged_one(tmp_path):
    class_folders(tmp_path)
    for k in (3, 7):
        (tmp_path / f"dog/{k:02}.png").write_bytes(b"no image")
    lines = data.check(name_of(tmp_path), None)
    assert lines[0] == f"present   {tmp_path / 'cat'} (10 readable images)"
    assert [line.startswith("damaged") for line in lines] == [False, True, True]
    assert "07.png" in lines[2]


def test_files_that_are_no_images_are_passed_over_and_told(tmp_path):
    class_folders(tmp_path)
    (tmp_path / "README.txt").write_text("my pets")
    (tmp_path / "cat/notes.txt").write_text("nice ones")
    assert data.load(name_of(tmp_path), None).note == f"2 files of {tmp_path.name} that are no images were passed over"


def test_a_large_jpeg_is_decoded_at_a_reduced_scale_and_looks_the_same(tmp_path):
    rng = folders.rng(5)
    smooth = Image.fromarray(rng.integers(0, 256, (6, 6, 3), np.uint8)).resize((1200, 900), Image.Resampling.BICUBIC)
    smooth.save(tmp_path / "large.jpg", quality=95)
    whole = formats.image(tmp_path / "large.jpg")
    small = formats.picture(tmp_path / "large.jpg", least=tree.LEAST)
    assert whole.shape == (3, 900, 1200)
    assert small.shape == (3, 225, 300)
    far = (resize.to_32(whole[None]).int() - tree.read([tmp_path / "large.jpg"]).int()).abs()
    assert int(far.max()) <= 12
    assert float(far.float().mean()) < 2


# What every data set must keep


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
