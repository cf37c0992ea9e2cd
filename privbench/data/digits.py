"""scikit-learn's handwritten digits, 1,797 images of 8x8, resized to 32x32: embedded, always there.

Source: the test part of Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI repository, 1998 (CC BY 4.0),
as shipped in scikit-learn. 1,200 images train, 597 are for validation and test.
"""

from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor

from privbench.data.dataset import Dataset, Domain
from privbench.data.readers.resize import to_32
from privbench.seeds import stream
from privbench.types import Images

SOURCE = "scikit-learn's digits (Alpaydin and Kaynak 1998, CC BY 4.0)"
TRAIN = 1200


def shuffled() -> tuple[Tensor, Tensor]:
    """All digits in a fixed random order: images [1797, 1, 32, 32] uint8, labels [1797]."""
    raw = load_digits()
    order = torch.randperm(len(raw.target), generator=stream(0, "digits"))
    images = torch.tensor(raw.images / 16 * 255)[:, None].float().round().to(torch.uint8)
    return to_32(images)[order], torch.tensor(raw.target, dtype=torch.int64)[order]


def load(root: Path) -> Dataset:
    """One domain; `root` is not needed."""
    images, labels = shuffled()
    domain = Domain(Images(images[:TRAIN], labels[:TRAIN]), Images(images[TRAIN:], labels[TRAIN:]))
    return Dataset("digits", tuple("0123456789"), {"all": domain}, flip=False, source=SOURCE)
