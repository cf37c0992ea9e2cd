"""MNIST and EMNIST from tiny files in their public layouts; what is wrong with a file is one line."""

import gzip

import numpy as np
import pytest
import torch

from privbench import data
from privbench.data import digit5, emnist, mnist
from privbench.data.readers import resize
from privbench.data.readers.download import torchvision_datasets
from tests.builders import data_folders as folders
from tests.builders.refusals import refused


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
    torchvision_mnist = torchvision_datasets().MNIST
    assert {name.removesuffix(".gz") for name, _ in torchvision_mnist.resources} == {
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
    loaded = data.load(NAMES[split], tmp_path)
    expected = torchvision_datasets().EMNIST(tmp_path, split=split, train=True)
    first = emnist.SPLITS[split].first
    assert tuple(expected.classes[first:]) == loaded.classes
    assert (expected.targets - first).tolist() == loaded.domains["all"].train.labels.tolist()
    assert torch.equal(
        resize.to_32(expected.data.transpose(1, 2)[:, None].contiguous()), loaded.domains["all"].train.images
    )


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
