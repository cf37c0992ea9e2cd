"""Ten colour classes, one per photograph shipped inside scikit-image and scikit-learn: 32x32 crops, embedded.

Each photograph is cut into five vertical strips; crops of the first, third and fifth train, those of the second validate,
those of the fourth test, so that no pixel serves two purposes. A crop is a square of half to the whole width of a strip, resized
to 32x32; crops without contrast (night sky, the retina's border) are drawn again.

Sources, all free to use (see each package's data README): scikit-image astronaut (NASA), chelsea the cat, coffee, Hubble
deep field (NASA), immunohistochemistry, motorcycle (Middlebury 2014), retina, rocket (SpaceX); scikit-learn china, flower.
"""

from pathlib import Path

import numpy as np
import skimage
import sklearn.datasets
import torch
from PIL import Image
from torch import Tensor

from privbench.data.dataset import SIDE, Dataset, Domain
from privbench.data.readers.resize import to_32, to_square
from privbench.seeds import stream
from privbench.types import Images

SOURCE = "photographs shipped inside scikit-image and scikit-learn; see each package's data README for their terms"
PHOTOS = {
    "astronaut": "astronaut.png",
    "cat": "chelsea.png",
    "coffee": "coffee.png",
    "hubble": "hubble_deep_field.jpg",
    "histology": "ihc.png",
    "motorcycle": "motorcycle_left.png",
    "retina": "retina.jpg",
    "rocket": "rocket.jpg",
    "temple": "china.jpg",
    "flower": "flower.jpg",
}
STRIPS = 5
PURPOSE = {"train": (0, 2, 4), "validation": (1,), "test": (3,)}  # which strips
COUNT = {"train": 240, "validation": 60, "test": 60}  # crops per class
LARGER_ORIGINALS = True  # crops are 45 to 282 pixels wide before they are resized
LEAST_STD = 10.0  # of 255, over the pixels of a channel: a flatter crop shows nothing


def photograph(name: str) -> Tensor:
    """One photograph: [3, H, W] uint8."""
    file = PHOTOS[name]
    shipped = (Path(skimage.__file__).parent / "data", Path(sklearn.datasets.__file__).parent / "images")
    path = next(folder / file for folder in shipped if (folder / file).is_file())
    with Image.open(path) as image:
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


def crop_boxes(height: int, width: int, purpose: str, count: int, rng: torch.Generator) -> list[tuple[int, int, int]]:
    """`count` squares (top, left, side), each inside one strip of the purpose."""
    boxes = []
    strips = PURPOSE[purpose]
    for _ in range(count):
        strip = strips[int(torch.randint(len(strips), (), generator=rng))]
        begin, end = strip * width // STRIPS, (strip + 1) * width // STRIPS
        most = min(end - begin, height)
        side = int(torch.randint(min(max(SIDE, (end - begin) // 2), most), most + 1, (), generator=rng))
        top = int(torch.randint(0, height - side + 1, (), generator=rng))
        left = int(torch.randint(begin, end - side + 1, (), generator=rng))
        boxes.append((top, left, side))
    return boxes


def crops(name: str, purpose: str, count: int, side: int = SIDE) -> Tensor:
    """`count` different crops with contrast, the same whatever the side: [count, 3, side, side] uint8."""
    photo, rng = photograph(name), stream(0, "photos", name, purpose)
    by_box: dict[tuple[int, int, int], Tensor] = {}
    while len(by_box) < count:
        for box in crop_boxes(photo.shape[1], photo.shape[2], purpose, count, rng):
            top, left, length = box
            crop = photo[None, :, top : top + length, left : left + length]
            small = to_32(crop)[0]
            if float(small.float().std((1, 2)).mean()) >= LEAST_STD and len(by_box) < count:
                by_box.setdefault(box, small if side == SIDE else to_square(crop, side)[0])
    return torch.stack(list(by_box.values()))


def load(root: Path, side: int = SIDE) -> Dataset:
    """One domain with validation images of its own; `root` is not needed."""
    sets = {}
    for purpose, count in COUNT.items():
        images = torch.cat([crops(name, purpose, count, side) for name in PHOTOS])
        labels = torch.arange(len(PHOTOS)).repeat_interleave(count)
        order = torch.randperm(len(labels), generator=stream(0, "photos", purpose, "order"))
        sets[purpose] = Images(images[order], labels[order])
    domain = Domain(sets["train"], sets["test"], sets["validation"])
    # Test crops are of other strips of the photographs.
    return Dataset("photos", tuple(PHOTOS), {"all": domain}, flip=False, source=SOURCE, test_alike=False)
