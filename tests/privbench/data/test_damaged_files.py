"""Damaged, truncated and missing files of every full data set are named in one line; nothing else is ever raised."""

import gzip
import pickle
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.io
from PIL import Image

from privbench import data
from privbench.data import cifar10, digit5
from privbench.data.readers import files, formats, matfile
from privbench.errors import UserError
from tests.builders import data_folders as folders


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def named(path: Path, load) -> str:
    """The one line that names the path."""
    with pytest.raises(UserError) as raised:
        load()
    line = str(raised.value)
    assert str(path) in line
    assert "\n" not in line
    return line


@pytest.mark.parametrize("harm", [cut, flip, empty])
def test_a_cifar10_file_that_is_not_the_published_one_is_named(tmp_path, monkeypatch, harm):
    folders.cifar_binary(tmp_path, monkeypatch)
    path = tmp_path / "cifar-10-batches-bin/data_batch_3.bin"
    harm(path)
    assert "damaged" in named(path, lambda: data.load("cifar10", tmp_path))
    states = [line.split()[0] for line in data.check("cifar10", tmp_path)]
    assert states == ["present", "present", "damaged", "present", "present", "present"]


def test_a_missing_cifar10_file_is_named_alone(tmp_path, monkeypatch):
    folders.cifar_binary(tmp_path, monkeypatch)
    (tmp_path / "cifar-10-batches-bin/data_batch_3.bin").unlink()
    with pytest.raises(UserError, match=r"cifar10 needs cifar-10-batches-bin/data_batch_3.bin under"):
        data.load("cifar10", tmp_path)


@pytest.mark.parametrize("size", [130, 150, -1, -200])
def test_a_mat_file_that_ends_too_early_says_so(tmp_path, size):
    folders.mat(tmp_path / "some.mat", [1, 2], compressed=False)
    with pytest.raises(ValueError, match="ends in the middle"):
        matfile.arrays((tmp_path / "some.mat").read_bytes()[:size])


def test_a_mat_file_that_unpacks_to_far_more_than_its_size_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(matfile, "SMALL", 2**16)
    whole = {"X": np.zeros((32, 32, 3, 400), np.uint8), "y": np.ones((400, 1), np.uint8)}
    scipy.io.savemat(tmp_path / "some.mat", whole, do_compression=True)
    with pytest.raises(ValueError, match=r"of \d+ bytes unpacks to more than \d+"):
        matfile.arrays((tmp_path / "some.mat").read_bytes())
    # Random pictures hardly shrink, however many they are.
    folders.mat(tmp_path / "other.mat", [1] * 400)
    assert matfile.arrays((tmp_path / "other.mat").read_bytes())["X"].nbytes > 2**16


def outside(root, file):
    """Numbers that lie in another file."""
    (root / "secret.bin").write_bytes(bytes(range(256)) * 20)
    del file["train/data"]
    file["train"].create_dataset("data", (20, 256), dtype="u1", external=[(str(root / "secret.bin"), 0, 20 * 256)])


def linked(root, file):
    with h5py.File(root / "other.h5", "w") as other:
        file.copy("train", other)
    del file["train"]
    file["train"] = h5py.ExternalLink("other.h5", "/train")


def within(_, file):
    file["train"].move("data", "there")
    file["train/data"] = h5py.SoftLink("/train/there")


def virtual(root, file):
    with h5py.File(root / "other.h5", "w") as other:
        other["data"] = file["train/data"][:]
    layout = h5py.VirtualLayout((20, 256), dtype="f4")
    layout[:] = h5py.VirtualSource(root / "other.h5", "data", (20, 256))
    del file["train/data"]
    file["train"].create_virtual_dataset("data", layout)


def endless(_, file):
    """A few bytes, and 40 GB once they are read."""
    del file["train/data"]
    file["train"].create_dataset("data", (40_000_000, 256), dtype="f4", chunks=(1000, 256), fillvalue=0.5)


@pytest.mark.parametrize("harm", [outside, linked, within, virtual, endless])
def test_of_usps_only_numbers_in_the_file_itself_are_read_and_no_more_than_it_has(tmp_path, harm):
    folders.usps_h5(tmp_path)
    with h5py.File(tmp_path / "usps.h5", "a") as file:
        harm(tmp_path, file)
    assert "no readable group train" in named(tmp_path / "usps.h5", lambda: formats.usps_h5(tmp_path / "usps.h5"))


@pytest.mark.parametrize("name", ["../outside.png", "{root}/outside.png", "..", "."])
def test_a_list_that_leads_out_of_its_folder_is_damaged(tmp_path, name):
    folders.mnist_m(tmp_path)
    Image.new("RGB", (32, 32)).save(tmp_path / "mnist_m/outside.png")
    names = tmp_path / "mnist_m/mnist_m_test_labels.txt"
    lines = names.read_text().splitlines()
    names.write_text("\n".join([f"{name.format(root=tmp_path / 'mnist_m')} 3", *lines[1:]]))
    assert "outside the folder" in named(names, lambda: data.load("digit5", tmp_path, ("mnist_m",)))


class Bomb:
    """Unpickling it writes a file."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self):
        return Path.write_text, (self.place, "gone off")


def test_a_foreign_pickle_is_refused_before_it_is_opened(tmp_path, monkeypatch):
    folders.cifar_torchvision(tmp_path, monkeypatch)
    path = tmp_path / "cifar-10-batches-py/test_batch"
    path.write_bytes(pickle.dumps(Bomb(tmp_path / "mark")))
    named(path, lambda: data.load("cifar10", tmp_path))
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 3072, b"\x0a" + b"\0" * 3072], ids=["empty", "no whole record", "label 10"]
)
def test_a_cifar10_batch_without_records_or_with_an_eleventh_class_is_damaged(tmp_path, content):
    path = folders.write(tmp_path / "batch.bin", content)
    assert "damaged" in named(path, lambda: cifar10.read_batch(path))


@pytest.mark.parametrize("harm", [cut, flip, empty])
@pytest.mark.parametrize("number", range(4))
def test_a_damaged_fmnist_file_is_named(tmp_path, monkeypatch, number, harm):
    folders.fashion(tmp_path, monkeypatch)
    from privbench.data import fmnist

    path = tmp_path / fmnist.LAYOUTS[0][number].path
    harm(path)
    assert "checksum" in named(path, lambda: data.load("fmnist", tmp_path))
    assert data.check("fmnist", tmp_path)[number].startswith("damaged")


@pytest.mark.parametrize(
    "content",
    [
        b"not gzip",
        gzip.compress(b""),
        gzip.compress(b"\0\0\x08\x03" + b"\xff" * 12),
        gzip.compress(b"\0\0\x0d\x01\0\0\0\1\0"),
    ],
    ids=["no gzip", "no header", "a size beyond all memory", "not of bytes"],
)
def test_an_idx_file_whose_content_does_not_fit_is_damaged(tmp_path, content):
    path = folders.write(tmp_path / "images.gz", content)
    named(path, lambda: formats.idx(path))


@pytest.mark.parametrize(
    ("make", "domain", "file"),
    [
        (folders.svhn, "svhn", "svhn/train_32x32.mat"),
        (folders.synthetic, "synthetic", "synth/synth_test_32x32.mat"),
        (folders.usps_h5, "usps", "usps.h5"),
        (folders.mnist_m, "mnist_m", "mnist_m/mnist_m_train_labels.txt"),
        (folders.mnist_m, "mnist_m", "mnist_m/mnist_m_train/00000003.png"),
    ],
)
@pytest.mark.parametrize("harm", [cut, empty])
def test_a_truncated_file_of_digit5_is_named(tmp_path, make, domain, file, harm):
    make(tmp_path)
    harm(tmp_path / file)
    named(tmp_path / file, lambda: data.load("digit5", tmp_path, (domain,)))
    assert any(line.startswith("damaged") and file in line for line in data.check("digit5", tmp_path))


def test_a_list_that_lost_its_end_is_damaged(tmp_path):
    folders.mnist_m(tmp_path)
    names = tmp_path / "mnist_m/mnist_m_test_labels.txt"
    names.write_text("".join(names.read_text().splitlines(keepends=True)[:7]))
    assert "names 7 images" in named(names, lambda: data.load("digit5", tmp_path, ("mnist_m",)))


def test_a_missing_image_of_mnist_m_is_named(tmp_path):
    folders.mnist_m(tmp_path)
    path = tmp_path / "mnist_m/mnist_m_test/00000004.png"
    path.unlink()
    assert "missing" in named(path, lambda: data.load("digit5", tmp_path, ("mnist_m",)))


def test_an_eleventh_digit_is_refused(tmp_path):
    folders.svhn(tmp_path)
    folders.mat(tmp_path / "svhn/train_32x32.mat", [1, 2, 11])
    assert "label 11" in named(tmp_path / "svhn/train_32x32.mat", lambda: data.load("digit5", tmp_path, ("svhn",)))


def test_a_damaged_office10_image_is_named(tmp_path):
    folders.office(tmp_path)
    path = tmp_path / "office_caltech_10/dslr/thing3/1.png"
    cut(path)
    named(path, lambda: data.load("office10", tmp_path))
    states = [line.split()[0] for line in data.check("office10", tmp_path)]
    assert states == ["present", "present", "damaged", "present"]


def test_an_office10_domain_without_its_ten_classes_is_refused(tmp_path):
    folders.office(tmp_path)
    folder = tmp_path / "office_caltech_10/amazon/thing9"
    for path in folder.iterdir():
        path.unlink()
    named(folder, lambda: data.load("office10", tmp_path))
    folder.rmdir()
    assert "holds 9" in named(folder.parent, lambda: data.load("office10", tmp_path))


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    path = tmp_path / "a folder in place of a file"
    path.mkdir()
    assert "cannot be read" in named(path, lambda: files.digest(path))


def readers(folder: Path, monkeypatch) -> list[tuple[Path, object]]:
    folders.svhn(folder)
    folders.synthetic(folder)
    folders.usps_h5(folder)
    folders.usps_libsvm(folder, monkeypatch)
    Image.new("RGB", (40, 40), (9, 8, 7)).save(folder / "image.jpg")
    folders.mnist_m(folder)
    return [
        (folder / "svhn/test_32x32.mat", formats.mat),
        (folder / "synth/synth_test_32x32.mat", formats.mat),
        (folder / "usps.h5", formats.usps_h5),
        (folder / digit5.USPS_LIBSVM[1].path, formats.usps_libsvm),
        (folder / "image.jpg", formats.image),
        (folder / "mnist_m/mnist_m_train/00000000.png", formats.image),
    ]


@pytest.mark.parametrize("number", range(6))
def test_whatever_bytes_are_wrong_a_reader_reads_or_names_its_file(tmp_path, monkeypatch, number):
    path, read = readers(tmp_path, monkeypatch)[number]
    whole = path.read_bytes()
    read(path)
    rng = folders.rng(number)
    lines = []
    for trial in range(120):
        content = bytearray(whole)
        if trial % 3 == 0:
            content = content[: rng.integers(len(content))]
        else:  # the first bytes hold the structure
            for _ in range(trial % 3 * 2):
                content[rng.integers(min(len(content), 500) if trial % 2 else len(content))] = rng.integers(256)
        path.write_bytes(content)
        try:
            read(path)
        except UserError as error:
            lines.append(str(error))
    assert len(lines) >= 30
    assert all(str(path) in line for line in lines)
