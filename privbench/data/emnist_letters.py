"""26 classes of handwritten letters, upper and lower case as one: the `letters` split of EMNIST; see privbench/data/emnist.py."""

from pathlib import Path

from privbench.data import emnist
from privbench.data.dataset import Dataset


def load(root: Path) -> Dataset:
    """One grey domain, never flipped."""
    return emnist.read("letters", root)


def check(root: Path) -> list[str]:
    """One line per file."""
    return emnist.states("letters", root)


def fetch(root: Path) -> None:
    """Downloads through torchvision, unless the files are there."""
    emnist.obtain("letters", root)
