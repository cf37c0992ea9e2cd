"""Folders of a user's own images: classes or domains, split without copies across splits; what is wrong is one line."""

import random
import struct
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import EpsImagePlugin, Image

from privbench import data, presets, registry
from privbench.data import image_folder, partition
from privbench.data.readers import formats, resize, tree
from privbench.errors import UserError
from privbench.training import federation as federations
from privbench.types import Images
from tests.builders import data_folders as folders
from tests.builders.refusals import refused


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
    # Of more clients, and dealt unequally, each has fewer.
    spec = presets.train_spec("paper", name_of(tmp_path), "fedavg", omega=0.3, clients=5)
    assert (spec.partition, spec.clients, spec.per_client) == ("dirichlet", 5, 6)
    dealt = partition.federate(loaded, clients=5, per_client=6, how="dirichlet", seed=0, omega=0.3, minimum=1)
    assert len(dealt.clients) == 5


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
        purposes, free = (
            {taken_shades[s] for s in shades if s in taken_shades},
            {s for s in shades if s not in taken_shades},
        )
        assert len(purposes) + len(free) < 3
        return
    assert sorted(k for indices in rows for k in indices) == list(range(len(shades)))
    assert all(rows)
    of = {}
    for purpose, indices in enumerate(rows):
        for k in indices:
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


def test_a_folder_that_changed_is_read_again_in_the_same_process(tmp_path):
    class_folders(tmp_path)

    def classes():
        spec = presets.train_spec("smoke", name_of(tmp_path), "fedavg", clients=2, per_client=4)
        return federations.of(spec, None)[0].classes

    assert classes() == ("cat", "dog")
    class_folders(tmp_path, ("emu",), shift=50)
    assert classes() == ("cat", "dog", "emu")


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


def test_files_that_are_no_images_are_passed_over_and_reported(tmp_path):
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


def test_a_picture_of_another_kind_than_images_have_starts_no_other_program(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *args, **kwargs: started.append(args))
    (tmp_path / "x.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 40 40\n%%EndComments\nshowpage\n")
    refused(lambda: formats.picture(tmp_path / "x.png"), tmp_path / "x.png", "no readable image")
    assert started == []


@pytest.mark.parametrize("side", [6_000, 12_000, 20_000])
def test_a_picture_of_too_many_pixels_is_refused_by_its_header(tmp_path, side):
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(b"")), chunk(b"IEND", b"")]
    path = tmp_path / "bomb.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))
    refused(lambda: tree.read([path]), path, "has more than 33,554,432 pixels; save it smaller")


def test_few_decoded_pictures_are_held_at_a_time(tmp_path, monkeypatch):
    class_folders(tmp_path)
    paths = tree.images_of(tmp_path / "cat")
    decoded, resized = [], []
    picture, to_32 = formats.picture, tree.to_32
    monkeypatch.setattr(formats, "picture", lambda path, **how: decoded.append(path) or picture(path, **how))
    monkeypatch.setattr(tree, "to_32", lambda t: resized.append(len(decoded) - len(resized)) or to_32(t))
    tree.read([*paths, *paths, *paths])
    assert len(resized) == 30
    assert max(resized) <= 8
