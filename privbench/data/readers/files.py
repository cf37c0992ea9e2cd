"""Files of full data sets: where they lie, whether they are the published ones, and what to do when they are absent.

A data set may lie in one of several layouts (the publisher's, torchvision's); a layout is the tuple of its files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from privbench.data.readers import download
from privbench.errors import UserError

Fetch = Callable[[Path], None]


class File(NamedTuple):
    """A file or folder of a data set, relative to the data folder."""

    path: str
    digests: tuple[str, ...] = ()  # SHA-256 or MD5: the published file first, then known copies of the same content
    subsets: bool = False  # whether a file with another checksum may be a rightful one, e.g. a smaller selection

    def published(self, root: Path) -> bool:
        """Whether it is the published file, bit for bit; without a known checksum nothing is claimed against it."""
        return not self.digests or digest(root / self.path, self.digests[0]) == self.digests[0]

    def verified(self, root: Path) -> Path:
        """The path, after its checksum was compared; a damaged file is named."""
        place = root / self.path
        if self.digests and not self.subsets and not any(digest(place, known) == known for known in self.digests):
            raise UserError(f"{place} is damaged (its checksum is not the published one); remove it and fetch it again")
        return place

    def state(self, root: Path, count: Callable[[Path], int] | None = None, published_images: int | None = None) -> str:
        """One line for `privbench data check`; `count` reads a file whose checksum does not decide, and counts its images."""
        place = root / self.path
        if not place.exists():
            return f"missing   {place}"
        try:
            published = bool(self.digests) and self.published(root)
            self.verified(root)
            images = count(place) if count is not None and not published else None
        except UserError as error:
            return f"damaged   {error}"
        if published:
            return f"present   {place} (the published file)"
        of = f" of {published_images:,}" if published_images is not None else ""
        remarks = [f"{images:,} readable images{of}"] if images is not None else []
        remarks += ["not the published file"] if self.digests else []
        return f"present   {place}" + (f" ({'; '.join(remarks)})" if remarks else "")


def digest(path: Path, like: str = "") -> str:
    """The hexadecimal digest of a file, with the algorithm of a digest `like` it: MD5 for 32 digits, else SHA-256."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "md5" if len(like) == 32 else "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error


def present(layouts: Sequence[Sequence[File]], root: Path) -> Sequence[File] | None:
    """The first layout whose files are all there."""
    return next((files for files in layouts if all((root / file.path).exists() for file in files)), None)


def nearest(layouts: Sequence[Sequence[File]], root: Path) -> Sequence[File]:
    """The layout that is there, else the one that lacks the fewest files in a folder that is begun, else the first."""
    return present(layouts, root) or max(layouts, key=lambda files: sum((root / file.path).exists() for file in files))


def require(name: str, layouts: Sequence[Sequence[File]], root: Path, fetch: Fetch | None) -> Sequence[File]:
    """The layout that is there; fetches once when there is none. UserError: which files to put where."""
    found = present(layouts, root)
    if found is not None:
        return found
    reason = "it cannot be downloaded automatically"
    if fetch is not None:
        try:
            download.into(root, fetch, lambda: present(layouts, root) is not None)
        except UserError as error:
            reason = str(error)
        found = present(layouts, root)
        if found is not None:
            return found
    missing = ", ".join(file.path for file in nearest(layouts, root) if not (root / file.path).exists())
    raise UserError(f"{name} needs {missing} under {root} ({reason}); put the files there or point --data-dir at them")
