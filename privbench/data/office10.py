"""Office-Caltech-10: 2,533 photographs of ten kinds of objects in four domains, resized to 32x32.

Gong, Shi, Sha, Grauman: Geodesic Flow Kernel for Unsupervised Domain Adaptation, CVPR 2012; images of Saenko et al. 2010
and Griffin et al. 2007 (research use). Layout: office_caltech_10/<domain>/<class>/<image>. Half of each domain trains, in
every class; the rest is for validation and test (FedCG section 5). The whole image is squashed to a square.
"""

from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from privbench.data.dataset import Dataset, Domain
from privbench.data.files import File, require
from privbench.data.resize import to_32
from privbench.errors import UserError
from privbench.seeds import stream
from privbench.types import Images

SOURCE = "Office-Caltech-10 (Gong et al. 2012; research use)"
FOLDER = "office_caltech_10"
DOMAINS = ("amazon", "caltech", "dslr", "webcam")
FILES = tuple(File(f"{FOLDER}/{domain}") for domain in DOMAINS)
ENDINGS = {".png", ".jpg", ".jpeg", ".bmp"}


def load(root: Path, domains: tuple[str, ...] | None = None) -> Dataset:
    """One domain per client, flipped in training as in the reference implementation."""
    wanted = domains or DOMAINS
    require("office10", [File(f"{FOLDER}/{domain}") for domain in wanted], root, None)
    folders = [path for path in sorted((root / FOLDER / wanted[0]).iterdir()) if path.is_dir()]
    classes = tuple(path.name for path in folders)
    read = {domain: _read(root / FOLDER / domain, classes) for domain in wanted}
    note = "" if wanted == DOMAINS else f"office10 with the domains {', '.join(wanted)} only"
    return Dataset("office10", classes, read, flip=True, source=SOURCE, note=note)


def fetch(root: Path) -> None:
    """There is no download of it in torchvision."""
    require("office10", FILES, root, None)


def _read(folder: Path, classes: tuple[str, ...]) -> Domain:
    train: list[Images] = []
    test: list[Images] = []
    for label, name in enumerate(classes):
        paths = sorted(p for p in (folder / name).glob("*") if p.suffix.lower() in ENDINGS)
        if not paths:
            raise UserError(f"{folder / name} is missing or holds no image")
        images = torch.cat([_image(path) for path in paths])
        order = torch.randperm(len(paths), generator=stream(0, "office10", folder.name, name))
        half = len(paths) // 2
        for target, chosen in ((train, order[:half]), (test, order[half:])):
            target.append(Images(images[chosen], torch.full((len(chosen),), label)))
    return Domain(*(Images(torch.cat([x for x, _ in part]), torch.cat([y for _, y in part])) for part in (train, test)))


def _image(path: Path) -> torch.Tensor:
    try:
        with Image.open(path) as image:
            pixels = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
    except (OSError, UnidentifiedImageError) as error:
        raise UserError(f"{path} is damaged (no readable image); remove it and put it there again") from error
    return to_32(pixels[None])
