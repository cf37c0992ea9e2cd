"""Data sets in the MNIST idx format: MNIST itself and Fashion-MNIST, in torchvision's folders."""

from pathlib import Path

import torch

from privbench.data.dataset import Domain
from privbench.data.files import File, read_idx
from privbench.data.resize import to_32
from privbench.errors import UserError
from privbench.types import Images


def files(folder: str, digests: tuple[str, str, str, str]) -> tuple[File, ...]:
    """Training images and labels, test images and labels, with their published checksums."""
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple(File(f"{folder}/raw/{n}-ubyte.gz", d) for n, d in zip(names, digests, strict=True))


def read(four: tuple[File, ...], root: Path) -> Domain:
    """The domain in four files, resized to 32x32."""
    arrays = [torch.from_numpy(read_idx(file.verified(root)).copy()) for file in four]
    for images, labels, file in ((arrays[0], arrays[1], four[0]), (arrays[2], arrays[3], four[2])):
        if images.ndim != 3 or len(images) != len(labels):
            raise UserError(f"{root / file.path} is damaged: its {len(images)} images do not fit {len(labels)} labels")
    sets = [Images(to_32(x[:, None]), y.long()) for x, y in (arrays[:2], arrays[2:])]
    return Domain(*sets)
