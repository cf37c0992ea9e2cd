"""The studies that are shipped, as files: what of them can be told without importing torch."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from privbench.errors import UserError

ENDING = ".toml"
MOST_BYTES = 2**20  # of a file of a user's own


def names() -> list[str]:
    """Every study that is shipped."""
    folder = resources.files("reports") / "studies"
    return sorted(entry.name.removesuffix(ENDING) for entry in folder.iterdir() if entry.name.endswith(ENDING))


def text(name: str) -> str:
    """The file of a study that is shipped."""
    return (resources.files("reports") / "studies" / f"{name}{ENDING}").read_text(encoding="utf-8")


def of_user(path: Path) -> bytes:
    """The content of a file of a user's own; UserError where it cannot be read, or is larger than any study."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UserError(f"cannot read the study {path}: {error.strerror or error}") from error
    if len(content) > MOST_BYTES:
        raise UserError(f"the study {path} has more than {MOST_BYTES} bytes, and no study is as large")
    return content
