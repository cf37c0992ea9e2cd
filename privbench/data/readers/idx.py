"""Data sets in the MNIST idx format: MNIST, Fashion-MNIST and EMNIST, in torchvision's folders, gzipped or unpacked."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from privbench.data.dataset import Domain
from privbench.data.readers import formats
from privbench.data.readers.files import File
from privbench.errors import UserError

NAMES = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
Four = tuple[str, str, str, str]  # of training images and labels, test images and labels


def layouts(folder: str, gzipped: Four, unpacked: Four) -> tuple[tuple[File, ...], ...]:
    """The two forms of the four files, with the SHA-256 of each."""
    return tuple(
        tuple(File(f"{folder}/raw/{name}-ubyte{end}", (sha256,)) for name, sha256 in zip(NAMES, digests, strict=True))
        for end, digests in ((".gz", gzipped), ("", unpacked))
    )


def read(four: Sequence[File], root: Path, *, classes: int = 10, first: int = 0, transposed: bool = False) -> Domain:
    """The domain in four files, resized to 32x32, one channel; the files call class 0 `first`, and may swap rows and columns."""
    paths = [file.verified(root) for file in four]
    arrays = [formats.idx(path) for path in paths]
    for images, labels, path in ((arrays[0], arrays[1], paths[0]), (arrays[2], arrays[3], paths[2])):
        if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
            raise UserError(f"{path} is damaged: images of shape {images.shape} do not fit {labels.shape[0]} labels")
    sets = []
    for at in (0, 2):
        images = arrays[at].swapaxes(1, 2) if transposed else arrays[at]
        labels = arrays[at + 1].astype(np.int64) - first
        sets.append(formats.labelled(paths[at], torch.from_numpy(images.copy())[:, None], labels, classes))
    return Domain(*sets)
