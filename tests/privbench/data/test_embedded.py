"""The embedded data sets: real images, the same in every run, train and test apart."""

import socket

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from privbench import data
from privbench.data import digits, digits4, photos
from privbench.data.readers import resize
from privbench.seeds import stream

NAMES = ("digits", "photos", "digits4")


@pytest.fixture(scope="module")
def loaded():
    return {name: data.load(name, None) for name in NAMES}


def parts(dataset):
    """Every set of images of a data set."""
    return [part for domain in dataset.domains.values() for part in domain if part is not None]


@pytest.mark.parametrize(("name", "channels"), [("digits", 1), ("photos", 3), ("digits4", 3)])
def test_an_embedded_data_set_is_bytes_of_32x32_with_ten_classes(loaded, name, channels):
    dataset = loaded[name]
    assert len(dataset.classes) == 10
    assert not dataset.flip
    assert dataset.note == ""
    for part in parts(dataset):
        assert part.images.dtype == torch.uint8
        assert part.images.shape == (len(part.labels), channels, 32, 32)
        assert part.labels.dtype == torch.int64
        assert set(part.labels.tolist()) == set(range(10))
        assert part.images.float().std() > 30


@pytest.mark.parametrize("name", NAMES)
def test_an_embedded_data_set_is_the_same_every_time_and_needs_no_network(loaded, name, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    again = data.load(name, None)
    for before, now in zip(parts(loaded[name]), parts(again), strict=True):
        assert torch.equal(before.images, now.images)
        assert torch.equal(before.labels, now.labels)


def test_digits_are_scikit_learns_with_their_labels(loaded):
    raw = load_digits()
    images = torch.cat([part.images for part in parts(loaded["digits"])])
    labels = torch.cat([part.labels for part in parts(loaded["digits"])])
    assert len(labels) == 1797
    small = torch.nn.functional.avg_pool2d(images.float(), 4)[:, 0].reshape(1797, 64)  # close to the 8x8 originals
    originals = torch.tensor(raw.data / 16 * 255).float()
    nearest = torch.cdist(small, originals).argmin(1)
    assert len(nearest.unique()) > 1750
    assert torch.equal(torch.tensor(raw.target)[nearest], labels)


def test_photos_have_enough_crops_for_four_clients_of_500(loaded):
    domain = loaded["photos"].domains["all"]
    for part, count in ((domain.train, 240), (domain.validation, 60), (domain.test, 60)):
        assert torch.bincount(part.labels).tolist() == [count] * 10
        assert len(part.images.flatten(1).unique(dim=0)) == len(part.labels)


def test_every_photograph_is_in_colour_and_shipped_with_its_package():
    assert len(photos.PHOTOS) == 10
    for name in photos.PHOTOS:
        photo = photos.photograph(name)
        assert photo.shape[0] == 3
        assert min(photo.shape[1:]) >= 300
        assert not torch.equal(photo[0], photo[2])


def columns(boxes):
    return {column for _, left, side in boxes for column in range(left, left + side)}


@given(st.integers(200, 3000), st.integers(160, 3000), st.integers(0, 99))
def test_crops_of_one_purpose_share_no_pixel_with_those_of_another(height, width, seed):
    boxes = {
        purpose: photos.crop_boxes(height, width, purpose, 40, stream(seed, purpose)) for purpose in photos.PURPOSE
    }
    for purpose, crops in boxes.items():
        for top, left, side in crops:
            assert side >= 32
            assert 0 <= top <= height - side
            assert 0 <= left <= width - side
        for other, other_crops in boxes.items():
            assert other == purpose or not columns(crops) & columns(other_crops)


def test_a_crop_shows_its_place_in_the_photograph():
    photo = photos.photograph("coffee")
    (box, *_) = photos.crop_boxes(photo.shape[1], photo.shape[2], "train", 1, stream(0, "photos", "coffee", "train"))
    top, left, side = box
    crop = photos.crops("coffee", "train", 1)[0]
    assert torch.equal(crop, resize.to_32(photo[None, :, top : top + side, left : left + side])[0])


def test_digits4_gives_every_handwritten_digit_one_domain_and_one_purpose(loaded):
    images, labels = digits.shuffled()
    share = digits4.TRAIN + digits4.TEST
    assert 3 * share == len(labels)
    of = {name: loaded["digits4"].domains[name] for name in ("plain", "blended", "inverted")}
    for place, (name, domain) in enumerate(of.items()):
        assert (
            torch.cat([domain.train.labels, domain.test.labels]).tolist() == labels[place * share :][:share].tolist()
        ), name
    plain = torch.cat([of["plain"].train.images, of["plain"].test.images])
    assert torch.equal(plain, images[:share].expand(-1, 3, -1, -1))
    back = 255 - torch.cat([of["inverted"].train.images, of["inverted"].test.images])[:, :1]
    assert (back.int() >= images[2 * share :].int()).all()  # thicker strokes cover the digit they came from
    assert back.float().mean() > 1.2 * images[2 * share :].float().mean()


def test_a_blended_digit_is_the_difference_of_a_photograph_and_the_digit():
    ink = torch.zeros(8, 1, 32, 32, dtype=torch.uint8)
    patches = digits4.blended(ink)  # without a digit the photograph is left
    ink[:, :, 10:20] = 255
    inked = digits4.blended(ink)
    assert torch.equal(inked[:, :, :10], patches[:, :, :10])
    assert torch.equal(inked[:, :, 10:20], 255 - patches[:, :, 10:20])
    assert patches.float().std() > 20


def test_font_digits_are_legible_in_every_font():
    images, labels = digits4.fonts(300)
    assert torch.bincount(labels).tolist() == [30] * 10
    grey = images.float().mean(1)
    paper = grey[:, 0, 0][:, None, None]
    ink = ((grey - paper).abs() > 40).float().mean((1, 2))
    assert float(ink.min()) > 0.02
    assert float(ink.max()) < 0.5


@pytest.mark.parametrize("font", digits4.FONTS)
def test_every_font_draws_ten_different_digits(font):
    from pathlib import Path

    import matplotlib
    from PIL import ImageFont

    file = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{font}.ttf"
    drawn = {bytes(ImageFont.truetype(str(file), 40).getmask(text)) for text in "0123456789"}
    assert len(drawn) == 10


def test_digits4_of_fewer_domains_says_so():
    chosen = data.load("digits4", None, ("fonts", "plain"))
    assert tuple(chosen.domains) == ("fonts", "plain")
    assert "fonts, plain only" in chosen.note


@given(st.integers(1, 4), st.sampled_from([1, 3]), st.integers(8, 90), st.integers(8, 90), st.integers(0, 255))
def test_resizing_keeps_a_flat_image_flat(count, channels, height, width, level):
    flat = torch.full((count, channels, height, width), level, dtype=torch.uint8)
    assert torch.equal(resize.to_32(flat), torch.full((count, channels, 32, 32), level, dtype=torch.uint8))


def test_resizing_is_antialiased():
    stripes = torch.zeros(1, 1, 128, 128, dtype=torch.uint8)
    stripes[..., ::4] = 255  # plain bilinear sampling misses these lines altogether
    inner = resize.to_32(stripes)[..., 4:-4, 4:-4].float()
    assert float((inner - 255 / 4).abs().max()) < 12


def test_resizing_many_images_equals_resizing_each_alone():
    images = torch.randint(256, (501, 1, 8, 8), generator=stream(0, "test"), dtype=torch.uint8)
    together = resize.to_32(images)
    assert all(torch.equal(together[k], resize.to_32(images[k : k + 1])[0]) for k in (0, 499, 500))
