"""Digit5: five domains of digits, all in colour at 32x32. FedCG trains on four and holds MNIST out for FedDF.

    synthetic  Synthetic Digits (Ganin and Lempitsky 2015)     synth/synth_{train,test}_32x32.mat
    mnist_m    MNIST-M (Ganin and Lempitsky 2015; BSDS500)     mnist_m/mnist_m_{train,test}/*.png with label lists
    svhn       Street View House Numbers (Netzer et al. 2011)  svhn/{train,test}_32x32.mat, non-commercial
    usps       USPS (Hull 1994), 16x16                         usps.h5, or torchvision's usps/usps.bz2 and usps.t.bz2
    mnist      MNIST (LeCun et al. 1998, CC BY-SA 3.0)         MNIST/raw/*, gzipped or unpacked
torchvision can fetch SVHN, USPS and MNIST; the others have to be put in place. Fewer domains than the published ones have to
be asked for by name. The note of the data set says so, and names every domain that is not of the published size or files.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from privbench.data import mnist
from privbench.data.dataset import Dataset, Domain
from privbench.data.readers import download, files, formats, idx
from privbench.data.readers.download import attempt
from privbench.data.readers.files import File
from privbench.data.readers.resize import to_colour
from privbench.errors import UserError
from privbench.types import Images

SOURCE = "Digit5: Synthetic Digits and MNIST-M (Ganin and Lempitsky 2015), SVHN (Netzer 2011), USPS (Hull 1994), MNIST (LeCun 1998)"
PUBLISHED = ("synthetic", "mnist_m", "svhn", "usps")  # one client each
DOMAINS = (*PUBLISHED, "mnist")


class Place(NamedTuple):
    """Where a domain lies, how many images its publisher gives, and how torchvision fetches it."""

    layouts: tuple[tuple[File, ...], ...]
    images: tuple[int, int]  # training, test
    fetch: Callable[[Path], None] | None = None


def _fetch_svhn(root: Path) -> None:
    for part in ("train", "test"):
        _fetch_part("svhn", "SVHN", part, root / "svhn", {"split": part})


def _fetch_usps(root: Path) -> None:
    for part in ("train", "test"):
        _fetch_part("usps", "USPS", part, root / "usps", {"train": part == "train"})


def _fetch_part(name: str, kind: str, part: str, folder: Path, which: dict[str, Any]) -> None:
    """One part of one of torchvision's data sets, whose address it lists by part."""
    attempt(
        name,
        lambda datasets: [[getattr(datasets, kind).split_list[part][0]]],
        lambda datasets: getattr(datasets, kind)(folder, download=True, **which),
    )


SYNTHETIC = (File("synth/synth_train_32x32.mat"), File("synth/synth_test_32x32.mat"))
MNIST_M = tuple(File(f"mnist_m/mnist_m_{part}{end}") for part in ("train", "test") for end in ("", "_labels.txt"))
SVHN = (  # MD5, as torchvision lists them; smaller selections are in use
    File("svhn/train_32x32.mat", ("e26dedcc434d2e4c54c9b2d4a06d8373",), subsets=True),
    File("svhn/test_32x32.mat", ("eb5a983be6a315427106f1b164d9cef3",), subsets=True),
)
USPS_H5 = (File("usps.h5", ("734f88c541104a956d88be2c95d03b4a463ffd74ccc2ba9c80841fb98e3fcb36",), subsets=True),)
USPS_LIBSVM = (  # MD5, as torchvision lists them
    File("usps/usps.bz2", ("ec16c51db3855ca6c91edd34d0e9b197",)),
    File("usps/usps.t.bz2", ("8ea070ee2aca1ac39742fdd1ef5ed118",)),
)
PLACES = {
    "synthetic": Place((SYNTHETIC,), (479_400, 9_553)),
    "mnist_m": Place((MNIST_M,), (59_001, 9_001)),
    "svhn": Place((SVHN,), (73_257, 26_032), _fetch_svhn),
    "usps": Place((USPS_H5, USPS_LIBSVM), (7_291, 2_007), _fetch_usps),
    "mnist": Place(mnist.LAYOUTS, (60_000, 10_000), mnist.download),
}


def load(root: Path, domains: tuple[str, ...] | None = None) -> Dataset:
    """One domain per client; MNIST, when it is there and no client's, becomes the public data."""
    names = domains or PUBLISHED
    _require(names, root)
    loaded = {name: _read(name, root) for name in names}
    public = _read("mnist", root).train if "mnist" not in names and _is_present("mnist", root) else None
    return Dataset(
        "digit5", tuple("0123456789"), loaded, flip=False, source=SOURCE, note=_note(loaded, root), public=public
    )


def check(root: Path) -> list[str]:
    """One line per file; files that no checksum decides are read."""
    lines = []
    for name in ("synthetic", "svhn"):
        place = PLACES[name]
        for file, images in zip(place.layouts[0], place.images, strict=True):
            lines.append(file.state(root, lambda path: len(formats.mat(path).labels), images))
    for folder, names, images in zip(MNIST_M[::2], MNIST_M[1::2], PLACES["mnist_m"].images, strict=True):
        lines.append(folder.state(root))
        lines.append(names.state(root, partial(_count_listed, root / folder.path), images))
    usps = files.nearest(PLACES["usps"].layouts, root)
    mnist = files.nearest(PLACES["mnist"].layouts, root)
    return lines + [file.state(root, _count_usps, 9_298) for file in usps] + [file.state(root) for file in mnist]


def fetch(root: Path) -> None:
    """Downloads what torchvision has: SVHN, USPS and MNIST; UserError names what has to be put in place by hand."""
    _require(DOMAINS, root)


def _require(names: Sequence[str], root: Path) -> None:
    reasons = []
    for name in names:
        fetch_domain = PLACES[name].fetch
        if not _is_present(name, root) and fetch_domain is not None:
            try:
                download.into(root, fetch_domain, partial(_is_present, name, root))
            except UserError as error:
                reasons.append(str(error))
    absent = [name for name in names if not _is_present(name, root)]
    if absent:
        available = [name for name in DOMAINS if _is_present(name, root)]
        missing = ", ".join(f"{name} ({', '.join(file.path for file in PLACES[name].layouts[0])})" for name in absent)
        why = f" ({'; '.join(reasons)})" if reasons else ""
        way = (
            f"or choose domains that are there, e.g. --domains {','.join(available)}"
            if available
            else "or point --data-dir at them"
        )
        raise UserError(f"digit5 needs {missing} under {root}{why}; put the files there, {way}")


def _count_listed(folder: Path, names: Path) -> int:
    return len(formats.listed_images(folder, names).labels)


def _count_usps(path: Path) -> int:
    return sum(len(part.labels) for part in formats.usps_h5(path))


def _is_present(name: str, root: Path) -> bool:
    return files.present(PLACES[name].layouts, root) is not None


def _read(name: str, root: Path) -> Domain:
    layout: Sequence[File] = files.require(name, PLACES[name].layouts, root, None)
    if name == "mnist":
        train, test, _ = idx.read(layout, root)
        return Domain(*(Images(to_colour(part.images), part.labels) for part in (train, test)))
    paths = [file.verified(root) for file in layout]
    if name == "mnist_m":
        return Domain(formats.listed_images(paths[0], paths[1]), formats.listed_images(paths[2], paths[3]))
    if layout is USPS_H5:
        return Domain(*formats.usps_h5(paths[0]))
    reader = formats.usps_libsvm if name == "usps" else formats.mat
    return Domain(*(reader(path) for path in paths))


def _note(loaded: dict[str, Domain], root: Path) -> str:
    parts = [] if tuple(loaded) == PUBLISHED else [f"digit5 with the domains {', '.join(loaded)} only"]
    for name, domain in loaded.items():
        sizes = (len(domain.train.labels), len(domain.test.labels))
        if sizes != PLACES[name].images:
            published = "{:,} + {:,}".format(*PLACES[name].images)
            parts.append(f"{name} is not as published: {sizes[0]:,} + {sizes[1]:,} images of {published}")
        elif not all(file.published(root) for file in files.require(name, PLACES[name].layouts, root, None)):
            parts.append(f"{name} is not the published file")
    return "; ".join(parts)
