"""One JSON file per finished cell: written atomically, read with its schema checked."""

from __future__ import annotations

SCHEMA = 1
