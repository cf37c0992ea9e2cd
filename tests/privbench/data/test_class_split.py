"""Omniglot and Mini-ImageNet in the layouts that are in use, from small files; damaged ones are named in one line."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from privbench import data
from privbench.data import miniimagenet, omniglot
from privbench.data.dataset import sound
from privbench.data.readers.resize import to_32
from privbench.errors import UserError

RNG = np.random.default_rng(0)


def png(path: Path, shape: tuple[int, ...]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(RNG.integers(0, 256, shape, np.uint8)).save(path)
    return path


def omniglot_files(root: Path, alphabets: int = 6, drawings: int = 3) -> None:
    """Alphabets of two characters each in the background, and one of three for the evaluation."""
    for a in range(alphabets):
        for c in (1, 2):
            folder = root / "omniglot-py/images_background" / f"Alphabet_{a}" / f"character{c:02d}"
            for d in range(drawings):
                png(folder / f"{a}{c}_{d:02d}.png", (105, 105))
    for c in (1, 2, 3):
        for d in range(drawings):
            png(root / f"omniglot-py/images_evaluation/Other/character{c:02d}/9{c}_{d:02d}.png", (105, 105))


def mini_folders(root: Path) -> None:
    for part, classes in (("train", 3), ("val", 2), ("test", 2)):
        for c in range(classes):
            for i in range(2):
                png(root / f"miniimagenet/{part}/n{part}{c}/{i}.png", (84, 84, 3))


def mini_lists(root: Path) -> None:
    for part, classes in (("train", 3), ("val", 2), ("test", 2)):
        rows = [("filename", "label")]
        for c in range(classes):
            for i in range(2):
                name = f"n{part}{c}{i:08d}.jpg"
                png(root / "miniimagenet/images" / name, (84, 84, 3))
                rows.append((name, f"n{part}{c}"))
        with (root / f"miniimagenet/{part}.csv").open("w", newline="") as file:
            csv.writer(file).writerows(rows)


def refusal(act) -> str:
    with pytest.raises(UserError) as raised:
        act()
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_omniglot_tests_the_evaluation_alphabets_and_validates_every_fifth_of_the_background(tmp_path):
    omniglot_files(tmp_path)
    made = sound(data.load("omniglot", tmp_path))
    (domain,) = made.domains.values()
    of = {
        name: {made.classes[y] for y in getattr(domain, name).labels.tolist()}
        for name in ("train", "validation", "test")
    }
    assert of["validation"] == {"Alphabet_4/character01", "Alphabet_4/character02"}
    assert of["test"] == {f"Other/character{c:02d}" for c in (1, 2, 3)}
    assert len(of["train"]) == 10
    assert domain.train.images.shape == (30, 1, 32, 32)
    assert "12 + 3 characters of 964 + 659" in made.note
    drawing = tmp_path / "omniglot-py/images_evaluation/Other/character02/92_01.png"
    pixels = to_32(torch.tensor(np.array(Image.open(drawing)))[None, None])
    label = made.classes.index("Other/character02")
    assert torch.equal(domain.test.images[domain.test.labels == label][1], pixels[0])
    assert [line.split()[0] for line in data.check("omniglot", tmp_path)] == ["present", "present"]


@pytest.mark.parametrize("write", [mini_folders, mini_lists])
def test_mini_imagenet_is_read_in_both_layouts(tmp_path, write):
    write(tmp_path)
    made = sound(data.load("miniimagenet", tmp_path))
    (domain,) = made.domains.values()
    assert made.by_class
    assert made.classes == ("ntrain0", "ntrain1", "ntrain2", "nval0", "nval1", "ntest0", "ntest1")
    assert domain.train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert domain.validation.labels.tolist() == [3, 3, 4, 4]
    assert domain.test.images.shape == (4, 3, 32, 32)
    assert "3 classes with 6 images; 2 classes with 4 images" in made.note
    assert all(line.startswith("present") for line in data.check("miniimagenet", tmp_path))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "filename,label"),
        (b"\xff\xfe\x00", "no readable list"),
        (b"name,class\na.jpg,x\n", "filename,label"),
        (b"filename,label\n", "filename,label"),
        (b"filename,label\n../a.jpg,x\n", "'../a.jpg,x'"),
        (b"filename,label\nntrain000000000.jpg\n", "'ntrain000000000.jpg'"),
        (b"filename,label\nabsent.jpg,x\n", "absent.jpg is missing"),
    ],
)
def test_a_damaged_list_is_named_in_one_line(tmp_path, content, why):
    mini_lists(tmp_path)
    path = tmp_path / "miniimagenet/train.csv"
    path.write_bytes(content)
    line = refusal(lambda: data.load("miniimagenet", tmp_path))
    assert why in line
    assert "train.csv" in line
    states = [line.split()[0] for line in data.check("miniimagenet", tmp_path)]
    assert states == ["damaged", "present", "present", "present"]


@pytest.mark.parametrize(
    ("name", "write", "path"),
    [
        ("omniglot", omniglot_files, "omniglot-py/images_background/Alphabet_2/character01/21_00.png"),
        ("miniimagenet", mini_folders, "miniimagenet/val/nval1/0.png"),
        ("miniimagenet", mini_lists, "miniimagenet/images/ntest100000001.jpg"),
    ],
)
def test_a_damaged_image_is_named_in_one_line(tmp_path, name, write, path):
    write(tmp_path)
    (tmp_path / path).write_bytes((tmp_path / path).read_bytes()[:40])
    assert path in refusal(lambda: data.load(name, tmp_path))


def test_an_empty_class_folder_or_part_is_named(tmp_path):
    mini_folders(tmp_path)
    (tmp_path / "miniimagenet/val/nval7").mkdir()
    assert "nval7 holds no image" in refusal(lambda: data.load("miniimagenet", tmp_path))
    omniglot_files(tmp_path)
    (tmp_path / "omniglot-py/images_background/Alphabet_9").mkdir()
    assert "Alphabet_9 is empty" in refusal(lambda: data.load("omniglot", tmp_path))


def test_a_class_that_serves_two_purposes_is_refused(tmp_path):
    mini_folders(tmp_path)
    png(tmp_path / "miniimagenet/test/ntrain1/0.png", (84, 84, 3))
    made = data.load("miniimagenet", tmp_path)
    assert "its class 'ntrain1' has images for test and train" in refusal(lambda: sound(made))


def test_without_files_the_error_says_which_to_put_where(tmp_path):
    assert "omniglot-py/images_background" in refusal(lambda: omniglot.load(tmp_path))
    assert "miniimagenet/train" in refusal(lambda: miniimagenet.load(tmp_path))
