"""Tiny data sets in the official layouts, written into a folder, and their checksums put in place of the published ones."""

import bz2
import gzip
import hashlib
import pickle
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.io
from PIL import Image

from privbench.data import cifar10, digit5, fmnist, office10
from privbench.data import domainnet as domainnet_files
from privbench.data import emnist as emnist_splits
from privbench.data import mnist as mnist_files
from privbench.data.readers import download
from privbench.data.readers.files import File


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def as_published(layout: tuple[File, ...], root: Path, algorithm: str = "sha256") -> tuple[File, ...]:
    """The layout with the checksums of the files that are there."""
    return tuple(
        file._replace(digests=(hashlib.new(algorithm, (root / file.path).read_bytes()).hexdigest(),)) for file in layout
    )


def cifar_binary(root: Path, monkeypatch: pytest.MonkeyPatch, per_file: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """All images [6 * per_file, 3, 32, 32] and labels, as written."""
    labels = rng(1).integers(0, 10, (6 * per_file, 1), np.uint8)
    pixels = rng(2).integers(0, 256, (6 * per_file, 3072), np.uint8)
    records = np.concatenate([labels, pixels], 1)
    for file, part in zip(cifar10.BINARY, np.split(records, 6), strict=True):
        write(root / file.path, part.tobytes())
    layout = as_published(cifar10.BINARY, root)
    monkeypatch.setattr(cifar10, "BINARY", layout)
    monkeypatch.setattr(cifar10, "LAYOUTS", (layout, cifar10.TORCHVISION))
    return pixels.reshape(-1, 3, 32, 32), labels[:, 0]


def cifar_torchvision(root: Path, monkeypatch: pytest.MonkeyPatch, per_file: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """The same in torchvision's layout, which torchvision itself is told to take for the published one."""
    labels = rng(1).integers(0, 10, 6 * per_file)
    pixels = rng(2).integers(0, 256, (6 * per_file, 3072), np.uint8)
    for k, file in enumerate(cifar10.TORCHVISION[:-1]):
        rows = slice(k * per_file, (k + 1) * per_file)
        write(root / file.path, pickle.dumps({"data": pixels[rows], "labels": labels[rows].tolist()}))
    write(root / cifar10.TORCHVISION[-1].path, pickle.dumps({"label_names": list(cifar10.CLASSES)}))
    layout = as_published(cifar10.TORCHVISION, root, "md5")
    monkeypatch.setattr(cifar10, "TORCHVISION", layout)
    monkeypatch.setattr(cifar10, "LAYOUTS", (cifar10.BINARY, layout))
    torchvision_cifar = download.torchvision_datasets().CIFAR10
    named = [[Path(file.path).name, file.digests[0]] for file in layout]
    monkeypatch.setattr(torchvision_cifar, "train_list", named[:5])
    monkeypatch.setattr(torchvision_cifar, "test_list", named[5:6])
    monkeypatch.setattr(torchvision_cifar, "meta", torchvision_cifar.meta | {"md5": named[6][1]})
    return pixels.reshape(-1, 3, 32, 32), labels


def idx_bytes(array: np.ndarray) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def idx_files(
    layouts: tuple[tuple[File, ...], ...], root: Path, *, gzipped: bool = True
) -> tuple[tuple[File, ...], ...]:
    """30 training and 20 test images of 28x28 with labels 0, 1, 2, ...; the layouts with their checksums."""
    layout = layouts[0 if gzipped else 1]
    for at, count in ((0, 30), (2, 20)):
        images = rng(count).integers(0, 256, (count, 28, 28), np.uint8)
        for file, array in zip(layout[at : at + 2], (images, np.arange(count, dtype=np.uint8) % 10), strict=True):
            data = idx_bytes(array)
            write(root / file.path, gzip.compress(data) if gzipped else data)
    published = as_published(layout, root)
    return (published, layouts[1]) if gzipped else (layouts[0], published)


def fashion(root: Path, monkeypatch: pytest.MonkeyPatch, *, gzipped: bool = True) -> None:
    monkeypatch.setattr(fmnist, "LAYOUTS", idx_files(fmnist.LAYOUTS, root, gzipped=gzipped))


def mnist(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layouts = idx_files(mnist_files.LAYOUTS, root)
    monkeypatch.setattr(mnist_files, "LAYOUTS", layouts)
    monkeypatch.setitem(digit5.PLACES, "mnist", digit5.PLACES["mnist"]._replace(layouts=layouts))


def mat(path: Path, labels: list[int], *, compressed: bool = True) -> np.ndarray:
    """X of 32x32 images with these labels, as written."""
    x = rng(len(labels)).integers(0, 256, (32, 32, 3, len(labels)), np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    scipy.io.savemat(path, {"X": x, "y": np.array(labels, np.uint8)[:, None]}, do_compression=compressed)
    return x


def svhn(root: Path) -> None:
    mat(root / "svhn/train_32x32.mat", [*range(1, 11), *range(1, 11)])
    mat(root / "svhn/test_32x32.mat", list(range(1, 11)))


def synthetic(root: Path) -> None:
    mat(root / "synth/synth_train_32x32.mat", [*range(10), *range(10)], compressed=False)
    mat(root / "synth/synth_test_32x32.mat", list(range(10)), compressed=False)


def mnist_m(root: Path) -> None:
    for part, count in (("train", 20), ("test", 10)):
        lines = []
        for k in range(count):
            image = Image.fromarray(rng(k).integers(0, 256, (32, 32, 3), np.uint8))
            path = root / f"mnist_m/mnist_m_{part}/{k:08}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            image.save(path)
            lines.append(f"{path.name} {k % 10}\n")
        (root / f"mnist_m/mnist_m_{part}_labels.txt").write_text("".join(lines))


def usps_h5(root: Path) -> None:
    root.mkdir(parents=True, exist_ok=True)
    with h5py.File(root / "usps.h5", "w") as file:
        for part, count in (("train", 20), ("test", 10)):
            group = file.create_group(part)
            group["data"] = np.linspace(0, 1, count * 256, dtype=np.float32).reshape(count, 256)
            group["target"] = np.arange(count) % 10


def usps_libsvm(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file, count in zip(digit5.USPS_LIBSVM, (20, 10), strict=True):
        values = np.linspace(-1, 1, count * 256).reshape(count, 256)
        lines = [
            f"{k % 10 + 1} " + " ".join(f"{j + 1}:{v:.6f}" for j, v in enumerate(row)) for k, row in enumerate(values)
        ]
        write(root / file.path, bz2.compress("\n".join(lines).encode()))
    layout = as_published(digit5.USPS_LIBSVM, root, "md5")
    place = digit5.PLACES["usps"]._replace(layouts=(digit5.USPS_H5, layout))
    monkeypatch.setitem(digit5.PLACES, "usps", place)


def office(root: Path, per_class: int = 4) -> None:
    """Images whose red value is 20 times their class and whose green value is their number."""
    for domain in office10.DOMAINS:
        for label in range(10):
            folder = root / office10.FOLDER / domain / f"thing{label}"
            folder.mkdir(parents=True)
            for k in range(per_class):
                Image.new("RGB", (50, 40), (20 * label, k, 0)).save(folder / f"{k}.png")


def emnist_files(root: Path, split: str, *, gzipped: bool) -> np.ndarray:
    """Two training images and one test image of every class, labelled as the publishers do; the training images as written."""
    _, classes, _, first = emnist_splits.SPLITS[split]
    written = {}
    for part, times in (("train", 2), ("test", 1)):
        count = times * len(classes)
        written[part] = rng(count).integers(0, 256, (count, 28, 28), np.uint8)
        labels = (np.arange(count) % len(classes) + first).astype(np.uint8)
        for kind, array in (("images-idx3", written[part]), ("labels-idx1", labels)):
            content = idx_bytes(array)
            end = ".gz" if gzipped else ""
            path = root / f"EMNIST/raw/emnist-{split}-{part}-{kind}-ubyte{end}"
            write(path, gzip.compress(content) if gzipped else content)
    return written["train"]


def domainnet(
    root: Path, domains: tuple[str, ...] = domainnet_files.DOMAINS, *, classes: int = 12, lists: bool = False
) -> None:
    """Six images of each class, three of each of the first two; red tells the class, green the number, blue the domain.

    With lists, images 0 to 2 are for training and 3 and 4 for testing; 5 is in neither list.
    """
    for domain in domains:
        lines: dict[str, list[str]] = {"train": [], "test": []}
        for label in range(classes):
            name = f"thing{label:02}"
            for k in range(3 if label < 2 else 6):
                path = root / "domainnet" / domain / name / f"{k}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (50, 40), (20 * label, 20 * k, 20 * domainnet_files.DOMAINS.index(domain))).save(path)
                if k < 5:
                    lines["train" if k < 3 else "test"].append(f"{domain}/{name}/{path.name} {label}\n")
        if lists:
            for part, listed in lines.items():
                (root / "domainnet" / f"{domain}_{part}.txt").write_text("".join(listed))
