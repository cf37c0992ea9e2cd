"""DomainNet: the ten largest classes of 586,575 pictures in six domains, resized to 32x32; Painting is held out (FedDF).

Peng, Bai, Xia, Huang, Saenko, Wang: Moment Matching for Multi-Source Domain Adaptation, ICCV 2019 (fair use, research only).
Layout: domainnet/<domain>/<class>/<image>, beside it the published lists <domain>_train.txt and <domain>_test.txt with lines
"<domain>/<class>/<image> <number>". Where both lists of a domain are there, they say which files belong to it (so the
"cleaned" release is distinguished from the raw one); else all images of its folders do.

Half of each class of each domain trains, drawn per seed (FedCG section 5; privbench/data/partition.py); with lists, the training
half is drawn from the training list, so that no published test image is ever trained on. The classes are the largest ones over all
domains that are there; the paper does not say which it got. The whole picture is squashed to a square; large JPEGs are decoded
at a reduced scale.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

from privbench.data.dataset import Dataset, Domain
from privbench.data.readers import files, tree
from privbench.data.readers.files import File
from privbench.data.readers.formats import damaged
from privbench.errors import UserError
from privbench.types import Images

SOURCE = "DomainNet (Peng et al. 2019; fair use, research only)"
PUBLISHED = ("clipart", "infograph", "quickdraw", "real", "sketch")  # one client each
PUBLIC = "painting"
DOMAINS = (*PUBLISHED, PUBLIC)
FOLDERS = ("domainnet", "DomainNet")
CLASSES = 10


class ClassFiles(NamedTuple):
    """The files of one class in one domain, apart when the published lists set them apart."""

    train: list[Path]
    test: list[Path]  # listed for testing; without lists all files are in `train`


Listing = dict[str, ClassFiles]  # class -> files


def load(root: Path, domains: tuple[str, ...] | None = None) -> Dataset:
    """One domain per client, flipped in training as in the reference implementation; Painting, if no client's, is public."""
    names = domains or PUBLISHED
    folder = _require(names, root)
    listings = {name: listing(folder, name) for name in DOMAINS if (folder / name).is_dir()}
    classes = largest(listings)
    loaded = {name: read_domain(name, listings[name], classes) for name in names}
    parts = [] if names == PUBLISHED else [f"domainnet with the domains {', '.join(names)} only"]
    if len(listings) < len(DOMAINS):
        parts.append(f"its ten largest classes are those of {', '.join(listings)} alone")
    public = None
    if PUBLIC not in names and PUBLIC in listings:
        public = _together([(k, _all(listings[PUBLIC].get(name))) for k, name in enumerate(classes)])
    return Dataset(
        "domainnet", classes, loaded, flip=True, source=SOURCE, note="; ".join(parts), public=public, halved=True
    )


def check(root: Path) -> list[str]:
    """One line per domain; its lists are read and every file they name is looked for, but no image is decoded."""
    layout = files.nearest(_layouts(DOMAINS), root)

    def count(folder: Path) -> int:
        return sum(len(each.train) + len(each.test) for each in listing(folder.parent, folder.name).values())

    return [file.state(root, count) for file in layout]


def fetch(root: Path) -> None:
    """There is no download of it in torchvision: UserError unless it is there."""
    _require(DOMAINS, root)


def listing(folder: Path, domain: str) -> Listing:
    """Class -> files of one domain, from the published lists when both are there, else from its folders."""
    lists = [folder / f"{domain}_{part}.txt" for part in ("train", "test")]
    present = [path for path in lists if path.is_file()]
    if len(present) == 1:
        raise UserError(f"{present[0]} is there, but its other half is not; put both lists there, or none")
    by_class: Listing = {}
    if present:
        for part, path in enumerate(lists):
            for file in read_list(path, folder, domain):
                by_class.setdefault(file.parent.name, ClassFiles([], []))[part].append(file)
    else:
        for path in tree.entries(folder / domain):
            if path.is_dir():
                by_class[path.name] = ClassFiles(tree.images_of(path), [])
    if not any(each.train for each in by_class.values()):
        raise UserError(f"{folder / domain} is empty: it must hold one folder of images per class")
    return by_class


def read_list(path: Path, folder: Path, domain: str) -> list[Path]:
    """The files that a list of "<domain>/<class>/<image> <number>" lines names; UserError: the line or file that is wrong."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise damaged(path, "no readable list") from error
    present: dict[str, set[str]] = {}  # one listing of each folder, no access to each of half a million files
    named = []
    for line in lines:
        name, _, number = line.rpartition(" ")
        parts = name.split("/")
        if len(parts) != 3 or parts[0] != domain or ".." in parts or not all(parts) or not number.isdigit():
            raise damaged(path, f"its line '{line[:60]}' is not {domain}/CLASS/IMAGE and a number")
        if parts[1] not in present:
            class_folder = folder / domain / parts[1]
            present[parts[1]] = {entry.name for entry in tree.entries(class_folder)} if class_folder.is_dir() else set()
        if parts[2] not in present[parts[1]]:
            raise UserError(f"{folder / name} is missing, but {path.name} names it; put it there again")
        named.append(folder / name)
    return named


def largest(listings: dict[str, Listing]) -> tuple[str, ...]:
    """The ten classes with the most images over all domains, in alphabetical order; of equals the first ones."""
    totals: dict[str, int] = {}
    for domain in listings.values():
        for name, of_class in domain.items():
            totals[name] = totals.get(name, 0) + len(of_class.train) + len(of_class.test)
    if len(totals) < CLASSES:
        raise UserError(f"domainnet needs {CLASSES} classes, but its folders hold {len(totals)}: {', '.join(totals)}")
    return tuple(sorted(sorted(totals, key=lambda name: (-totals[name], name))[:CLASSES]))


def read_domain(domain: str, by_class: Listing, classes: tuple[str, ...]) -> Domain:
    """The images of a domain, class after class; those of the published test list apart."""
    train, test = [], []
    for label, name in enumerate(classes):
        of_class = by_class.get(name, ClassFiles([], []))
        count = len(of_class.train) + len(of_class.test)
        if count < 2 or not of_class.train:
            raise UserError(f"domainnet's {domain} must hold two images or more of '{name}', but it holds {count}")
        train.append((label, of_class.train))
        test.append((label, of_class.test))
    whole = _together(train)
    listed = _together(test) if any(paths for _, paths in test) else Images(whole.images[:0], whole.labels[:0])
    return Domain(whole, listed)


def _together(groups: list[tuple[int, list[Path]]]) -> Images:
    groups = [(label, paths) for label, paths in groups if paths]
    images = [tree.read(paths) for _, paths in groups]
    labels = [torch.full((len(paths),), label) for label, paths in groups]
    return Images(torch.cat(images), torch.cat(labels))


def _all(of_class: ClassFiles | None) -> list[Path]:
    return [] if of_class is None else of_class.train + of_class.test


def _layouts(domains: tuple[str, ...]) -> list[tuple[File, ...]]:
    return [tuple(File(f"{folder}/{domain}") for domain in domains) for folder in FOLDERS]


def _require(domains: tuple[str, ...], root: Path) -> Path:
    return root / Path(files.require("domainnet", _layouts(domains), root, None)[0].path).parent
