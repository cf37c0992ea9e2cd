"""CIFAR-10: 50,000 + 10,000 colour images of 32x32 in ten classes.

Krizhevsky: Learning Multiple Layers of Features from Tiny Images, 2009. No licence is stated; cite the report. Read in the
binary layout (label byte + 3,072 bytes a record), else in torchvision's. Nothing here unpickles: torchvision does so for
its own layout, after the published checksum of every file was compared, so that a foreign pickle is never opened.
"""

from pathlib import Path

import numpy as np
import torch

from privbench.data.dataset import Dataset, Domain
from privbench.data.readers import files, formats
from privbench.data.readers.download import attempt, torchvision_datasets
from privbench.data.readers.files import File
from privbench.types import Images

SOURCE = "CIFAR-10 (Krizhevsky 2009; no licence stated)"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BINARY = (
    File(
        "cifar-10-batches-bin/data_batch_1.bin", ("cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",)
    ),
    File(
        "cifar-10-batches-bin/data_batch_2.bin", ("a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",)
    ),
    File(
        "cifar-10-batches-bin/data_batch_3.bin", ("bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",)
    ),
    File(
        "cifar-10-batches-bin/data_batch_4.bin", ("014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",)
    ),
    File(
        "cifar-10-batches-bin/data_batch_5.bin", ("755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",)
    ),
    File(
        "cifar-10-batches-bin/test_batch.bin",
        (
            "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
            "18cf04461dc65479d720ca1d4daf900d8c51f12f6d825013b71b6f578008cffb",  # a copy with the classes interleaved
        ),
    ),
)
TORCHVISION = (  # MD5, as torchvision lists them
    File("cifar-10-batches-py/data_batch_1", ("c99cafc152244af753f735de768cd75f",)),
    File("cifar-10-batches-py/data_batch_2", ("d4bba439e000b95fd0a9bffe97cbabec",)),
    File("cifar-10-batches-py/data_batch_3", ("54ebc095f3ab1f0389bbae665268c751",)),
    File("cifar-10-batches-py/data_batch_4", ("634d18415352ddfa80567beed471001a",)),
    File("cifar-10-batches-py/data_batch_5", ("482c414d41f54cd18b22e5b47cb7c3cb",)),
    File("cifar-10-batches-py/test_batch", ("40351d587109b95175f43aff81a1287e",)),
    File("cifar-10-batches-py/batches.meta", ("5ff9c542aee3614f3951f8cda6e48888",)),
)
LAYOUTS = (BINARY, TORCHVISION)
RECORD = 1 + 3072


def load(root: Path) -> Dataset:
    """One domain, flipped in training as in the reference implementation."""
    layout = files.require("cifar10", LAYOUTS, root, _download)
    paths = [file.verified(root) for file in layout]
    note = ""
    if layout == BINARY:
        batches = [read_batch(path) for path in paths]
        train = Images(torch.cat([b.images for b in batches[:-1]]), torch.cat([b.labels for b in batches[:-1]]))
        test = batches[-1]
        if not BINARY[-1].published(root):
            note = "cifar10's test images are in another order than the published one"
    else:
        train, test = (_torchvision(root, train=part) for part in (True, False))
    return Dataset("cifar10", CLASSES, {"all": Domain(train, test)}, flip=True, source=SOURCE, note=note)


def read_batch(path: Path) -> Images:
    """One file of the binary layout; a damaged one is named."""
    data = np.fromfile(path, np.uint8)
    if len(data) == 0 or len(data) % RECORD:
        raise formats.damaged(path, f"{len(data)} bytes are no multiple of {RECORD}")
    records = data.reshape(-1, RECORD)
    return formats.labelled(path, torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32)), records[:, 0])


def check(root: Path) -> list[str]:
    """One line per file."""
    return [file.state(root) for file in files.nearest(LAYOUTS, root)]


def fetch(root: Path) -> None:
    """Downloads torchvision's layout, unless one is there."""
    files.require("cifar10", LAYOUTS, root, _download)


def _download(root: Path) -> None:
    attempt(
        "cifar10", lambda datasets: [[datasets.CIFAR10.url]], lambda datasets: datasets.CIFAR10(root, download=True)
    )


def _torchvision(root: Path, *, train: bool) -> Images:
    read = torchvision_datasets().CIFAR10(root, train=train, download=False)
    return Images(torch.from_numpy(read.data).permute(0, 3, 1, 2).contiguous(), torch.tensor(read.targets))
