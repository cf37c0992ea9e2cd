"""CIFAR-10: 50,000 + 10,000 colour images of 32x32 in ten classes.

Krizhevsky: Learning Multiple Layers of Features from Tiny Images, 2009. No licence is stated; cite the report. Read in the
binary layout (label byte + 3,072 bytes a record; no pickle), or in torchvision's layout by torchvision itself, which
verifies the published checksums before it unpickles anything.
"""

from pathlib import Path

import numpy as np
import torch

from privbench.data.dataset import Dataset, Domain
from privbench.data.download import attempt, torchvision_datasets
from privbench.data.files import File, require
from privbench.errors import UserError
from privbench.types import Images

SOURCE = "CIFAR-10 (Krizhevsky 2009; no licence stated)"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FOLDER = "cifar-10-batches-bin"
TORCHVISION = "cifar-10-batches-py"
FILES = (
    File(f"{FOLDER}/data_batch_1.bin", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
    File(f"{FOLDER}/data_batch_2.bin", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
    File(f"{FOLDER}/data_batch_3.bin", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
    File(f"{FOLDER}/data_batch_4.bin", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
    File(f"{FOLDER}/data_batch_5.bin", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
    File(f"{FOLDER}/test_batch.bin"),  # copies exist whose records come in another order, with the same pixels
)
RECORD = 1 + 3072


def load(root: Path) -> Dataset:
    """One domain, flipped in training as in the reference implementation."""
    require("cifar10", FILES, root, fetch, TORCHVISION)
    if (root / FOLDER).is_dir():
        require("cifar10", FILES, root, None)
        batches = [read_batch(file.verified(root)) for file in FILES]
    else:
        batches = [_torchvision(root, train=True), _torchvision(root, train=False)]
    train = Images(torch.cat([b.images for b in batches[:-1]]), torch.cat([b.labels for b in batches[:-1]]))
    return Dataset("cifar10", CLASSES, {"all": Domain(train, batches[-1])}, flip=True, source=SOURCE)


def read_batch(path: Path) -> Images:
    """One file of the binary layout; a damaged one is named."""
    data = np.frombuffer(path.read_bytes(), np.uint8)
    if len(data) == 0 or len(data) % RECORD:
        raise UserError(f"{path} is damaged ({len(data)} bytes are no multiple of {RECORD}); remove it and fetch it again")
    records = torch.from_numpy(data.reshape(-1, RECORD).copy())
    labels = records[:, 0].long()
    if int(labels.max()) > 9:
        raise UserError(f"{path} is damaged (a label above 9); remove it and fetch it again")
    return Images(records[:, 1:].reshape(-1, 3, 32, 32).clone(), labels)


def fetch(root: Path) -> None:
    """Downloads torchvision's layout."""
    attempt("cifar10", lambda datasets: datasets.CIFAR10(root, download=True))


def _torchvision(root: Path, *, train: bool) -> Images:
    try:
        found = torchvision_datasets().CIFAR10(root, train=train, download=False)
    except RuntimeError as error:
        raise UserError(f"{root / TORCHVISION} is damaged or incomplete; remove it and run `privbench data fetch cifar10`") from error
    return Images(torch.from_numpy(found.data).permute(0, 3, 1, 2).contiguous(), torch.tensor(found.targets))
