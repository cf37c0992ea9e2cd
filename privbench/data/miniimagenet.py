"""Mini-ImageNet: 100 classes of photographs, 600 each, resized to 32x32: 64 classes train, 16 validate, 20 test.

Vinyals, Blundell, Lillicrap, Kavukcuoglu, Wierstra: Matching Networks for One Shot Learning, NeurIPS 2016; the usual split is
that of Ravi and Larochelle, Optimization as a Model for Few-Shot Learning, ICLR 2017. The photographs are ImageNet's (research
use). Two layouts:

    miniimagenet/{train,val,test}/<class>/<image>
    miniimagenet/images/<image> with the lists miniimagenet/{train,val,test}.csv, whose lines are "filename,label"
The whole picture is squashed to a square; large JPEGs are decoded at a reduced scale. There is no public download.
"""

import csv
from pathlib import Path

from privbench.data import class_split
from privbench.data.class_split import ClassSplit
from privbench.data.dataset import Dataset
from privbench.data.readers import files, tree
from privbench.data.readers.files import File
from privbench.data.readers.formats import damaged
from privbench.errors import UserError

SOURCE = "Mini-ImageNet (Vinyals et al. 2016, split of Ravi and Larochelle 2017; research use)"
FOLDER = "miniimagenet"
PARTS = ("train", "val", "test")
CLASS_FOLDERS = tuple(File(f"{FOLDER}/{part}") for part in PARTS)
LISTS = (*(File(f"{FOLDER}/{part}.csv") for part in PARTS), File(f"{FOLDER}/images"))
LAYOUTS = (CLASS_FOLDERS, LISTS)
PUBLISHED = ((64, 38_400), (16, 9_600), (20, 12_000))  # classes, images
HEADER = ["filename", "label"]


def load(root: Path) -> Dataset:
    """One domain in colour, split by class."""
    layout = files.require("miniimagenet", LAYOUTS, root, None)
    parts = [root / file.path for file in layout[: len(PARTS)]]
    split = ClassSplit(*(by_class(path) for path in parts))
    sizes = tuple((len(part), sum(len(images) for images in part.values())) for part in split)
    actual, of = (
        "; ".join(f"{classes} classes with {images:,} images" for classes, images in s) for s in (sizes, PUBLISHED)
    )
    note = "" if sizes == PUBLISHED else f"miniimagenet is not as published: {actual}, instead of {of}"
    return class_split.read("miniimagenet", split, SOURCE, note, colour=True)


def check(root: Path) -> list[str]:
    """One line per class folder or list, whose images are looked for and counted; none is decoded."""

    def count(path: Path) -> int:
        return sum(len(images) for images in by_class(path).values())

    layout = files.nearest(LAYOUTS, root)
    lines = [file.state(root, count, images) for file, (_, images) in zip(layout, PUBLISHED, strict=False)]
    return lines + [file.state(root) for file in layout[len(PARTS) :]]


def fetch(root: Path) -> None:
    """There is no download of it in torchvision: UserError unless it is there."""
    files.require("miniimagenet", LAYOUTS, root, None)


def by_class(path: Path) -> dict[str, list[Path]]:
    """The images of one purpose by class, from a folder of class folders or from a list."""
    return class_split.folders_of(path) if path.is_dir() else read_list(path, path.parent / "images")


def read_list(path: Path, folder: Path) -> dict[str, list[Path]]:
    """The images of a folder that a list of "filename,label" names, by label; UserError: the line or the file that is wrong."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise damaged(path, "no readable list") from error
    if not lines or lines[0] != HEADER or len(lines) == 1:
        raise damaged(path, "it should begin with the line 'filename,label' and name images")
    present = {entry.name for entry in tree.entries(folder)}
    named: dict[str, list[Path]] = {}
    for line in lines[1:]:
        if len(line) != len(HEADER) or not all(line) or Path(line[0]).name != line[0]:
            raise damaged(path, f"its line '{','.join(line)[:60]}' is not the name of an image and a label")
        if line[0] not in present:
            raise UserError(f"{folder / line[0]} is missing, but {path.name} names it; put it there again")
        named.setdefault(line[1], []).append(folder / line[0])
    return named
