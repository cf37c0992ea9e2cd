"""47 classes of handwritten digits and letters: the `balanced` split of EMNIST; see privbench/data/emnist.py."""

from pathlib import Path

from privbench.data import emnist
from privbench.data.dataset import Dataset


def load(root: Path) -> Dataset:
    """One grey domain, never flipped."""
    return emnist.read("balanced", root)


def check(root: Path) -> list[str]:
    """One line per file."""
    return emnist.states("balanced", root)


def fetch(root: Path) -> None:
    """Downloads through torchvision, unless the files are there."""
    emnist.obtain("balanced", root)
