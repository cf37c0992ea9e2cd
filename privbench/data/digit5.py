"""Digit5: five domains of digits, all in colour at 32x32. FedCG trains on four and holds MNIST out for FedDF.

    synthetic  Synthetic Digits (Ganin and Lempitsky 2015)     synth/synth_{train,test}_32x32.mat
    mnist_m    MNIST-M (Ganin and Lempitsky 2015; BSDS500)     mnist_m/mnist_m_{train,test}/*.png with label lists
    svhn       Street View House Numbers (Netzer et al. 2011)  svhn/{train,test}_32x32.mat, non-commercial
    usps       USPS (Hull 1994), 16x16                         usps.h5 with groups train and test
    mnist      MNIST (LeCun et al. 1998, CC BY-SA 3.0)         MNIST/raw/*.gz
torchvision can fetch SVHN and MNIST; the others have to be put in place. A data set of fewer domains than the published
one has to be asked for by name, and says so in its note.
"""

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import scipy.io
import torch
from PIL import Image, UnidentifiedImageError

from privbench.data import idx
from privbench.data.dataset import Dataset, Domain
from privbench.data.download import attempt
from privbench.data.files import File
from privbench.data.resize import to_32, to_colour
from privbench.errors import UserError
from privbench.types import Images

SOURCE = "Digit5: Synthetic Digits and MNIST-M (Ganin and Lempitsky 2015), SVHN (Netzer 2011), USPS (Hull 1994), MNIST (LeCun 1998)"
PUBLISHED = ("synthetic", "mnist_m", "svhn", "usps")  # one client each
DOMAINS = (*PUBLISHED, "mnist")
MNIST = idx.files(
    "MNIST",
    (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
)
PLACES: dict[str, tuple[File, ...]] = {
    "synthetic": (File("synth/synth_train_32x32.mat"), File("synth/synth_test_32x32.mat")),
    "mnist_m": tuple(
        File(f"mnist_m/mnist_m_{part}{end}") for part in ("train", "test") for end in ("", "_labels.txt")
    ),
    "svhn": (File("svhn/train_32x32.mat"), File("svhn/test_32x32.mat")),  # no checksum: subsets are in use
    "usps": (File("usps.h5"),),
    "mnist": MNIST,
}
FILES = tuple(file for files in PLACES.values() for file in files)


def load(root: Path, domains: tuple[str, ...] | None = None) -> Dataset:
    """One domain per client; MNIST, when it is there and no client's, becomes the public data."""
    wanted = domains or PUBLISHED
    for name in wanted:
        if not _present(name, root) and name in _FETCHERS:
            _try(name, root)
    absent = [name for name in wanted if not _present(name, root)]
    if absent:
        there = [name for name in DOMAINS if _present(name, root)]
        missing = ", ".join(file.path for name in absent for file in PLACES[name])
        way = f"or choose the domains that are there: --domains {','.join(there)}" if there else "or point --data-dir at them"
        raise UserError(f"digit5 lacks {', '.join(absent)} ({missing} under {root}); put the files there, {way}")
    loaded = {name: _READERS[name](root) for name in wanted}
    public = None
    if "mnist" not in wanted and _present("mnist", root):
        mnist = _READERS["mnist"](root)
        public = mnist.train
    note = "" if wanted == PUBLISHED else f"digit5 with the domains {', '.join(wanted)} only"
    sizes = ", ".join(f"{name} {len(d.train.labels)}+{len(d.test.labels)}" for name, d in loaded.items())
    note = f"{note} ({sizes} images)" if note else ""
    return Dataset("digit5", tuple("0123456789"), loaded, flip=False, source=SOURCE, note=note, public=public)


def fetch(root: Path) -> None:
    """Downloads what torchvision has: SVHN and MNIST."""
    for name in _FETCHERS:
        if not _present(name, root):
            _FETCHERS[name](root)
    absent = [file.path for file in FILES if not (root / file.path).exists()]
    if absent:
        raise UserError(f"torchvision has no {', '.join(absent)}; put these files under {root} by hand")


def _fetch_svhn(root: Path) -> None:
    for split in ("train", "test"):
        attempt("svhn", lambda datasets, split=split: datasets.SVHN(root / "svhn", split=split, download=True))  # type: ignore[misc]


def _fetch_mnist(root: Path) -> None:
    attempt("mnist", lambda datasets: datasets.MNIST(root, download=True))


_FETCHERS: dict[str, Callable[[Path], None]] = {"svhn": _fetch_svhn, "mnist": _fetch_mnist}


def _try(name: str, root: Path) -> None:
    try:
        _FETCHERS[name](root)
    except UserError:
        return  # the caller names what is still absent


def _present(name: str, root: Path) -> bool:
    return all((root / file.path).exists() for file in PLACES[name])


def read_mat(path: Path) -> Images:
    """SVHN's format: X (32, 32, 3, N) uint8, y with 10 for the digit zero (Synthetic Digits writes 0)."""
    try:
        content = scipy.io.loadmat(path)
        x, y = content["X"], content["y"].reshape(-1)
        images = torch.from_numpy(np.ascontiguousarray(x.transpose(3, 2, 0, 1)))
    except (ValueError, KeyError, TypeError, OSError, NotImplementedError) as error:
        raise UserError(f"{path} is damaged (no readable X and y); remove it and fetch it again") from error
    if len(images) != len(y) or images.dtype != torch.uint8:
        raise UserError(f"{path} is damaged: {len(images)} images of {images.dtype} for {len(y)} labels")
    return Images(to_32(images), torch.from_numpy(y.astype(np.int64) % 10))


def read_mnist_m(folder: Path, labels: Path) -> Images:
    """PNG files named in a list of "name label" lines."""
    images, targets = [], []
    for line in labels.read_text().splitlines():
        name, _, label = line.partition(" ")
        path = folder / name
        try:
            with Image.open(path) as image:
                images.append(torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1))
            targets.append(int(label))
        except (OSError, UnidentifiedImageError, ValueError) as error:
            raise UserError(f"{path} is missing or damaged, or its line '{line}' in {labels} is") from error
    if not images:
        raise UserError(f"{labels} names no image")
    return Images(to_32(torch.stack(images)), torch.tensor(targets))


def read_usps(path: Path) -> Domain:
    """usps.h5: groups train and test with data (N, 256) in [0, 1] and target."""
    try:
        with h5py.File(path) as file:
            sets = [(np.array(file[part]["data"]), np.array(file[part]["target"])) for part in ("train", "test")]
        read = [
            Images(
                to_colour(to_32(torch.from_numpy((x.reshape(-1, 1, 16, 16) * 255).round().clip(0, 255).astype(np.uint8)))),
                torch.from_numpy(y.astype(np.int64)),
            )
            for x, y in sets
        ]
    except (OSError, KeyError, ValueError) as error:
        raise UserError(f"{path} is damaged (no readable groups train and test); remove it and fetch it again") from error
    return Domain(*read)


def _read_mnist(root: Path) -> Domain:
    train, test, _ = idx.read(MNIST, root)
    return Domain(*(Images(to_colour(part.images), part.labels) for part in (train, test)))


def _mat_reader(name: str) -> Callable[[Path], Domain]:
    return lambda root: Domain(*(read_mat(root / file.path) for file in PLACES[name]))


def _read_mnist_m(root: Path) -> Domain:
    base = root / "mnist_m"
    return Domain(*(read_mnist_m(base / f"mnist_m_{p}", base / f"mnist_m_{p}_labels.txt") for p in ("train", "test")))


_READERS: dict[str, Callable[[Path], Domain]] = {
    "synthetic": _mat_reader("synthetic"),
    "mnist_m": _read_mnist_m,
    "svhn": _mat_reader("svhn"),
    "usps": lambda root: read_usps(root / "usps.h5"),
    "mnist": _read_mnist,
}
