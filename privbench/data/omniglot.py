"""Omniglot: 1,623 handwritten characters of 50 alphabets, 20 drawings each, 105x105 grey (ink black), resized to 32x32.

Lake, Salakhutdinov, Tenenbaum: Human-Level Concept Learning through Probabilistic Program Induction, Science 2015 (MIT licence).
As torchvision unpacks it: omniglot-py/images_background/<alphabet>/<character>/*.png and images_evaluation beside it. The
evaluation alphabets test, as published. Every fifth background alphabet, in alphabetical order, validates, because the publishers
name none for it. Alphabets are never divided, so that no test character is of an alphabet that was trained on.
"""

from pathlib import Path

from privbench.data import class_split
from privbench.data.class_split import ClassSplit
from privbench.data.dataset import Dataset
from privbench.data.readers import files, tree
from privbench.data.readers.download import attempt
from privbench.data.readers.files import File
from privbench.errors import UserError

SOURCE = "Omniglot (Lake et al. 2015, MIT)"
FOLDER = "omniglot-py"
PARTS = ("images_background", "images_evaluation")
LAYOUT = tuple(File(f"{FOLDER}/{part}") for part in PARTS)
CLASSES = (964, 659)  # characters, of 20 drawings
VALIDATION_EVERY = 5


def load(root: Path) -> Dataset:
    """One grey domain, split by class; a class is named "<alphabet>/<character>"."""
    background, evaluation = (alphabets(root / file.path) for file in _require(root))
    held_out = list(background)[VALIDATION_EVERY - 1 :: VALIDATION_EVERY]
    train = {name: images for one in background if one not in held_out for name, images in background[one].items()}
    validation = {name: images for one in held_out for name, images in background[one].items()}
    test = {name: images for each in evaluation.values() for name, images in each.items()}
    sizes = (len(train) + len(validation), len(test))
    of = f"{sizes[0]} + {sizes[1]} characters of {CLASSES[0]} + {CLASSES[1]}"
    note = "" if sizes == CLASSES else f"omniglot is not as published: {of}"
    return class_split.read("omniglot", ClassSplit(train, validation, test), SOURCE, note, colour=False)


def check(root: Path) -> list[str]:
    """One line per folder; its images are counted, but none is decoded."""

    def count(folder: Path) -> int:
        return sum(len(images) for each in alphabets(folder).values() for images in each.values())

    return [file.state(root, count, 20 * classes) for file, classes in zip(LAYOUT, CLASSES, strict=True)]


def fetch(root: Path) -> None:
    """Downloads through torchvision, unless the files are there."""
    _require(root)


def alphabets(folder: Path) -> dict[str, dict[str, list[Path]]]:
    """Alphabet -> class -> images of one of the two folders; UserError for an empty one."""
    each = {one.name: class_split.folders_of(one, f"{one.name}/") for one in tree.entries(folder) if one.is_dir()}
    if not each:
        raise UserError(f"{folder} is empty; it must hold one folder per alphabet")
    return each


def _require(root: Path) -> tuple[File, ...]:
    return tuple(files.require("omniglot", [LAYOUT], root, _download))


def _download(root: Path) -> None:
    def both(datasets: object) -> None:
        for background in (True, False):
            datasets.Omniglot(root, background=background, download=True)  # type: ignore[attr-defined]

    attempt("omniglot", lambda d: [[f"{d.Omniglot.download_url_prefix}/{part}.zip"] for part in PARTS], both)
