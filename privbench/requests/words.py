"""What the words of a command line mean: settings, several names in one word, data sets with their domains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from privbench import registry
from privbench.errors import UserError

Datasets = list[tuple[str, tuple[str, ...] | None]]


def several(together: str | None, each: list[str] | None) -> tuple[str, ...] | None:
    """Names given together, with commas, and one by one; None where there are none."""
    names = [name.strip() for name in (together or "").split(",") if name.strip()] + (each or [])
    return tuple(names) or None


def settings(pairs: list[str] | None) -> dict[str, Any]:
    """name=value of each pair, with numbers and booleans read as such.

    UserError for one without "=", and for a name that is there twice.
    """
    values: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, text = pair.partition("=")
        if not equals:
            raise UserError(f"a setting is written name=value, but '{pair}' was given")
        if name in values:
            raise UserError(f"the setting {name} is given twice; leave one out")
        values[name] = value(text)
    return values


def value(text: str) -> float | int | str | bool:
    """A setting's value as the command line has it."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def data_sets(text: str | None, each: list[str] | None) -> Datasets | None:
    """Data sets with their domains: those named together, plain names, and those named one by one; None where none is."""
    together = [] if text is None else text.replace(",", " ").split()
    if text is not None and not together:
        raise UserError("--datasets names no data set")
    for token in together:
        if token.startswith(registry.FOLDER) and not _is_folder(token) and len(together) > 1:
            raise UserError(
                f"there is no {token}; a path with blanks or commas in it is named by --dataset, one at a time"
            )
    return [_with_domains(token) for token in [*together, *(each or [])]] or None


def default_data_sets(preset: str, full: bool) -> str | None:
    """Those of the attack table: for a first look `photos` alone, else the embedded ones."""
    return "photos" if preset == "quick" and not full else "photos digits digits4"


def _with_domains(token: str) -> tuple[str, tuple[str, ...] | None]:
    """NAME or NAME:DOMAIN+DOMAIN; the NAME of a user's own folder has a colon too, and its path may have more."""
    colons = token.count(":") > token.startswith(registry.FOLDER) and not _is_folder(token)
    name, colon, domains = token.rpartition(":") if colons else (token, "", "")
    return registry.typed("dataset", name), tuple(domains.split("+")) if colon else None


def _is_folder(token: str) -> bool:
    return token.startswith(registry.FOLDER) and Path(token.removeprefix(registry.FOLDER)).expanduser().is_dir()
