"""The JSON index of a folder of tensor files, as observations and captures have it: read within bounds, its checksum checked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from privbench.errors import Damaged, UserError
from privbench.system.file_headers import short, strict_json

SHA256 = "sha256"  # the name under which an index holds the digest of its other content


def digest(content: Mapping[str, Any]) -> str:
    """SHA-256 of canonical JSON: names sorted, no spaces."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read(path: Path, form: str, version: int, most_bytes: int, depth: int) -> dict[str, Any]:
    """What an index says of format `form`, its checksum included; what it says is still to be checked.

    UserError of one line: it cannot be read, is larger or deeper nested than allowed, is of another format or version, or does not
    match its checksum.
    """
    try:
        if path.stat().st_size > most_bytes:
            raise ValueError(f"it has more than {most_bytes} bytes")
        value = strict_json(path.read_bytes(), finite=True, depth=depth)
    except (OSError, ValueError) as error:
        raise Damaged(f"{path} is damaged ({short(error)})") from error
    if not isinstance(value, dict) or value.get("privbench") != form:
        kind = short(value.get("privbench", "a foreign file")) if isinstance(value, dict) else "a foreign file"
        raise UserError(f"{path} is not the index of a privbench {form} but {kind}")
    if type(value.get("version")) is not int or value["version"] != version:
        raise UserError(f"{path} has format version {short(value.get('version'))}; this privbench reads {version}")
    if value.get(SHA256) != digest({name: entry for name, entry in value.items() if name != SHA256}):
        raise Damaged(f"{path} is damaged (its content does not match its checksum)")
    return value
