"""Data sets by name: embedded ones need nothing, full ones are read from a folder and fetched when they are absent.

One file per data set; `partition` distributes one over clients, `readers/` reads files. May import registry, types and what
stands below them.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from privbench import registry
from privbench.data.dataset import SIDE, Dataset
from privbench.errors import UserError
from privbench.system import places


def folder(root: Path | None) -> Path:
    """Where full data sets lie: the folder given, else that of PRIVBENCH_DATA, else the default one.

    UserError where a folder that was named is not there.
    """
    named = root if root is not None else os.environ.get("PRIVBENCH_DATA")
    if not named:
        return default_folder()
    if not Path(named).is_dir():
        raise UserError(f"there is no folder {named}, which --data-dir or PRIVBENCH_DATA names")
    return Path(named)


def default_folder() -> Path:
    """Where data sets are downloaded to, and looked for unless a folder is named."""
    return places.data()


def load(name: str, root: Path | None, domains: tuple[str, ...] | None = None, side: int = SIDE) -> Dataset:
    """The data set; `domains` chooses among those of a data set that has several.

    Images are 32x32; with a larger `side` they are that large where the originals are (privbench/data/readers/resize.py).
    """
    if domains is not None and len(set(domains)) < len(domains):
        raise UserError(f"--domains names one of {', '.join(domains)} twice")
    if name.startswith(registry.FOLDER):
        reader, path = _folder_reader(name)
        return reader.load(path, domains)
    loader = registry.resolve("dataset", name)
    module = registry.module("dataset", name)
    available = getattr(module, "DOMAINS", ())
    if domains is not None and not available:
        raise UserError(f"{name} has one domain only; leave --domains out")
    for domain in domains or ():
        if domain not in available:
            raise UserError(f"{name} has no domain '{domain}'; known: {', '.join(available)}")
    chosen: dict[str, Any] = {"domains": domains} if available else {}
    if side > SIDE and getattr(module, "LARGER_ORIGINALS", False):
        chosen["side"] = side
    made = loader if name in registry.DATASETS else partial(_of_plug_in, name, loader)
    return made(folder(root), **chosen)


def _of_plug_in(name: str, loader: Callable[..., Dataset], root: Path | None, **chosen: Any) -> Dataset:
    """What a user's own loader returns; UserError where it fails, or returns no data set."""
    try:
        loaded = loader(root, **chosen)
    except UserError:
        raise
    # A user's own code may raise anything.
    except Exception as error:
        raise UserError(f"data set '{name}' cannot be loaded: {registry.where_it_failed(error)}") from error
    if not isinstance(loaded, Dataset):
        raise UserError(f"data set '{name}' should return a Dataset, but it returned a {type(loaded).__name__}")
    return loaded


def check(name: str, root: Path | None) -> list[str]:
    """One line per file: present (and whether it is the published one), missing, or damaged."""
    if name.startswith(registry.FOLDER):
        reader, path = _folder_reader(name)
        return list(reader.check(path))
    module = registry.module("dataset", name)
    if not hasattr(module, "check"):
        return [f"{name} names no files: nothing to check"]
    return list(module.check(folder(root)))


def fetch(name: str) -> None:
    """Downloads the data set through torchvision to the default folder; UserError where that cannot be done."""
    if name.startswith(registry.FOLDER):
        raise UserError(f"{name} is a folder of your own: there is nothing to fetch; `privbench data check` reads it")
    module = registry.module("dataset", name)
    if hasattr(module, "fetch"):
        module.fetch(default_folder())


def content(name: str) -> str | None:
    """What distinguishes one content of a user's own folder from another, part of a run's name; None for all other data sets."""
    if not name.startswith(registry.FOLDER):
        return None
    reader, path = _folder_reader(name)
    return str(reader.survey(path).content)


def _folder_reader(name: str) -> tuple[Any, Path]:
    """(the reader of folders, the path of one)."""
    reader = importlib.import_module("privbench.data.image_folder")
    return reader, reader.path_of(name)
