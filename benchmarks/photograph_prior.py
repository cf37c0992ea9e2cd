"""`python -m benchmarks.photograph_prior`: the prior of photographs (attacks/common/priors.py), on images of no data set here.

Of every photograph COUNT squares of half to the whole of its shorter side are drawn and made 32x32 as data sets are
(privbench/data/readers/resize.py). Their pixels u = 2x - 1 become opponent colours and cosine patterns with coefficients c and
squared spatial frequencies l. Each photograph gives mean squares over its crops, and every photograph counts alike:
    roughness of a colour   sum over patterns of l c^2, which is the sum of squared differences of neighbouring pixels
    strength                mean over patterns of brightness, all but the constant one, of l exp(l / 2) c^2: the most probable
                            strength of the model strength exp(-l / 2) / l
    constant                c^2 of the constant pattern of brightness: the variance of an image's mean about grey
CHROMA are the ratios of brightness's roughness to that of the other two colours, STRENGTH is the strength, and MEAN is
STRENGTH over `constant`; all with two digits. As few as four photographs settle no more.

matplotlib, which this project needs, brings one photograph. The others lie in packages that need not be installed:
    pip download --no-deps --dest WHEELS imgaug==0.4.0 mahotas==1.4.19
    pip download --no-deps --dest WHEELS --python-version 3.10 --only-binary=:all: scipy==1.9.3
    python -m benchmarks.photograph_prior WHEELS
"""

from __future__ import annotations

import bz2
import hashlib
import importlib.metadata
import io
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from attacks.common import priors
from privbench.data.dataset import SIDE
from privbench.data.readers.resize import to_32
from privbench.seeds import stream

COUNT = 400  # crops of each photograph
DIGITS = 2


class Measured(NamedTuple):
    """Mean squares over one photograph's crops, in u = 2x - 1."""

    brightness: float  # roughnesses of the three opponent colours
    red_blue: float
    green_magenta: float
    strength: float
    constant: float


class Photograph(NamedTuple):
    """A colour photograph in a package of the Python package index."""

    package: str
    version: str  # of the package, when it was measured
    file: str  # in the package's wheel
    sha256: str  # of the file
    source: str
    measured: Measured


class Constants(NamedTuple):
    """Of attacks/common/priors.py."""

    chroma: tuple[float, float]
    strength: float
    mean: float


PHOTOGRAPHS = {
    "officer": Photograph(
        "matplotlib", "3.11.2", "matplotlib/mpl-data/sample_data/grace_hopper.jpg",
        "a8ca6d734765703b09728ab47fe59f473d93ae3967fc24c7c0288c3c7adb7130",
        "James S. Davis, United States Navy: official portrait of Grace Hopper; in the public domain",
        Measured(381.666, 32.4052, 3.31859, 1.46683, 310.357),
    ),
    "quokka": Photograph(
        "imgaug", "0.4.0", "imgaug/quokka.jpg",
        "bf1059d0f925e7d0c712cadf07a04ba4cfc98957d7be65d3a7d8ae0c464cd76e",
        "example image of imgaug, which is under the MIT licence",
        Measured(101.934, 1.63309, 0.186248, 0.340163, 72.349),
    ),
    "author": Photograph(
        "mahotas", "1.4.19", "mahotas/demos/data/luispedro.jpg",
        "27e7af47501a4e9a06e4d8bd8b834bd773fe7b187baef2f47e120c663524bed1",
        "demonstration image of mahotas, which is under the MIT licence: its author",
        Measured(162.488, 12.2216, 1.37495, 0.487477, 55.1905),
    ),
    "raccoon": Photograph(
        "scipy", "1.9.3", "scipy/misc/face.dat",
        "9d8b0b4d081313e2b485748c770472e5a95ed1738146883d84c7030493e82886",
        "raccoon-procyon-lotor.jpg of public-domain-image.com; in the public domain",
        Measured(211.881, 3.02601, 4.29239, 0.833282, 35.9253),
    ),
}  # fmt: skip
RACCOON = (768, 1024, 3)  # its file holds pixels alone, compressed by bz2


def at_hand(photograph: Photograph, wheels: Path | None = None) -> bytes | None:
    """The file of a photograph out of a folder of wheels or an installed package; None where neither has it.

    ValueError where the file is there and is another than the one that was measured.
    """
    file = _in_wheels(photograph, wheels) if wheels is not None else None
    if file is None:
        try:
            path = Path(str(importlib.metadata.distribution(photograph.package).locate_file(photograph.file)))
        except importlib.metadata.PackageNotFoundError:
            return None
        file = path.read_bytes() if path.is_file() else None
    if file is not None and hashlib.sha256(file).hexdigest() != photograph.sha256:
        raise ValueError(f"{photograph.file} of {photograph.package} is not the file that was measured")
    return file


def _in_wheels(photograph: Photograph, wheels: Path) -> bytes | None:
    for path in sorted(wheels.glob(f"{photograph.package}-{photograph.version}-*.whl")):
        with zipfile.ZipFile(path) as wheel:
            return wheel.read(photograph.file)
    return None


def pixels(photograph: Photograph, file: bytes) -> Tensor:
    """[3, H, W] uint8."""
    if photograph.file.endswith(".dat"):
        array = np.frombuffer(bz2.decompress(file), dtype=np.uint8).reshape(RACCOON)
    else:
        with Image.open(io.BytesIO(file)) as image:
            array = np.array(image.convert("RGB"))
    return torch.from_numpy(array.copy()).permute(2, 0, 1)


def crops(image: Tensor, name: str) -> Tensor:
    """COUNT squares of an image [3, H, W], each [3, 32, 32] uint8."""
    rng, (height, width) = stream(0, "photograph prior", name), image.shape[1:]
    least, squares = min(height, width) // 2, []
    for _ in range(COUNT):
        side = int(torch.randint(least, min(height, width) + 1, (), generator=rng))
        top = int(torch.randint(0, height - side + 1, (), generator=rng))
        left = int(torch.randint(0, width - side + 1, (), generator=rng))
        squares.append(to_32(image[None, :, top : top + side, left : left + side]))
    return torch.cat(squares)


def measure(images: Tensor) -> Measured:
    """What crops [N, 3, 32, 32] uint8 of one photograph say."""
    u = 2 * images.double() / 255 - 1
    shape = priors.natural(3, SIDE, 1.0, (1.0, 1.0), u)
    colours = torch.einsum("oc,nchw->nohw", shape.colours, u)
    squares = (shape.cosines @ colours @ shape.cosines.T).square().mean(0)
    frequency = 2 - 2 * torch.cos(torch.pi / SIDE * torch.arange(SIDE).double())
    squared = frequency[:, None] + frequency
    roughness = (squared * squares).sum((1, 2)).tolist()
    whitened = (squared * torch.exp(squared / 2) * squares[0]).flatten()[1:]
    rough: tuple[float, float, float] = (roughness[0], roughness[1], roughness[2])
    return Measured(*rough, float(whitened.mean()), float(squares[0, 0, 0]))


def constants(each: Sequence[Measured]) -> Constants:
    """The prior's constants; every photograph counts alike."""
    whole = Measured(*(sum(values) / len(values) for values in zip(*each, strict=True)))
    chroma = whole.brightness / whole.red_blue, whole.brightness / whole.green_magenta
    rounded = [float(f"{v:.{DIGITS}g}") for v in (*chroma, whole.strength, whole.strength / whole.constant)]
    return Constants((rounded[0], rounded[1]), rounded[2], rounded[3])


def main(words: Sequence[str], show: Callable[[str], None] = print) -> None:
    """Measures the photographs that are at hand, and says which constants all of them give."""
    wheels = Path(words[0]) if words else None
    each = {name: at_hand(photograph, wheels) for name, photograph in PHOTOGRAPHS.items()}
    measured = {}
    for name, file in each.items():
        if file is None:
            show(f"{name}: not at hand; it is in the wheel of {PHOTOGRAPHS[name].package}")
            continue
        measured[name] = measure(crops(pixels(PHOTOGRAPHS[name], file), name))
        show(f"{name}: {', '.join(f'{field} {value:.6g}' for field, value in measured[name]._asdict().items())}")
    if len(measured) == len(PHOTOGRAPHS):
        show(f"all: {constants(list(measured.values()))}")


if __name__ == "__main__":
    main(sys.argv[1:])
