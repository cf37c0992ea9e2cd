"""Fashion-MNIST: 60,000 + 10,000 grey images of clothes, 28x28 resized to 32x32.

Xiao, Rasul, Vollgraf: Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms, arXiv
1708.07747, 2017 (MIT licence). The publishers' four gzipped idx files, in torchvision's folder.
"""

from pathlib import Path

from privbench.data.dataset import Dataset
from privbench.data.readers import files, idx
from privbench.data.readers.download import attempt, mirrors

SOURCE = "Fashion-MNIST (Xiao et al. 2017, MIT)"
CLASSES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
LAYOUTS = idx.layouts(
    "FashionMNIST",
    (
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
    (
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
)


def load(root: Path) -> Dataset:
    """One domain, flipped in training as in the reference implementation."""
    four = files.require("fmnist", LAYOUTS, root, _download)
    return Dataset("fmnist", CLASSES, {"all": idx.read(four, root)}, flip=True, source=SOURCE)


def check(root: Path) -> list[str]:
    """One line per file."""
    return [file.state(root) for file in files.nearest(LAYOUTS, root)]


def fetch(root: Path) -> None:
    """Downloads through torchvision, unless the files are there."""
    files.require("fmnist", LAYOUTS, root, _download)


def _download(root: Path) -> None:
    attempt("fmnist", lambda d: mirrors(d.FashionMNIST), lambda d: d.FashionMNIST(root, download=True))
