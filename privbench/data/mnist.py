"""MNIST: 60,000 + 10,000 grey handwritten digits, 28x28 resized to 32x32.

LeCun, Bottou, Bengio, Haffner: Gradient-Based Learning Applied to Document Recognition, Proc. IEEE 86(11), 1998 (CC BY-SA
3.0). The publishers' four idx files in torchvision's folder, gzipped or unpacked. Digit5 reads the same files.
"""

from pathlib import Path

from privbench.data.dataset import Dataset
from privbench.data.readers import files, idx
from privbench.data.readers.download import attempt, mirrors

SOURCE = "MNIST (LeCun et al. 1998, CC BY-SA 3.0)"
LAYOUTS = idx.layouts(
    "MNIST",
    (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
    (
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
)


def load(root: Path) -> Dataset:
    """One grey domain, never flipped."""
    four = files.require("mnist", LAYOUTS, root, download)
    return Dataset("mnist", tuple("0123456789"), {"all": idx.read(four, root)}, flip=False, source=SOURCE)


def check(root: Path) -> list[str]:
    """One line per file."""
    return [file.state(root) for file in files.nearest(LAYOUTS, root)]


def fetch(root: Path) -> None:
    """Downloads through torchvision, unless the files are there."""
    files.require("mnist", LAYOUTS, root, download)


def download(root: Path) -> None:
    """torchvision's download; UserError when there is none to be had."""
    attempt("mnist", lambda d: mirrors(d.MNIST), lambda d: d.MNIST(root, download=True))
