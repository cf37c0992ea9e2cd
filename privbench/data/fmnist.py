"""Fashion-MNIST: 60,000 + 10,000 grey images of clothes, 28x28 resized to 32x32.

Xiao, Rasul, Vollgraf: Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms, arXiv
1708.07747, 2017 (MIT licence). The publishers' four gzipped idx files, in torchvision's folder.
"""

from pathlib import Path

from privbench.data import idx
from privbench.data.dataset import Dataset
from privbench.data.download import attempt
from privbench.data.files import require

SOURCE = "Fashion-MNIST (Xiao et al. 2017, MIT)"
CLASSES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
FILES = idx.files(
    "FashionMNIST",
    (
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
)


def load(root: Path) -> Dataset:
    """One domain, flipped in training as in the reference implementation."""
    require("fmnist", FILES, root, fetch)
    return Dataset("fmnist", CLASSES, {"all": idx.read(FILES, root)}, flip=True, source=SOURCE)


def fetch(root: Path) -> None:
    """Downloads through torchvision."""
    attempt("fmnist", lambda datasets: datasets.FashionMNIST(root, download=True))
