"""EMNIST: handwritten characters of NIST's Special Database 19 in MNIST's form, 28x28 grey, resized to 32x32.

Cohen, Afshar, Tapson, van Schaik: EMNIST: an Extension of MNIST to Handwritten Letters, arXiv 1702.05373, 2017 (no licence
stated; the images are NIST's). Three of its splits, each with classes of equal size:

    emnist            digits    240,000 + 40,000, 10 classes
    emnist-letters    letters   124,800 + 20,800, 26 classes, upper and lower case as one
    emnist-balanced   balanced  112,800 + 18,800, 47 classes

FedMD-CG says "EMNIST" and no more. It must be `digits`: its Table 6 gives 97.7% to FedCG and 96.5% to isolated clients
(L.acc, omega 10), where the best published classifiers reach some 91% on `balanced` and 96% on `letters`; so `digits` carries the
name.

The files that torchvision fetches and unpacks (EMNIST/raw/emnist-<split>-...), or the publisher's own .gz files beside them.
Rows and columns are swapped in the files and are put right here. torchvision checks the checksum of the archive alone.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from privbench.data.dataset import Dataset
from privbench.data.readers import files, formats, idx
from privbench.data.readers.download import attempt
from privbench.data.readers.files import File

SOURCE = "EMNIST (Cohen et al. 2017; no licence stated)"


class Split(NamedTuple):
    """One way in which the publishers cut the characters."""

    name: str  # of the data set
    classes: tuple[str, ...]
    images: tuple[int, int]  # training, test
    first: int = 0  # what the files call class 0


SPLITS = {
    "digits": Split("emnist", tuple("0123456789"), (240_000, 40_000)),
    "letters": Split("emnist-letters", tuple("abcdefghijklmnopqrstuvwxyz"), (124_800, 20_800), first=1),
    "balanced": Split("emnist-balanced", tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt"), (112_800, 18_800)),
}


def load(root: Path) -> Dataset:
    """The ten digits."""
    return read("digits", root)


def check(root: Path) -> list[str]:
    """One line per file."""
    return states("digits", root)


def fetch(root: Path) -> None:
    """Downloads through torchvision, unless the files are there; its one archive holds every split."""
    obtain("digits", root)


def read(split: str, root: Path) -> Dataset:
    """One split, upright, one grey domain, never flipped."""
    name, classes, images, first = SPLITS[split]
    domain = idx.read(obtain(split, root), root, classes=len(classes), first=first, transposed=True)
    sizes = (len(domain.train.labels), len(domain.test.labels))
    of = f"{sizes[0]:,} + {sizes[1]:,} images of {images[0]:,} + {images[1]:,}"
    note = "" if sizes == images else f"{name} is not as published: {of}"
    return Dataset(name, classes, {"all": domain}, flip=False, source=SOURCE, note=note)


def states(split: str, root: Path) -> list[str]:
    """One line per file of a split."""
    train, test = SPLITS[split].images
    four = files.nearest(_layouts(split), root)
    return [
        file.state(root, lambda path: len(formats.idx(path)), count)
        for file, count in zip(four, (train, train, test, test), strict=True)
    ]


def obtain(split: str, root: Path) -> Sequence[File]:
    """The four files of a split, fetched when they are absent; UserError when there are none to be had."""

    def download(root: Path) -> None:
        attempt("emnist", lambda d: [[d.EMNIST.url]], lambda d: d.EMNIST(root, split=split, download=True))

    return files.require(SPLITS[split].name, _layouts(split), root, download)


def _layouts(split: str) -> tuple[tuple[File, ...], ...]:
    names = [f"{part}-{kind}" for part in ("train", "test") for kind in ("images-idx3", "labels-idx1")]
    return tuple(tuple(File(f"EMNIST/raw/emnist-{split}-{name}-ubyte{end}") for name in names) for end in ("", ".gz"))
