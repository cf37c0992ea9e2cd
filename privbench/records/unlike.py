"""What two results of the same specification do not share, but for time and place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# Never the same twice, or the place itself.
TIMED = ("seconds", "train_seconds", "attack_seconds", "aggregation_seconds", "peak_memory_mib", "machine")


def unlike(a: Any, b: Any, where: str) -> Iterator[str]:
    """One line per entry that two JSON values do not share, but for what is TIMED; `where` is the name that both lie under."""
    if isinstance(a, dict) and isinstance(b, dict):
        # Ciphertexts of a secure sum compress to other sizes every time.
        measured = (*TIMED, "bytes_up") if a.get("aggregation_seconds") and b.get("aggregation_seconds") else TIMED
        for name in sorted(a.keys() | b.keys()):
            if name not in measured:
                yield from unlike(a.get(name), b.get(name), f"{where}.{name}" if where else name)
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from unlike(x, y, f"{where}[{i}]")
    elif a != b:
        yield f"{where}: {a!r} then, {b!r} now"
