"""Full data sets, read from tiny files in their public layouts."""

import numpy as np
import pytest
import torch

from privbench import data, registry
from privbench.data import cifar10, digit5, partition
from privbench.data.readers import files, matfile
from privbench.errors import UserError
from privbench.system import places
from privbench.types import Images
from tests.builders import data_folders as folders


def test_cifar10_binary_gives_the_bytes_that_are_in_the_files(tmp_path, monkeypatch):
    images, labels = folders.cifar_binary(tmp_path, monkeypatch)
    loaded = data.load("cifar10", tmp_path)
    train, test, validation = loaded.domains["all"]
    assert validation is None
    assert loaded.flip
    assert loaded.note == ""
    assert np.array_equal(torch.cat([train.images, test.images]).numpy(), images)
    assert torch.cat([train.labels, test.labels]).tolist() == labels.tolist()
    assert (len(train.labels), len(test.labels)) == (100, 20)


def test_cifar10_in_torchvisions_layout_equals_the_binary_layout(tmp_path, monkeypatch):
    images, labels = folders.cifar_torchvision(tmp_path, monkeypatch)
    train, test, _ = data.load("cifar10", tmp_path).domains["all"]
    assert np.array_equal(torch.cat([train.images, test.images]).numpy(), images)
    assert torch.cat([train.labels, test.labels]).tolist() == labels.tolist()
    assert all("the published file" in line for line in data.check("cifar10", tmp_path))


def test_a_reordered_copy_of_the_cifar10_test_set_is_distinguished_from_the_published_one(tmp_path, monkeypatch):
    folders.cifar_binary(tmp_path, monkeypatch)
    last = cifar10.BINARY[-1]
    known = (*cifar10.BINARY[:-1], last._replace(digests=("0" * 64, *last.digests)))
    monkeypatch.setattr(cifar10, "BINARY", known)
    monkeypatch.setattr(cifar10, "LAYOUTS", (known,))
    assert "another order" in data.load("cifar10", tmp_path).note
    assert "not the published file" in data.check("cifar10", tmp_path)[-1]


@pytest.mark.parametrize("gzipped", [True, False])
def test_fmnist_is_grey_and_keeps_its_order(tmp_path, monkeypatch, gzipped):
    folders.fashion(tmp_path, monkeypatch, gzipped=gzipped)
    loaded = data.load("fmnist", tmp_path)
    train, test, _ = loaded.domains["all"]
    assert train.images.shape == (30, 1, 32, 32)
    assert test.images.shape == (20, 1, 32, 32)
    assert train.labels.tolist() == [k % 10 for k in range(30)]
    assert loaded.flip
    written = folders.rng(30).integers(0, 256, (30, 28, 28), np.uint8)
    brightness = train.images.float().mean((1, 2, 3)).numpy()
    assert np.allclose(brightness, written.mean((1, 2)), atol=3)


def test_digit5_has_one_colour_domain_per_client_and_mnist_in_public(tmp_path, monkeypatch):
    for make in (folders.synthetic, folders.mnist_m, folders.svhn, folders.usps_h5):
        make(tmp_path)
    folders.mnist(tmp_path, monkeypatch)
    loaded = data.load("digit5", tmp_path)
    assert tuple(loaded.domains) == digit5.PUBLISHED
    assert not loaded.flip
    for domain in loaded.domains.values():
        assert domain.train.images.shape == (20, 3, 32, 32)
        assert domain.test.images.shape == (10, 3, 32, 32)
        assert domain.train.images.dtype == torch.uint8
        assert torch.bincount(domain.train.labels).tolist() == [2] * 10
    assert loaded.public is not None
    assert loaded.public.images.shape == (30, 3, 32, 32)


def test_svhn_calls_the_digit_zero_ten_and_keeps_each_image_upright(tmp_path):
    x = folders.mat(tmp_path / "svhn/train_32x32.mat", [10, 3, 9])
    folders.mat(tmp_path / "svhn/test_32x32.mat", [1])
    train = data.load("digit5", tmp_path, ("svhn",)).domains["svhn"].train
    assert train.labels.tolist() == [0, 3, 9]
    assert np.array_equal(train.images[1].numpy(), x[:, :, :, 1].transpose(2, 0, 1))


@pytest.mark.parametrize("compressed", [True, False])
def test_a_mat_file_reads_as_scipy_reads_it(tmp_path, compressed):
    import scipy.io

    path = tmp_path / "some.mat"
    values = {
        "X": folders.rng().integers(0, 256, (4, 5, 3, 2), np.uint8),
        "y": np.array([[1.0], [2.0]]),
        "long_name": np.eye(3),
    }
    scipy.io.savemat(path, values | {"text": "passed over"}, do_compression=compressed)
    arrays = matfile.arrays(path.read_bytes())
    for name in values:
        assert np.array_equal(arrays[name], scipy.io.loadmat(path)[name])


def test_usps_reads_the_same_from_both_of_its_copies(tmp_path, monkeypatch):
    folders.usps_h5(tmp_path / "one")
    folders.usps_libsvm(tmp_path / "two", monkeypatch)
    one = data.load("digit5", tmp_path / "one", ("usps",)).domains["usps"]
    two = data.load("digit5", tmp_path / "two", ("usps",)).domains["usps"]
    for left, right in ((one.train, two.train), (one.test, two.test)):
        assert left.labels.tolist() == right.labels.tolist()
        assert int((left.images.int() - right.images.int()).abs().max()) <= 1  # the text copy is rounded
    assert int(one.train.images[-1].max()) == 255


def test_a_digit5_of_fewer_domains_or_images_says_so(tmp_path):
    folders.svhn(tmp_path)
    folders.usps_h5(tmp_path)
    loaded = data.load("digit5", tmp_path, ("usps", "svhn"))
    assert tuple(loaded.domains) == ("usps", "svhn")
    assert "domains usps, svhn only" in loaded.note
    assert "svhn is not as published: 20 + 10 images of 73,257 + 26,032" in loaded.note


def test_digit5_without_synthetic_digits_says_how_to_choose_domains(tmp_path):
    for make in (folders.mnist_m, folders.svhn, folders.usps_h5):
        make(tmp_path)
    with pytest.raises(UserError, match=r"synthetic \(synth/synth_train.*--domains mnist_m,svhn,usps"):
        data.load("digit5", tmp_path)


def test_office10_halves_every_class_of_every_domain_anew_for_every_seed(tmp_path):
    folders.office(tmp_path)
    loaded = data.load("office10", tmp_path)
    assert tuple(loaded.domains) == ("amazon", "caltech", "dslr", "webcam")
    assert loaded.classes == tuple(f"thing{k}" for k in range(10))
    assert loaded.flip
    trained = []
    for seed in (0, 1):
        made = partition.federate(loaded, clients=4, per_client=100, how="domain", seed=seed)
        for client in made.clients:
            held_out = Images(*(torch.cat(both) for both in zip(client.validation, client.test, strict=True)))
            for part in (client.train, held_out):
                assert torch.bincount(part.labels).tolist() == [2] * 10
                assert torch.equal(part.images[:, 0, 16, 16].long(), 20 * part.labels)
            numbers = torch.cat([client.train.images, held_out.images])[:, 1, 0, 0]
            assert sorted(numbers.tolist()) == sorted([0, 1, 2, 3] * 10)
            trained.append({(int(y), int(x[1, 0, 0])) for x, y in zip(*client.train, strict=True)})
    assert all(one != other for one, other in zip(trained[:4], trained[4:], strict=True))


def test_office10_says_which_domains_it_used(tmp_path):
    folders.office(tmp_path)
    assert "domains webcam, dslr only" in data.load("office10", tmp_path, ("webcam", "dslr")).note


@pytest.mark.parametrize(
    ("name", "domains", "message"),
    [
        ("cifar10", ("all",), "one domain only"),
        ("digits", ("all",), "one domain only"),
        ("digit5", ("svhm",), "no domain 'svhm'; known: synthetic"),
        ("office10", ("dslr", "dslr"), "twice"),
        ("cifar11", None, "did you mean 'cifar10'"),
    ],
)
def test_a_wrong_choice_is_one_line(tmp_path, name, domains, message):
    with pytest.raises(UserError, match=message) as raised:
        data.load(name, tmp_path, domains)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("cifar10", "cifar-10-batches-bin/data_batch_1.bin"),
        ("fmnist", "FashionMNIST/raw/train-images-idx3-ubyte.gz"),
        ("digit5", "mnist_m/mnist_m_train"),
        ("office10", "office_caltech_10/amazon"),
        ("mnist", "MNIST/raw/train-images-idx3-ubyte.gz"),
        ("emnist", "EMNIST/raw/emnist-digits-train-images-idx3-ubyte"),
        ("emnist-letters", "EMNIST/raw/emnist-letters-train-images-idx3-ubyte"),
        ("emnist-balanced", "EMNIST/raw/emnist-balanced-train-images-idx3-ubyte"),
        ("domainnet", "domainnet/clipart"),
        ("omniglot", "omniglot-py/images_background"),
        ("miniimagenet", "miniimagenet/train"),
    ],
)
def test_without_files_and_network_the_error_says_which_files_to_put_where(tmp_path, name, first, monkeypatch):
    monkeypatch.setenv("PRIVBENCH_CACHE", str(tmp_path))
    for act in (lambda: data.load(name, None), lambda: data.fetch(name)):
        with pytest.raises(UserError) as raised:
            act()
        assert "\n" not in str(raised.value)
        assert first in str(raised.value)
        assert f"under {tmp_path / 'data'}" in str(raised.value)
    assert any(line.startswith("missing") and first in line for line in data.check(name, None))


def test_the_data_folder_is_the_one_given_else_the_environments_else_the_users_cache(tmp_path, monkeypatch):
    assert data.folder(None) == places.data()
    (tmp_path / "given").mkdir()
    monkeypatch.setenv("PRIVBENCH_DATA", str(tmp_path))
    assert data.folder(None) == tmp_path
    assert data.folder(tmp_path / "given") == tmp_path / "given"


def test_every_full_data_set_can_be_checked_and_fetched():
    full = set(registry.DATASETS) - {"digits", "photos", "digits4", "glyphs"}
    assert len(full) == 11
    for name in full:
        module = registry.module("dataset", name)
        assert callable(module.check)
        assert callable(module.fetch)


def test_a_checksum_of_32_digits_is_md5_and_one_of_64_is_sha256(tmp_path):
    path = folders.write(tmp_path / "file", b"abc")
    md5 = "900150983cd24fb0d6963f7d28e17f72"
    sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert files.digest(path, md5) == md5
    assert files.digest(path, sha256) == sha256
