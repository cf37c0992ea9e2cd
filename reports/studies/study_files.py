"""The studies that are shipped, as files: what of them can be told without importing torch."""

from __future__ import annotations

from importlib import resources

ENDING = ".toml"


def names() -> list[str]:
    """Every study that is shipped."""
    folder = resources.files("reports") / "studies"
    return sorted(entry.name.removesuffix(ENDING) for entry in folder.iterdir() if entry.name.endswith(ENDING))


def text(name: str) -> str:
    """The file of a study that is shipped."""
    return (resources.files("reports") / "studies" / f"{name}{ENDING}").read_text(encoding="utf-8")
