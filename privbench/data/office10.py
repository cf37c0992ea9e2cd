"""Office-Caltech-10: 2,533 photographs of ten kinds of objects in four domains, resized to 32x32.

Gong, Shi, Sha, Grauman: Geodesic Flow Kernel for Unsupervised Domain Adaptation, CVPR 2012; images of Saenko et al. 2010
and Griffin et al. 2007 (research use). Layout: office_caltech_10/<domain>/<class>/<image>. Its publishers name no test images:
half of each class trains, drawn per seed (FedCG section 5; privbench/data/partition.py). The whole image is squashed to a square.
"""

from pathlib import Path

import torch

from privbench.data.dataset import SIDE, Dataset, Domain
from privbench.data.readers import files, formats
from privbench.data.readers.files import File
from privbench.data.readers.resize import to_square
from privbench.errors import UserError
from privbench.types import Images

SOURCE = "Office-Caltech-10 (Gong et al. 2012; research use)"
FOLDER = "office_caltech_10"
PUBLISHED = {"amazon": 958, "caltech": 1123, "dslr": 157, "webcam": 295}  # images
DOMAINS = tuple(PUBLISHED)
CLASSES = 10
LARGER_ORIGINALS = True
ENDINGS = {".png", ".jpg", ".jpeg", ".bmp"}


def load(root: Path, domains: tuple[str, ...] | None = None, side: int = SIDE) -> Dataset:
    """One domain per client, flipped in training as in the reference implementation."""
    names = domains or DOMAINS
    files.require("office10", [_layout(names)], root, None)
    classes = class_names(root / FOLDER / names[0])
    loaded = {domain: read_domain(root / FOLDER / domain, classes, side) for domain in names}
    parts = [] if names == DOMAINS else [f"office10 with the domains {', '.join(names)} only"]
    for name, domain in loaded.items():
        images = len(domain.train.labels)
        if images != PUBLISHED[name]:
            parts.append(f"{name} is not as published: {images} images of {PUBLISHED[name]}")
    return Dataset("office10", classes, loaded, flip=True, source=SOURCE, note="; ".join(parts), halved=True)


def check(root: Path) -> list[str]:
    """One line per domain; every image is read."""
    return [
        file.state(root, _count_readable, images)
        for file, images in zip(_layout(DOMAINS), PUBLISHED.values(), strict=True)
    ]


def fetch(root: Path) -> None:
    """There is no download of it in torchvision: UserError unless it is there."""
    files.require("office10", [_layout(DOMAINS)], root, None)


def class_names(folder: Path) -> tuple[str, ...]:
    """The names of a domain's class folders, in alphabetical order."""
    names = tuple(path.name for path in sorted(folder.iterdir()) if path.is_dir()) if folder.is_dir() else ()
    if len(names) != CLASSES:
        raise UserError(f"{folder} must hold {CLASSES} folders, one per class, but it holds {len(names)}")
    return names


def images_of(folder: Path) -> list[Path]:
    """The image files anywhere in a folder, in alphabetical order."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in ENDINGS)


def read_domain(folder: Path, classes: tuple[str, ...], side: int = SIDE) -> Domain:
    """Every image of a domain, class after class."""
    by_class: list[Images] = []
    for label, name in enumerate(classes):
        paths = images_of(folder / name)
        if len(paths) < 2:
            raise UserError(f"{folder / name} must hold two images or more, but it holds {len(paths)}")
        images = torch.cat([to_square(formats.image(path)[None], side) for path in paths])
        by_class.append(Images(images, torch.full((len(paths),), label)))
    whole = Images(torch.cat([x for x, _ in by_class]), torch.cat([y for _, y in by_class]))
    return Domain(whole, Images(whole.images[:0], whole.labels[:0]))


def _layout(domains: tuple[str, ...]) -> tuple[File, ...]:
    return tuple(File(f"{FOLDER}/{domain}") for domain in domains)


def _count_readable(folder: Path) -> int:
    return len(read_domain(folder, class_names(folder)).train.labels)
